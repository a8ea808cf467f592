"""Bolts with batches and windows, which Python workers import."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from acker_redis.storm import (
    BatchingBolt,
    Bolt,
    RowFailedError,
    StatefulBolt,
    Stream,
    TicklessBatchingBolt,
    Tuple,
    TupleWindow,
    WindowedBolt,
)
from tests.storm.turns.tick_parts import TICKS
from tests.support.spark.faults import kill_self, once


class Sums(BatchingBolt):
    """Batches by the first letter, and emits each batch as text. Letter `x` raises, and `k` kills its worker once."""

    outputs = ["v string"]

    def group_key(self, tup: Tuple) -> str:
        return str(tup.values[0])[0]

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        if key == "x":
            raise RowFailedError("on purpose")
        if key == "k":
            once(Path(self.storm_conf["folder"], "killed"), kill_self)
        if key == "d":
            kill_self()
        self.emit([" ".join(str(tup.values[0]) for tup in tups)])


class ByNumber(Sums):
    batch_size = 3


class Broken(ByNumber):
    def group_key(self, tup: Tuple) -> str:
        return ""

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        raise KeyError("on purpose")


class ByTicks(Sums):
    config = TICKS
    ticks_between_batches = 2


class ByTime(TicklessBatchingBolt, Sums):
    secs_between_batches = 0.3


class Shows(WindowedBolt):
    """Emits each window as text: its tuples, new ones, and those that left."""

    outputs: Any = ["v string"]

    def process_window(self, window: TupleWindow) -> None:
        parts = [[str(tup.values[0]) for tup in of] for of in (window.tuples, window.new, window.expired)]
        self.emit(["|".join(map(",".join, parts))])


class LastThree(Shows):
    window, slide = 3, 1


class LastOne(LastThree):
    window = 1


class CountsWindows(LastThree, StatefulBolt):
    """Counts its windows in its state."""

    def process_window(self, window: TupleWindow) -> None:
        super().process_window(window)
        self.state["windows"] = self.state.get("windows", 0) + 1


class Pairs(Shows):
    window = slide = 2


class ByMoment(Shows):
    """The last 0.6 s, at each 0.2 s."""

    window, slide = timedelta(seconds=0.6), timedelta(seconds=0.2)


class ByEventTime(Shows):
    """Windows of a second of the time in the second field."""

    outputs = [Stream(["v string"]), Stream(["late_tuple"], name="late")]
    window = slide = timedelta(seconds=1)
    timestamp_field = "at"
    lag = timedelta(seconds=1)
    late_stream = "late"
    config = {"topology.bolts.watermark.event.interval.ms": 100}


class ShowsLate(Bolt):
    """Emits the value of each late tuple."""

    outputs = ["v string"]

    def process(self, tup: Tuple) -> None:
        self.emit([f"late {tup.values.late_tuple.values.v} of {tup.values.late_tuple.component}"])
