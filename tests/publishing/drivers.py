"""What a driver does, with the design's repairs or without one, and histories of several drivers."""

import json
import random
import shutil
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from acker_redis.errors import FencedError, FilesNotMovedError
from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.files import LocalFiles
from acker_redis.publishing.messages import Mask, MessageNames
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.publishing.records import Accepted, Dead, Owner, Record, Staged
from acker_redis.store.dead_letter import DeadLetter
from tests.publishing.world import LOG, SINKS, Driver, Faults, SteppedFiles, SteppedFolder, World

ATTEMPTS = 2
OWNER = Owner("app", 0, ("id",))


class MutantLog(PublishLog):
    """A log without one of its repairs."""

    mutant = ""

    def _settle(self) -> None:
        record = self._under_way
        if self.mutant == "no fence" and record is not None:
            while not self._folder.create(f"{self.state.number + 1:010}.json", record.to_bytes()):
                there = self._folder.read(f"{self.state.number + 1:010}.json")
                if there is not None and Record.from_bytes(there, "").put == record.put:
                    break
                self.state.number += 1
            self._under_way = None
            self.state.apply(self.state.number + 1, record)
            self._published = self._published[len(record.published) :]
            return
        if self.mutant == "other bytes after an unknown put":
            try:
                super()._settle()
            except OSError:
                self._under_way = None
                raise
            return
        super()._settle()

    def _snapshots(self) -> list[int]:
        if self.mutant == "no look for a snapshot" and self._under_way is not None:
            return []
        return super()._snapshots()

    def compact(self, *, at_once: bool = False) -> None:
        if self.mutant != "snapshot after removal":
            super().compact(at_once=at_once)
        elif self.state.is_settled and self._under_way is None and self.state.number - self._base >= 3:
            for name in self._folder.names():
                if int(name[:10]) <= self.state.number:
                    self._folder.remove(name)
            self._folder.create(f"{self.state.number:010}.snap", self.state.to_bytes())
            self._base, self._published = self.state.number, []

    def accept(self, accepted: Accepted) -> int | None:
        return self._put(accepted) if self.mutant == "accept without the lock" else super().accept(accepted)

    def bury(self, dead: Dead) -> tuple[int, Dead] | None:
        if self.mutant == "an accepted message made a letter":
            return self._put(dead), dead
        return super().bury(dead)

    def outdated(self, names: MessageNames, by: Int64Array) -> Mask:
        if self.mutant == "reopened by another letter":
            dead_by = self.state.dead_by(names)
            by = np.where(dead_by, dead_by, by)
        is_outdated = super().outdated(names, by)
        if self.mutant == "reopened message taken for a done one":
            is_outdated |= ~self.is_done(names)
        return is_outdated


class Work:
    """What a driver does. Attempts of a message fail, and its roots time out at any step."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.world, self.run = driver, driver.world, driver.run_id
        self.mutant = self.world.faults.mutant
        self.log = MutantLog(SteppedFolder(self.world.home / "log", driver), snapshot_every=3)
        self.log.mutant = self.mutant
        self.files = SteppedFiles(driver)
        self.attempts = dict.fromkeys(sorted(self.world.left), 0)
        self.replaying: dict[int, tuple[int, int]] = {}  # message -> its letter
        self.exhausted: set[int] = set()
        self.buries = False
        self.tries = 0

    def step(self, name: str) -> None:
        """Stop, and let roots time out whose emission runs."""
        self.driver.step(name)
        for message in list(self.attempts):
            if self.world.happens(0.004):
                self.attempts[message] += 1
                if self.attempts[message] >= ATTEMPTS:
                    self.exhausted.add(message)
        if self.exhausted and not self.buries and self.world.happens(0.3):  # as the spout's thread does
            self.bury(sorted(self.exhausted))

    def patiently(self, call: Callable[[], Any]) -> Any:
        """Wait for the end of an outage."""
        while True:
            try:
                return call()
            except OSError:
                self.step("outage")

    def do(self) -> None:
        self.patiently(lambda: self.log.begin(self.run, OWNER, LOG))
        self.epoch = self.log.state.epoch
        self.settle_all()
        self.remove_stages()
        emission = 0
        while True:
            self.step("next emission")
            self.settle_all()
            self.claim()
            if not self.attempts:
                break
            done = self.log.is_done(MessageNames.of_ids(np.array(list(self.attempts), np.int64)))
            for message in [m for m, is_done in zip(list(self.attempts), done, strict=True) if is_done]:
                del self.attempts[message]
                self.exhausted.discard(message)
                if message in self.replaying:
                    self.step("replayed")
                    self.world.forget(self.replaying.pop(message))
            if self.world.happens(0.5):  # a snapshot: a later driver doesn't get the others from the source
                self.world.left &= self.attempts.keys() - self.replaying.keys()
            if self.exhausted:
                self.bury(sorted(self.exhausted))
                continue
            if self.attempts:
                emission += 1
                chosen = self.world.random.sample(sorted(self.attempts), min(len(self.attempts), 5))
                self.emit(emission, sorted(chosen))
        self.settle_all()
        if self.mutant == "letters deleted at the end":
            self.world.letters = [letter for letter in self.world.letters if letter[0] % 2]
        self.patiently(self.log.finish)

    def settle_all(self) -> None:
        """Do what was decided: publish, and store letters."""
        self.patiently(self.log.settle)
        self.patiently(lambda: self.log.publish(self.publish))
        self.store_letters()
        self.patiently(self.log.compact)

    def publish(self, number: int, staged: Staged) -> None:
        try:
            self.files.publish(number, staged)
        except FilesNotMovedError:
            if not self.world.has_compacted:
                raise
            LocalFiles(LOG, assume_moved=True).publish(number, staged)  # as who has compacted tells it to

    def remove_stages(self) -> None:
        """Remove what earlier runs staged and nobody decided."""
        for folder in (self.world.home / "stage").glob("*"):
            if int(folder.name) < self.epoch or (
                self.mutant == "another run's stage removed" and int(folder.name) != self.epoch
            ):
                self.step("remove stage")
                shutil.rmtree(folder, ignore_errors=True)

    def claim(self) -> None:
        """Run dead messages again that somebody asked for."""
        for letter in list(self.world.requests):
            message, number = letter
            if message in self.attempts or self.world.happens(0.5):  # later
                continue
            self.step("claim")
            names, by = MessageNames.one("", message), np.array([number])
            runs_again = self.patiently(partial(self.log.reopen, self.run, names, by))[0]
            self.step("reopened")
            if runs_again:
                self.attempts[message], self.replaying[message] = 0, letter
            if not runs_again or self.mutant == "letter removed before its message is done":
                self.world.forget(letter)

    def emit(self, emission: int, messages: list[int]) -> None:
        failed = {message for message in messages if message % 11 == 3 or self.world.happens(0.15)}
        self.step("computed")
        while True:
            ids = np.array([m for m in messages if m not in failed and m in self.attempts], np.int64)
            ids = ids[~self.log.is_done(MessageNames.of_ids(ids))] if len(ids) else ids
            if not len(ids):
                break
            staged = tuple(self.stage(emission, sink, ids.tolist()) for sink in SINKS)
            self.step("staged")
            accepted = Accepted(self.run, emission, MessageNames.of_ids(ids).ranges(), staged)
            try:
                number = self.log.accept(accepted)
            except OSError:  # nobody knows yet: nothing else is decided before that
                self.patiently(self.log.settle)
                break
            if number is not None:
                break
        self.patiently(lambda: self.log.publish(self.publish))
        self.step("before acks")
        for message in failed:
            if message in self.attempts:
                self.attempts[message] += 1
        dead = [message for message in failed if self.attempts.get(message, 0) >= ATTEMPTS]
        if dead:
            self.bury(dead)

    def bury(self, messages: list[int]) -> None:
        self.buries = True
        letters = tuple(DeadLetter(message, self.run, ATTEMPTS, "failed") for message in messages)
        dead = Dead(self.run, ("",) * len(messages), tuple(messages), letters)
        if self.mutant == "letter before log":
            self.world.letter_of(-len(self.world.letters) - 1, tuple(messages))
            self.step("letter")
        try:
            self.log.bury(dead)
        except OSError:
            self.patiently(self.log.settle)
        self.exhausted.difference_update(messages)
        self.step("buried")
        if self.mutant == "letter before log":
            for number in list(self.log.state.to_store):
                self.log.stored(number)
        self.store_letters()
        self.buries = False

    def store_letters(self) -> None:
        """Store letters of messages that are dead."""
        for number, dead in sorted(self.log.state.to_store.items()):
            self.step("letters")
            self.world.letter_of(number, dead.numbers)
            self.log.stored(number)

    def stage(self, emission: int, sink: str, messages: list[int]) -> Staged:
        while True:
            self.tries += 1
            folder = self.world.home / "stage" / str(self.epoch) / str(emission) / sink / str(self.tries)
            try:
                staged, expected = self.stage_once(folder, sink, f"{self.run}:{emission}", messages)
            except FileNotFoundError:  # a newer run has removed it, so that this one will be fenced
                continue
            if staged.rows == expected or self.mutant == "no count":
                return staged

    def stage_once(self, folder: Path, sink: str, attempt: str, messages: list[int]) -> tuple[Staged, int]:
        """Write the rows of a sink. Return what is there, and the number of rows that should be."""
        folder.mkdir(parents=True)
        files, expected = [], 0
        for part in (messages[::2], messages[1::2]):
            self.step(f"stage {sink}")
            rows = [(message, attempt) for message in part for _ in range(SINKS[sink](message))]
            expected += len(rows)
            for _ in range(2 if self.world.happens(0.03) else 1):  # a task that ran twice
                files.append(f"{uuid.uuid4().hex}.rows")
                (folder / files[-1]).write_text(json.dumps(rows))
        count = sum(len(json.loads((folder / file).read_text())) for file in files)
        return Staged(sink, "files", str(self.world.home / sink), str(folder), tuple(files), count), expected


def work(driver: Driver) -> None:
    """Do what a driver does, to its end."""
    Work(driver).do()


def play(home: Path, seed: int, faults: Faults) -> list[str]:
    """Play a history: drivers are killed, paused while others run, and go on. Return what is wrong at its end."""
    world = World(home, seed, faults)
    choose, paused = random.Random(seed + 1), list[Driver]()
    for number in range(1, choose.randint(2, 6)):
        running = [Driver(world, f"run{number}", work)]
        if paused and choose.random() < 0.5:  # it wakes up while the next one works
            running.append(paused.pop())
        lives = choose.randint(1, 30 if choose.random() < 0.4 else 250)
        while running and lives:
            lives -= 1
            driver = choose.choice(running)
            driver.advance()
            world.between_steps()
            if driver.ended:
                running.remove(driver)
                if not isinstance(driver.error, (FencedError, type(None))):
                    return [repr(driver.error), *world.steps[-5:]]
                if driver.error is not None and number == 1:
                    return ["fenced, though no other run has begun"]
        for driver in running:
            if choose.random() < 0.5:
                driver.kill()
            else:
                paused.append(driver)
    for driver in paused:  # they go on after the others, and must do no harm
        while not driver.ended:
            driver.advance()
            world.between_steps()
        if not isinstance(driver.error, (FencedError, type(None))):
            return [repr(driver.error), *world.steps[-5:]]
    world.is_quiet = True
    last = Driver(world, "last", work)
    while not last.ended:
        last.advance()
    if last.error is not None:
        return [repr(last.error)]
    return world.problems()
