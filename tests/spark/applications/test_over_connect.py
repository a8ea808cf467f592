"""Pipelines of the README and the docs, examples and applications run over Spark Connect: only SPARK_REMOTE is set."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pyarrow.parquet as pq
import pytest

from spark.support.connect import Server, command
from tests.docs import test_docs
from tests.docs.test_readme import blocks, program
from tests.spark.applications.test_examples import PROGRAMS, promised, rotating
from tests.support.spark import session
from tests.support.spark.warm import Warm

pytestmark = [pytest.mark.spark, pytest.mark.connect]

NEEDS_ANOTHER_HANDLER = "A stream needs an absolute checkpoint location over Spark Connect (docs/guides/streams.md)."

PAGES = tuple(
    f"{name}.md" for name in (
        "guides/aggregates", "guides/applications", "operate/run-again", "operate/hosted-spark", "topologies/from-storm",
        "topologies/spark",
    )
)  # fmt: skip
"""Pages whose programs run here. The master of a classic session is taken out of them."""

CLASSIC = "of_stream"
"""What the program of a `BatchSpout` is called. It needs a classic session, so blocks and checks with it are left out."""

ARGUMENTS = {
    "sentences": ("--sentences", "100", "--json"),
    "word_count": ("--max-lines", "500", "--fail-rate", "0.02", "--json"),
}
"""Applications that run here, with their arguments. The direct acks have a test of their own."""

NOT_HERE = {
    "guides/from-queues.md": NEEDS_ANOTHER_HANDLER,
    "guides/once.md": "once= is refused over Spark Connect (docs/guides/once.md).",
    "guides/spark.md": NEEDS_ANOTHER_HANDLER,
    "guides/streams.md": NEEDS_ANOTHER_HANDLER,
    "access_logs": NEEDS_ANOTHER_HANDLER,
    "kafka_words": "It kills drivers, and rebalances were tried in classic sessions alone (docs/guides/kafka.md).",
    "order_stream": NEEDS_ANOTHER_HANDLER,
}
"""Pages and applications that don't, and why."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Clients of a server whose workers have the library installed, as far as they can tell."""
    folder = tmp_path_factory.mktemp("connect")
    (folder / "work").mkdir()
    session.prepare()
    server = Server(command(session.MASTER, "programs"), os.environ, folder / "work")
    server.start(**session.settings_in(folder))
    clients = Warm(folder / "work", PYTHONPATH=str(session.ROOT), SPARK_REMOTE=server.url)
    yield clients
    clients.stop()
    server.stop()


@pytest.mark.parametrize("name", ["README.md", "docs/start/pipeline.md"])
def test_pipeline_runs_over_connect(programs: Warm, url: str, name: str) -> None:
    shown = programs.run(program(name), url)
    assert "emitted=5, acked=2, failed=3, timed_out=0, lost=0, replayed=2, dead_lettered=1, late=0" in shown
    assert "last_component='split', detail=" in shown
    expected = [(1, "milk"), (1, "tea"), (2, "bread")]
    if name != "README.md":
        rows = [row for path in programs.folder.glob("items/*.parquet") for row in pq.read_table(path).to_pylist()]
        assert sorted((row["order"], row["item"]) for row in rows) == expected
        return
    with closing(sqlite3.connect(programs.folder / "items.sqlite")) as store:
        assert sorted(store.execute("SELECT * FROM items")) == expected


def test_examples_print_their_documented_output_over_connect(programs: Warm, url: str) -> None:
    with rotating(url):
        status, printed, errors = programs.run_module("tests.support.jobs.examples_job", *PROGRAMS, url=url)
    assert status == 0, errors
    found = json.loads(printed.splitlines()[-1])
    assert {name: text.strip() for name, text in found.items()} == {name: promised(name) for name in PROGRAMS}


@pytest.mark.parametrize("name", PAGES)
def test_python_blocks_of_a_docs_page_run_over_connect(programs: Warm, url: str, name: str) -> None:
    before, after = test_docs.PAGES[name]
    shown = [block for block in blocks("python", f"docs/{name}") if CLASSIC not in block]
    text = "\n".join([before, *shown, *(line for line in after.splitlines() if CLASSIC not in line)])
    with rotating(url):
        programs.run(re.sub(r'\.master\("[^"]*"\)', "", text), url)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_application_accounts_for_every_message_over_connect(programs: Warm, url: str, name: str) -> None:
    with rotating(url):
        status, printed, errors = programs.run_module(f"spark.applications.{name}", *ARGUMENTS[name], url=url)
    assert status == 0, (printed, errors)
    for line in printed.splitlines():
        found = json.loads(line)
        assert found["acked"] > 0 and not found.get("wrong") and found.get("accounted_for", True)


def test_direct_acks_complete_both_applications_over_connect(programs: Warm) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark.applications.direct_acks.demo", "--orders", "100"], cwd=session.ROOT,
        env={**os.environ, **programs.environment}, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "99 of 100 orders done" in done.stdout and "second application: 250 items priced" in done.stdout
