"""What is public of the Spark layer: names, calls with their parameters, an example of each, and the map of its rooms."""

import ast
import inspect
import re
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from acker_redis import spark
from acker_redis.spark import sinks, sources, worker
from acker_redis.spark.tracker import Tracker, _name_of
from tests.docs.test_doctests import calls_of, parameters

RUN = "executor_url id_column"
ALL = "task retry stop_if_all_fail emit_timeout_secs max_spout_pending"
"""Of both kinds of runs."""

CALLS: dict[Any, dict[str, str]] = {
    Tracker: {
        "filter": "tracked condition * name",
        "fail_where": "tracked condition reason * retry name",
        "explode": "tracked children * name",
        "bolt": "tracked execute schema * on_error no_retry name",
        "bolt_arrow": "tracked execute schema * name",
        "join": "left right on how * partial name",
        "group": "tracked keys aggregates * partial name",
        "union": "first others * name",
        "checkpoint": "tracked * reliable name",
        "discard": "tracked",
        "write": "tracked write * on_error allow_overwrite name",
        "write_with": "tracked write * on_error name",
        "write_source": "tracked source * mode options on_error allow_overwrite name",
        "write_partitions": "tracked write * on_error no_retry name",
        "export": "tracked write * form column name",
    },
    spark.BatchHandler: {"drain": "timeout_secs", "status": "", "close": ""},
    spark.Collector: {"emit": "row", "fail": "reason * retry"},
}

FUNCTIONS = {
    "check_pipeline": "messages pipeline rows id_column * partition offset output",
    "each_batch": f"pipeline * acker park {RUN} partition offset {ALL} max_parked settle_secs payload_bytes on_messages_done",
    "import_anchors": "rows pipeline * acker task column progress **options",
    "prepare_environment": "",
    "read_dead_letters": "session acker * begin end payload_schema executor_url",
    "read_files": "session path file_format schema",
    "run_redis_stream": "session pipeline * acker source stream fields group consumer stop task max_spout_pending claim_secs "
    "settle_secs block_ms progress **options",
    "run_tracked": f"messages pipeline * acker {RUN} offsets partition offset run_id {ALL} payload_bytes keep_payload fetch "
    "on_messages_done progress output",
    "with_message_id": "frame * partition offset",
}

OTHERS = {
    "BatchHandler",
    "BoltOutput",
    "Collector",
    "JavaNotFoundError",
    "Pipeline",
    "PipelineCheck",
    "StreamStatus",
    "Tracker",
}

EACH = [(getattr(holder, name), name) for holder, calls in CALLS.items() for name in calls] + [
    (getattr(spark, name), name) for name in (*FUNCTIONS, "BoltOutput", "Collector")
]


def test_the_public_names() -> None:
    assert set(spark.__all__) == FUNCTIONS.keys() | OTHERS


@pytest.mark.parametrize("holder", CALLS)
def test_the_calls_and_their_parameters(holder: Any) -> None:
    assert {name: parameters(call) for name, call in calls_of(holder)} == CALLS[holder]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions_and_their_parameters(name: str) -> None:
    assert parameters(getattr(spark, name)) == FUNCTIONS[name]


@pytest.mark.parametrize("name", CALLS[Tracker])
def test_an_operator_takes_a_frame_first_and_its_name_last_and_by_name_only(name: str) -> None:
    _, first, *others = inspect.signature(getattr(Tracker, name)).parameters.values()
    assert getattr(first.annotation, "__name__", first.annotation) == "DataFrame"
    if name != "discard":
        assert (others[-1].name, others[-1].kind, others[-1].default) == ("name", inspect.Parameter.KEYWORD_ONLY, None)


def example_in(text: str) -> str:
    """The first block of code: in deeper than what is around it, in front of the parts for arguments and errors."""
    if ">>> " in text:
        return "\n".join(re.findall(r"^>>> (.*)$", text, re.MULTILINE))
    before, *_ = re.split(r"^(?:Args|Attributes|Raises):$", text, maxsplit=1, flags=re.MULTILINE)
    found = re.search(r"(?:^(?: {4}.*)?\n)*^ {4}.*$", before, re.MULTILINE)
    return textwrap.dedent(found[0]) if found else ""


@pytest.mark.parametrize(("call", "name"), EACH)
def test_a_call_has_an_example_of_it(call: Any, name: str) -> None:
    example = example_in(inspect.getdoc(call) or "")
    ast.parse(example)
    known = {"close": "with each_batch", "Collector": "class Split"}
    assert known.get(name, name) in example


@pytest.mark.parametrize("package", [spark, sources, sinks, worker])
def test_the_map_of_a_package_names_its_modules(package: Any) -> None:
    modules = {path.stem for path in Path(package.__file__).parent.glob("*.py")} - {"__init__"}
    assert modules <= set(re.findall(r"\w+", package.__doc__))


def split(how: str, row: dict[str, Any]) -> None:
    """For the names below."""


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (split, "split"),
        (partial(split, ","), "split"),
        (partial(partial(split), ","), "split"),
        (lambda row: None, "bolt"),
        (partial(lambda how, row: None, ","), "bolt"),
        (spark.Collector(), "Collector"),
    ],
)
def test_an_operator_is_called_like_its_function(function: Any, name: str) -> None:
    assert _name_of(function, "bolt") == name
