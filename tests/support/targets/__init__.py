"""Tables and databases to write to, and what a run must do with each: tests/spark/sinks/test_targets.py.

Each module has SETTINGS of its session and SCENARIOS. They run in `target_job.py`, whose JVM has the target's jars.
"""

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from pyspark.sql import DataFrame

from acker_redis import InexactPipelineError
from acker_redis.spark import Tracker
from acker_redis.spark.runtime.sessions import is_connect
from tests.support.spark.cases import Case, MakeCase, Row
from tests.support.spark.session import ROOT

Scenario: TypeAlias = Callable[[MakeCase], None]
Write: TypeAlias = Callable[[Tracker, DataFrame], object]

N = 20
TWO = "transform(array(0, 1), i -> struct(id, i AS child))"
PAGE = (ROOT / "docs" / "guides" / "sinks.md").read_text(encoding="utf-8")
TRUTH = {id: [(id, child) for child in range(2)] for id in range(N)}


class NotOverConnectError(Exception):
    """A scenario of classic sessions alone."""


def classic_only(run: Case) -> None:
    """Leave out the rest of a scenario over Spark Connect.

    Raises:
        NotOverConnectError: the session is one.
    """
    if is_connect(run.spark):
        raise NotOverConnectError


def check_proven(run: Case, write: Write, written: Callable[[], Iterable[Row]], *, output: str = "by_message") -> None:
    """Message 3 fails and 5 is emitted again; the target has the rows of all others once, and nothing of 3."""

    def pipeline(tracker: Tracker, messages: DataFrame) -> None:
        condition = f"id = 3 OR (id = 5 AND {tracker.emission} = 0)"
        write(tracker, tracker.explode(tracker.fail_where(messages, condition, "refused"), TWO))

    ended = run.done(pipeline, output=output)
    assert ended.acked == set(range(N)) - {3}, ended
    assert set(ended.letters) == {3}, ended.letters
    assert ended.emissions > 1
    found = sorted(tuple(row) for row in written())
    assert found == sorted(row for id, rows in TRUTH.items() if id != 3 for row in rows), found


def check_refused(run: Case, write: Write, *, output: str = "by_message") -> None:
    """In a case of its own: rows that Spark's own `where` has dropped end the run, and nothing is acked."""

    def lossy(tracker: Tracker, messages: DataFrame) -> None:
        write(tracker, tracker.explode(messages, TWO).where("id <> 7"))

    text = run.refused(lossy, InexactPipelineError, output=output)
    assert "missing or duplicated" in text, text


def check_released(run: Case) -> None:
    """Spark keeps nothing of the rows that the tracker computed for a sink. Delta's own state has a name.

    Of a server of Spark Connect its clients don't learn that.
    """
    if is_connect(run.spark):
        return
    kept = run.spark.sparkContext._jsc.getPersistentRDDs()
    unnamed = [number for number, rdd in kept.items() if rdd.name() is None]
    assert not unnamed, kept


def run_section(run: Case, title: str, bad: frozenset[int] = frozenset({7}), **names: object) -> None:
    """Run the blocks of a section of the page as a reader would who has a session, an acker, and orders.

    Orders without an item are `bad`, which the section sets aside. Where the program retries them, leave them out: a retry of
    the default policy takes minutes.
    """
    section = PAGE.split(f"\n## {title}\n")[1].partition("\n## ")[0]
    is_bad = f"id IN ({', '.join(map(str, bad))})" if bad else "false"
    orders = run.messages.selectExpr("id", f"if({is_bad}, NULL, concat('item ', id)) AS item")
    program = "\n".join(re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE))
    assert "run_tracked(" in program
    exec(compile(program, "sinks.md", "exec"), {"session": run.spark, "acker": run.acker, "orders": orders, **names})
    assert run.acker.stats().acked % (N - len(bad)) == 0
    assert {letter.message_id for letter in run.acker.dead_letters.read()} == bad
