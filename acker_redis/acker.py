"""Public API of an app: update roots, receive outcomes, inspect the ledger."""

from collections.abc import Iterable
from types import TracebackType
from typing import NoReturn, Self, SupportsIndex, Unpack

import numpy as np

from acker_redis.admin import Admin
from acker_redis.client.client import OUTAGE_TIMEOUT_SECS, Client
from acker_redis.client.connection import RedisClient
from acker_redis.errors import BadBatchError
from acker_redis.ledger.app import App
from acker_redis.ledger.batch import Batch
from acker_redis.ledger.outcomes.outcome import Outcome, OutcomeBatch
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.config import AckerConfig, Settings, config_of
from acker_redis.model.ids import Ids
from acker_redis.model.types import Applied, LedgerRoot, Stats
from acker_redis.store.apps import stored_config
from acker_redis.store.dead_letters import DeadLetters


class Acker:
    """Tracks each root until everything derived from it was processed (Storm: Acker.java).

    Ids are 64-bit integers, signed as Spark's bigint. Unsigned ids (0 <= x < 2**64) are accepted as the same bits. Updates
    may arrive in any order and from any process. Exactly one outcome is written per initialised root.

    Use one object from one thread at a time. Exception: one thread may poll while another one updates.

    Attributes:
        config: settings of the app.
        url: URL passed to `connect`, with its password; None if a redis-py client was passed.
        dead_letters: messages whose attempts are exhausted.
        admin: calls for the person on call.
    """

    def __init__(self, client: Client, config: AckerConfig, *, create: bool = True) -> None:
        """Open the app on a connected client. Programs normally call `connect` or `open_existing`.

        Args:
            client: client of the server. `close` closes it.
            config: settings of the app.
            create: True to write missing settings and create missing shards; False as `open_existing`.
        """
        self.config = config
        self.url = client.url
        self._app = App(client, config, create=create)
        self.dead_letters = DeadLetters(client, config.app)
        self.admin = Admin(self._app)

    @classmethod
    def connect(
        cls,
        source: str | RedisClient,
        config: AckerConfig | None = None,
        *,
        outage_timeout_secs: float = OUTAGE_TIMEOUT_SECS,
        **settings: Unpack[Settings],
    ) -> Self:
        """Connect and open the app. The first client creates it.

        Args:
            source: `redis://[[user]:password@]host[:port][/db]`, `rediss://` for TLS, `unix://path`,
                `redis+sentinel://[[user]:password@]host[:port],host[:port]/service[/db]`, or a redis-py client (single or
                cluster) with decode_responses=False. A client stays open when the acker closes.
            config: settings of the app. All its clients must use the same.
            settings: keywords in place of `config`: `app="orders", message_timeout_secs=60`.
            outage_timeout_secs: time that a call retries while the server is gone, fails over, loads or is busy,
                before it raises a `ServerUnavailableError`, in seconds; at most 5 s for the first call.

        Raises:
            BadConfigError: a setting or the URL is invalid, or both or neither of `config` and keywords are passed.
            ConnectionLostError: no server answers.
            AuthenticationError: the login is refused, or a permission is missing.
            TlsError: a certificate is refused.
            ServerVersionError: the server is older than Redis 6.2.
            SettingsConflictError: the app is in use with other settings.
            EvictionPolicyWarning: (a warning) the server may evict keys.

        >>> with Acker.connect("redis://localhost", app="orders", message_timeout_secs=60) as acker:
        ...     acker.init(1, 5, spout_id=0)
        True
        """
        config = config_of(config, settings)
        client = Client(source, outage_timeout_secs=outage_timeout_secs)
        try:
            return cls(client, config)
        except BaseException:
            client.close()
            raise

    @classmethod
    def open_existing(cls, source: str | RedisClient, app: str) -> Self:
        """Connect to an existing app with the settings stored in Redis.

        Meant for people on call and their tools. Guarantee: this call and the read-only calls (`stats`, `inspect`,
        `dead_letters.read`) write nothing. They send plain read commands, so they work on a replica, for a user without
        write permissions, and on a server that refuses writes. All other calls work as after `connect`.

        Raises:
            AppNotFoundError: the app does not exist yet.
            LedgerLostError: a shard of the app holds nothing.
            SettingsConflictError, DamagedDataError: a shard or the settings were changed after a client wrote them.
            AckerError: as `connect`.

        >>> with Acker.open_existing("redis://localhost", "orders") as acker:
        ...     acker.stats().pending
        0
        """
        client = Client(source)
        try:
            return cls(client, stored_config(client, app), create=False)
        except BaseException:
            client.close()
            raise

    def close(self) -> None:
        """Close the connection within a second.

        Later calls, and those under way, raise ClosedError. A redis-py client that you passed to `connect` stays open.

        >>> acker = Acker.connect("redis://localhost", app="payments")
        >>> acker.close()
        """
        self._app.close()

    def __repr__(self) -> str:
        """Show the app and its server's address, without the password."""
        return f"<Acker of app {self.config.app!r} at {self._app.client.address}>"

    def __reduce__(self) -> NoReturn:
        """Raise TypeError: a connection can't leave its process."""
        raise TypeError(
            "An Acker can't be pickled, because its connection belongs to this process. Send acker.url and acker.config "
            "instead, and connect in the other process."
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def new_roots(count: int) -> Int64Array:
        """Generate `count` distinct random roots, packed 32 to a block.

        They use a tenth of the memory of unpacked roots. Initialise the roots of one call with one spout_id. Roots in one
        block share its timeout. It never fires early. `reset_timeout` of one root, like a later init, restarts the timeout
        for the whole block.

        >>> len(set(acker.new_roots(100).tolist()))
        100
        """
        if not isinstance(count, int) or count < 0:
            raise BadBatchError(f"count={count!r} is not a number of roots. Use an integer of 0 or more.")
        return ids.new_roots(count)

    # -- single updates: one round trip each. For more than a few a second use the *_many calls or a batch.

    def init(self, root: SupportsIndex, val: SupportsIndex, spout_id: SupportsIndex) -> bool:
        """Initialise one root.

        A root with a `val` of 0 completes at once. A root that already has an owner ignores the init and counts it as a
        duplicate. (In Storm a second init cancels the first and reports completion.)

        Args:
            root: root id.
            val: XOR of the edges that the spout emitted.
            spout_id: number of the spout that owns the root.

        Returns:
            True if the root took the init; False if it already had an owner.

        Raises:
            BadIdError: an id is not a 64-bit integer, or spout_id is not in 0 ... 2**32-1.
            ServerOutOfMemoryError: the server is above maxmemory, or (PendingLimitError) the app has as many pending
                roots as its limit allows. Nothing was changed.
            LedgerLostError: the server lost its data.

        >>> acker.init(1, 5, spout_id=0)
        True
        """
        return self.init_many(_single(root, "root"), _single(val, "val"), spout_id).applied == 1

    def ack(self, root: SupportsIndex, val: SupportsIndex, *, component: str | None = None) -> None:
        """XOR `val` into one root's ack val.

        Args:
            root: root id.
            val: XOR of the acked edge and the edges of the children emitted for it.
            component: name of the operator or sink that acks; see `ack_many`.

        Raises:
            BadIdError, LedgerLostError, ConnectionLostError: as `init`.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> acker.ack(1, 5, component="write")
        """
        self.ack_many(_single(root, "root"), _single(val, "val"), component=component)

    def fail(self, root: SupportsIndex, *, reason: str | None = None, component: str | None = None) -> None:
        """Fail one root.

        `reason` is a text for people, and is returned as `Outcome.detail`. The first 1 000 characters of the text are kept.
        Guarantee: the root's outcome is `fail`, unless the root completed before. A fail that arrives before the init waits
        for it. Its text is not kept.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> acker.fail(1, reason="no such customer", component="parse")
        """
        self.fail_many(_single(root, "root"), reason=reason, component=component)

    def reset_timeout(self, root: SupportsIndex) -> bool:
        """Restart the message timeout of one root.

        Returns False if the root is unknown or too old.

        >>> acker.reset_timeout(1)
        False
        """
        return self.reset_timeout_many(_single(root, "root")) == 1

    # -- updates, many at once: split into calls of 500 blocks, pipelined

    def init_many(
        self, roots: Ids, vals: Ids, spout_id: SupportsIndex, *, idempotency_key: str | None = None
    ) -> Applied:
        """Initialise roots of one spout.

        Args:
            roots: root ids, as a numpy int64 or uint64 array or a sequence of integers, at least one.
            vals: first ack val of each root.
            spout_id: number of the spout that owns all of them.
            idempotency_key: name of this batch. A batch sent again with the same key changes nothing. None draws a random
                key for this call.

        Returns:
            Number of roots that took the init, as `Applied.applied`. Duplicate inits are not counted.

        Raises:
            BadIdError, BadBatchError: the input is invalid. Nothing was sent.
            IdempotencyKeyReusedError: the idempotency key was used for other content.
            ServerOutOfMemoryError, LedgerLostError, ConnectionLostError: see `Batch`.

        >>> acker.init_many([1, 2], [5, 6], spout_id=0, idempotency_key="partition-7")
        Applied(applied=2, duplicate=False)
        """
        ledger = self._app.ledger
        return ledger.send([ledger.init(*_pairs(roots, vals), ids.to_spout_id(spout_id))], idempotency_key)

    def ack_many(
        self,
        roots: Ids,
        vals: Ids,
        *,
        idempotency_key: str | None = None,
        record_keys: Ids | None = None,
        component: str | None = None,
    ) -> Applied:
        """Ack roots. The client combines the values of equal roots by XOR before it sends them.

        A consumer that reads records again after a crash may group them into other calls. Then name each record by a key,
        instead of the call by an idempotency key. An ack whose key was used before for its root is skipped, and the others
        are applied.

        Args:
            roots: root ids. A root may be repeated.
            vals: ack values, one per element of `roots`.
            idempotency_key: name of this batch; see `init_many`.
            record_keys: key of the record behind each element of `roots`, as a 64-bit integer. It has to be distinct among
                the records of a root. The edge that the record came along is one. It replaces `idempotency_key`.
            component: name of the operator or sink that acks, shown as `last_component`. At most 255 names per app.

        Returns:
            Number of distinct roots acked, as `Applied.applied`. Roots that failed recently are not counted, because
            their acks are late. With `record_keys`, `Applied.duplicate` is True if any ack was skipped.

        Raises:
            BadBatchError: `record_keys` and `idempotency_key` are both given, or the lengths differ.

        >>> acker.ack_many([1, 2, 2], [5, 4, 2], idempotency_key="partition-7", component="write")
        Applied(applied=2, duplicate=False)
        >>> acker.ack_many([1, 2], [5, 4], record_keys=[5, 4])
        Applied(applied=2, duplicate=False)
        >>> acker.ack_many([1, 2, 3], [5, 4, 6], record_keys=[5, 4, 6])
        Applied(applied=1, duplicate=True)
        """
        ledger = self._app.ledger
        if record_keys is None:
            return ledger.send([ledger.ack(*_pairs(roots, vals), component)], idempotency_key)
        if idempotency_key is not None:
            raise BadBatchError(
                f"idempotency_key={idempotency_key!r} and record_keys are both given. One key per record says all that the "
                "key of a batch says. Pass one of them."
            )
        root_ids, values, keys = ids.to_triples(roots, vals, record_keys)
        return ledger.send([ledger.ack_keyed(_not_empty(root_ids), values, keys, component)], None)

    def fail_many(
        self, roots: Ids, *, idempotency_key: str | None = None, reason: str | None = None, component: str | None = None
    ) -> Applied:
        """Fail roots; see `fail`.

        `Applied.applied` counts distinct roots that had not failed before.

        >>> acker.fail_many([1, 2], reason="no such customer", component="parse")
        Applied(applied=2, duplicate=False)
        """
        ledger = self._app.ledger
        return ledger.send([ledger.fail(_array(roots), reason, component)], idempotency_key)

    def reset_timeout_many(self, roots: Ids) -> int:
        """Restart the message timeout of roots by moving them to the nursery (Storm: __ack_reset_timeout).

        The call needs no idempotency key, because a repeat only moves the roots again. All roots of a block move together
        (see `new_roots`). A spout's roots of neighbouring message ids share a block. Unknown roots and roots older than
        max_age_secs don't move.

        Returns:
            Number of these roots in the nursery now.

        >>> acker.init_many([1, 2], [5, 6], spout_id=0).applied
        2
        >>> acker.reset_timeout_many([1, 2, 3])
        2
        """
        return self._app.ledger.reset_timeout(_array(roots))

    def batch(self, *, idempotency_key: str | None = None) -> Batch:
        """Collect updates and send them on exit: combined per root, packed, pipelined.

        If an exception leaves the `with` block, nothing is sent. After the block, `Batch.result` holds the number of
        applied updates.

        >>> with acker.batch(idempotency_key="partition-7") as batch:
        ...     batch.init(1, 5, spout_id=0)
        ...     batch.ack(1, 5, component="write")
        """
        return Batch(self._app.ledger, idempotency_key)

    # -- outcomes

    def poll(
        self, max_outcomes: int = 1000, block_ms: int = 0, consumer: str = "spout", *, lane: int | None = None
    ) -> list[Outcome]:
        """Poll outcomes for a spout.

        Each outcome is delivered at least once. An unconfirmed outcome is delivered again, marked `redelivered`. The same
        consumer name receives it at the first poll of a new process, or after a lost connection. Any consumer that polls,
        including this process, receives it once it was held for a message timeout. All consumers of an app share its
        outcomes. Use lanes to keep them apart.

        Args:
            max_outcomes: maximum number of outcomes to return.
            block_ms: time to wait for a first outcome, in milliseconds; 0 returns at once.
            consumer: name of the spout process, stable over its restarts. A forked process counts as a restart.
            lane: lane to poll (spout_id % lanes); None for all lanes.

        Raises:
            LedgerLostError: a shard lost its data since this client opened it.

        >>> acker.init(1, 0, spout_id=0)
        True
        >>> [(outcome.kind, outcome.root) for outcome in acker.poll()]
        [('ack', 1)]
        """
        return self._app.delivery.poll(max_outcomes, block_ms, consumer, lane)

    def confirm(self, outcomes: Iterable[Outcome]) -> int:
        """Confirm outcomes that the spout has acted on, so that they are not delivered again.

        Returns the number of stream entries trimmed. One entry of acks holds many outcomes and is trimmed once the last of
        them is confirmed.

        >>> acker.init_many([1, 2], [0, 0], spout_id=0).applied
        2
        >>> acker.confirm(acker.poll()) > 0
        True
        """
        return self._app.delivery.confirm(outcomes)

    def poll_batches(
        self,
        max_outcomes: int = 1000,
        block_ms: int = 0,
        consumer: str = "spout",
        *,
        lane: int | None = None,
        again: bool = False,
    ) -> list[OutcomeBatch]:
        """Poll outcomes as `poll` does, as arrays of roots with the same outcome.

        Meant for spouts that handle many. A batch holds entries of one stream that were read together. Entries are never
        split, so the call may return more than `max_outcomes` outcomes. The excess is at most one entry, which holds up to
        16 000 acks.

        With `again`, the call begins with outcomes that this consumer took but did not confirm. These are the outcomes of
        a reply that was lost with its connection, and all outcomes of an entry that `poll` handed out in part. `poll` then
        does not return the rest of that entry.

        >>> acker.init(1, 0, spout_id=0)
        True
        >>> [(batch.kind, batch.roots.tolist()) for batch in acker.poll_batches()]
        [('ack', [1])]
        """
        return self._app.delivery.poll_batches(max_outcomes, block_ms, consumer, lane, again=again)

    def confirm_batches(self, batches: Iterable[OutcomeBatch]) -> int:
        """Confirm all outcomes of batches that the spout has acted on.

        Returns the number of entries trimmed.

        >>> acker.init(1, 0, spout_id=0)
        True
        >>> acker.confirm_batches(acker.poll_batches())
        1
        """
        return self._app.delivery.confirm_batches(batches)

    # -- inspection

    def stats(self, *, with_oldest_age: bool = True, lane: int | None = None) -> Stats:
        """Sum the counters over all shards.

        Args:
            with_oldest_age: False to skip the search for `oldest_age_ms`, which is then None.
            lane: lane whose entries `unconfirmed_outcomes` counts; None for all lanes.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> acker.stats().pending
        1
        """
        return self._app.inspection.stats(with_oldest_age=with_oldest_age, lane=lane)

    def pending(self) -> int:
        """Count the roots without outcome over all shards, in one round trip.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> acker.pending()
        1
        """
        return self._app.inspection.pending()

    def inspect(self, root: SupportsIndex) -> LedgerRoot | None:
        """Look up one root.

        Returns None if the ledger doesn't hold it (not seen, settled or expired).

        >>> acker.ack(1, 5, component="write")
        >>> acker.inspect(1).state, acker.inspect(1).last_component
        ('waiting', 'write')
        """
        return self._app.inspection.inspect(_single(root, "root"))[0]

    def inspect_many(self, roots: Ids) -> list[LedgerRoot | None]:
        """Look up many roots.

        The result has None for each root that the ledger doesn't hold.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> [root and root.val for root in acker.inspect_many([1, 2])]
        [5, None]
        """
        return self._app.inspection.inspect(_array(roots))

    def completed_offsets(self, spout_id: int = 0) -> dict[str, int]:
        """Read the completed offsets of the stream with this spout_id: per partition, the first offset not completed yet.

        All messages before it were acked or are dead letters, so their outputs are complete. A stream writes its completed
        offsets after each micro-batch. They never decrease. The result is empty for a stream that reads its message ids
        from a column (`id_column`).

        >>> acker.completed_offsets()
        {}
        """
        return self._app.completed_offsets(spout_id)

    def reopen(self) -> list[int]:
        """Reopen the app after `LedgerLostError`, and continue with the generation in force.

        Replay all messages that were in flight with new roots, because the ledger no longer holds them. After
        `open_existing` this call creates nothing either.

        Returns:
            Numbers of the shards that this call created.

        Raises:
            LedgerLostError: the acker was opened with `open_existing`, and no program that may create the app has
                recovered it yet.

        >>> acker.reopen()
        []
        """
        return self._app.reopen()


def app_of(acker: Acker) -> App:
    """Return the internal handle of an acker's app.

    Meant for the library's own layers only.
    """
    return acker._app  # noqa: SLF001


def _array(roots: Ids) -> UInt64Array:
    return _not_empty(ids.to_uint64_array(roots, "roots"))


def _pairs(roots: Ids, vals: Ids) -> tuple[UInt64Array, UInt64Array]:
    root_ids, values = ids.to_pairs(roots, vals)
    return _not_empty(root_ids), values


def _not_empty(roots: UInt64Array) -> UInt64Array:
    if len(roots) == 0:
        raise BadBatchError("roots is empty, so there is nothing to send. Skip the call.")
    return roots


def _single(value: SupportsIndex, name: str) -> UInt64Array:
    return np.array([ids.to_uint64(value, name)], np.uint64)
