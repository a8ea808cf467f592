"""Pipelines drawn at random for as long as asked; every seed is printed, and what shows a fault is reduced."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.spark.session import Sessions

pytestmark = pytest.mark.chaos

SECS = float(os.environ.get("ACKER_CHAOS_SECS", "600"))
REDUCE_SECS = 300.0
"""No more pipelines are tried to reduce one when so much time has passed."""


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator["Sessions"]:
    from tests.support.spark.session import Sessions

    sessions = Sessions(tmp_path)
    yield sessions
    sessions.stop()


@pytest.mark.timeout(SECS + 2 * REDUCE_SECS + 300)
def test_random_pipelines_show_no_faults(
    sessions: "Sessions", url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.model_based.pipelines.judge import Fault, judge
    from tests.model_based.pipelines.pipeline import Pipeline, draw
    from tests.model_based.pipelines.play import play
    from tests.model_based.pipelines.reduce import reduced

    first = int(os.environ.get("ACKER_CHAOS_SEED") or random.SystemRandom().randrange(10**9))
    until = time.monotonic() + SECS
    runs = 0

    def say(line: object) -> None:
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201

    def faults(pipeline: Pipeline) -> list[Fault]:
        nonlocal runs
        runs += 1
        return judge(pipeline, play(pipeline, sessions.live(), url, tmp_path / f"run{runs}"))

    def faults_for_a_while(pipeline: Pipeline) -> list[Fault]:
        return faults(pipeline) if time.monotonic() < until + REDUCE_SECS else []

    bad: list[str] = []
    seed = first
    while time.monotonic() < until and len(bad) < 3:
        pipeline = draw(seed).with_ids_in_range() if seed % 2 else draw(seed)
        found = faults(pipeline)
        say(f"seed {seed}: {f'{len(found)} faults' if found else 'right'}")
        if found:
            say("\n".join([str(pipeline), *map(str, found[:3])]))
            smaller = reduced(pipeline, found[0].kind, faults_for_a_while)
            bad.append("\n".join([f"seed {seed}, {found[0]}, reduced:", str(smaller)]))
            say(bad[-1])
        seed += 1
    assert not bad, "\n\n".join(bad)
    assert seed > first
