"""A Redis stream as a tracked source: entries are acknowledged when everything that came out of them was processed."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import SparkSession

from acker_redis import ids
from acker_redis.acker import Acker
from acker_redis.client import Client
from acker_redis.entries import Fields, read_reply
from acker_redis.errors import AckerError, BadConfigError
from acker_redis.spark.emitting import Pipeline
from acker_redis.spark.messages import MESSAGE_ID
from acker_redis.spark.run import BatchOptions, check_options, run_tracked
from acker_redis.spout import Spout

ENTRY_ID = "entry_id"
"""Column with the id of the stream's entry."""


def run_redis_stream(
    session: SparkSession,
    pipeline: Pipeline,
    *,
    acker: Acker,
    source: str,
    stream: str,
    fields: Sequence[str],
    group: str,
    consumer: str,
    stop: threading.Event,
    task: int = 0,
    max_spout_pending: int = 10_000,
    block_ms: int = 1000,
    on_batch_done: Callable[[Spout], object] | None = None,
    **options: Unpack[BatchOptions],
) -> int:
    """Put the entries of a stream through a pipeline until `stop` is set; returns how many were acknowledged.

        run_redis_stream(session, pipeline, source=url, stream="orders", fields=["item"], group="g", consumer="c1",
                         stop=stop, acker=acker)

    Entries are read with a consumer group, in batches; each batch goes through `run_tracked`. An entry is acknowledged
    (XACK) when it was acked or is a dead letter. After a crash a consumer of the same name begins with the entries it had
    not acknowledged. The stream is not trimmed; other groups may read it.

    Args:
        session: Spark.
        pipeline: its messages have the columns `entry_id` (string), `message_id`, and one of strings per field.
        acker: as for `run_tracked`.
        source: URL of the server with the stream, which need not be the acker's.
        stream: its key.
        fields: to take from each entry; null where an entry has no such field.
        group: consumer group; made at the stream's beginning if it is not there.
        consumer: name of this process, stable over its restarts.
        stop: set it from another thread or a signal; the batch under way is finished.
        task: as for `run_tracked`.
        max_spout_pending: at most so many entries in a batch.
        block_ms: wait so long for new entries before looking at `stop` again.
        on_batch_done: called with the spout of each batch.
        options: as for `run_tracked`.

    Raises:
        AckerError: the server can't be reached, or as `run_tracked`.
    """
    if {MESSAGE_ID, ENTRY_ID} & set(fields) or not fields:
        raise BadConfigError(
            f"fields={list(fields)!r}: give one or more names other than {MESSAGE_ID!r} and {ENTRY_ID!r}"
        )
    check_options("run_redis_stream", options, BatchOptions, "ids and offsets are made of the stream's entries")
    if max_spout_pending < 1 or block_ms < 1:
        raise BadConfigError(f"max_spout_pending={max_spout_pending}, block_ms={block_ms}: use 1 or more")
    client = Client(source)
    acknowledged = 0
    try:
        _make_group(client, stream, group)
        behind = True  # first what an earlier process of this name did not acknowledge
        while not stop.is_set():
            wait = () if behind else ("BLOCK", min(block_ms, client.max_block_ms))
            read = ("XREADGROUP", "GROUP", group, consumer, "COUNT", max_spout_pending, *wait, "STREAMS", stream)
            (reply,) = client.pipeline_each([(*read, "0" if behind else ">")])
            if isinstance(reply, AckerError):
                if not str(reply.__cause__).startswith(("NOGROUP", "UNBLOCKED")):
                    raise reply
                _make_group(client, stream, group)  # the stream was deleted, or lost with the server's memory
                behind = True
                continue
            entries = read_reply(reply)
            gone = [entry_id for _, entry_id, found in entries if not found]  # deleted from the stream meanwhile
            _acknowledge(client, stream, group, gone)
            alive = [(entry_id, found) for _, entry_id, found in entries if found]
            if alive:
                batch = _Batch(client, stream, group, alive)
                spout = run_tracked(
                    session.createDataFrame(batch.table(fields)), pipeline, id_column=MESSAGE_ID,
                    on_messages_done=batch.acknowledge, acker=acker, task=task, **options,
                )  # fmt: skip
                acknowledged += len(alive)
                if on_batch_done is not None:
                    on_batch_done(spout)
            # After new entries look back, too: a reply that was lost with its connection left some to this consumer.
            behind = bool(entries) or not behind
    finally:
        client.close()
    return acknowledged


def _make_group(client: Client, stream: str, group: str) -> None:
    (made,) = client.pipeline_each([("XGROUP", "CREATE", stream, group, "0", "MKSTREAM")])
    if isinstance(made, AckerError) and not str(made.__cause__).startswith("BUSYGROUP"):
        raise made


class _Batch:
    def __init__(self, client: Client, stream: str, group: str, entries: list[tuple[bytes, Fields]]) -> None:
        self._client, self._stream, self._group = client, stream, group
        self._entries = entries
        parts = np.array([[int(part) for part in entry_id.split(b"-")] for entry_id, _ in entries], np.uint64)
        self._ids = ids.derive_many(ids.derive(stream), parts[:, 0], parts[:, 1]).view(np.int64)
        self._entry_of = {int(message): entry_id for message, (entry_id, _) in zip(self._ids, entries, strict=True)}

    def table(self, fields: Sequence[str]) -> pa.Table:
        columns: dict[str, Any] = {
            ENTRY_ID: [entry_id.decode() for entry_id, _ in self._entries],
            MESSAGE_ID: self._ids,
        }
        for name in fields:
            values = [found.get(name.encode()) for _, found in self._entries]
            columns[name] = pa.array([v if v is None else v.decode(errors="replace") for v in values], pa.string())
        return pa.table(columns)

    def acknowledge(self, message_ids: npt.NDArray[np.int64]) -> None:
        _acknowledge(self._client, self._stream, self._group, [self._entry_of[i] for i in message_ids.tolist()])


def _acknowledge(client: Client, stream: str, group: str, entries: list[bytes]) -> None:
    client.pipeline([("XACK", stream, group, *entries[at : at + 1000]) for at in range(0, len(entries), 1000)])
