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


def operator_name(name: str) -> None:
    """It names a stage in Redis."""
    if not keys.is_name(name):
        raise PipelineError(f"name={name!r}: name the operator with 1 to 100 characters")


def quoted(column: str) -> str:
    """A column's name as Spark reads it where it takes an expression: dots and backticks are part of the name."""
    return "`" + column.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as Spark's SQL spells it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def column_names(columns: Iterable[str], name: str, made_here: Container[str | None] = ()) -> None:
    """No two columns have one name, and none has one that the tracker uses for its own, which would be taken for it.

    Raises:
        PipelineError: one has, and is not one of those made here.
    """
    columns = list(columns)
    times = Counter(column.lower() for column in columns)
    twice = [column for column in columns if times[column.lower()] > 1]
    if twice:
        raise PipelineError(
            f"{name!r}: {', '.join(map(repr, twice))}: columns of one name can't be told apart, and case makes no difference "
            "to Spark: rename or drop some"
        )
    taken = [column for column in columns if column not in made_here and is_own(column)]
    if taken:
        raise PipelineError(
            f"{name!r}: {', '.join(taken)}: names that begin with _acker_, _share and _roots are the tracker's own: "
            "rename the columns, and name those you want instead of giving *"
        )


def integer_column(frame: DataFrame, column: str, name: str) -> str:
    """The column as it is spelled in the DataFrame; Spark doesn't mind the case."""
    for found in sorted(frame.schema.fields, key=lambda field: field.name != column):  # the same spelling first
        if found.name.lower() == column.lower():
            if isinstance(found.dataType, IntegralType):
                return found.name
            raise PipelineError(
                f"spout {name!r}: column {column!r} is {found.dataType.simpleString()}, not bigint: number the messages where "
                f"they come from, or hash it into a column of its own, xxhash64({quoted(column)})"
            )
    raise PipelineError(
        f"spout {name!r}: there is no column {column!r} among {frame.columns}: name the one that has the message ids"
    )


def on_error(on_error: str, name: str) -> None:
    """What to do about errors is one of two things."""
    if on_error not in ("fail", "raise"):
        raise PipelineError(f"{name!r}: on_error={on_error!r}: use 'fail' or 'raise'")


def function(given: object, name: str, what: str) -> None:
    """It can be called."""
    if not callable(given):
        raise PipelineError(f"{name}: {given!r} can't be called: give {what}")


def run(name: str, pipeline: object, acker: object, retry: object) -> None:
    """What every run is given is of the right kind.

    Raises:
        BadConfigError: something isn't.
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


def no_retry(types: object, name: str) -> None:
    """Exceptions by their types."""
    if not isinstance(types, tuple) or not all(isinstance(one, type) and issubclass(one, Exception) for one in types):
        raise PipelineError(f"{name!r}: no_retry={types!r}: use a tuple of exceptions, such as (ValueError, KeyError)")


def join(left: DataFrame, right: DataFrame, on: list[str], how: str, allowed: tuple[str, ...]) -> None:
    """Both sides have the columns to join on, and no other in common."""
    if how not in allowed:
        raise PipelineError(f"join: how={how!r}: use one of {', '.join(allowed)}")
    missing = [column for column in on if not (column in left.columns and column in right.columns)]
    if missing or not on:
        raise PipelineError(f"join: both sides need the columns to join on, spelled alike; missing: {missing or 'all'}")
    mine, theirs = ({c.lower() for c in f.columns if c not in (*on, *TRACKING)} for f in (left, right))
    if mine & theirs:
        raise PipelineError(f"join: both sides have {sorted(mine & theirs)}: rename or drop them on one side")


def struct(schema: str | StructType, name: str) -> StructType:
    """A schema, from DDL too."""
    output = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(output, StructType):
        raise PipelineError(f"bolt {name!r}: schema {schema!r} is not a list of columns")
    column_names(output.names, name)
    return output


def crossing(frame: DataFrame) -> None:
    """Every column has a type that Arrow carries, so that Python workers get its rows, and can keep them.

    Raises:
        PipelineError: one isn't.
    """
    for found in frame.schema.fields:
        try:
            arrow_schema(StructType([found]))
        except (PySparkException, TypeError, ValueError) as exc:
            raise PipelineError(
                f"column {found.name!r} is {found.dataType.simpleString()}, which can't be handed to Python workers ({exc}): "
                "leave it out, or cast it, such as to string"
            ) from exc


def arrow_schema(columns: StructType) -> pa.Schema:
    """Columns as Arrow has them; times are instants, whatever the session's time zone."""
    return to_arrow_schema(columns, timezone="UTC")
