"""The acker of one app: what programs use."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NoReturn, Self, SupportsIndex, Unpack

import numpy as np
import numpy.typing as npt

from acker_redis.client.client import PATIENCE_SECS, Client
from acker_redis.client.connection import RedisClient
from acker_redis.errors import BadBatchError
from acker_redis.ledger.batch import Batch
from acker_redis.ledger.expiry import Rotation
from acker_redis.ledger.inspection import Inspection
from acker_redis.ledger.outcomes.delivery import Delivery
from acker_redis.ledger.shards import Shards
from acker_redis.ledger.updates import Ledger
from acker_redis.model import ids
from acker_redis.model.blocks import Int64Array
from acker_redis.model.config import AckerConfig, Settings, config_of
from acker_redis.model.ids import Ids, UInt64Array
from acker_redis.model.types import Applied, Outcome, PackedOutcomes, RootRecord, Rotated, Stats
from acker_redis.spout.dead_letter_replay import Replaying, ReplayLoader
from acker_redis.store import completed_offsets, limits, pause, run_ends, run_ids
from acker_redis.store.apps import stored_config
from acker_redis.store.dead_letters import DeadLetters
from acker_redis.store.lane_leases import Lease
from acker_redis.store.limits import Limits
from acker_redis.store.pause import Paused
from acker_redis.store.payloads import Payloads
from acker_redis.store.run_ends import End


class Acker:
    """Tracks, for every root, whether everything that came out of it was processed (Storm: Acker.java).

    Ids are 64-bit integers, signed as Spark's bigint; 0 <= x < 2**64 is accepted as the same bits. Updates may arrive in
    any order and from any process. Exactly one outcome is written per initialised root.

    One object may be used by one thread at a time, except that different threads may poll and update.

    Attributes:
        config: settings of the app.
        url: as it was given, with its password; None where a redis-py client was given.
        dead_letters: messages that spouts gave up.
    """

    def __init__(self, client: Client, config: AckerConfig, *, create: bool = True) -> None:
        """Open the app on a connected client; `connect` and `attach` are the usual ways.

        Args:
            client: stays the caller's until `close`.
            config: settings.
            create: write the settings and make the shards where they are not there; False: see `attach`.
        """
        self.config = config
        self.url = client.url
        self._client = client
        self._shards = Shards(client, config, create=create)
        self._ledger = Ledger(self._shards)
        self._rotation = Rotation(self._shards)
        self._delivery = Delivery(self._shards)
        self._inspection = Inspection(self._shards)
        self.dead_letters = DeadLetters(client, config.app)

    @classmethod
    def connect(
        cls,
        source: str | RedisClient,
        config: AckerConfig | None = None,
        *,
        patience_secs: float = PATIENCE_SECS,
        **settings: Unpack[Settings],
    ) -> Self:
        """Connect and open the app, creating it at its first use.

        Args:
            source: `redis://[[user]:password@]host[:port][/db]`, `rediss://` for TLS, `unix://path`,
                `redis+sentinel://[[user]:password@]host[:port],host[:port]/service[/db]`, or a redis-py client (single or
                cluster) with decode_responses=False, which stays open when the acker closes.
            config: settings of the app; all its clients must agree.
            settings: the same, as keywords in place of a config: `app="orders", message_timeout_secs=60`.
            patience_secs: how long a call tries again while the server is gone, fails over, loads or is busy, before it
                raises a `ServerUnavailableError`; at most 5 s for the first one.

        Raises:
            BadConfigError: a setting or the URL makes no sense, or config and keywords are given both or neither.
            ConnectionLostError: no server answers.
            AuthenticationError: login or permission refused.
            TlsError: a certificate is refused.
            ServerVersionError: older than Redis 6.2.
            SettingsConflictError: the app is in use with other settings.
            EvictionPolicyWarning: (a warning) the server may evict keys.

        >>> with Acker.connect("redis://localhost", app="orders", message_timeout_secs=60) as acker:
        ...     acker.init(1, 5, task=0)
        True
        """
        config = config_of(config, settings)
        client = Client(source, patience_secs=patience_secs)
        try:
            return cls(client, config)
        except BaseException:
            client.close()
            raise

    @classmethod
    def attach(cls, source: str | RedisClient, app: str) -> Self:
        """Connect to an app with the settings that stand in Redis; for operators and their tools.

        Guarantee: nothing is written, by this call and by those that only look (`stats`, `inspect`, `dead_letters.read`).
        They send plain commands that read, so they work with a replica, under a user who may not write, and with a server
        that refuses writes. Everything else works as after `connect`.

        Raises:
            AppNotFoundError: no such app yet.
            LedgerLostError: a shard of it holds nothing.
            SettingsConflictError, DamagedDataError: a shard or the settings are not as a client left them.
            AckerError: as `connect`.

        >>> with Acker.attach("redis://localhost", "orders") as acker:
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
        self._delivery.close()
        self._client.close()

    def __repr__(self) -> str:
        """The app and where it is; without the password."""
        return f"<Acker of app {self.config.app!r} at {self._client.address}>"

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled: a connection stays in its process."""
        raise TypeError("an Acker can't be pickled: send acker.url and acker.config, and connect where they arrive")

    def __enter__(self) -> Self:
        """Use as a context manager; closes at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    @staticmethod
    def new_roots(count: int) -> npt.NDArray[np.int64]:
        """So many distinct roots, drawn at random, 32 neighbours to a record: they cost a tenth of others.

        Initialise those of one call by one task. Roots that share a record share its timeout, too: none is early, and
        `reset_timeout` of one, like an init that comes later, gives all of them a whole one again.

        >>> len(set(acker.new_roots(100).tolist()))
        100
        """
        if not isinstance(count, int) or count < 0:
            raise BadBatchError(f"count={count!r}: use an integer of 0 or more")
        return ids.new_roots(count)

    # -- updates, one by one: one round trip each. For more than a few a second use the *_many calls or a batch.

    def init(self, root: SupportsIndex, val: SupportsIndex, task: SupportsIndex) -> bool:
        """Initialise one root: `val` is the XOR of the edges the spout emitted, `task` the spout task that owns it.

        A val of 0 completes at once. Returns False if the root had its owner already: then the init is ignored and
        counted (in Storm a second init cancels the first and reports completion).

        Raises:
            BadIdError: an id is not a 64-bit integer, or task is not in 0 ... 2**32-1.
            OutOfMemoryError: the server is above maxmemory, or (PendingLimitError) the app has as many pending roots as its
                operator allows; nothing was changed.
            LedgerLostError: the server lost its data.

        >>> acker.init(1, 5, task=0)
        True
        """
        return self.init_many(_one(root, "root"), _one(val, "val"), task).applied == 1

    def ack(self, root: SupportsIndex, val: SupportsIndex, *, stage: str | None = None) -> None:
        """XOR `val` into one root's tree: the acked edge, combined with the edges of the children it emitted.

        Raises:
            BadIdError, LedgerLostError, ConnectionLostError: as `init`.

        >>> acker.init(1, 5, task=0)
        True
        >>> acker.ack(1, 5, stage="write")
        """
        self.ack_many(_one(root, "root"), _one(val, "val"), stage=stage)

    def fail(self, root: SupportsIndex, *, reason: str | None = None, stage: str | None = None) -> None:
        """Fail one root. `reason` is text for people; it comes back as `Outcome.detail`.

        Its first 1 000 characters are kept. Guarantee: the root's outcome is `fail`, unless it had completed before. A
        fail that comes before the init waits for it; the text is then not kept.

        >>> acker.init(1, 5, task=0)
        True
        >>> acker.fail(1, reason="no such customer", stage="parse")
        """
        self.fail_many(_one(root, "root"), reason=reason, stage=stage)

    def reset_timeout(self, root: SupportsIndex) -> bool:
        """Give one root a whole message timeout again. Returns False if the ledger doesn't know it, or it is too old.

        >>> acker.reset_timeout(1)
        False
        """
        return self.reset_timeout_many(_one(root, "root")) == 1

    # -- updates, many at once: split into calls of 500 records, pipelined

    def init_many(self, roots: Ids, vals: Ids, task: SupportsIndex, *, token: str | None = None) -> Applied:
        """Initialise roots of one task.

        Args:
            roots: root ids, numpy int64 or uint64 array or a sequence of integers, any length above 0.
            vals: first ack value of each root.
            task: owner of all of them.
            token: names this batch: the same batch sent again with it changes nothing. None: one of this call's own.

        Returns:
            Applied.applied counts roots that took the init: duplicates are left out.

        Raises:
            BadIdError, BadBatchError: before anything was sent.
            TokenReusedError: the token belongs to other content.
            OutOfMemoryError, LedgerLostError, ConnectionLostError: see `Batch`.

        >>> acker.init_many([1, 2], [5, 6], task=0, token="partition-7")
        Applied(applied=2, seen=False)
        """
        root_ids, values = ids.to_pairs(roots, vals)
        return self._ledger.send([self._ledger.init(_some(root_ids), values, ids.to_task(task))], token)

    def ack_many(self, roots: Ids, vals: Ids, *, token: str | None = None, stage: str | None = None) -> Applied:
        """Ack roots; values of equal roots are combined by XOR before they are sent.

        Args:
            roots: root ids; a root may stand there any number of times.
            vals: ack values, one per element of roots.
            token: see `init_many`.
            stage: name of the stage that acks; shows as `last_stage`. At most 255 names per app.

        Returns:
            Applied.applied counts distinct roots, without those that failed a short time ago: their acks are late.

        >>> acker.ack_many([1, 2, 2], [5, 4, 2], token="partition-7", stage="write")
        Applied(applied=2, seen=False)
        """
        root_ids, values = ids.to_pairs(roots, vals)
        return self._ledger.send([self._ledger.ack(_some(root_ids), values, stage)], token)

    def fail_many(
        self, roots: Ids, *, token: str | None = None, reason: str | None = None, stage: str | None = None
    ) -> Applied:
        """Fail roots; see `fail`. Applied.applied counts distinct roots, without those that have failed already.

        >>> acker.fail_many([1, 2], reason="no such customer", stage="parse")
        Applied(applied=2, seen=False)
        """
        return self._ledger.send([self._ledger.fail(_some(roots), reason, stage)], token)

    def reset_timeout_many(self, roots: Ids) -> int:
        """Move roots to the nursery (Storm: __ack_reset_timeout). Needs no token: a repeat only moves them again.

        What shares a record with them moves along (`new_roots`, and a spout's roots, of neighbouring message ids).
        Returns how many are in the nursery now; unknown roots and those older than max_age_secs are left alone.

        >>> acker.init_many([1, 2], [5, 6], task=0).applied
        2
        >>> acker.reset_timeout_many([1, 2, 3])
        2
        """
        return self._ledger.reset_timeout(_some(roots))

    def batch(self, *, token: str | None = None) -> Batch:
        """Collect updates and send them on exit: combined per root, packed, pipelined.

        Left by an exception, nothing is sent. After the `with` block `Batch.result` tells what was applied.

        >>> with acker.batch(token="partition-7") as batch:
        ...     batch.init(1, 5, task=0)
        ...     batch.ack(1, 5, stage="write")
        """
        return Batch(self._ledger, token)

    @property
    def ledger(self) -> Ledger:
        """The ledgers themselves, for layers on top of this library."""
        return self._ledger

    # -- outcomes

    def poll(
        self, max_outcomes: int = 1000, block_ms: int = 0, consumer: str = "spout", *, lane: int | None = None
    ) -> list[Outcome]:
        """Take outcomes for a spout.

        Each outcome is delivered at least once. Until it is confirmed it comes back, marked `redelivered`: to the same
        consumer name at the first poll of a new process, and to whoever polls, this process too, after it was held for
        a message timeout. All consumers of an app share its outcomes: use lanes to keep them apart.

        Args:
            max_outcomes: at most so many.
            block_ms: wait so long for a first one; 0 returns at once.
            consumer: name of the spout process, stable over its restarts; a forked process counts as a restart.
            lane: only this lane's outcomes (task % lanes); None: all lanes.

        Raises:
            LedgerLostError: a shard lost its data since this client opened it.

        >>> acker.init(1, 0, task=0)
        True
        >>> [(outcome.kind, outcome.root) for outcome in acker.poll()]
        [('ack', 1)]
        """
        return self._delivery.poll(max_outcomes, block_ms, consumer, lane)

    def confirm(self, outcomes: Iterable[Outcome]) -> int:
        """Say that the spout has acted on outcomes; they are not delivered again and their entries are trimmed.

        Returns the number of stream entries trimmed: one of acks holds many outcomes and goes with its last one.

        >>> acker.init_many([1, 2], [0, 0], task=0).applied
        2
        >>> acker.confirm(acker.poll()) > 0
        True
        """
        return self._delivery.confirm(outcomes)

    def poll_packed(
        self,
        max_outcomes: int = 1000,
        block_ms: int = 0,
        consumer: str = "spout",
        *,
        lane: int | None = None,
        again: bool = False,
    ) -> list[PackedOutcomes]:
        """As `poll`, but roots come as arrays, those that are alike together: for spouts that handle many.

        A pack is of entries of one stream that were read together, so there are few of them where much is alike. May return
        more than `max_outcomes`, by one entry of at most 3 600 acks. With `again` it begins with what this consumer took and
        did not confirm: a reply that was lost with its connection is there, and the whole of an entry that `poll` handed
        out in part, which `poll` then does not go on with.

        >>> acker.init(1, 0, task=0)
        True
        >>> [(pack.kind, pack.roots.tolist()) for pack in acker.poll_packed()]
        [('ack', [1])]
        """
        return self._delivery.poll_packed(max_outcomes, block_ms, consumer, lane, again=again)

    def confirm_packed(self, packed: Iterable[PackedOutcomes]) -> int:
        """Say that the spout has acted on all outcomes of these packs. Returns the number of entries trimmed.

        >>> acker.init(1, 0, task=0)
        True
        >>> acker.confirm_packed(acker.poll_packed())
        1
        """
        return self._delivery.confirm_packed(packed)

    # -- rotation and looking

    def rotate(self, force: bool = False, drain_calls: int | None = None, shards: range | None = None) -> Rotated:
        """One guarded tick, bounded draining of death row, and a bounded sweep (Storm: RotatingMap.rotate).

        Between T and T * num_buckets / (num_buckets - 1) after it entered the nursery a root expires, given that
        something calls this about every tick: `acker-redis rotator` does. Safe to call from anywhere, at any time.

        Args:
            force: turn the buckets now, whatever the server's clock says; for tests and operators.
            drain_calls: drain in at most so many calls of 250 roots per shard; None: in as many as it takes, up to a
                million roots per shard. `Rotated.draining` says whether something is left for the next call.
            shards: only these, as for a rotator that gives every app a turn; None: all.

        >>> acker.init(1, 5, task=0)
        True
        >>> [acker.rotate(force=True).timed_out for _ in range(3)]
        [0, 0, 1]
        """
        return self._rotation.rotate(force=force, drain_calls=drain_calls, shards=shards)

    def stats(self, *, oldest: bool = True, lane: int | None = None) -> Stats:
        """Counters over all shards. `oldest=False` leaves out `oldest_age_ms`, which has to be looked for.

        With `lane`, `waiting` counts this lane's entries only.

        >>> acker.init(1, 5, task=0)
        True
        >>> acker.stats().pending
        1
        """
        return self._inspection.stats(oldest=oldest, lane=lane)

    def pending(self) -> int:
        """Roots without outcome, over all shards, in one round trip.

        >>> acker.init(1, 5, task=0)
        True
        >>> acker.pending()
        1
        """
        return self._inspection.pending()

    def each_pending(self) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Step by step through all ledgers: how many records were looked at, their pending roots, and whose task they are.

        A root that is pending all the while comes once or more often; what begins or settles meanwhile may come or not.

        >>> acker.init_many([1, 2], [5, 6], task=3).applied
        2
        >>> sorted(zip(*map(np.concatenate, zip(*((roots, tasks) for _, roots, tasks in acker.each_pending())))))
        [(np.int64(1), np.int64(3)), (np.int64(2), np.int64(3))]
        """
        return self._inspection.each_pending()

    def server_ids(self) -> frozenset[tuple[str, str]]:
        """Run id and replication id of each primary, where the user may run INFO; others mean a restart or failover.

        >>> before = acker.server_ids()
        >>> acker.server_ids() == before
        True
        """
        return self._client.server_ids()

    def inspect(self, root: SupportsIndex) -> RootRecord | None:
        """The record of one root, None if the ledger doesn't hold it (not seen, settled or expired).

        >>> acker.ack(1, 5, stage="write")
        >>> acker.inspect(1).state, acker.inspect(1).last_stage
        ('waiting', 'write')
        """
        return self._inspection.inspect(_one(root, "root"))[0]

    def inspect_many(self, roots: Ids) -> list[RootRecord | None]:
        """The record of each root.

        >>> acker.init(1, 5, task=0)
        True
        >>> [record and record.val for record in acker.inspect_many([1, 2])]
        [5, None]
        """
        return self._inspection.inspect(_some(roots))

    def payloads(self, run_id: str) -> Payloads:
        """Messages of one run, kept for replay.

        >>> acker.payloads("run-1").put([(7, b"message")])
        >>> acker.payloads("run-1").get([7, 8])
        [b'message', None]
        """
        return Payloads(self._client, self.config.app, run_id)

    def holds(self, generation: bytes | None) -> bool:
        """Whether this is the marker of the app's first shard, as `generation_at` found it by another URL.

        >>> acker.holds(generation_at("redis://localhost", AckerConfig(app="another")))
        False
        """
        return self._shards.holds(generation)

    def claim_run(self, run_id: str) -> None:
        """Claim a run id for a run that begins; it stays taken for a week, or four message timeouts if that is longer.

        Raises:
            BadConfigError: it is not a text of 1 to 100 characters, or an earlier run claimed it: its roots and tokens would
                be taken for those of this one.

        >>> acker.claim_run("2026-01-31")
        """
        run_ids.claim(self._client, self.config, run_id)

    def lease(self, *, lane: int, run_id: str) -> Lease:
        """The right of a run to take the outcomes of a lane, which `run_spout` takes for itself.

        >>> lease = acker.lease(lane=0, run_id="run-1")
        >>> lease.take()
        >>> lease.release()
        """
        return Lease(self._client, self.config.app, lane, run_id)

    def note_end(self, end: End, *, lane: int) -> None:
        """Note how the run ended that had a lane last, as `run_spout` does for itself; or that it has begun.

        >>> acker.note_end(End("run-1", 0, "failed", error="OSError: no such folder"), lane=0)
        >>> acker.ends()[0].state
        'failed'
        """
        run_ends.write(self._client, self.config.app, lane, end)

    def ends(self) -> dict[int, End]:
        """How the last run of each lane ended.

        >>> acker.ends()
        {}
        """
        return run_ends.read(self._client, self.config.app)

    def pause(self, *, reason: str = "") -> Paused:
        """Have all spouts of the app emit nothing, from within about a second, until `resume`.

        What is in flight goes on, times out, and its outcomes are taken; what is to be tried again waits. A paused app stays
        so over restarts of its programs. If it was paused already, the first reason stays.

        Raises:
            BadConfigError: the reason has more than 200 characters.

        >>> acker.pause(reason="the store is being moved").reason
        'the store is being moved'
        """
        return pause.pause(self._client, self.config.app, reason)

    def resume(self) -> bool:
        """Let the app's spouts emit again; whether it was paused.

        >>> acker.pause().reason
        ''
        >>> acker.resume(), acker.resume()
        (True, False)
        """
        return pause.resume(self._client, self.config.app)

    def paused(self) -> Paused | None:
        """Since when and why the app is paused; None: it is not.

        >>> acker.paused()
        """
        return pause.paused(self._client, self.config.app)

    def limits(self) -> Limits:
        """What an operator allows the app; see `Limits`.

        >>> acker.limits().max_pending is None
        True
        """
        return limits.read(self._client, self.config.app)

    def set_limits(self, allowed: Limits) -> None:
        """Set all limits of the app, in place of those there are. They hold from within a second; for a rotator, some more.

        A spout at `max_pending` emits nothing until roots settle. Beyond it Redis refuses new roots (PendingLimitError): of
        one shard at once, of several with room for the chance by which roots are spread. What is pending already stays.

        >>> acker.set_limits(Limits(max_pending=100_000))
        >>> acker.limits().max_pending
        100000
        """
        limits.write(self._client, self.config, allowed)

    def done_until(self, task: int = 0) -> dict[str, int]:
        """The first offset of each partition that is not known to be done, as the stream of a task says it.

        Everything before it was acked or is a dead letter, so its outputs are complete; a stream writes this after each
        micro-batch, and it never goes back. Empty where the stream takes its message ids from a column (`id_column`).

        >>> acker.done_until()
        {}
        """
        return completed_offsets.read(self._client, self.config.app, task)

    def say_done_until(self, values: Mapping[str, int], gone: Sequence[str] = (), *, task: int) -> None:
        """Write what `done_until` reads; partitions that are `gone` are not kept.

        >>> acker.say_done_until({"orders-0": 17}, task=0)
        >>> acker.done_until()
        {'orders-0': 17}
        """
        completed_offsets.write(self._client, self.config.app, task, values, gone)

    def replaying(self, *, task: int, take: ReplayLoader, only_run: str | None = None) -> Replaying:
        """The dead letters that a spout of a task replays, or of one run only, which `Spout` takes up for itself.

        >>> acker.replaying(task=0, take=lambda letters: []).under_way
        []
        """
        return Replaying(self._client, self.config.app, task, take, only_run)

    def recover(self) -> list[int]:
        """Open the app anew after `LedgerLostError`, and go on with the generation in force.

        Returns the shards this call created anew. Whatever was in flight must be replayed with fresh roots: the ledger
        knows nothing of it any more. An acker that was attached makes nothing here either.

        Raises:
            LedgerLostError: this acker was attached, and nobody who is connected has recovered yet.

        >>> acker.recover()
        []
        """
        created = self._shards.reopen()
        self._ledger.forget_stages()
        self._delivery.forget()
        return created


def _some(roots: Ids) -> UInt64Array:
    array = ids.to_uint64_array(roots, "roots")
    if len(array) == 0:
        raise BadBatchError("roots is empty: nothing to send; leave the call out")
    return array


def _one(value: SupportsIndex, name: str) -> UInt64Array:
    return np.array([ids.to_uint64(value, name)], np.uint64)
