"""How many JVMs of the tests live at a time. The memory of the machine bounds them, so each has a heap of a stated size.

| JVM | heap | how many |
|---|---|---|
| Spark session of the tests | 2 GiB | one for each process of pytest |
| programs in turn (`support/spark/warm.py`) | 1 GiB | one for each process of pytest |
| broker of Kafka that files share | 256 MiB | one for each process of pytest |
| masters, workers, executors, drivers, brokers, tools that a test starts itself | 1 GiB at most | `PLACES` on the machine |

A file that starts JVMs itself is in `FILES`. It waits for that many places before its first test, and has them up to its last.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import IO

import pytest

PLACES = 8
SHARED = 3
"""JVMs that all tests of a process of pytest share, at most."""

FILES = {
    "benchmarks/test_benchmarks.py": 1, "benchmarks/test_kafka_benchmark.py": 3, "benchmarks/test_spark_benchmarks.py": 2,
    "chaos/test_random_kills.py": 6, "chaos/test_random_restarts.py": 2, "chaos/test_topology_kills.py": 2,
    "cli/test_topology.py": 2, "docs/test_docs.py": 1, "docs/test_tour.py": 2, "kafka/test_cluster.py": 4,
    "kafka/test_cut_logs.py": 1,
    "kafka/test_group_commits.py": 2, "kafka/test_group_member.py": 1, "kafka/test_secured_listeners.py": 1,
    "spark/applications/test_access_logs.py": 2, "spark/applications/test_applications.py": 3,
    "spark/applications/test_direct_acks.py": 3, "spark/applications/test_kafka_words.py": 4,
    "spark/applications/test_order_stream.py": 2, "spark/applications/test_over_connect.py": 2,
    "spark/applications/test_sentences.py": 2, "spark/applications/test_word_count.py": 1,
    "spark/emission/test_whole_output.py": 1, "spark/runs/test_kafka.py": 2, "spark/runs/test_kafka_cluster.py": 3,
    "spark/runs/test_kafka_imports.py": 2, "spark/runs/test_kafka_tokens.py": 1,
    "spark/runtime/test_cluster.py": 6, "spark/runtime/test_connect_faults.py": 2, "spark/runtime/test_remote_server.py": 2,
    "spark/sinks/test_kafka.py": 4, "spark/sinks/test_targets.py": 2, "spark/streaming/test_restarts.py": 1,
    "spark/streaming/test_stream_kills.py": 2, "stack/test_make_stack.py": 5, "stack/test_stack.py": 2,
    "storm/turns/test_cluster.py": 6, "storm/turns/test_crashes.py": 1, "storm/turns/test_halves.py": 6,
}  # fmt: skip
"""File of tests -> how many JVMs a test in it starts at a time, beside the shared ones."""

_POLL_SECS = 0.2


class Places:
    """Places for JVMs, which the processes of all runs on this machine share. The end of a process gives its places back.

    A process asks for all places of a file at once, so two of them never wait for each other.
    """

    def __init__(self, folder: Path, count: int = PLACES) -> None:
        """Create the files of the places, where they are missing."""
        folder.mkdir(parents=True, exist_ok=True)
        self._door = folder / "door"
        self._files = [folder / str(number) for number in range(count)]
        self._held: list[IO[str]] = []

    def take(self, count: int) -> None:
        """Wait until so many places are free, and take them."""
        assert 0 < count <= len(self._files) and not self._held, (count, self._held)
        with self._door.open("w") as door:
            fcntl.flock(door, fcntl.LOCK_EX)  # who waits for many places isn't overtaken
            while len(self._held) < count:
                self.give_back()
                for file in self._files:
                    if len(self._held) < count and (place := _locked(file)) is not None:
                        self._held.append(place)
                if len(self._held) < count:
                    time.sleep(_POLL_SECS)

    def give_back(self) -> None:
        """Give up all places."""
        while self._held:
            self._held.pop().close()

    @property
    def held(self) -> int:
        """Return the number of places that this process has."""
        return len(self._held)


def _locked(file: Path) -> IO[str] | None:
    opened = file.open("w")
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        opened.close()
        return None
    return opened


def _file_of(item: pytest.Item | None) -> str | None:
    return None if item is None else item.nodeid.partition("::")[0].removeprefix("tests/")


_places = Places(Path(tempfile.gettempdir()) / f"acker-tests-jvms-{os.getuid()}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Take a file's places before its first test, outside of the test's time limit, and give them back after its last."""
    file = _file_of(item)
    wanted = FILES.get(file or "", 0)
    if wanted and not _places.held:
        _places.take(wanted)
    try:
        return (yield)
    finally:
        if _file_of(nextitem) != file:
            _places.give_back()
