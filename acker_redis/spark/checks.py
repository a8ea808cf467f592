"""Check the arguments of operators and runs before anything runs."""

import inspect
from collections import Counter
from collections.abc import Callable, Container, Iterable

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegralType, StructType

from acker_redis.acker import Acker
from acker_redis.errors import BadConfigError, PipelineError
from acker_redis.model import keys
from acker_redis.spark.protocol.columns import TRACKING, is_own
from acker_redis.spark.sql import quoted
from acker_redis.spout.retry import RetryPolicy

_SCHEMA_OPTIONS = inspect.signature(to_arrow_schema).parameters


def check_operator_name(name: str) -> None:
    """Check an operator's name, which also names a component in Redis."""
    if not keys.is_name(name):
        raise PipelineError(f"name={name!r} can't name an operator. Use 1 to 100 characters.")


def check_column_names(columns: Iterable[str], name: str, allowed: Container[str | None] = ()) -> None:
    """Check that column names are unique and not reserved for the tracker.

    Raises:
        PipelineError: a name is repeated or reserved.
    """
    columns = list(columns)
    times = Counter(column.lower() for column in columns)
    twice = [column for column in columns if times[column.lower()] > 1]
    if twice:
        raise PipelineError(
            f"{name!r}: several columns of one name: {', '.join(map(repr, twice))}. Spark ignores case in column names. "
            "Rename or drop some."
        )
    taken = [column for column in columns if column not in allowed and is_own(column)]
    if taken:
        raise PipelineError(
            f"{name!r}: reserved column names: {', '.join(taken)}. The tracker reserves _share, _roots, and every name that "
            "begins with _acker_. Rename the columns, and select columns by name instead of by *."
        )


def integer_column(frame: DataFrame, column: str, name: str) -> str:
    """Return the DataFrame's own spelling of a column of integers. Spark ignores case.

    Raises:
        PipelineError: the column is missing, or of another type.
    """
    for field in sorted(frame.schema.fields, key=lambda field: field.name != column):  # the same spelling first
        if field.name.lower() == column.lower():
            if isinstance(field.dataType, IntegralType):
                return field.name
            raise PipelineError(
                f"{name}: column {column!r} is {field.dataType.simpleString()}, not bigint. Number the messages in their "
                f"source, or hash this column into another one, such as xxhash64({quoted(column)})."
            )
    raise PipelineError(
        f"{name}: column {column!r} not found in {frame.columns}. Set `ids` to the column that holds the message ids."
    )


def check_on_error(on_error: str, name: str) -> None:
    """Check that `on_error` is `fail` or `raise`."""
    if on_error not in ("fail", "raise"):
        raise PipelineError(f"{name}: on_error={on_error!r} is unknown. Use 'fail' or 'raise'.")


def check_function(function: object, name: str, expected: str, count: int = 1) -> None:
    """Check that an argument is a function of `count` arguments; `expected` describes it.

    A worker would find out only after the job has begun, once per partition and attempt.
    """
    if not callable(function):
        raise PipelineError(f"{name}: {function!r} can't be called. Pass {expected}.")
    if (refusal := _refusal(function, count)) is not None:
        raise PipelineError(
            f"{name}: {function!r} can't be called with {count} arguments ({refusal}). Pass {expected}."
        )


def _refusal(function: Callable[..., object], count: int) -> str | None:
    """Return why a function can't be called with so many arguments, or None if it can, or hides its parameters."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError as exc:
        return str(exc)
    except ValueError:  # of a builtin
        return None
    return None


def check_run(name: str, pipeline: object, acker: object, retry: object) -> None:
    """Check the types of the arguments that all runs have.

    Raises:
        BadConfigError: a type is wrong.
    """
    if not callable(pipeline):
        raise BadConfigError(
            f"{name}: pipeline={pipeline!r} can't be called. Pass a function of a tracker and its messages."
        )
    if (refusal := _refusal(pipeline, 2)) is not None:
        raise BadConfigError(
            f"{name}: pipeline={pipeline!r} can't be called with 2 arguments ({refusal}). Pass a function of a tracker and "
            "its messages."
        )
    if not isinstance(acker, Acker):
        raise BadConfigError(
            f'{name}: acker={acker!r} is not an Acker. Pass one, such as Acker.connect(url, app="orders").'
        )
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise BadConfigError(
            f"{name}: retry={retry!r} is not a RetryPolicy. Pass one, such as RetryPolicy(max_attempts=3)."
        )


def check_no_retry(types: object, name: str) -> None:
    """Check that `no_retry` is a tuple of exception types."""
    if not isinstance(types, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, Exception) for kind in types
    ):
        raise PipelineError(
            f"{name}: no_retry={types!r} is not a tuple of exceptions. Pass one, such as (ValueError, KeyError)."
        )


def check_join(left: DataFrame, right: DataFrame, on: list[str], how: str, allowed: tuple[str, ...]) -> None:
    """Check that both sides share the columns to join on, and no others."""
    if how not in allowed:
        raise PipelineError(f"join: how={how!r} is not supported for these sides. Use one of {', '.join(allowed)}.")
    missing = [column for column in on if not (column in left.columns and column in right.columns)]
    if missing or not on:
        raise PipelineError(
            f"join: both sides need the columns to join on, spelled alike. Missing: {missing or 'all'}. "
            "Set `on` to columns that both sides have."
        )
    others = [{column.lower() for column in side.columns if column not in (*on, *TRACKING)} for side in (left, right)]
    if common := others[0] & others[1]:
        raise PipelineError(
            f"join: both sides have {sorted(common)} besides the columns to join on. Rename or drop them on one side."
        )


def struct(schema: str | StructType, name: str) -> StructType:
    """Return a schema, which may be DDL, as a StructType, and check its names."""
    output = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(output, StructType):
        raise PipelineError(f"{name}: schema {schema!r} is not a list of columns. Pass one, as DDL or StructType.")
    check_column_names(output.names, name)
    return output


def check_arrow_types(frame: DataFrame) -> None:
    """Check that Python workers can receive and keep the rows: Arrow has all types.

    Raises:
        PipelineError: it has none for some column.
    """
    for field in frame.schema.fields:
        try:
            arrow_schema(StructType([field]))
        except (PySparkException, TypeError, ValueError) as exc:
            raise PipelineError(
                f"Column {field.name!r} is {field.dataType.simpleString()}, which can't be sent to Python workers ({exc}). "
                "Drop the column, or cast it, for example to string."
            ) from exc


def arrow_schema(columns: StructType) -> pa.Schema:
    """Convert columns to Arrow's. Times are instants, whatever the session's time zone."""
    if "timezone" in _SCHEMA_OPTIONS:  # since 4.2
        return to_arrow_schema(columns, timezone="UTC")
    return to_arrow_schema(columns)  # before, it was always UTC
