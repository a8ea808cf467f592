"""The errors this library raises: one tree under `AckerError`, each message saying what to do."""

from collections.abc import Mapping


class AckerError(Exception):
    """Root of every error the library raises on purpose."""


class BadConfigError(AckerError, ValueError):
    """A setting is out of range or of the wrong type. Nothing was sent."""


class BadIdError(AckerError, ValueError):
    """A root, ack value or spout id is not an integer in range. Nothing of the batch was sent."""


class BadBatchError(AckerError, ValueError):
    """A batch is inconsistent in itself (lengths differ, idempotency key is empty). Nothing of it was sent."""


class PipelineError(AckerError, ValueError):
    """Messages or a pipeline that no run can process: a missing column, ids twice, an operator used wrongly.

    The message names the operator or column and says what to do. No message was acked.
    """


class NotExactError(AckerError):
    """The pipeline can't be tracked exactly: some share would be counted more often than it was made, or not at all.

    The message says what to use instead. Nothing was run.
    """


class NotProvenError(AckerError):
    """Spark lost or repeated work, so nobody can say exactly which rows it has written. Nothing was acked.

    `run_tracked` tries such an emission again; this is no attempt of its messages.
    """


class OutageError(AckerError):
    """A pipeline needs something that can't be reached now: a store, a metastore, a disk with room.

    `run_spout` waits for it, for up to ten minutes; this is no attempt of any message.
    """


class JobFailedError(AckerError):
    """A job of an emission failed, and one of its messages may be to blame. The cause has the whole error."""


class OperatorBrokenError(AckerError):
    """Many messages failed in an operator that has processed none, so the pipeline is to blame. Nothing was dead-lettered."""


class NotAcceptedError(AckerError):
    """An output that is written as a whole couldn't be: some message failed in each emission of all, or none was left.

    No message was acked. What to do: mend the last cause, which the text names, or look at the dead letters; then run it
    again.
    """


class IdempotencyKeyReusedError(AckerError):
    """An idempotency key was used before for a batch with other content.

    The part of the batch whose shards had seen the key was not applied. Roots that lost updates to this time out and are
    replayed; none completes falsely. What to do: use one idempotency key per batch.
    """


class SettingsConflictError(AckerError):
    """Another client opened the same app with other settings.

    What to do: give all clients of an app the same `AckerConfig`, or use another app name.
    """


class FormatVersionError(AckerError):
    """The app's shards, or its dead letters, have another format than this version reads and writes. Nothing was changed.

    What to do: finish what is pending, and export the dead letters, with the version that wrote them; then delete the app
    with `acker-redis delete-app`, and let this version create it again.
    """


class AppNotFoundError(AckerError):
    """The server holds no app of this name: it was not used yet, or its data was lost or evicted. Nothing was created."""


class DamagedDataError(AckerError):
    """A key of the app holds data that this library did not write there, or has lost part of its own.

    What to do: find out who wrote the key that the message names; delete it, or the app with `acker-redis delete-app`.
    """


class RowFailedError(AckerError):
    """Raised by a user's function: fail this row, with this text as reason (Storm: FailedException).

    Attributes:
        retry: whether to emit its message again. False: that can't help, and it is a dead letter at once.

    >>> raise RowFailedError("no such customer", retry=False)
    Traceback (most recent call last):
    acker_redis.errors.RowFailedError: no such customer
    """

    def __init__(self, reason: str = "", *, retry: bool = True) -> None:
        super().__init__(reason)
        self.retry = retry


class RowsRefusedError(AckerError):
    """Raised by a sink's function that has written all rows of a partition but these, which the store refused.

    Attributes:
        rows: number of a row in its partition, counted over its batches from 0 -> why, or a `RowFailedError`.

    >>> raise RowsRefusedError({17: "duplicate key", 40: RowFailedError("value too long", retry=False)})
    Traceback (most recent call last):
    acker_redis.errors.RowsRefusedError: 2 rows were refused; the first is row 17: duplicate key
    """

    def __init__(self, rows: Mapping[int, str | RowFailedError]) -> None:
        first = next(iter(rows.items()), None)
        example = "" if first is None else f"; the first is row {first[0]}: {first[1]}"
        super().__init__(
            f"{len(rows)} row{'' if len(rows) == 1 else 's'} {'was' if len(rows) == 1 else 'were'} refused{example}"
        )
        self.rows = dict(rows)

    def __reduce__(self) -> tuple[type["RowsRefusedError"], tuple[dict[int, str | RowFailedError]]]:
        return type(self), (self.rows,)


class ClosedError(AckerError):
    """The acker was closed: by this call, or while this call was under way. Connect again."""


class LedgerLostError(AckerError):
    """A shard lost its data since this client opened it (FLUSHALL, restart without persistence, failover to an empty node).

    Nothing was written. Call `Acker.recover()` and replay every root that has no outcome yet.
    """


class ServerUnavailableError(AckerError):
    """The server can't serve the call now and may later: an outage. `run_spout` and the rotator wait for its end."""


class ConnectionLostError(ServerUnavailableError):
    """The server can't be reached, or went away and did not come back within `outage_timeout_secs`.

    A batch that raised this may have been applied in part. Sending it again with the same idempotency key is exact.
    """


class ServerBusyError(ServerUnavailableError):
    """A script holds the server, and went on for longer than `outage_timeout_secs`. Nothing was changed.

    What to do: `redis-cli SCRIPT KILL` (or `FUNCTION KILL`) ends it if it has written nothing yet; `SLOWLOG GET`
    names it once it has ended.
    """


class TlsError(AckerError):
    """A certificate or a TLS handshake was refused. Not tried again: it would be refused again.

    What to do: see the text of the TLS library, which is part of this one.
    """


class AuthenticationError(AckerError):
    """The server refused the user name or password, or the user's ACL refuses a command or key."""


class ServerRefusesWritesError(ServerUnavailableError):
    """The server is up but takes no writes now: it is a replica, lacks replicas, or persistence fails.

    What to do: see the server's own message, which is part of this one.
    """


class ServerOutOfMemoryError(ServerRefusesWritesError):
    """The server is above `maxmemory` and refuses new roots; acks, fails and rotation still work."""


class PendingLimitError(ServerOutOfMemoryError):
    """The app has as many pending roots as its limit allows, and gets no new ones; acks, fails and rotation still work.

    What to do: nothing, it passes when roots settle; or `acker-redis limit --app APP --max-pending N`.
    """


class ServerVersionError(AckerError):
    """The server is older than Redis 6.2, or lacks what the scripts need."""


class SparkVersionError(AckerError, ImportError):
    """PySpark is not installed, or of a version that `acker_redis.spark` does not work with. Raised when that is imported."""


class ScriptFailedError(AckerError):
    """A script failed inside the server in a way the library does not know. This is a defect worth reporting."""


class ServerNotFoundError(AckerError):
    """No embedded server and no server program was found to start."""


class StoppedError(AckerError):
    """A query was stopped in the middle of its work; nothing is wrong, and the next start does the rest."""


class EvictionPolicyWarning(UserWarning):
    """The server may evict keys under memory pressure, and with them ledgers."""
