"""Ticks of bolts on Spark, and other calls that no tuple causes: rows of the first turn in which they are due."""

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from acker_redis.errors import JobFailedError
from acker_redis.spark.proof.blame import line_of
from acker_redis.storm.components.windowed import WindowedBolt
from acker_redis.storm.core.tuples import SYSTEM_TASK
from acker_redis.storm.core.values import dump_values
from acker_redis.storm.state.shapes import holds_tuples, states_of_task
from acker_redis.storm.turns.holders import is_a, is_timed, tick_secs, timer_secs
from acker_redis.storm.turns.plan import Plan
from acker_redis.storm.turns.rows import (
    CALLER,
    FLUSH_SOURCE,
    LAST_CALLER,
    RELEASE_SOURCE,
    TICK_SOURCE,
    TIMER_SOURCE,
    RowBuffer,
)
from acker_redis.storm.turns.search import MOST_LOSSES

log = logging.getLogger("acker_redis.storm")

_MOST_ALONE = 3
"""Number of turns in a row with nothing but one task's ticks that may break."""

_FROM = {TICK_SOURCE: SYSTEM_TASK, TIMER_SOURCE: CALLER, RELEASE_SOURCE: CALLER, FLUSH_SOURCE: LAST_CALLER}
"""Value of `frm` of each kind of call, which decides whether it comes before the tuples or behind them."""


class Ticks:
    """Ticks and other calls of a run. The number of a tick counts periods, so ticks that were missed are one.

    The time of batches and windows goes by periods, too. A task is called only while it holds tuples.

    Attributes:
        is_suspect: True if a turn with ticks broke, and none has succeeded since. They go alone until one does, so that no
            message is to blame for them. If they break again, they go in halves, until one task's are alone.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        bolts = [bolt for bolt in plan.graph.bolts if bolt.maker is not None]  # sinks have none
        self._names = {task: bolt.name for bolt in bolts for task in bolt.task_ids}
        self._keeping = {task for bolt in bolts if states_of_task(bolt) for task in bolt.task_ids}
        self._holders: dict[int, tuple[bool, bool]] = {}
        for bolt in filter(holds_tuples, bolts):
            what = is_timed(plan.graph, bolt), is_a(bolt, WindowedBolt)
            self._holders |= dict.fromkeys(bolt.task_ids, what)
        self._secs: dict[tuple[int, int], float] = {}
        for bolt in bolts:
            for kind, secs in (
                (TICK_SOURCE, tick_secs(plan.graph, bolt)),
                (TIMER_SOURCE, timer_secs(plan.graph, bolt)),
            ):
                self._secs |= {(task, kind): secs for task in bolt.task_ids if secs is not None}
        self._numbers = dict.fromkeys(self._secs, 0)
        self._before: dict[tuple[int, int], int] = {}
        self._begin: tuple[float, int] | None = None
        self._holds: dict[int, int] = {}
        self._have_held: set[str] = set()
        self._flushes: set[int] = set()
        self._kept: set[int] = set()
        self._groups: deque[Sequence[int]] = deque()
        self._broke_alone = self._losses = 0
        self._guilty: tuple[int, Exception] | None = None
        self.is_suspect = False

    # -- turns

    def add(self, rows: RowBuffer, now_secs: float, now_ms: int = 0) -> None:
        """Begin a turn with the calls that are due, before each task's tuples. The first turn begins the time.

        Args:
            rows: rows of the turn.
            now_secs: time of the turn, by the run's clock.
            now_ms: the same, in milliseconds since 1970.
        """
        if self._begin is None:
            self._begin = now_secs, now_ms
        self._before = {}
        if self._guilty is not None:
            task, error = self._guilty
            self._put(rows, task, RELEASE_SOURCE, 1, [f"JobFailedError: {line_of(error)}"])
            return
        self._add_calls(rows, now_secs)
        while self.is_suspect and not self._before:  # the tasks hold nothing any more, so no call of theirs is left
            if self._groups:
                self._groups.popleft()
            self.is_suspect, self._broke_alone = bool(self._groups), 0
            self._add_calls(rows, now_secs)

    def _add_calls(self, rows: RowBuffer, now_secs: float) -> None:
        only = set(self._groups[0]) if self._groups else None
        for task, kind in self._secs:
            if only is None or task in only:
                self._add_due(rows, task, kind, now_secs)
        for task in sorted(self._flushes):
            if only is None or task in only:
                self._put(rows, task, FLUSH_SOURCE, 1, [])

    def _add_due(self, rows: RowBuffer, task: int, kind: int, now_secs: float) -> None:
        assert self._begin is not None  # noqa: S101  # `add` was called
        begin_secs, begin_ms = self._begin
        secs, before = self._secs[task, kind], self._numbers[task, kind]
        number = int((now_secs - begin_secs) / secs)
        if number <= before:
            return
        if kind == TICK_SOURCE:
            self._put(rows, task, kind, number, [secs])
        elif self.may_hold(task):
            self._put(rows, task, kind, number, [begin_ms, 1000 * secs, before + 1, number])
        else:
            self._numbers[task, kind] = number

    def _put(self, rows: RowBuffer, task: int, kind: int, number: int, values: Sequence[Any]) -> None:
        self._before[task, kind] = self._numbers.get((task, kind), 0)
        self._numbers[task, kind] = number
        entries = rows.tuples(self._plan.key_of[task], task, _FROM[kind])
        entries.append((number, kind, dump_values(values), {}))
        rows.count += 1

    def succeeded(self, released: int | None = None) -> None:
        """Note that the turn's calls were processed.

        Args:
            released: number of tuples that the task which breaks its turns held, and that have failed now. None: unknown.

        Raises:
            JobFailedError: it held none, so that no message is to blame.
        """
        if not self._before:
            return
        if self._guilty is not None:
            (task, error), self._guilty = self._guilty, None
            if released == 0:
                raise self._hopeless([task], error)
            log.warning("held tuples failed, their turns broke bolt=%r count=%s", self._names[task], released)
        elif self._groups:
            self._groups.popleft()
        self._flushes -= {task for task, kind in self._before if kind == FLUSH_SOURCE}
        self._before, self._broke_alone, self._losses = {}, 0, 0
        self.is_suspect = bool(self._groups)

    def repeat(self) -> None:
        """Note that the turn's calls weren't processed. They are due again."""
        self._numbers |= self._before
        self._before = {}

    def broke(self, error: Exception, *, is_alone: bool, by_loss: bool = False) -> bool:
        """Note that the job of a turn broke. Returns False if it had no calls.

        Args:
            error: error of the job.
            is_alone: True if the turn had nothing else, so that a call may be to blame.
            by_loss: True if Spark has lost rows that it kept. No call is to blame, unless that happens again and again.

        Raises:
            JobFailedError: the last turns had nothing else, and broke.
        """
        if not self._before:
            return False
        tasks, self.is_suspect = sorted({task for task, _ in self._before}), True
        self.repeat()
        if by_loss and self._losses < MOST_LOSSES:
            self._losses += 1
        elif is_alone:
            self._blame(tasks, error)
        log.warning("turn with ticks broke, they go alone next bolts=%r error=%s", self._bolts(tasks), line_of(error))
        return True

    def _blame(self, tasks: Sequence[int], error: Exception) -> None:
        if self._guilty is not None:  # not even its held tuples can be read
            raise self._hopeless(tasks, error)
        if len(tasks) > 1 and not self._keeping.isdisjoint(tasks):
            if self._groups:
                self._groups.popleft()
            middle = len(tasks) // 2
            self._groups.extendleft((tasks[middle:], tasks[:middle]))
            self._broke_alone = 0
            return
        self._broke_alone += 1
        if self._broke_alone >= _MOST_ALONE:
            if tasks[0] not in self._keeping:
                raise self._hopeless(tasks, error)
            self._guilty, self._broke_alone = (tasks[0], error), 0

    def _hopeless(self, tasks: Sequence[int], error: Exception) -> JobFailedError:
        made = JobFailedError(
            f"{_MOST_ALONE} turns with nothing but ticks of the bolts {self._bolts(tasks)} broke in a row, "
            f"so no message is to blame. Correct process_tick, and run again. The last error was: {line_of(error)}"
        )
        made.__cause__ = error
        return made

    def _bolts(self, tasks: Iterable[int]) -> list[str]:
        return sorted({self._names[task] for task in tasks})

    # -- what batches and windows hold

    def may_hold(self, task: int) -> bool:
        """Return True if the batches or windows of a task may hold tuples."""
        return self._holds.get(task, 0) > 0

    def has_held(self, bolt: str) -> bool:
        """Return True if batches or windows of a bolt have held tuples over a turn."""
        return bolt in self._have_held

    def note_held(self, holds: Mapping[int, int]) -> None:
        """Note how many tuples the batches or windows of tasks hold behind a turn."""
        self._holds |= holds
        self._have_held |= {self._names[task] for task, count in holds.items() if count}
        self._kept -= holds.keys()
        self._kept |= {task for task, count in holds.items() if count and (task, FLUSH_SOURCE) in self._before}

    def succeeded_unseen(self) -> None:
        """Note that the turn was committed, and its reports are lost. All tasks may hold tuples."""
        self._holds |= dict.fromkeys(self._holders, 1)
        self.succeeded()

    def flush(self, *, timed: bool = True, windows: bool = True) -> bool:
        """Let batches and windows be processed in the next turn. Returns False if none holds tuples.

        A bolt that kept them in its last flush is asked again behind its next turn.

        Args:
            timed: False to leave out those that time alone brings to be processed.
            windows: False to leave out windows.
        """
        asked = {
            task
            for task, (is_timed, has_windows) in self._holders.items()
            if self.may_hold(task)
            and task not in self._kept
            and (timed or not is_timed)
            and (windows or not has_windows)
        }
        self._flushes |= asked
        return bool(asked)
