"""The examples in docstrings of topologies run."""

import doctest
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from acker_redis import storm
from acker_redis.storm import Bolt, DataFrameSpout, LocalRun, Spout, Topology, TopologyBuilder
from acker_redis.storm.builder import BoltDeclarer
from acker_redis.storm.components.component import Component
from acker_redis.testing import fake_acker


class Lines(Spout):
    outputs = ["line"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.left = ["a b", "", "c"]

    def next_tuple(self) -> None:
        if self.left:
            self.emit([self.left.pop()], tup_id=len(self.left))


class Split(Bolt):
    outputs: Sequence[Any] = [storm.Stream(["word"]), storm.Stream(["line"], "empty")]
    auto_ack = False

    def process(self, tup: Any) -> None:
        for word in tup.values.line.split():
            self.emit([word])
        if tup.values.line != "held":
            self.ack(tup)


class Count(storm.StatefulBolt):
    outputs = ["word", "n"]

    def process(self, tup: Any) -> None:
        self.state[tup.values.word] = n = self.state.get(tup.values.word, 0) + 1
        self.emit([tup.values.word, n])


class WordCount(Topology):
    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=2)
    count = Count.spec(inputs={split: storm.Grouping.fields("word")})


PUBLIC = [getattr(storm, name) for name in storm.__all__]
CLASSES = [cls for cls in PUBLIC if inspect.isclass(cls) and cls.__module__.startswith("acker_redis.storm")]


def documented() -> Iterator[Any]:
    """Every docstring with an example: classes, and their public calls."""
    for cls in (*CLASSES, Component, BoltDeclarer):
        if issubclass(cls, DataFrameSpout):
            continue  # they need Spark: docs/topologies/spark.md runs it
        yield pytest.param(cls, cls, id=cls.__name__)
        for name, value in vars(cls).items():
            if name == "run" and cls is Topology:
                continue  # as for DataFrameSpout
            if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod)):
                yield pytest.param(cls, getattr(cls, name), id=f"{cls.__name__}.{name}")


def subject(cls: type, run: LocalRun) -> Any:
    """The object that an example calls `self`, in the middle of its work."""
    if issubclass(cls, Spout):
        return run.tasks("lines")[0]
    if issubclass(cls, Component):
        return next(bolt for bolt in run.tasks("split") if bolt._acker_collector.open_tuples)
    return None


@pytest.mark.parametrize(("cls", "one"), list(documented()))
def test_example_runs(cls: type, one: Any) -> None:
    builder = TopologyBuilder()
    builder.set_spout("lines", Lines)
    if one is not TopologyBuilder:
        builder.set_bolt("split", Split).shuffle_grouping("lines")
    with fake_acker() as acker, WordCount.local() as run:
        run.feed("lines", ["held"], tup_id=1)
        run.settle()
        bolt = subject(Bolt, run)
        (tup,) = bolt._acker_collector.open_tuples.values()
        bolt._acker_current = [tup]
        known = {
            **{name: getattr(storm, name) for name in storm.__all__},
            **{"Lines": Lines, "Split": Split, "Count": Count, "Sink": Count, "WordCount": WordCount},
            **{"run": run, "acker": acker, "builder": builder, "context": bolt.context, "tup": tup},
            **{"self": subject(cls, run)},
        }
        example = doctest.DocTestParser().get_doctest(inspect.getdoc(one) or "", known, str(one), None, 0)
        report: list[str] = []
        result = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert (result.failed, "".join(report)) == (0, "")


def test_calls_that_need_an_example_have_one() -> None:
    """What a component overrides has none; what it calls does."""
    for cls in (LocalRun, Topology):
        for name, value in vars(cls).items():
            if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod)):
                assert ">>>" in (inspect.getdoc(getattr(cls, name)) or ""), name
