"""Pages about topologies run from their first block to their last, each as one program that imports no Spark."""

import re
from pathlib import Path
from typing import get_type_hints

import pytest
from typer.main import get_command

from acker_redis import cli, storm
from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.definition import settings
from acker_redis.storm.local.run import LocalRun
from acker_redis.storm.turns.checks import check_graph
from acker_redis.storm.turns.plan import levels_of
from tests.docs.test_readme import blocks, page, run_program
from tests.support.servers import VALKEY

PYTEST = """
import sys

if __name__ == "__main__":  # a test module: pytest calls its functions
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-n", "0", __file__]))
"""

STREAMPARSE = """
import sys

import acker_redis.storm

sys.modules["streamparse"] = acker_redis.storm  # a ported program changes its import, and nothing else
"""

PAGES = {
    "topologies.md": ("", ""),
    "port.md": (STREAMPARSE, ""),
    "testing.md": ("", PYTEST),
}
"""Code that runs before the blocks of a page, and after them."""

FEATURES = "docs/topologies/features.md"

WITHOUT_SPARK = """
import sys

assert not any(name.partition(".")[0] == "pyspark" for name in sys.modules)
"""


@pytest.mark.server
@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_of_a_page_about_topologies_run(name: str, tmp_path: Path) -> None:
    before, after = PAGES[name]
    with VALKEY.server() as server:
        parts = [before, *blocks("python", f"docs/topologies/{name}"), WITHOUT_SPARK, after]
        run_program("\n".join(parts), server.url, tmp_path)


def test_every_setting_of_storm_is_listed_with_its_effect() -> None:
    parts = re.split(r"^\*\*(?:Honoured|The business|Without effect)", page(FEATURES), flags=re.MULTILINE)[1:]
    honoured, machines, without = ([row for row in part.splitlines() if row.startswith("| `")] for part in parts)
    listed = [re.findall(r"`(topology\.[\w.-]+)`", row.split("|")[1]) for row in honoured]
    known = set(settings.known_names())
    assert sorted(name for names in listed for name in names) == sorted(
        known - settings.SPARKS - settings.WITHOUT_EFFECT
    )
    assert sorted(re.findall(r"`(topology\.[\w.-]+)`", "".join(machines))) == sorted(settings.SPARKS)
    assert sorted(re.findall(r"`(topology\.[\w.-]+)`", "".join(without))) == sorted(settings.WITHOUT_EFFECT)


def feature_rows() -> list[list[str]]:
    """Cells of the tables before the settings."""
    lines = page(FEATURES).partition("## Settings")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]


def test_every_feature_of_storm_says_what_it_is_in_process_and_on_spark() -> None:
    rows = feature_rows()
    heads = [row for row in rows if row[0] == "Storm, streamparse"]
    assert len(heads) == 5 and all(row == ["Storm, streamparse", "in process", "on Spark"] for row in heads)
    assert len(rows) > 70
    for row in rows:
        assert len(row) == 3 and all(row), row
        assert not re.fullmatch(r"(none|refused)\W*", row[2]), f"without a reason: {row}"
        if row[1].startswith(("none", "refused")):
            assert row[2] != "the same", row


def test_names_in_the_features_exist() -> None:
    """Attributes of public classes, and commands."""
    text = "\n".join(" ".join(row[1:]) for row in feature_rows())
    found = re.findall(r"`(run|[A-Z]\w+)\.(\w+)[`(]", text)
    public = {owner: getattr(storm, owner) for owner, _ in found if hasattr(storm, owner)}
    assert {"Spout", "Bolt", "Grouping", "StatefulBolt", "RunResult", "Topology"} <= public.keys()
    for owner, name in found:
        if owner in public:
            assert name in {*dir(public[owner]), *get_type_hints(public[owner])}, f"{owner}.{name}"
        elif owner == "run":
            assert hasattr(LocalRun, name), f"run.{name}"
    commands = re.findall(r"`acker-redis (?:(topology) )?([a-z-]+)", text)
    tree = get_command(cli.app)
    for group, name in commands:
        known = tree.commands["topology"].commands if group else tree.commands  # type: ignore[attr-defined]
        assert name in known, name
    assert ("topology", "metrics") in commands


class Numbers(storm.Spout):
    outputs = ("v",)

    def next_tuple(self) -> None: ...


class Passes(storm.Bolt):
    outputs = ("v",)

    def process(self, tup: object) -> None: ...


def check_on_spark(name: str) -> None:
    """Check a topology that uses this feature, as `run` does."""
    builder = storm.TopologyBuilder()
    builder.set_spout("spout", storm.FeederSpout(["v"]) if name == "FeederSpout" else Numbers)
    builder.set_bolt("first", Passes).shuffle_grouping("spout")
    if name == "cycles":
        builder.set_bolt("second", Passes).shuffle_grouping("first").shuffle_grouping("second")
    graph = builder.create_topology("checked")._checked_graph()
    levels_of(graph)
    check_graph(graph)


@pytest.mark.parametrize("name", ["FeederSpout", "cycles"])
def test_features_that_the_table_refuses_on_spark_are_refused(name: str) -> None:
    assert any(name in row[0] and "refused" in row[2].lower() for row in feature_rows())
    check_on_spark("none of them")
    with pytest.raises(InvalidTopologyError):
        check_on_spark(name)
