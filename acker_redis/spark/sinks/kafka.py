"""The sinks that produce records to Kafka from the Python workers: for any reader, and for one group that acks them."""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    IntegralType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from acker_redis.acker import app_of
from acker_redis.errors import PipelineError
from acker_redis.kafka.consumer import check_group
from acker_redis.kafka.producer import producer_settings
from acker_redis.spark.proof.equation import equation_of
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.protocol.columns import ROOTS, TRACKING
from acker_redis.spark.runtime.executor_check import check_url
from acker_redis.spark.sinks.exports import Origin
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.sinks.partitions import consume
from acker_redis.spark.sinks.sink import Sink
from acker_redis.spark.sinks.staged_writes import refuse_unstaged
from acker_redis.spark.worker.kafka import (
    HEADERS,
    KEY,
    NO_TEXT,
    PARTITION,
    RECORD_ID,
    TIMESTAMP,
    TOPIC,
    VALUE,
    KafkaWrite,
)
from acker_redis.spark.worker.kafka_export import AnchorHeaders
from acker_redis.store.kafka_exports import KafkaExports

_TEXTS = (StringType, BinaryType)

_COLUMNS: dict[str, tuple[tuple[type[DataType], ...], str, str]] = {
    KEY: (_TEXTS, "string or binary", "cast(key AS binary)"),
    VALUE: (_TEXTS, "string or binary", "cast(value AS binary)"),
    HEADERS: ((ArrayType,), "array<struct<key string, value binary>>", HEADERS),
    TIMESTAMP: ((TimestampType, LongType), "timestamp, or bigint in milliseconds", TIMESTAMP),
    TOPIC: ((StringType,), "string", TOPIC),
    PARTITION: ((ShortType, IntegerType, LongType), "int", "cast(partition AS int)"),
}
"""Column -> its types, how an error names them, and its expression in SQL."""

_ID_TYPES = (StringType, IntegralType, BooleanType, DateType)
"""Types whose values are the same text in every session."""


def write_kafka(
    proof: Proof,
    outputs: Outputs,
    tracked: DataFrame,
    topic: str | None,
    kafka: Mapping[str, object],
    name: str | None,
    *,
    use_partition: bool,
    record_id: str | None,
) -> int:
    """Implement `Tracker.write_kafka`."""
    refuse_unstaged(outputs.output, "write_kafka")
    if outputs.output == "whole":
        raise PipelineError(
            'write_kafka: output="whole" does not support topics. Records can\'t be replaced, so a second try would add them '
            "again. Use output by message."
        )
    equation_of(
        tracked, proof.key, "write_kafka" if name is None else name
    )  # it raises before Spark misses its columns
    settings = producer_settings(kafka)
    records = _records("write_kafka", tracked, topic, record_id, use_partition=use_partition)
    sink = Sink.add(proof, outputs, "write_kafka", name, records)
    if outputs.waits:
        sink = sink.with_kept_rows()
        sink.finish()
        return sink.count
    write = KafkaWrite(sink.node.name, topic, settings, record_id is not None)
    return consume(sink, write, "fail", only_refused=True)()


def export_kafka(
    proof: Proof,
    origin: Origin | None,
    outputs: Outputs,
    tracked: DataFrame,
    topic: str,
    group: str,
    kafka: Mapping[str, object],
    name: str | None,
    record_id: str | None,
) -> int:
    """Implement `Tracker.export_kafka`."""
    refuse_unstaged(outputs.output, "export_kafka")
    if outputs.output == "whole":
        raise PipelineError(
            'export_kafka: output="whole" does not support exports. A message would be done only after the other group is '
            "done with its records, and the output would wait for that. Use output by message."
        )
    equation_of(tracked, proof.key, "export_kafka" if name is None else name)
    check_group("export_kafka", group)
    settings = producer_settings(kafka)
    if topic is None:
        raise PipelineError(
            "export_kafka: topic=None is no name of a topic. A group is named for one topic. Pass one, such as 'items'."
        )
    records = _records("export_kafka", tracked, topic, record_id, use_partition=False)
    sink = Sink.add(proof, outputs, "export_kafka", name, records)
    if outputs.waits or origin is None:
        sink = sink.with_kept_rows()
        sink.finish()
        return sink.count
    url = check_url(proof.session, origin.url, origin.acker)
    app = origin.acker.config.app
    KafkaExports(app_of(origin.acker).client, app).add(topic, group)
    proof.exports = True
    proof.know_ids()
    origin.initialise_roots()  # the group skips records whose roots the ledger doesn't have
    headers = AnchorHeaders(url, origin.acker.config, f"{proof.key}:{sink.node.name}", sink.node.name, group)
    write = KafkaWrite(sink.node.name, topic, settings, record_id is not None)
    return consume(sink, write, "fail", only_refused=True, prepare=headers)()


def _records(
    call: str, tracked: DataFrame, topic: str | None, record_id: str | None, *, use_partition: bool
) -> DataFrame:
    """Select the columns of records. The others, such as those of a source, say nothing about the record.

    With an id, rows of one id come together, in the order of their ids.
    """
    if topic is not None and (not isinstance(topic, str) or not topic):
        raise PipelineError(
            f"{call}: topic={topic!r} is no name of a topic. Without a name the records have no target. Pass one, such as "
            "'items'."
        )
    needed = [VALUE, *([] if topic is not None else [TOPIC]), *([PARTITION] if use_partition else [])]
    columns = [*needed, *(column for column in (KEY, HEADERS, TIMESTAMP) if column in tracked.columns)]
    selected = []
    for column in columns:
        if column not in tracked.columns:
            raise PipelineError(
                f"{call}: column {column!r} not found in {tracked.columns}. A record can't be made without it. "
                f"{'Add it, or pass topic=.' if column == TOPIC else 'Add it, or rename yours.'}"
            )
        kind = tracked.schema[column].dataType
        types, described, expression = _COLUMNS[column]
        if not isinstance(kind, types) or (column == HEADERS and not _are_headers(kind)):
            raise PipelineError(
                f"{call}: column {column!r} is {kind.simpleString()}. Kafka can't store that type there. Cast it to "
                f"{described}."
            )
        if isinstance(kind, TimestampType):
            expression = f"unix_millis({column})"
        selected.append(F.expr(expression).alias(column))
    if record_id is None:
        return tracked.select(*selected, *TRACKING)
    values, made = _id_columns(call, tracked, record_id)
    with_values = tracked.select(*selected, *TRACKING, values)
    return with_values.select(*columns, *TRACKING, made).repartition(RECORD_ID).sortWithinPartitions(RECORD_ID)


def _id_columns(call: str, tracked: DataFrame, record_id: str) -> tuple[Column, Column]:
    """Return the column of the values that make an id, as texts, and over it the column of ids: a JSON array of them."""
    if not isinstance(record_id, str) or not record_id.strip():
        raise PipelineError(
            f"{call}: record_id={record_id!r} is no expression. Records without an id can't be told apart. Pass SQL, such as "
            "'order, line'."
        )
    given = f"struct(\n{record_id}\n)"  # it may end in a comment
    kind = tracked.select(F.expr(given).alias(RECORD_ID)).schema[RECORD_ID].dataType
    fields = kind.fields if isinstance(kind, StructType) else []
    for field in fields:
        if not isinstance(field.dataType, _ID_TYPES):
            raise PipelineError(
                f"{call}: record_id has {field.name!r}, which is {field.dataType.simpleString()}. Its text may differ from "
                "session to session. Convert it to string, bigint, boolean or date, for example with hex or unix_micros."
            )
    texts = [f"{RECORD_ID}._{number}" for number in range(len(fields))]
    kinds = ", ".join(f"_{number}: string" for number in range(len(fields)))
    several, is_null = f"coalesce(size({ROOTS}), 0) > 1", " OR ".join(f"{text} IS NULL" for text in texts)
    # JSON has one character for many different bytes.
    is_text = " AND ".join(f"is_valid_utf8({text})" for text in texts)
    made = (
        f"CASE WHEN {several} THEN X'' WHEN {is_null} THEN NULL WHEN NOT ({is_text}) THEN X'{NO_TEXT.hex()}' "
        f"ELSE cast(to_json(array({', '.join(texts)})) AS binary) END"
    )
    values = F.expr(f"cast({given} AS struct<{kinds}>)")
    return values.alias(RECORD_ID), F.expr(made).alias(RECORD_ID)


def _are_headers(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(element, StructType) or element.names != ["key", "value"]:
        return False
    return isinstance(element["key"].dataType, StringType) and isinstance(element["value"].dataType, _TEXTS)
