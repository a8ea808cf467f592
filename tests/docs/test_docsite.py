"""What the site of the docs is built of: every page is found in its navigation, links lead to the same page there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import acker_redis
from acker_redis import spark, storm
from acker_redis.client import scripts
from docsite import doctests, pages, reference

ROOT = Path(__file__).resolve().parents[2]


def named(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for one in nav.values() if isinstance(nav, dict) else nav:
            yield from named(one)


def test_every_page_is_in_the_navigation() -> None:
    """A page without a line in mkdocs.yml is on the site, but no reader finds it."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(named(config["nav"])) == sorted(written | set(pages.ELSEWHERE.values()) | reference.pages().keys())


def test_the_reference_has_every_public_name_script_and_command() -> None:
    texts = reference.pages()
    for name in set(acker_redis.__all__) - {"__version__"}:
        assert (f"::: acker_redis.{name}\n" in texts["reference/api/library.md"]) != (
            f"::: acker_redis.{name}\n" in texts["reference/api/errors.md"]
        )
    assert all(f"::: acker_redis.spark.{name}\n" in texts["reference/api/spark.md"] for name in spark.__all__)
    elsewhere = set(acker_redis.__all__) - {"Spout"}  # another class
    topologies = set(storm.__all__) - elsewhere
    assert all(f"::: acker_redis.storm.{name}\n" in texts["reference/api/topologies.md"] for name in topologies)
    assert all(
        f"::: acker_redis.testing.{name}\n" in texts["reference/api/testing.md"] for name in ("fake_acker", "settle")
    )
    for name in (*scripts.NAMES, *scripts.REPORTS):
        assert f"\n{name}: ".replace("_", "\\_") in texts["reference/api/scripts.md"]
    assert "## acker-redis dead-letters replay\n" in texts["reference/api/commands.md"]
    assert "Usage: acker-redis rotator [OPTIONS]" in texts["reference/api/commands.md"]
    assert texts["reference/api/commands.md"].count("Exit status:") == 0


@pytest.mark.parametrize(
    ("link", "there"),
    [
        ("[how](../guides/spark.md#proof)", "[how](../guides/spark.md#proof)"),
        ("[the scripts](../../lua/README.md#keys)", "[the scripts](../lua.md#keys)"),
        ("[`Acker.java`](https://example.org/a.md)", "[`Acker.java`](https://example.org/a.md)"),
        ("[below](#below)", "[below](#below)"),
        ("the [code](../../acker_redis/acker.py) of it", "the code of it"),
        ("![a ring](../images/ring.svg)", "![a ring](../images/ring.svg)"),
        ("```\n[not a link](nowhere.md)\n```\n", "```\n[not a link](nowhere.md)\n```\n"),
    ],
)
def test_links_lead_to_the_same_page(link: str, there: str) -> None:
    places = {
        "docs/internals/architecture.md": "internals/architecture.md",
        "docs/images/ring.svg": "images/ring.svg",
        "docs/guides/spark.md": "guides/spark.md",
        "lua/README.md": "lua.md",
    }
    assert pages.moved(link, "docs/internals/architecture.md", places, ROOT) == there


def test_links_of_pages_outside_docs_are_rewritten() -> None:
    places = {"docs/guides/spark.md": "guides/spark.md", "CONTRIBUTING.md": "contributing.md"}
    assert (
        pages.moved("[a](docs/guides/spark.md) [b](lua)", "CONTRIBUTING.md", places, ROOT) == "[a](guides/spark.md) b"
    )


def test_a_link_that_leads_nowhere_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"docs/guides/spark\.md: a link leads to nowhere\.md"):
        pages.moved("[x](nowhere.md)", "docs/guides/spark.md", {}, ROOT)


def test_site_pages_are_gathered_into_an_emptied_folder(tmp_path: Path) -> None:
    target = tmp_path / "site"
    target.mkdir()
    (target / "old.md").write_text("old")
    pages.gather(ROOT, target, {"reference/made.md": "# Made\n"})
    assert not (target / "old.md").exists()
    assert (target / "reference" / "made.md").read_text() == "# Made\n"
    assert (target / "images" / "ring.svg").read_bytes() == (ROOT / "docs" / "images" / "ring.svg").read_bytes()
    assert "(operate/on-call.md)" in (target / "lua.md").read_text(encoding="utf-8")


def test_docstring_examples_become_code_blocks() -> None:
    text = "Says it.\n\n>>> f(\n...     1)\n2\n\nMore.\n>>> g()"
    assert (
        doctests.as_code_blocks(text)
        == "Says it.\n\n```pycon\n>>> f(\n...     1)\n2\n```\n\nMore.\n```pycon\n>>> g()\n```"
    )
