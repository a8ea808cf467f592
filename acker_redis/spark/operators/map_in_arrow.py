"""Steps in Python workers, over frames of any column names."""

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from acker_redis.spark.protocol.columns import TRACKING

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, make: Callable[[tuple[str, ...]], Step], output: StructType) -> DataFrame:
    """Run a step over a frame. PySpark's own function takes a dot or backtick in a name for something else (4.3).

    Args:
        frame: rows.
        make: makes the step, given the names that columns have where Spark gives them others; empty if it does not.
        output: columns, any of which may be null in rows that stand for removed ones.
    """
    if not any(char in name for name in frame.columns for char in ".`"):
        return frame.mapInArrow(make(()), output)
    plain = (name if name in TRACKING else f"_{i}" for i, name in enumerate(frame.columns))
    return frame.toDF(*plain).mapInArrow(make(tuple(frame.columns)), output)
