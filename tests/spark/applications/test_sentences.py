"""`make storm`: two topologies on Spark, whose account closes; and accounts that don't."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.store import topology_counts
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.storm import RunResult
from acker_redis.storm.core.metrics import ComponentMetrics
from acker_redis.testing import wait_until
from spark.applications.sentences.account import account, summary
from spark.applications.sentences.topologies import Heard, demanded, kind_of
from tests.support import java
from tests.support.spark.warm import Warm

ROOT = Path(__file__).resolve().parents[3]
MODULE = "spark.applications.sentences"


@pytest.mark.spark
def test_sentences_of_both_topologies_are_accounted_for(url: str, warm: Warm) -> None:
    status, printed, errors = warm.run_module(MODULE, "--redis", url, "--sentences", "400", "--json", url=url)
    assert status == 0, (printed, errors)
    one, two = map(json.loads, printed.splitlines())
    assert (one["topology"], two["topology"]) == ("Words", "WordsAndEmpty")
    kinds = Counter(map(kind_of, range(400)))
    for found in (one, two):
        assert found["wrong"] == [] and found["workers_killed"] == 1
        assert found["dead_letters"] == {"hopeless": kinds["hopeless"], "refused": kinds["refused"]}
        assert found["acked"] == 400 - kinds["hopeless"] - kinds["refused"]
        assert found["emits"] == found["acked"] + found["failed"] + found["timed_out"]
    assert set(one["rows"]) == {"lower"} and two["rows"]["split:empty"][2] == kinds["empty"]


@pytest.mark.spark
@pytest.mark.chaos  # tests/cli/test_topology.py presses it, too
def test_ctrl_c_drains_the_topology_and_ends_with_130(url: str) -> None:
    command = [sys.executable, "-m", MODULE, "--redis", url, "--sentences", "100000", "--without-kill"]
    pipe = subprocess.PIPE
    program = subprocess.Popen(command, cwd=ROOT, env=java.preloaded(), stdout=pipe, stderr=pipe, text=True)
    try:
        with Acker.connect(url, app="sentences", message_timeout_secs=30) as acker:

            def has_acked() -> bool:
                counts = topology_counts.read(app_of(acker).client, "sentences", "Words")
                return counts is not None and bool(counts.components["lines"]["acked"])

            wait_until(lambda: program.poll() is not None or has_acked(), "a sentence is acked", 180)
            program.send_signal(signal.SIGINT)
            printed, errors = program.communicate(timeout=120)
    finally:
        program.kill()
    assert program.returncode == 130, errors
    assert "Every message is accounted for." in printed and "WordsAndEmpty" not in printed
    assert "Traceback" not in errors


@pytest.fixture
def ran(tmp_path: Path) -> dict[str, Any]:
    """A run of 60 sentences without mistakes."""
    (tmp_path / "words").mkdir()
    heard, letters = Heard(), []
    heard.emitted = 60
    for number in range(60):
        kind = kind_of(number)
        if kind in ("hopeless", "refused"):
            attempts = 3 if kind == "hopeless" else 1
            letters.append(DeadLetter(number, "run", attempts, "failed", "lower", detail=kind))
        else:
            heard.acked[number] = 1
    rows = sorted(row for number in heard.acked for row in demanded(number))
    metrics = {"lines": ComponentMetrics(), "__sink:lower": ComponentMetrics()}
    metrics["lines"].emitted["default"] = 58 + 4
    metrics["__sink:lower"].executed["lower:default"] = len(rows)
    result = RunResult("run", 58, 4, 0, 2, 0, metrics, [], 1.0)
    return {"result": result, "heard": heard, "letters": letters, "folder": tmp_path, "rows": rows}


def accounted(ran: dict[str, Any]) -> list[str]:
    names = ("number", "position", "word")
    table = pa.table(dict(zip(names, map(list, zip(*ran["rows"], strict=True)), strict=True)))
    pq.write_table(table, ran["folder"] / "words" / "part.parquet")
    of = account("Words", ran["result"], ran["heard"], ran["letters"], ran["folder"], None)
    assert ("Every message is accounted for." in summary(of)) is not bool(of.wrong)
    return of.wrong


def test_account_of_a_good_run_closes(ran: dict[str, Any]) -> None:
    assert accounted(ran) == []


def test_account_finds_a_lost_sentence(ran: dict[str, Any]) -> None:
    del ran["heard"].acked[5]
    assert "sentences are not the sum of acked, dead letters and unfinished" in accounted(ran)


def test_account_finds_lost_and_strange_rows(ran: dict[str, Any]) -> None:
    number, position, word = ran["rows"].pop()
    ran["rows"].append((number, position, word.upper()))
    wrong = accounted(ran)
    assert wrong == [
        f"sink lower lacks rows: {(number, position, word)}",
        f"sink lower has rows of no sentence: {(number, position, word.upper())}",
    ]


def test_account_finds_wrong_dead_letters_and_double_acks(ran: dict[str, Any]) -> None:
    ran["heard"].acked[1] += 1
    ran["letters"].append(DeadLetter(2, "run", 3, "timeout", "split"))
    ran["letters"] = [letter for letter in ran["letters"] if letter.message_id != 17]
    wrong = accounted(ran)
    assert {"acked and dead letter: 2", "acked twice: 1", "unexpected dead letters: 2", "no dead letters: 17"} <= set(
        wrong
    )
