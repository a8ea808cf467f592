"""The acker of an app, for programs."""

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
from acker_redis.ledger.outcomes.decoding import Outcome, OutcomeBatch
from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.config import AckerConfig, Settings, config_of
from acker_redis.model.ids import Ids
from acker_redis.model.types import Applied, LedgerRoot, Stats
from acker_redis.store.apps import stored_config
from acker_redis.store.dead_letters import DeadLetters


class Acker:
    """Tracks, for every root, whether everything that came out of it was processed (Storm: Acker.java).

    Ids are 64-bit integers, signed as Spark's bigint; 0 <= x < 2**64 is accepted as the same bits. Updates may arrive in
    any order and from any process. Exactly one outcome is written per initialised root.

    One object may be used by one thread at a time, except that different threads may poll and update.

    Attributes:
        config: settings of the app.
        url: as it was given, with its password; None where a redis-py client was given.
        dead_letters: messages whose attempts are exhausted.
        admin: calls for the person on call.
    """

    def __init__(self, client: Client, config: AckerConfig, *, create: bool = True) -> None:
        """Open the app on a connected client; `connect` and `open_existing` are the usual ways.

        Args:
            client: stays the caller's until `close`.
            config: settings.
            create: write the settings and make the shards where they are not there; False: see `open_existing`.
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
        """Connect and open the app, creating it at its first use.

        Args:
            source: `redis://[[user]:password@]host[:port][/db]`, `rediss://` for TLS, `unix://path`,
                `redis+sentinel://[[user]:password@]host[:port],host[:port]/service[/db]`, or a redis-py client (single or
                cluster) with decode_responses=False, which stays open when the acker closes.
            config: settings of the app; all its clients must agree.
            settings: the same, as keywords in place of a config: `app="orders", message_timeout_secs=60`.
            outage_timeout_secs: how long a call tries again while the server is gone, fails over, loads or is busy,
                before it raises a `ServerUnavailableError`; at most 5 s for the first one.

        Raises:
            BadConfigError: a setting or the URL makes no sense, or config and keywords are given both or neither.
            ConnectionLostError: no server answers.
            AuthenticationError: login or permission refused.
            TlsError: a certificate is refused.
            ServerVersionError: older than Redis 6.2.
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
        """Connect to an app with the settings that stand in Redis; for people on call and their tools.

        Guarantee: nothing is written, by this call and by those that only look (`stats`, `inspect`, `dead_letters.read`).
        They send plain commands that read, so they work with a replica, under a user who may not write, and with a server
        that refuses writes. Everything else works as after `connect`.

        Raises:
            AppNotFoundError: no such app yet.
            LedgerLostError: a shard of it holds nothing.
            SettingsConflictError, DamagedDataError: a shard or the settings are not as a client left them.
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
        """Close the connection, unless it was given, within a second. Later calls, and those under way, raise ClosedError.

        >>> acker = Acker.connect("redis://localhost", app="payments")
        >>> acker.close()
        """
        self._app.close()

    def __repr__(self) -> str:
        """The app and where it is; without the password."""
        return f"<Acker of app {self.config.app!r} at {self._app.client.address}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a connection stays in its process."""
        raise TypeError("an Acker can't be pickled: send acker.url and acker.config, and connect where they arrive")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    def new_roots(count: int) -> Int64Array:
        """Draw so many distinct roots at random, 32 neighbours to a block: they cost a tenth of others.

        Initialise those of one call by one spout. Roots that share a block share its timeout: it never comes early, and
        `reset_timeout` of one root, like a later init, gives all of them a whole one again.

        >>> len(set(acker.new_roots(100).tolist()))
        100
        """
        if not isinstance(count, int) or count < 0:
            raise BadBatchError(f"count={count!r}: use an integer of 0 or more")
        return ids.new_roots(count)

    # -- updates, each a call of its own: one round trip each. For more than a few a second use the *_many calls or a batch.

    def init(self, root: SupportsIndex, val: SupportsIndex, spout_id: SupportsIndex) -> bool:
        """Initialise one root: `val` is the XOR of the edges the spout emitted, `spout_id` the spout that owns the root.

        A val of 0 completes at once. Returns False if the root had its owner already: then the init is ignored and
        counted (in Storm a second init cancels the first and reports completion).

        Raises:
            BadIdError: an id is not a 64-bit integer, or spout_id is not in 0 ... 2**32-1.
            ServerOutOfMemoryError: the server is above maxmemory, or (PendingLimitError) the app has as many pending
                roots as its limit allows; nothing was changed.
            LedgerLostError: the server lost its data.

        >>> acker.init(1, 5, spout_id=0)
        True
        """
        return self.init_many(_single(root, "root"), _single(val, "val"), spout_id).applied == 1

    def ack(self, root: SupportsIndex, val: SupportsIndex, *, component: str | None = None) -> None:
        """XOR `val` into one root's tree: the acked edge, combined with the edges of the children it emitted.

        Raises:
            BadIdError, LedgerLostError, ConnectionLostError: as `init`.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> acker.ack(1, 5, component="write")
        """
        self.ack_many(_single(root, "root"), _single(val, "val"), component=component)

    def fail(self, root: SupportsIndex, *, reason: str | None = None, component: str | None = None) -> None:
        """Fail one root. `reason` is text for people; it comes back as `Outcome.detail`.

        Its first 1 000 characters are kept. Guarantee: the root's outcome is `fail`, unless it had completed before. A
        fail that comes before the init waits for it; the text is then not kept.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> acker.fail(1, reason="no such customer", component="parse")
        """
        self.fail_many(_single(root, "root"), reason=reason, component=component)

    def reset_timeout(self, root: SupportsIndex) -> bool:
        """Give one root a whole message timeout again. Returns False if the ledger doesn't know it, or it is too old.

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
            roots: root ids, numpy int64 or uint64 array or a sequence of integers, any length above 0.
            vals: first ack value of each root.
            spout_id: of the spout that owns all of them.
            idempotency_key: names this batch: sent again with the same key, it changes nothing. None: a key that this
                call draws for itself.

        Returns:
            Applied.applied counts roots that took the init: duplicates are left out.

        Raises:
            BadIdError, BadBatchError: before anything was sent.
            IdempotencyKeyReusedError: the idempotency key belongs to other content.
            ServerOutOfMemoryError, LedgerLostError, ConnectionLostError: see `Batch`.

        >>> acker.init_many([1, 2], [5, 6], spout_id=0, idempotency_key="partition-7")
        Applied(applied=2, duplicate=False)
        """
        ledger = self._app.ledger
        return ledger.send([ledger.init(*_pairs(roots, vals), ids.to_spout_id(spout_id))], idempotency_key)

    def ack_many(
        self, roots: Ids, vals: Ids, *, idempotency_key: str | None = None, component: str | None = None
    ) -> Applied:
        """Ack roots; values of equal roots are combined by XOR before they are sent.

        Args:
            roots: root ids; a root may stand there any number of times.
            vals: ack values, one per element of roots.
            idempotency_key: see `init_many`.
            component: name of the operator or sink that acks; shows as `last_component`. At most 255 names per app.

        Returns:
            Applied.applied counts distinct roots, without those that failed a short time ago: their acks are late.

        >>> acker.ack_many([1, 2, 2], [5, 4, 2], idempotency_key="partition-7", component="write")
        Applied(applied=2, duplicate=False)
        """
        ledger = self._app.ledger
        return ledger.send([ledger.ack(*_pairs(roots, vals), component)], idempotency_key)

    def fail_many(
        self, roots: Ids, *, idempotency_key: str | None = None, reason: str | None = None, component: str | None = None
    ) -> Applied:
        """Fail roots; see `fail`. Applied.applied counts distinct roots, without those that have failed already.

        >>> acker.fail_many([1, 2], reason="no such customer", component="parse")
        Applied(applied=2, duplicate=False)
        """
        ledger = self._app.ledger
        return ledger.send([ledger.fail(_array(roots), reason, component)], idempotency_key)

    def reset_timeout_many(self, roots: Ids) -> int:
        """Move roots to the nursery (Storm: __ack_reset_timeout). Needs no idempotency key: a repeat only moves them again.

        Roots that share a block with them move along (see `new_roots`; a spout's roots of neighbouring message ids do).
        Returns how many are in the nursery now; unknown roots and those older than max_age_secs are left alone.

        >>> acker.init_many([1, 2], [5, 6], spout_id=0).applied
        2
        >>> acker.reset_timeout_many([1, 2, 3])
        2
        """
        return self._app.ledger.reset_timeout(_array(roots))

    def batch(self, *, idempotency_key: str | None = None) -> Batch:
        """Collect updates and send them on exit: combined per root, packed, pipelined.

        Left by an exception, nothing is sent. After the `with` block `Batch.result` says how much was applied.

        >>> with acker.batch(idempotency_key="partition-7") as batch:
        ...     batch.init(1, 5, spout_id=0)
        ...     batch.ack(1, 5, component="write")
        """
        return Batch(self._app.ledger, idempotency_key)

    # -- outcomes

    def poll(
        self, max_outcomes: int = 1000, block_ms: int = 0, consumer: str = "spout", *, lane: int | None = None
    ) -> list[Outcome]:
        """Take outcomes for a spout.

        Each outcome is delivered at least once. Until it is confirmed it comes back, marked `redelivered`: to the same
        consumer name at the first poll of a new process or after a lost connection, and to any consumer that polls, this
        process too, after it was held for a message timeout. All consumers of an app share its outcomes: use lanes to keep
        them apart.

        Args:
            max_outcomes: at most so many.
            block_ms: wait so long for a first one; 0 returns at once.
            consumer: name of the spout process, stable over its restarts; a forked process counts as a restart.
            lane: only this lane's outcomes (spout_id % lanes); None: all lanes.

        Raises:
            LedgerLostError: a shard lost its data since this client opened it.

        >>> acker.init(1, 0, spout_id=0)
        True
        >>> [(outcome.kind, outcome.root) for outcome in acker.poll()]
        [('ack', 1)]
        """
        return self._app.delivery.poll(max_outcomes, block_ms, consumer, lane)

    def confirm(self, outcomes: Iterable[Outcome]) -> int:
        """Confirm that the spout has acted on outcomes; they are not delivered again and their entries are trimmed.

        Returns the number of stream entries trimmed: an entry of acks holds many outcomes and goes with the last of them.

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
        """Take outcomes as `poll` does, as arrays of roots that ended alike: for spouts that handle many.

        A batch holds entries of one stream that were read together. Only whole entries come, so there may be more outcomes
        than `max_outcomes`, by those of one entry, which has at most 3 600 acks. With `again` it begins with outcomes that
        this consumer took and did not confirm: those of a reply that was lost with its connection, and the whole of an entry
        that `poll` handed out in part, which `poll` then does not go on with.

        >>> acker.init(1, 0, spout_id=0)
        True
        >>> [(batch.kind, batch.roots.tolist()) for batch in acker.poll_batches()]
        [('ack', [1])]
        """
        return self._app.delivery.poll_batches(max_outcomes, block_ms, consumer, lane, again=again)

    def confirm_batches(self, batches: Iterable[OutcomeBatch]) -> int:
        """Confirm that the spout has acted on all outcomes of these batches. Returns the number of entries trimmed.

        >>> acker.init(1, 0, spout_id=0)
        True
        >>> acker.confirm_batches(acker.poll_batches())
        1
        """
        return self._app.delivery.confirm_batches(batches)

    # -- looking

    def stats(self, *, oldest: bool = True, lane: int | None = None) -> Stats:
        """Add up counters over all shards. `oldest=False` leaves out `oldest_age_ms`, which has to be looked for.

        With `lane`, `unconfirmed_outcomes` counts this lane's entries only.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> acker.stats().pending
        1
        """
        return self._app.inspection.stats(oldest=oldest, lane=lane)

    def pending(self) -> int:
        """Count roots without outcome, over all shards, in one round trip.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> acker.pending()
        1
        """
        return self._app.inspection.pending()

    def inspect(self, root: SupportsIndex) -> LedgerRoot | None:
        """Look up one root; None if the ledger doesn't hold it (not seen, settled or expired).

        >>> acker.ack(1, 5, component="write")
        >>> acker.inspect(1).state, acker.inspect(1).last_component
        ('waiting', 'write')
        """
        return self._app.inspection.inspect(_single(root, "root"))[0]

    def inspect_many(self, roots: Ids) -> list[LedgerRoot | None]:
        """Look up each root.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> [root and root.val for root in acker.inspect_many([1, 2])]
        [5, None]
        """
        return self._app.inspection.inspect(_array(roots))

    def completed_offsets(self, spout_id: int = 0) -> dict[str, int]:
        """Read the first offset of each partition that is not completed yet, as the stream with this spout_id wrote it.

        Everything before it was acked or is a dead letter, so its outputs are complete; a stream writes this after each
        micro-batch, and it never goes back. Empty where the stream takes its message ids from a column (`id_column`).

        >>> acker.completed_offsets()
        {}
        """
        return self._app.completed_offsets(spout_id)

    def recover(self) -> list[int]:
        """Open the app again after `LedgerLostError`, and go on with the generation in force.

        Returns the shards this call created. Whatever was in flight must be replayed with fresh roots: the ledger
        knows nothing of it any more. After `open_existing` nothing is made here either.

        Raises:
            LedgerLostError: after `open_existing`: no program that may create the app has recovered yet.

        >>> acker.recover()
        []
        """
        return self._app.recover()


def app_of(acker: Acker) -> App:
    """Return the handle of the app of an acker, for the library's own layers only."""
    return acker._app  # noqa: SLF001


def _array(roots: Ids) -> UInt64Array:
    return _not_empty(ids.to_uint64_array(roots, "roots"))


def _pairs(roots: Ids, vals: Ids) -> tuple[UInt64Array, UInt64Array]:
    root_ids, values = ids.to_pairs(roots, vals)
    return _not_empty(root_ids), values


def _not_empty(roots: UInt64Array) -> UInt64Array:
    if len(roots) == 0:
        raise BadBatchError("roots is empty: nothing to send; leave the call out")
    return roots


def _single(value: SupportsIndex, name: str) -> UInt64Array:
    return np.array([ids.to_uint64(value, name)], np.uint64)
