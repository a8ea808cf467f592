"""Context of a task, by attributes and by streamparse's keys."""

from typing import Any

import pytest

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm import Bolt, Grouping, Stream, Topology
from tests.storm.parts import Upto


class Split(Bolt):
    outputs = [Stream(["word"]), Stream(["line"], "empty")]

    def process(self, tup: Any) -> None: ...


class Words(Topology):
    lines = Upto(1).spec()
    split = Split.spec(inputs=[lines], par=2)
    count = Split.spec(inputs={split: Grouping.fields("word"), split["empty"]: Grouping.ALL})


class First:
    def prepare(self, context: Any, stream: Any, tasks: Any) -> None:
        self.tasks = tasks

    def choose_tasks(self, task: int, values: Any) -> list[int]:
        return list(self.tasks[:1])


def test_context_knows_tasks_components_and_streams() -> None:
    with Words.local() as run:
        context = run.tasks("split")[1].context
        assert (context.task_id, context.task_index, context.component) == (4, 1, "split")
        assert context.tasks("split") == [3, 4] and context.tasks("count") == [1]
        assert context.component_of(2) == "lines" and context.component_of(99) is None
        assert context.fields("lines") == ("v",) and set(context.streams) == {"default", "empty", "__system"}
        with pytest.raises(InvalidTopologyError, match="Did you mean 'split'"):
            context.tasks("splitt")


def test_context_answers_the_keys_of_streamparse() -> None:
    with Words.local() as run:
        context = run.tasks("count")[0].context
        assert dict(context) == {
            "taskid": 1,
            "componentid": "count",
            "task->component": {"1": "count", "2": "lines", "3": "split", "4": "split"},
            "streams": ["default", "empty", "__system"],
            "stream->outputfields": {"default": ["word"], "empty": ["line"], "__system": ["event"]},
            "stream->target->grouping": {"default": {}, "empty": {}, "__system": {}},
            "source->stream->grouping": {
                "split": {"default": {"type": "FIELDS", "fields": ["word"]}, "empty": {"type": "ALL"}}
            },
            "source->stream->fields": {"split": {"default": ["word"], "empty": ["line"]}},
        }
        assert context.get("nothing") is None
        assert run.tasks("split")[0].context["stream->target->grouping"]["empty"] == {"count": {"type": "ALL"}}


@pytest.mark.parametrize(
    ("grouping", "described"),
    [
        (Grouping.SHUFFLE, {"type": "SHUFFLE"}),
        (Grouping.LOCAL_OR_SHUFFLE, {"type": "LOCAL_OR_SHUFFLE"}),
        (Grouping.NONE, {"type": "NONE"}),
        (Grouping.GLOBAL, {"type": "FIELDS", "fields": []}),
        (Grouping.partial_key("v"), {"type": "CUSTOM_SERIALIZED"}),
        (Grouping.custom_object(First()), {"type": "CUSTOM_OBJECT"}),
    ],
)
def test_context_describes_groupings_as_storm_does(grouping: Grouping, described: Any) -> None:
    class Grouped(Topology):
        lines = Upto(1).spec()
        split = Split.spec(inputs={lines: grouping})

    with Grouped.local() as run:
        assert run.tasks("split")[0].context["source->stream->grouping"] == {"lines": {"default": described}}


def test_each_task_says_startup_on_the_system_stream() -> None:
    class Listens(Topology):
        lines = Upto(1).spec()
        split = Split.spec(inputs=[lines["__system"]])

    with Listens.local() as run:
        run.settle()
        assert run.acked("lines") == ["m1"] and run.executed("split") == [("startup",)]


def test_context_refuses_an_unknown_stream_and_has_the_name_of_the_settings() -> None:
    with Words.local({"topology.name": "words"}) as run:
        (count,) = run.tasks("count")
        assert count.context.topology_name == count.topology_name == "words"
        with pytest.raises(InvalidTopologyError, match="Did you mean 'empty'"):
            count.context.fields("split", "emty")
