"""Streams and declared outputs."""

import pytest

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.definition.streams import Stream, streams_of


def test_field_names_alone_are_the_default_stream() -> None:
    assert streams_of(["word", "n"], "x")["default"] == Stream(["word", "n"])


def test_every_component_has_the_system_stream() -> None:
    assert streams_of(None, "x") == {"__system": Stream(["event"], "__system")}


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        ("word", "not a list"),
        ([Stream(["a"]), "b"], "Stream 'default' of .* is declared twice"),
        ([Stream(["a"]), Stream(["b"])], "Stream 'default' of .* is declared twice"),
        ([Stream(["a"], "__mine")], "has a name of Storm's"),
        ([1], "not a list of names"),
    ],
)
def test_bad_outputs_are_refused(outputs: object, text: str) -> None:
    with pytest.raises(InvalidTopologyError, match=text):
        streams_of(outputs, "x")


@pytest.mark.parametrize("fields", ["word", [""], ["a", "a"], [1], None, 5])
def test_bad_fields_are_refused(fields: object) -> None:
    with pytest.raises(InvalidTopologyError):
        Stream(fields)  # type: ignore[arg-type]


def test_names_beside_streams_are_the_fields_of_the_default_stream() -> None:
    """As in streamparse."""
    streams = streams_of(["word", Stream(["line"], "empty"), "n"], "x")
    assert streams["default"].fields == ("word", "n") and streams["empty"].fields == ("line",)


def test_direct_is_a_bool() -> None:
    with pytest.raises(InvalidTopologyError, match="neither True nor False"):
        Stream(["a"], "s", direct="task")  # type: ignore[arg-type]
