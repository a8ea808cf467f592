"""Bolts that process tuples in batches: by ticks, by number, or by time."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.components.component import Rule
from acker_redis.storm.components.holding import HoldingBolt
from acker_redis.storm.core.tuples import PENDING, Tuple
from acker_redis.storm.definition import settings


class BatchingBolt(HoldingBolt):
    """Bolt that processes tuples in batches (streamparse: BatchingBolt).

    A batch is processed at every `ticks_between_batches`-th tick, or when it has `batch_size` tuples. Emits are anchored to
    all tuples of the batch, which are acked when `process_batch` returns. An exception fails the current batch only.

    Set `topology.tick.tuple.freq.secs` in the config of the component or the topology, or `batch_size`. With `batch_size`
    alone, the last tuples wait for more, or for the end of the run. (streamparse processes one tick later.)

    Attributes:
        ticks_between_batches: number of ticks from one processing of the batches to the next.
        batch_size: number of tuples of a key at which their batch is processed at once; None for no such number.

    >>> class Count(BatchingBolt):
    ...     outputs = ["word", "n"]
    ...     def group_key(self, tup):
    ...         return tup.values.word
    ...     def process_batch(self, key, tups):
    ...         self.emit([key, len(tups)])
    """

    ticks_between_batches: int = 1
    batch_size: int | None = None

    _acker_needs: ClassVar[tuple[str, ...]] = ("process_batch", "process_batches", "process")
    _acker_calls: ClassVar[tuple[str, ...]] = ("group_key",)
    _acker_rules: ClassVar[Mapping[str, Rule]] = {
        "ticks_between_batches": Rule(settings.is_count, "an integer of 1 or more"),
        "batch_size": Rule(lambda value: value is None or settings.is_count(value), "an integer of 1 or more, or None"),
    }
    _acker_batches: dict[Hashable, list[Tuple]]
    _acker_ticks: int = 0
    _acker_full: tuple[Hashable, ...] = ()

    def group_key(self, tup: Tuple) -> Hashable:
        """Return the key of a tuple's batch. The default puts all tuples into one batch, with the key None."""
        return None

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        """Process the tuples of one key."""
        raise NotImplementedError(f"{type(self).__name__} has no process_batch(). Define it.")

    def process(self, tup: Tuple) -> None:
        """Put a tuple into its batch, which is processed after this method if it is full.

        Override `group_key` or `process_batch` instead.
        """
        batches = self._acker_open_batches()
        key = self.group_key(tup)
        batch = batches.setdefault(key, [])
        batch.append(tup)
        if self.batch_size is not None and len(batch) >= self.batch_size:
            self._acker_full = (*self._acker_full, key)

    def process_tick(self, tup: Tuple) -> None:
        """Count a tick, and process the batches if it is time."""
        self._acker_ticks += 1
        if self._acker_ticks >= self.ticks_between_batches:
            self._acker_ticks = 0
            self.process_batches()

    def process_batches(self) -> None:
        """Process all batches, key by key."""
        for key in list(self._acker_open_batches()):
            self._acker_process(key)

    @classmethod
    def _acker_check(cls, name: str) -> None:
        """Refuse a `process` that leads no tuple to the batches: the tuples would stay pending, and time out."""
        if cls.process is BatchingBolt.process or cls.process_batches is not BatchingBolt.process_batches:
            return
        code = getattr(cls.process, "__code__", None)
        if code is None or code.co_name != "process":  # a decorator's, which hides what the method calls
            return
        if cls.process_batch is not BatchingBolt.process_batch and "process" not in code.co_names:
            raise InvalidTopologyError(
                f"process() of component {name!r} puts no tuple into a batch, so its batches would stay empty. Call "
                "super().process(tup) in it, or write group_key() and process_batch() alone."
            )

    def _acker_execute(self, tup: Tuple) -> bool:
        is_whole = super()._acker_execute(tup)
        full, self._acker_full = self._acker_full, ()
        if is_whole:  # not within `process`, which may emit for the tuple after it has called its base
            for key in full:
                self._acker_process(key)
        return is_whole and self._acker_is_whole

    def _acker_process(self, key: Hashable) -> None:
        tups = [tup for tup in self._acker_open_batches().pop(key, ()) if tup.state is PENDING]
        if not tups:
            return
        with self._acker_processing(tups) as done:
            self.process_batch(key, tups)
        self._acker_is_whole = self._acker_is_whole and done.is_whole

    def _acker_open_batches(self) -> dict[Hashable, list[Tuple]]:
        if "_acker_batches" not in self.__dict__:  # a subclass need not call __init__ of this class
            self._acker_batches = {}
        return self._acker_batches

    def _acker_flush(self) -> bool:
        self._acker_is_whole = True
        self.process_batches()
        return self._acker_is_whole

    def _acker_held_tuples(self) -> list[Tuple]:
        return [tup for tups in self._acker_open_batches().values() for tup in tups]

    def _acker_let_go(self) -> list[Tuple]:
        held, self._acker_batches = self._acker_held_tuples(), {}
        return held

    def _acker_held_places(self) -> Iterator[tuple[Tuple, Any]]:
        for key, tups in self._acker_open_batches().items():
            for tup in tups:
                yield tup, key

    def _acker_held_progress(self) -> int:
        return self._acker_ticks

    def _acker_resume_held(self, progress: int | None, places: Iterable[tuple[Tuple, Any]]) -> None:
        self._acker_ticks, self._acker_batches = progress or 0, {}
        for tup, key in places:
            self._acker_batches.setdefault(key, []).append(tup)


class TicklessBatchingBolt(BatchingBolt):
    """Bolt that processes batches every `secs_between_batches` seconds, without ticks (streamparse: TicklessBatchingBolt).

    The batches are processed between two tuples, not in a thread of their own as in streamparse.

    Attributes:
        secs_between_batches: time from one processing of the batches to the next, in seconds.

    >>> class Count(TicklessBatchingBolt):
    ...     outputs = ["n"]
    ...     secs_between_batches = 5
    ...     def process_batch(self, key, tups):
    ...         self.emit([len(tups)])
    """

    secs_between_batches: float = 2.0

    _acker_rules: ClassVar[Mapping[str, Rule]] = {
        **BatchingBolt._acker_rules,  # noqa: SLF001  # of the base class
        "secs_between_batches": Rule(settings.is_duration, "a number of seconds above 0"),
    }

    def process_tick(self, tup: Tuple) -> None:
        """Ignore a tick."""
