"""Runs a pipeline and takes note of everything that the ledger was told and has told."""

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from acker_redis import Acker, RetryPolicy
from acker_redis.acker import app_of
from acker_redis.model.roots import root_ids
from acker_redis.spark import Progress, RunResult, Tracker, run_tracked
from acker_redis.testing import expire
from tests.model_based.pipelines.data import Row
from tests.model_based.pipelines.operators import Playing
from tests.model_based.pipelines.pipeline import Pipeline

LONGEST_SECS = 400.0
"""A run that takes longer waits for what will never come, even on a busy machine. A test has 600 s."""

ATTEMPTS = 2

MANY = 10**9
"""A bound that no run reaches. A run with a bound reads the ids first."""


class Watched(Acker):
    """An acker that remembers which roots it began, which outcomes it gave, and which roots failed as an emission."""

    begun: list[int]
    outcomes: defaultdict[int, list[str]]
    broken_off: dict[int, str]

    @classmethod
    def begin(cls, url: str) -> "Watched":
        """On an app of its own."""
        acker = cls.connect(url, app=f"random-{uuid.uuid4().hex}", shards=1)
        acker.begun, acker.outcomes, acker.broken_off = [], defaultdict(list), {}
        ledger = app_of(acker).ledger
        settle = ledger.settle

        def noted(roots: Any, *args: Any) -> Any:
            acker.begun += np.asarray(roots).astype(np.int64).tolist()
            return settle(roots, *args)

        ledger.settle = noted  # type: ignore[assignment, method-assign]
        return acker

    def init_many(self, roots: Any, *args: Any, **options: Any) -> Any:
        self.begun += np.asarray(roots).astype(np.int64).tolist()
        return super().init_many(roots, *args, **options)

    def fail_many(self, roots: Any, *args: Any, **options: Any) -> Any:
        if str(options.get("idempotency_key")).split(":")[-2] == "fail":  # those of failed rows end with more numbers
            reason = str(options.get("reason"))
            self.broken_off |= dict.fromkeys(np.asarray(roots).astype(np.int64).tolist(), reason)
        return super().fail_many(roots, *args, **options)

    def poll_batches(self, *args: Any, **options: Any) -> Any:
        found = super().poll_batches(*args, **options)
        for packed in found:
            for root in packed.roots.tolist():
                self.outcomes[root].append(packed.reason or "ack")
        return found


@dataclass
class Emitted:
    """One emission.

    Attributes:
        number: of it.
        folder: of its sinks.
        outcomes: message -> its outcomes: `ack`, `failed`, `timeout`.
        broken_off: why it failed as a whole; None: it did not.
    """

    number: int
    folder: Path
    outcomes: dict[int, list[str]] = field(default_factory=dict)
    broken_off: str | None = None


@dataclass
class Played:
    """What became of a run.

    Attributes:
        emissions: in their order.
        messages: with the ids that they had before the run.
        result: of the run; None if it raised.
        error: that ended it.
        secs: that it took.
    """

    emissions: list[Emitted]
    messages: list[Row]
    result: RunResult | None
    error: BaseException | None
    secs: float


@contextmanager
def _short_outages() -> Iterator[None]:
    """Delays in an outage grow from a fiftieth of a second."""
    with (
        patch("acker_redis.spout.retry._OUTAGE_DELAY_SECS", 0.02),
        patch("acker_redis.spout.emission_thread.WAIT_BASE_SECS", 0.02),
    ):
        yield


@contextmanager
def _settings(session: SparkSession, pipeline: Pipeline) -> Iterator[None]:
    settings = {
        "spark.sql.adaptive.enabled": str(pipeline.adaptive).lower(),
        "spark.sql.codegen.wholeStage": str(pipeline.codegen).lower(),
        "spark.sql.codegen.factoryMode": "FALLBACK" if pipeline.codegen else "NO_CODEGEN",
        "spark.sql.ansi.enabled": str(pipeline.ansi).lower(),
        "spark.sql.caseSensitive": str(pipeline.case_sensitive).lower(),
        "spark.sql.session.timeZone": pipeline.zone,
    }
    before = {name: session.conf.get(name) or "" for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)


def play(pipeline: Pipeline, session: SparkSession, url: str, folder: Path, *, reads_ids: bool = False) -> Played:
    """Run it to its end. With `reads_ids`, the ids are read before the pipeline runs."""
    (folder / "struck").mkdir(parents=True)
    local = str(session.conf.get("spark.local.dir"))
    emissions: list[Emitted] = []
    begun = time.monotonic()

    def run(tracker: Tracker, messages: DataFrame) -> None:
        emissions.append(Emitted(tracker.emission, folder / f"emission{tracker.emission}"))
        pipeline.run(Playing(tracker, pipeline.data, emissions[-1].folder, local), messages)

    def progress(now: Progress) -> None:
        acker.admin.rotate()
        if not now.is_emitting and time.monotonic() - begun > LONGEST_SECS:
            raise TimeoutError(f"after {LONGEST_SECS} s there still is {now.in_flight} pending")

    result, error = None, None
    run_id = uuid.uuid4().hex
    messages = pipeline.data.frame(session, folder / "messages")
    rows = pipeline.data.messages_in(messages)
    with Watched.begin(url) as acker, _settings(session, pipeline), _short_outages():
        try:
            result = run_tracked(
                messages, run, acker=acker, ids="id", run_id=run_id,
                retry=RetryPolicy(max_attempts=ATTEMPTS, first_delay_secs=0),
                max_spout_pending=MANY if reads_ids else pipeline.in_flight, progress=progress,
                stop_if_broken=False,  # a drawn sink may refuse every partition
            )  # fmt: skip
        except Exception as exc:
            error = exc
        for root, reason in expire(acker).items():
            acker.outcomes[root].append(reason)
        ids = np.array([row["id"] for row in rows], np.int64)
        known = set(acker.begun)
        for one in emissions:
            roots = root_ids(acker.config.app, run_id, ids, one.number).tolist()
            one.outcomes = {
                message: acker.outcomes[root]
                for message, root in zip(ids.tolist(), roots, strict=True)
                if root in known
            }
            one.broken_off = next((acker.broken_off[root] for root in roots if root in acker.broken_off), None)
    return Played(emissions, rows, result, error, time.monotonic() - begun)
