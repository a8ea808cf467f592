"""The stream of orders as a user runs it: ended by Ctrl-C, started again, nothing lost; counted here from its sinks."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from acker_redis import Acker, AckerError
from acker_redis.acker import app_of
from acker_redis.testing import wait_until
from spark.applications.order_stream.dashboard import Latencies, facts
from spark.applications.order_stream.orders import POISON, Orders, kind_of, must_be_dead_letter
from spark.applications.order_stream.store import Store, account
from tests.support import java
from tests.support.spark.warm import Warm

ROOT = Path(__file__).resolve().parents[3]
MODULE = "spark.applications.order_stream"


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", MODULE, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=java.preloaded(), stdout=pipe, stderr=pipe, text=True)


def numbers_in(folder: Path) -> list[int]:
    lines = (line for path in (folder / "orders").glob("*.json") for line in path.read_text().splitlines())
    return sorted(json.loads(line)["id"] for line in lines)


def inserted(folder: Path) -> set[int]:
    with closing(sqlite3.connect(folder / "orders.sqlite")) as database:
        return {one for (one,) in database.execute("SELECT id FROM orders")}


def table_is_filled(folder: Path) -> bool:
    try:
        return len(inserted(folder)) > POISON
    except sqlite3.OperationalError:  # not there yet
        return False


@pytest.mark.spark
def test_order_stream_interrupted_and_restarted_loses_nothing(url: str, warm: Warm, tmp_path: Path) -> None:
    folder = tmp_path / "stream"
    options = ("--folder", str(folder), "--redis", url, "--rate", "100", "--kill-every", "5", "--master", "local[2,4]")
    first = start(*options)
    try:
        wait_until(lambda: first.poll() is not None or table_is_filled(folder), "orders are in SQLite", 180)
        first.send_signal(signal.SIGINT)
        said, errors = first.communicate(timeout=240)
    finally:
        first.kill()
    assert first.returncode == 0, errors
    assert "Nothing is lost." in said
    assert not re.search(r"Traceback|^\s+at \w|Error:", errors, re.MULTILINE), errors
    status, said, errors = warm.run_module(MODULE, *options, "--seconds", "5", url=url)
    assert status == 0, errors
    assert "0 parked, 0 not read yet" in said
    numbers = numbers_in(folder)
    assert numbers == list(range(len(numbers)))
    good = {number for number in numbers if not must_be_dead_letter(number)}
    assert inserted(folder) == good
    written = [one for path in (folder / "parquet").glob("*.parquet") for one in pq.read_table(path)["id"].to_pylist()]
    assert set(written) == good
    with Store(folder) as store:
        assert store.letters() == set(numbers) - good


@pytest.mark.spark
def test_second_stream_of_an_app_is_refused_in_one_line(url: str, warm: Warm, tmp_path: Path) -> None:
    with Acker.connect(url, app="order-stream", message_timeout_secs=30) as acker:
        lease = app_of(acker).lease(lane=0, run_id="first")
        lease.acquire()
        status, _, errors = warm.run_module(
            MODULE,
            "--folder",
            str(tmp_path / "stream"),
            "--redis",
            url,
            "--kill-every",
            "0",
            "--seconds",
            "60",
            url=url,
        )
        lease.release()
    assert status == 3
    (told,) = [line for line in errors.splitlines() if "error:" in line]
    assert (
        told.startswith("error: Lane 0 of app 'order-stream' is in use by another run")
        and "STREAM_FAILED" not in errors
    )
    assert not re.search(r"Traceback|Logical Plan|^\s+at \w", errors, re.MULTILINE), errors


def test_order_source_continues_numbering_after_a_restart(tmp_path: Path) -> None:
    first = Orders(tmp_path, 100)
    for count in (3, POISON, 7):
        first.write(count)
    again = Orders(tmp_path, 100)
    assert again.made == POISON + 10
    again.write(1)
    assert numbers_in(tmp_path) == list(range(POISON + 11))
    assert (again.ages_secs(np.array([0, POISON + 10])) < 600).all()


def test_poison_orders_of_each_kind_are_equally_frequent() -> None:
    kinds = [kind_of(number) for number in range(6 * POISON)]
    assert {kind: kinds.count(kind) for kind in set(kinds) - {""}} == {"malformed": 2, "hasty": 2, "hopeless": 2}


def test_account_detects_missing_orders(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        found = account(store, 3, [1], all_read=False)
        assert (found.made, found.in_both, found.to_come, found.wrong) == (3, 0, 3, [])
        assert account(store, 3, [1], all_read=True).wrong == [0, 1, 2]


def test_second_stream_in_a_folder_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path), pytest.raises(AckerError, match="in use by another stream"):
        Store(tmp_path)
    with Store(tmp_path):
        pass


def test_status_shows_counts_and_order_latencies() -> None:
    from acker_redis.spark import StreamStatus

    latencies = Latencies()
    latencies.add(np.array([1.0] * 99 + [9.0]))
    shown = facts(160, 60, 5, StreamStatus(parked={("failed", "check"): 2}), {"out of stock": 1}, latencies, 3, 60)
    assert shown["orders made in this run"] == "100"  # what "done in this run" is set against
    assert shown["left by earlier runs"] == "5 of 60"
    assert shown["parked"] == "2 (failed in check 2)"
    assert shown["dead letters"] == "1 (out of stock 1)"
    assert shown["from made to done"].startswith("p50 1.0 s")
