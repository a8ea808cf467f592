"""Run steps in Python workers over frames with any column names."""

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from acker_redis.spark.protocol.columns import TRACKING

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, make: Callable[[tuple[str, ...]], Step], output: StructType) -> DataFrame:
    """Run a step over a frame. PySpark's own function misreads a dot or backtick in a name (4.3).

    Args:
        frame: input rows.
        make: function that creates the step from the original column names if Spark sees others, else from an empty tuple.
        output: output columns. Any of them may be null in rows that represent removed ones.
    """
    if not any(char in name for name in frame.columns for char in ".`"):
        return frame.mapInArrow(make(()), output)
    plain = (name if name in TRACKING else f"_{i}" for i, name in enumerate(frame.columns))
    return frame.toDF(*plain).mapInArrow(make(tuple(frame.columns)), output)
