"""Everything that acts on the state of a topology: a driver that may die, executions of tasks that may stall, and commits.

A world is one point in time. `steps` lists what may happen next, in any order that Spark, the network and crashes allow: an
execution that Spark gave up goes on as a zombie, a copy of a task runs beside it, and a commit wakes up after its turn was
closed.

Each task holds a tuple from its first turn on, and acks it in its second one. Its state says so: its count is 1 in between.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.model_based.state.server import (
    DECIDED,
    EMPTY,
    LOST,
    OPEN,
    UNFOLDED,
    ModelServer,
    State,
    parts_of,
    state_of,
)


class Budget(NamedTuple):
    """How often the unlikely happens: copies of tasks, aborts of turns, crashes of the driver, expiries, repeated commits."""

    copies: int = 0
    aborts: int = 0
    crashes: int = 0
    expiries: int = 0
    repeats: int = 0


class Execution(NamedTuple):
    """An attempt of a task: `at` is its next step. A worker keeps what it read and wrote, by the attempt it stems from."""

    at: str = "load"
    entry: Any = None
    held: Any = None
    values: State = EMPTY


class WrongError(AssertionError):
    """A promise is broken."""


class World:
    """One point in time.

    Attributes:
        counted: task -> number of turns with this task that were committed rightly: what its state must be.
        held: task -> epoch of the run that holds its tuple.
        acked: task -> number of acks of its held tuple that the ledger got.
    """

    def __init__(
        self,
        batches: tuple[str, ...],
        budget: Budget,
        broken: frozenset[str] = frozenset(),
        server: ModelServer | None = None,
    ) -> None:
        self.batches, self.budget, self.broken = batches, budget, broken
        self.server = ModelServer(broken) if server is None else server
        self.epoch, self.turn, self.batch, self.phase = self.server.open(), 1, 0, "levels"
        self.executions: dict[Any, Execution] = {}
        self.caches: dict[tuple[int, str], Any] = {}
        self.commits: dict[tuple[int, int], tuple[tuple[Any, ...], int | None, int]] = {}
        self.counted = dict.fromkeys(sorted(set("".join(batches))), 0)
        self.held: dict[str, int] = {}
        self.acked: dict[str, int] = {}
        self.committed: frozenset[tuple[int, int]] = frozenset()
        self.replays = 0

    def copy(self) -> "World":
        """A world of its own."""
        copied = World.__new__(World)
        copied.__dict__.update(self.__dict__)
        copied.server = self.server.copy()
        for name in ("executions", "caches", "commits", "counted", "held", "acked"):
            setattr(copied, name, dict(getattr(self, name)))
        return copied

    def key(self) -> tuple[Any, ...]:
        """What distinguishes this world from others."""
        parts = (self.executions, self.caches, self.commits, self.counted, self.held, self.acked)
        return (
            self.epoch, self.turn, self.batch, self.phase, self.budget, self.replays, self.committed, self.server.key(),
            *(tuple(sorted(part.items(), key=repr)) for part in parts),
        )  # fmt: skip

    @property
    def is_over(self) -> bool:
        """True if all batches are processed."""
        return self.batch == len(self.batches)

    def check(self) -> None:
        """Compare what counts with the oracle.

        Raises:
            WrongError: they differ.
        """
        for task, count in self.counted.items():
            if self.server.view(task) != state_of(count):
                raise WrongError(f"{task}: {self.server.view(task)} in place of {state_of(count)}")
        if self.is_over and not self.replays:
            for task, count in self.counted.items():
                if count != sum(task in batch for batch in self.batches):
                    raise WrongError(f"{task}: {count} turns in place of one per batch")

    # -- what may happen

    def steps(self) -> Iterator[tuple[Any, ...]]:
        """List what may happen next."""
        for attempt, execution in self.executions.items():
            if execution.at not in ("done", "dead"):
                yield "execute", attempt
        for turn, (_, reply, times) in self.commits.items():
            if reply is None or (times == 1 and self.budget.repeats):
                yield "commit", turn
        if self.budget.expiries:
            for attempt, (_, _, is_kept) in self.server.attempts.items():
                if not is_kept:
                    yield "expire", attempt
        if self.is_over:
            return
        if self.budget.crashes:
            yield ("crash",)
        here = (self.epoch, self.turn)
        if self.phase == "levels":
            done = self._done()
            for task in self.batches[self.batch]:
                if (*here, task, 0) not in self.executions:
                    yield "start", task, 0
                elif (*here, task, 1) not in self.executions and (self.budget.copies or self._is_dead(task)):
                    yield "start", task, 1
            for named in done:
                yield "named", named
            if self.budget.aborts or any(self._is_dead(task) for task in self.batches[self.batch]):
                yield ("close",)
        elif self.phase == "committing":
            if self.commits[here][1] is not None:
                yield ("learn",)
            if self.budget.aborts:
                yield ("close",)
        elif self.phase == "acks":
            yield ("ack",)

    def _is_dead(self, task: str) -> bool:
        execution = self.executions.get((self.epoch, self.turn, task, 0))
        return execution is not None and execution.at == "dead"

    def _done(self) -> list[tuple[Any, ...]]:
        """Choices of one attempt per task. There is none while a task has no attempt that is done."""
        choices: list[tuple[Any, ...]] = [()]
        for task in self.batches[self.batch]:
            done = [
                attempt
                for attempt, execution in self.executions.items()
                if attempt[:3] == (self.epoch, self.turn, task) and execution.at == "done"
            ]
            choices = [(*choice, attempt) for choice in choices for attempt in done]
        return choices

    def after(self, step: tuple[Any, ...]) -> "World":
        """The world after a step.

        Raises:
            WrongError: the step breaks a promise.
        """
        later = self.copy()
        later.take(step)
        return later

    def take(self, step: tuple[Any, ...]) -> None:
        """Take a step.

        Raises:
            WrongError: the step breaks a promise.
        """
        getattr(self, f"_{step[0]}")(*step[1:])
        self.check()

    def _spend(self, what: str) -> None:
        self.budget = self.budget._replace(**{what: max(0, getattr(self.budget, what) - 1)})

    # -- the driver

    def _start(self, task: str, copy: int) -> None:
        if copy and not self._is_dead(task):
            self._spend("copies")
        self.executions[self.epoch, self.turn, task, copy] = Execution()

    def _named(self, named: tuple[Any, ...]) -> None:
        self.commits[self.epoch, self.turn] = (named, None, 0)
        self.phase = "acks" if "acks" in self.broken else "committing"

    def _learn(self) -> None:
        reply = self.commits[self.epoch, self.turn][1]
        if reply == OPEN:
            self.phase = "acks"
        else:
            self._close()

    def _ack(self) -> None:
        if (self.epoch, self.turn) not in self.committed:
            raise WrongError("acked before the commit")
        here = (self.epoch, self.turn)
        for attempt in self._done_in(here) if "names" in self.broken else self.commits[here][0]:
            if self.executions[attempt].values[0] == 2:
                self._ack_held(attempt[2])
        self._next(self.batch + 1)

    def _ack_held(self, task: str) -> None:
        """Ack the tuple that a task has held since its first turn. That of an older run has no roots any more."""
        if self.held[task] != self.epoch:
            if "roots" in self.broken:
                raise WrongError(f"{task}: a tuple of an older run is acked")
            return
        self.acked[task] = self.acked.get(task, 0) + 1
        if self.acked[task] > 1:
            raise WrongError(f"{task}: its held tuple is acked twice")

    def _done_in(self, turn: tuple[int, int]) -> list[Any]:
        return [attempt for attempt, of in self.executions.items() if attempt[:2] == turn and of.at == "done"]

    def _close(self) -> None:
        """End the turn; its batch goes out again, unless the commit was first."""
        if self.phase == "levels":
            is_forced = any(self._is_dead(task) for task in self.batches[self.batch])
        else:
            is_forced = self.commits[self.epoch, self.turn][1] is not None
        if not is_forced:
            self._spend("aborts")
        status = self.server.close(self.epoch, self.turn)
        if status == DECIDED:
            self._next(self.batch + 1)
        elif status == OPEN:
            self._next(self.batch)
        else:
            raise WrongError(f"the current driver is refused: {status}")

    def _next(self, batch: int) -> None:
        self.batch, self.turn, self.phase = batch, self.turn + 1, "levels"

    def _crash(self) -> None:
        self._spend("crashes")
        self.replays += (self.epoch, self.turn) in self.committed
        self.epoch, self.turn, self.phase = self.server.open(), 1, "levels"

    # -- Spark's tasks

    def _expire(self, attempt: Any) -> None:
        self._spend("expiries")
        self.server.expire(attempt)

    def _commit(self, turn: tuple[int, int]) -> None:
        named, reply, times = self.commits[turn]
        if reply is not None:
            self._spend("repeats")
        # What is right, by the definition: the newest run, a turn that is neither closed nor committed, and each turn once.
        is_right = turn[0] == self.server.epoch and turn[1] == self.server.turn + 1
        status = self.server.commit(*turn, named, tuple(len(self._parts(attempt)) for attempt in named))
        self.commits[turn] = (named, status if reply is None else reply, times + 1)
        if status == OPEN and turn not in self.committed:
            if not is_right:
                raise WrongError(f"commit of turn {turn}, which is over")
            self.committed |= {turn}
            for attempt in named:
                self.counted[attempt[2]] += 1
                self.held.setdefault(attempt[2], turn[0])

    def _execute(self, attempt: Any) -> None:
        execution = self.executions[attempt]
        epoch, turn, task, copy = attempt
        moved = getattr(self, f"_do_{execution.at}")(attempt, execution, epoch, turn, task)
        self.executions[attempt] = moved
        if moved.at == "done":
            self.caches[copy, task] = (attempt, moved.values)
        elif moved.at.startswith("write"):
            self.caches.pop((copy, task), None)

    def _do_load(self, attempt: Any, execution: Execution, epoch: int, turn: int, task: str) -> Execution:
        status, entry = self.server.load(epoch, turn, task)
        if status != OPEN:
            return Execution("dead")
        at = "read" if entry is None or entry[1] or "skips" in self.broken else "fold"
        return execution._replace(at=at, entry=None if entry is None else entry[0])

    def _do_fold(self, attempt: Any, execution: Execution, epoch: int, turn: int, task: str) -> Execution:
        if "fold" in self.broken:
            parts, folded, is_kept = self.server.attempts.get(execution.entry, ((), 0, False))
            if folded == len(parts):
                return execution._replace(at="read")
            return execution._replace(at="put", held=(folded, parts[folded], parts, is_kept))
        status, left = self.server.fold(epoch, execution.entry)
        if status == LOST:
            raise WrongError("a named attempt is gone")
        return execution._replace(at="fold" if left else "read") if status == OPEN else Execution("dead")

    def _do_put(self, attempt: Any, execution: Execution, epoch: int, turn: int, task: str) -> Execution:
        """The second half of a fold by a broken client, which writes what it remembers."""
        place, value, parts, is_kept = execution.held
        self.server.put(task, place, value)
        if self.server.entries.get(task) == (execution.entry, False):
            self.server.moved(execution.entry, (parts, place + 1, is_kept))
        return execution._replace(at="fold", held=None)

    def _do_read(self, attempt: Any, execution: Execution, epoch: int, turn: int, task: str) -> Execution:
        status, values = self.server.read(epoch, turn, task)
        if status != OPEN:
            return Execution("dead")
        cached = self.caches.get((attempt[3], task))
        if cached is not None and (cached[0] == execution.entry or "cache" in self.broken):
            values = cached[1]
        if values != state_of(values[0]):
            raise WrongError(f"{task}: {values} is read, which no turn has left")
        return execution._replace(at="write0", values=state_of(values[0] + 1))

    def _do_write0(self, attempt: Any, execution: Execution, epoch: int, turn: int, task: str) -> Execution:
        return self._write(attempt, execution, 0)

    def _do_write1(self, attempt: Any, execution: Execution, epoch: int, turn: int, task: str) -> Execution:
        return self._write(attempt, execution, 1)

    def _write(self, attempt: Any, execution: Execution, part: int) -> Execution:
        parts = self._parts(attempt)
        status = self.server.write(attempt, part, parts[part])
        if status == UNFOLDED:
            raise WrongError("an attempt of the same turn is folded before it is written")
        if status != OPEN:
            return Execution("dead")
        return execution._replace(at="done" if part == len(parts) - 1 else f"write{part + 1}")

    def _parts(self, attempt: Any) -> tuple[tuple[int, ...], ...]:
        return parts_of(self.executions[attempt].values[0], self.broken)


def explore(start: World, limit: int = 1_000_000) -> tuple[int, int]:
    """Visit each world that can follow. Returns how many there are, and in how many all batches are processed.

    Raises:
        WrongError: a promise is broken in one of them. Its text ends with the steps that lead there.
    """
    seen = {start.key()}
    todo: list[tuple[World, Any]] = [(start, None)]
    over = 0
    while todo:
        world, path = todo.pop()
        over += world.is_over
        steps = list(world.steps())
        if not steps and not world.is_over:
            raise WrongError(f"nothing can happen any more, after {_listed(path)}")
        for step in steps:
            try:
                reached = world.after(step)
            except WrongError as exc:
                raise WrongError(f"{exc}, after {_listed((step, path))}") from exc
            key = reached.key()
            if key not in seen:
                if len(seen) >= limit:
                    raise AssertionError(f"more than {limit} worlds")
                seen.add(key)
                todo.append((reached, (step, path)))
    return len(seen), over


def _listed(path: Any) -> list[Any]:
    steps = []
    while path is not None:
        step, path = path
        steps.append(step)
    return steps[::-1]
