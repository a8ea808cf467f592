"""Groupings, and the order of a queue."""

from collections.abc import Callable
from typing import Any

from acker_redis.storm import TopologyBuilder
from tests.storm.conformance.recording import (
    Recording,
    RecordingSpout,
    bolt,
    spout,
    take,
)
from tests.storm.conformance.scenarios.scenario import (
    Built,
    Run,
    also,
    line,
    scenario,
)


def _grouping(recording: Recording, subscribe: Callable[[Any], Any]) -> Built:
    def next_key(self: RecordingSpout) -> None:
        if self.n < 40:
            self.send(f"m{self.n}", f"k{self.n % 5}", self.n)
            self.n += 1

    builder = TopologyBuilder()
    builder.set_spout("spout", spout(recording, next_key, outputs=["k", "v"]))
    subscribe(builder.set_bolt("a", bolt(recording, take), par=4))
    return builder


def tasks_of_keys(recording: Recording, component: str) -> dict[str, list[int]]:
    """The task indices that each key came to."""
    found: dict[str, set[int]] = {}
    for event in recording.calls("execute", component=component):
        found.setdefault(event.data["values"][0], set()).add(event.index)
    return {key: sorted(indices) for key, indices in sorted(found.items())}


@scenario()
def grouping_shuffle(recording: Recording) -> Built:
    return _grouping(recording, lambda a: a.shuffle_grouping("spout"))


@also(grouping_shuffle)
def _every_task_gets_some(recording: Recording, run: Run) -> None:
    assert {e.index for e in recording.calls("execute")} == {0, 1, 2, 3}


@scenario()
def grouping_fields(recording: Recording) -> Built:
    return _grouping(recording, lambda a: a.fields_grouping("spout", ["k"]))


@scenario()
def grouping_all(recording: Recording) -> Built:
    return _grouping(recording, lambda a: a.all_grouping("spout"))


@also(grouping_all)
def _each_task_has_every_tuple(recording: Recording, run: Run) -> None:
    for index in range(4):
        mine = [e.data["values"][1] for e in recording.calls("execute") if e.index == index]
        assert mine == list(range(40))


@scenario()
def grouping_global(recording: Recording) -> Built:
    return _grouping(recording, lambda a: a.global_grouping("spout"))


@scenario()
def grouping_none(recording: Recording) -> Built:
    return _grouping(recording, lambda a: a.none_grouping("spout"))


@scenario()
def grouping_local_or_shuffle(recording: Recording) -> Built:
    return _grouping(recording, lambda a: a.local_or_shuffle_grouping("spout"))


@scenario()
def grouping_partial_key(recording: Recording) -> Built:
    return _grouping(recording, lambda a: a.partial_key_grouping("spout", ["k"]))


@also(grouping_partial_key)
def _a_key_has_two_tasks_at_most(recording: Recording, run: Run) -> None:
    assert all(len(indices) <= 2 for indices in tasks_of_keys(recording, "a").values())


@scenario()
def fields_two_sources(recording: Recording) -> Built:
    def next_key(self: RecordingSpout) -> None:
        if self.n < 10:
            self.send(f"{self.component_name}m{self.n}", f"k{self.n % 5}")
            self.n += 1

    builder = TopologyBuilder()
    for name in ("s1", "s2"):
        builder.set_spout(name, spout(recording, next_key, outputs=["k"]))
    a = builder.set_bolt("a", bolt(recording, take), par=3)
    a.fields_grouping("s1", ["k"]).fields_grouping("s2", ["k"])
    return builder


@scenario(leaves_out=["emitted"])
def fifo(recording: Recording) -> Built:
    def burst(self: RecordingSpout) -> None:
        for _ in range(20 if self.n < 200 else 0):
            self.n += 1
            self.send(self.n, self.n)

    return line(recording, spout(recording, burst), a=bolt(recording, take))


@also(fifo)
def _two_hundred_keep_their_order(recording: Recording, run: Run) -> None:
    assert recording.values("a") == list(range(1, 201))
