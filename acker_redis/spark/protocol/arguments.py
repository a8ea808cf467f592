"""Arguments of the tracker's operators, looked at before anything runs."""

from collections import Counter
from collections.abc import Container, Iterable

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegralType, StructType

from acker_redis.acker import Acker
from acker_redis.errors import BadConfigError, PipelineError
from acker_redis.model import keys
from acker_redis.spark.protocol.columns import TRACKING, is_own
from acker_redis.spout.retry import RetryPolicy


def check_operator_name(name: str) -> None:
    """Check a name, which names a component in Redis."""
    if not keys.is_name(name):
        raise PipelineError(f"name={name!r}: name the operator with 1 to 100 characters")


def quoted(column: str) -> str:
    """Write a column's name as Spark reads it in an expression: dots and backticks are part of the name."""
    return "`" + column.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Write a text as Spark's SQL spells it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def check_column_names(columns: Iterable[str], name: str, allowed: Container[str | None] = ()) -> None:
    """Check that no two columns have the same name, and none has one of the tracker's own, but for those allowed.

    Raises:
        PipelineError: there is such a column.
    """
    columns = list(columns)
    times = Counter(column.lower() for column in columns)
    twice = [column for column in columns if times[column.lower()] > 1]
    if twice:
        raise PipelineError(
            f"{name!r}: {', '.join(map(repr, twice))}: columns of one name can't be told apart, and case makes no difference "
            "to Spark: rename or drop some"
        )
    taken = [column for column in columns if column not in allowed and is_own(column)]
    if taken:
        raise PipelineError(
            f"{name!r}: {', '.join(taken)}: names that begin with _acker_, _share and _roots are the tracker's own: "
            "rename the columns, and name those you want instead of giving *"
        )


def integer_column(frame: DataFrame, column: str, name: str) -> str:
    """Find a column of integers as it is spelled in the DataFrame; Spark doesn't mind the case."""
    for field in sorted(frame.schema.fields, key=lambda field: field.name != column):  # the same spelling first
        if field.name.lower() == column.lower():
            if isinstance(field.dataType, IntegralType):
                return field.name
            raise PipelineError(
                f"spout {name!r}: column {column!r} is {field.dataType.simpleString()}, not bigint: number the messages where "
                f"they come from, or hash it into a column of its own, xxhash64({quoted(column)})"
            )
    raise PipelineError(
        f"spout {name!r}: there is no column {column!r} among {frame.columns}: name the one that has the message ids"
    )


def check_on_error(on_error: str, name: str) -> None:
    """Check what to do about errors: fail or raise."""
    if on_error not in ("fail", "raise"):
        raise PipelineError(f"{name!r}: on_error={on_error!r}: use 'fail' or 'raise'")


def check_function(function: object, name: str, expected: str) -> None:
    """Check that it can be called; `expected` says what to give."""
    if not callable(function):
        raise PipelineError(f"{name}: {function!r} can't be called: give {expected}")


def check_run(name: str, pipeline: object, acker: object, retry: object) -> None:
    """Check the types of what every run is given.

    Raises:
        BadConfigError: one is wrong.
    """
    if not callable(pipeline):
        raise BadConfigError(
            f"{name}: pipeline={pipeline!r} can't be called. Give a function of a tracker and its messages"
        )
    if not isinstance(acker, Acker):
        raise BadConfigError(f'{name}: acker={acker!r} is no Acker. Give one, such as Acker.connect(url, app="orders")')
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise BadConfigError(
            f"{name}: retry={retry!r} is no RetryPolicy. Give one, such as RetryPolicy(max_attempts=3)"
        )


def check_no_retry(types: object, name: str) -> None:
    """Check that these are types of exceptions."""
    if not isinstance(types, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in types
    ):
        raise PipelineError(f"{name!r}: no_retry={types!r}: use a tuple of exceptions, such as (ValueError, KeyError)")


def check_join(left: DataFrame, right: DataFrame, on: list[str], how: str, allowed: tuple[str, ...]) -> None:
    """Check that both sides have the columns to join on, and no other in common."""
    if how not in allowed:
        raise PipelineError(f"join: how={how!r}: use one of {', '.join(allowed)}")
    missing = [column for column in on if not (column in left.columns and column in right.columns)]
    if missing or not on:
        raise PipelineError(f"join: both sides need the columns to join on, spelled alike; missing: {missing or 'all'}")
    others = [{column.lower() for column in side.columns if column not in (*on, *TRACKING)} for side in (left, right)]
    if common := others[0] & others[1]:
        raise PipelineError(f"join: both sides have {sorted(common)}: rename or drop them on one side")


def struct(schema: str | StructType, name: str) -> StructType:
    """Read a schema, from DDL too."""
    output = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(output, StructType):
        raise PipelineError(f"{name!r}: schema {schema!r} is not a list of columns")
    check_column_names(output.names, name)
    return output


def check_arrow_types(frame: DataFrame) -> None:
    """Check that every column has a type that Arrow carries, so that Python workers get its rows, and can keep them.

    Raises:
        PipelineError: a column hasn't.
    """
    for field in frame.schema.fields:
        try:
            arrow_schema(StructType([field]))
        except (PySparkException, TypeError, ValueError) as exc:
            raise PipelineError(
                f"column {field.name!r} is {field.dataType.simpleString()}, which can't be handed to Python workers ({exc}): "
                "leave it out, or cast it, such as to string"
            ) from exc


def arrow_schema(columns: StructType) -> pa.Schema:
    """Convert columns to Arrow's; times are instants, whatever the session's time zone."""
    return to_arrow_schema(columns, timezone="UTC")
