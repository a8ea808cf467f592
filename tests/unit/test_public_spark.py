"""The public calls of the Spark layer: an example of each, and the map of its rooms."""

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
from tests.docs.test_doctests import calls_of

HOLDERS = (Tracker, spark.BatchHandler, spark.Collector)
FUNCTIONS = [name for name in spark.__all__ if inspect.isfunction(getattr(spark, name))]
OPERATORS = [name for name, _ in calls_of(Tracker)]
EACH = [(call, name) for holder in HOLDERS for name, call in calls_of(holder)] + [
    (getattr(spark, name), name) for name in (*FUNCTIONS, "BoltOutput", "Collector")
]


@pytest.mark.parametrize("name", OPERATORS)
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
