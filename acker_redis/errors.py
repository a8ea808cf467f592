"""Errors of this library: one tree under `AckerError`. Each message says what to do."""

from collections.abc import Mapping


class AckerError(Exception):
    """Base class of all errors that the library raises on purpose."""


class BadConfigError(AckerError, ValueError):
    """A setting is out of range or of the wrong type. Nothing was sent."""


class BadIdError(AckerError, ValueError):
    """A root, ack value or spout id is not an integer in range.

    Nothing of the batch was sent.
    """


class BadBatchError(AckerError, ValueError):
    """A batch is inconsistent (lengths differ, idempotency key is empty).

    Nothing of the batch was sent. Exception: if an init would put roots of two spout_ids into one block, only the calls
    with such roots were skipped.
    """


class BadAnchorsError(AckerError, ValueError):
    """The header with a record's anchors is damaged, or names another app or group.

    Nothing was acked.

    Attributes:
        group: consumer group of this app that the record was exported for, if it is another one; else None.
    """

    def __init__(self, text: str, *, group: str | None = None) -> None:
        super().__init__(text)
        self.group = group


class PipelineError(AckerError, ValueError):
    """No run can process these messages or this pipeline: a missing column, duplicate ids, a misused operator.

    The text names the operator or column and says what to do. No message was acked.
    """


class InvalidTopologyError(AckerError, ValueError):
    """A topology can't run as it is defined (Storm: InvalidTopologyException).

    The text names the component, stream, field or setting, and says what to use instead. Nothing was started.
    """


class BadTupleError(AckerError, ValueError):
    """A component broke a rule of tuples: wrong number of values, undeclared stream, second ack, anchor after the ack.

    The call changed nothing: no tuple was sent, and the tree is as it was.
    """


class InexactPipelineError(AckerError):
    """The pipeline is to blame: it drops or copies rows without the tracker, so it can't be tracked exactly.

    The text says what to use instead. No message was acked. A wrong number of rows shows behind the action of a sink, so the
    rows of that action are in the sink, and those of all sinks before it.
    """


class UnprovenEmissionError(AckerError):
    """Spark is to blame: it lost or repeated work in an emission, so the exact set of written rows is unknown.

    Nothing was acked. `run_tracked` retries such an emission. This does not count as an attempt of its messages.
    """


class OutageError(AckerError):
    """A pipeline depends on something that is unavailable now: a store, a metastore, a disk with free space.

    `run_spout` waits for it, for up to `RetryPolicy.outage_secs`. This does not count as an attempt of any message.

    Attributes:
        place: operator or sink that it keeps from working; empty if that is unknown.
    """

    def __init__(self, *args: object, place: str = "") -> None:
        super().__init__(*args)
        self.place = place


class JobFailedError(AckerError):
    """A job of an emission failed, and one of its messages may be to blame.

    The cause holds the whole error.
    """


class OperatorBrokenError(AckerError):
    """An operator failed many messages and processed none, so the pipeline is to blame.

    Nothing was dead-lettered. In a stream, many rows without an id and none with one raise it, too.
    """


class OutputNotWrittenError(AckerError):
    """Messages are to blame: one failed in each emission of a whole output, or too many are dead letters.

    The output was not written, and no message was acked. Fix the last cause, which the text names, or check the dead
    letters. Then run it again.
    """


class FencedError(AckerError):
    """A newer run, or a person on call, writes to the publish log of this run, so it ends.

    What this run decided before counts, and is published. It has acked nothing else.
    """


class LogLostError(AckerError):
    """A table has rows that its publish log doesn't know, because the log was lost or set back.

    Nothing was written: the same messages would get their rows twice. Restore the log, or use another one for other messages.
    """


class FilesNotMovedError(AckerError):
    """Files with accepted rows can't be put into their table, for a reason that waiting doesn't change.

    No message was acked that depends on them. `acker-redis once` shows and completes what waits.
    """


class IdempotencyKeyReusedError(AckerError):
    """An idempotency key was used before for a batch with other content.

    The part of the batch whose shards had seen the key was not applied. Roots that lost updates this way time out and are
    replayed. No root completes falsely. Use one idempotency key per batch.
    """


class SettingsConflictError(AckerError):
    """Another client opened the same app with other settings.

    Give all clients of an app the same `AckerConfig`, or use another app name.
    """


class FormatVersionError(AckerError):
    """The app's shards or its dead letters have a format that this version can't read.

    Nothing was changed. With the version that wrote them, finish the pending messages and export the dead letters. Then
    delete the app with `acker-redis delete-app`, and let this version create it again.
    """


class AppNotFoundError(AckerError):
    """The server holds no app of this name: it is not used yet, or its data was lost or evicted.

    Nothing was created.
    """


class DamagedDataError(AckerError):
    """A key of the app holds data that this library did not write, or lost a part of its data.

    Find out which program wrote the key that the text names. Delete the key, or delete the app with
    `acker-redis delete-app`.
    """


class RowFailedError(AckerError):
    """Raise this in your function to fail the row, with this text as the reason (Storm: FailedException).

    Attributes:
        retry: True to retry the row's message. False makes it a dead letter at once.

    >>> raise RowFailedError("no such customer", retry=False)
    Traceback (most recent call last):
    acker_redis.errors.RowFailedError: no such customer
    """

    def __init__(self, reason: str = "", *, retry: bool = True) -> None:
        super().__init__(reason)
        self.retry = retry


class RowsRefusedError(AckerError):
    """Raise this in a sink's function that wrote all rows of a partition except these, which the store refused.

    Attributes:
        rows: number of each refused row in its partition, counted over its batches from 0 -> reason, or a
            `RowFailedError`.

    >>> raise RowsRefusedError({17: "duplicate key", 40: RowFailedError("value too long", retry=False)})
    Traceback (most recent call last):
    acker_redis.errors.RowsRefusedError: 2 rows were refused. The first is row 17: duplicate key
    """

    def __init__(self, rows: Mapping[int, str | RowFailedError]) -> None:
        first = next(iter(rows.items()), None)
        example = "" if first is None else f" The first is row {first[0]}: {first[1]}"
        super().__init__(
            f"{len(rows)} row{'' if len(rows) == 1 else 's'} {'was' if len(rows) == 1 else 'were'} refused.{example}"
        )
        self.rows = dict(rows)

    def __reduce__(self) -> tuple[type["RowsRefusedError"], tuple[dict[int, str | RowFailedError]]]:
        return type(self), (self.rows,)


class ClosedError(AckerError):
    """The acker was closed before this call, or while this call was under way.

    Connect again.
    """


class LedgerLostError(AckerError):
    """A shard lost its data since this client opened it (FLUSHALL, restart without persistence, failover to an empty node).

    Nothing was written. Call `Acker.reopen()` and replay every root that has no outcome yet.
    """


class StateLostError(AckerError):
    """The server lost writes of a topology's state: by a failover, an eviction or a deletion.

    The state may lack the last turns. The text names the ways on.
    """


class TurnOverError(AckerError):
    """A task or a run comes too late to change a topology's state: its turn is over, or a newer run has begun.

    Nothing was changed.
    """


class ServerUnavailableError(AckerError):
    """The server can't serve the call now, but may later.

    `run_spout` and the rotator wait until it can.
    """


class ConnectionLostError(ServerUnavailableError):
    """The server can't be reached, or was lost and did not return within `outage_timeout_secs`.

    A batch that raised this may have been applied in part. Send it again with the same idempotency key: each update is
    applied exactly once.
    """


class ServerBusyError(ServerUnavailableError):
    """A script blocked the server for longer than `outage_timeout_secs`.

    Nothing was changed. End the script with `redis-cli SCRIPT KILL` (or `FUNCTION KILL`), which works if it has written
    nothing yet. `SLOWLOG GET` names it once it has ended.
    """


class TlsError(AckerError):
    """A certificate or a TLS handshake was refused.

    The call does not retry, because it would be refused again. Read the TLS library's own text, which is part of this one.
    """


class AuthenticationError(AckerError):
    """The server refused the user name or password, or the user's ACL refuses a command or key."""


class ServerRefusesWritesError(ServerUnavailableError):
    """The server is up but refuses writes now: it is a replica, lacks replicas, or can't persist.

    Read the server's own text, which is part of this one.
    """


class ServerOutOfMemoryError(ServerRefusesWritesError):
    """The server is above `maxmemory` and refuses new roots.

    Acks, fails and rotation still work.
    """


class PendingLimitError(ServerOutOfMemoryError):
    """The app has as many pending roots as its limit allows, so new roots are refused.

    Acks, fails and rotation still work. Wait until roots settle, or raise the limit with `acker-redis limit --app APP
    --max-pending N`.
    """


class StateLimitError(ServerOutOfMemoryError):
    """The state of the app's topologies is as large as its limit allows, so a turn that lets it grow is refused.

    Nothing was changed. The topology waits and tries again. Raise the limit with `acker-redis limit --app APP
    --max-state-bytes N`, or empty a topology's state with `acker-redis topology empty-state`.
    """


class ServerVersionError(AckerError):
    """The server is older than Redis 6.2, or lacks a feature that the scripts need."""


class SparkVersionError(AckerError, ImportError):
    """PySpark is missing, or its version is not supported.

    Raised when `acker_redis.spark` is imported.
    """


class ScriptFailedError(AckerError):
    """A script failed inside the server with an unknown error.

    Please report this defect.
    """


class ServerNotFoundError(AckerError):
    """Neither an embedded server nor a server program was found to start."""


class StoppedError(AckerError):
    """A query was stopped in the middle of its work.

    This is no failure: the next start completes the rest.
    """


class EvictionPolicyWarning(UserWarning):
    """The server may evict keys under memory pressure, including ledgers."""
