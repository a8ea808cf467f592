"""Drivers that publish output once, under kills, pauses and failing file systems. Each history is decided by its seed.

A driver is a thread that runs up to its next step, and only if it is told to. So any step can be its last one, or others run
in between, and a history can be repeated.
"""

import json
import random
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from acker_redis.publishing.files import LocalFiles, short_name
from acker_redis.publishing.log_folder import LocalLogFolder
from acker_redis.publishing.messages import MessageNames
from acker_redis.publishing.publish_log import PublishLog

MESSAGES = 12
LOG = short_name("logs/orders/2026-11-27")
SINKS: dict[str, Callable[[int], int]] = {"items": lambda message: message % 3, "orders": lambda message: 1}
"""Sinks, and the number of rows that each has of a message."""


class Killed(BaseException):
    """The driver's process died."""


class World:
    """What outlives a driver: files, letters, and requests to run dead messages again."""

    def __init__(self, home: Path, seed: int, faults: "Faults") -> None:
        self.home, self.faults = home, faults
        self.random = random.Random(seed)
        self.letters: list[tuple[int, int]] = []  # (message, number of its record)
        self.ever: list[tuple[int, int]] = []  # letters, with those that are gone
        self.letters_up_to = 0
        self.requests: list[tuple[int, int]] = []
        self.left = {*range(MESSAGES)}  # messages that the next driver gets from the source
        self.late_files: list[tuple[Path, bytes]] = []  # requests that the file system carries out later
        self.steps: list[str] = []
        self.is_quiet = False
        self.has_compacted = False

    def happens(self, probability: float) -> bool:
        """Whether something happens now that may go wrong."""
        return not self.is_quiet and self.random.random() < probability

    def letter_of(self, number: int, messages: tuple[int, ...]) -> None:
        """Store the letters of a record, unless those of this or a later one were stored: one call of the server."""
        if number > self.letters_up_to or number < 0:
            self.letters += [(message, number) for message in messages]
            self.ever += [(message, number) for message in messages]
            self.letters_up_to = max(self.letters_up_to, number)

    def forget(self, letter: tuple[int, int]) -> None:
        """Remove a letter and its request."""
        self.letters = [other for other in self.letters if other != letter]
        self.requests = [other for other in self.requests if other != letter]

    def between_steps(self) -> None:
        """Let others act: the file system, a user who compacts a table, one who wants letters to run again."""
        if self.late_files and self.happens(0.2):
            path, data = self.late_files.pop()
            if path.parent.exists() and not path.exists():
                path.write_bytes(data)
        if self.faults.compacts and self.happens(0.01):
            self.has_compacted = True
            for sink in SINKS:
                self.compact(sink)
        if self.ever and self.happens(0.02):
            self.requests.append(self.random.choice(self.ever))  # it may be gone meanwhile

    def compact(self, sink: str) -> None:
        """Rewrite the files of a table as one."""
        files = list((self.home / sink).glob("*.rows"))
        rows = [row for file in files for row in json.loads(file.read_text())]
        if files:
            (self.home / sink / f"{uuid.uuid4().hex}.rows").write_text(json.dumps(rows))
        for file in files:
            file.unlink()

    def rows(self, sink: str) -> dict[int, list[str]]:
        """Return the attempts of the rows that a table has of each message."""
        found: dict[int, list[str]] = defaultdict(list)
        for file in (self.home / sink).glob("*.rows"):
            for message, attempt in json.loads(file.read_text()):
                found[message].append(attempt)
        return found

    def problems(self) -> list[str]:
        """Return what is wrong once a driver has ended normally."""
        log = PublishLog(LocalLogFolder(self.home / "log"))
        log.read()
        dead, letters = log.state.dead.get("", {}), Counter(self.letters)
        wrong = [f"letters {letters} for dead {dead}"] if letters != Counter(dead.items()) else []
        for sink, count_of in SINKS.items():
            rows = self.rows(sink)
            for message in range(MESSAGES):
                expected = 0 if message in dead else count_of(message)
                if len(rows[message]) != expected or len(set(rows[message])) > 1:
                    wrong.append(f"{sink}: {message} has {rows[message]}, dead: {message in dead}")
        accepted = log.state.accepted.has(MessageNames.of_ids(np.arange(MESSAGES)))
        if [not is_accepted for is_accepted in accepted] != [message in dead for message in range(MESSAGES)]:
            wrong.append("accepted are others")
        return wrong


class Faults:
    """What may go wrong, and which repair of the design is missing.

    Attributes:
        compacts: whether the user compacts tables meanwhile.
        mutant: name of the missing repair; empty: none.
    """

    def __init__(self, *, compacts: bool = False, mutant: str = "") -> None:
        self.compacts, self.mutant = compacts, mutant


class Driver(threading.Thread):
    """One process of a driver."""

    def __init__(self, world: World, run: str, work: "Callable[[Driver], object]") -> None:
        super().__init__(daemon=True)
        self.world, self.run_id, self._work = world, run, work
        self.error: BaseException | None = None
        self.ended = False
        self._killed = False
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.start()

    # -- called by the history

    def advance(self) -> None:
        """Run up to the next step."""
        self._go.release()
        self._stopped.acquire()

    def kill(self) -> None:
        """End the process where it is."""
        self._killed = True
        self.advance()
        assert self.ended

    # -- called by the driver

    def step(self, name: str) -> None:
        """Stop here until the history goes on."""
        self.world.steps.append(f"{self.run_id} {name}")
        self._stopped.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self._killed:
                self._work(self)
        except BaseException as exc:
            self.error = exc
        self.ended = True
        self._stopped.release()


class SteppedFolder(LocalLogFolder):
    """A log's folder on a file system that is slow, and sometimes doesn't say what it did."""

    def __init__(self, path: Path, driver: Driver) -> None:
        super().__init__(path)
        self._driver, self._world = driver, driver.world

    def create(self, name: str, data: bytes | Iterable[bytes]) -> bool:
        self._driver.step(f"create {name}")
        data = data if isinstance(data, bytes) else b"".join(data)  # as it is now
        if self._world.happens(0.08):
            self._world.late_files.append((self.path / name, data))
            raise OSError("timed out, and does it later")
        if self._world.happens(0.05):
            raise OSError("timed out, and did nothing")
        is_new = super().create(name, data)
        self._driver.step(f"created {name} {is_new}")
        if self._world.happens(0.05):
            raise OSError("timed out after it was done")
        if is_new and self._world.happens(0.03):  # it has repeated the request itself
            return False
        return is_new

    def read(self, name: str) -> bytes | None:
        self._driver.step(f"read {name}")
        return super().read(name)

    def names(self) -> list[str]:
        self._driver.step("names")
        if self._world.happens(0.01):
            raise OSError("timed out")
        return super().names()

    def remove(self, name: str) -> None:
        self._driver.step(f"remove {name}")
        super().remove(name)


class SteppedFiles(LocalFiles):
    """Tables on the same file system."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(LOG)
        self._driver = driver

    def _rename(self, source: Path, place: Path) -> None:
        self._driver.step(f"rename {source.name}")
        if self._driver.world.happens(0.03):
            if self._driver.world.faults.mutant == "a false from rename taken for moved":
                return
            raise OSError("not renamed")
        super()._rename(source, place)
        self._driver.step("renamed")
