"""Columns that say where a message is in its source. In Kafka's, a partition has a name only together with its topic."""

from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from acker_redis.spark import sql
from acker_redis.spark.sources.files import FILE, ROW

TOPIC, PARTITION, OFFSET = "topic", "partition", "offset"

_OF_KAFKA = {TOPIC: StringType, PARTITION: IntegerType, OFFSET: LongType}


def place_columns(schema: StructType, partition: str, offset: str) -> tuple[str, str]:
    """Return the columns of partition and offset: those of Kafka, if the default ones are missing."""
    is_default = (partition, offset) == (FILE, ROW) and not {FILE, ROW} <= set(schema.names)
    return (PARTITION, OFFSET) if is_default and has_columns_of_kafka(schema) else (partition, offset)


def is_of_kafka(schema: StructType, partition: str) -> bool:
    """Return True if a column is Kafka's partition, whose numbers repeat from topic to topic."""
    return partition == PARTITION and has_columns_of_kafka(schema)


def has_columns_of_kafka(schema: StructType) -> bool:
    """Return True if rows have topic, partition and offset, as Spark's source of Kafka makes them."""
    kinds = {field.name: type(field.dataType) for field in schema if field.name in _OF_KAFKA}
    return kinds == _OF_KAFKA


def partition_name(schema: StructType, partition: str) -> str:
    """Return SQL of the name of a row's partition, such as `orders/0` in Kafka's rows."""
    if is_of_kafka(schema, partition):
        return f"concat({TOPIC}, '/', {PARTITION})"
    return f"cast({sql.quoted(partition)} AS string)"
