"""Updates of the ledgers: init, ack, fail, settle, reset_timeout. One script each, one call per shard and chunk.

Guarantee: a batch sent again under its idempotency key changes nothing. Each call is atomic. A batch of several calls is not.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from acker_redis.client import scripts
from acker_redis.client.scripts import Argument, Call
from acker_redis.errors import BadBatchError, IdempotencyKeyReusedError
from acker_redis.ledger.keyed_acks import KeyedAcks
from acker_redis.ledger.shards import Shards
from acker_redis.model import keys
from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.blocks import ROOTS_PER_CALL, Blocks
from acker_redis.model.types import Applied

FAILS_PER_CALL = 250
"""Maximum number of roots per fail call. Each root is one stream entry, which costs more than an ack."""

_BLOCK_WEIGHT = 8
"""Cost of a block in addition to its roots, in roots."""

REASON_CHARS = 1000
"""Number of characters kept of a fail's text, which is stored in the stream once per root."""

_IDEMPOTENCY_KEY_BYTES = 12
_DIGEST_BYTES = 8
_SEEN, _REUSED, _OTHER_SPOUT_ID = (scripts.load("init").codes[code] for code in ("SEEN", "REUSED", "OTHER_SPOUT_ID"))
_PARTLY = scripts.load("ack").codes["PARTLY"]
_TOUCHED = scripts.load("settle").codes["TOUCHED"]


@dataclass(frozen=True)
class Init:
    """Inits with one spout_id: roots, their first values, and the number of repeated roots dropped."""

    script: ClassVar[str] = "init"
    component: ClassVar[None] = None

    batch: Blocks
    spout_id: int
    repeats: int

    def arguments(self, component: int, *, first: bool) -> tuple[Argument, ...]:
        """Return the script's arguments before the roots. The first call counts the repeats."""
        return self.spout_id, self.repeats if first else 0


@dataclass(frozen=True)
class Ack:
    """Acks by one component, or without component: roots and their values."""

    script: ClassVar[str] = "ack"

    batch: Blocks
    component: str | None

    def arguments(self, component: int, *, first: bool) -> tuple[Argument, ...]:
        """Return the script's arguments before the roots. No ack has a key of its own."""
        return component, b""


@dataclass(frozen=True)
class Fail:
    """Fails by one component, or without component, with one text: roots. Released are those on which no work failed."""

    script: ClassVar[str] = "fail"

    batch: Blocks
    detail: bytes
    component: str | None
    released: bool = False

    def arguments(self, component: int, *, first: bool) -> tuple[Argument, ...]:
        """Return the script's arguments before the roots."""
        return component, self.detail, int(self.released)


@dataclass(frozen=True)
class Settle:
    """Inits with one spout_id, as of an earlier time: roots with value 0 are done, and the others stay open."""

    script: ClassVar[str] = "settle"
    component: ClassVar[None] = None

    batch: Blocks
    spout_id: int
    age_ms: int

    def arguments(self, component: int, *, first: bool) -> tuple[Argument, ...]:
        """Return the script's arguments before the roots."""
        return self.spout_id, self.age_ms


_InBlocks: TypeAlias = Init | Ack | Fail | Settle
Update: TypeAlias = _InBlocks | KeyedAcks


class _Piece(NamedTuple):
    """One call of a batch, with its roots. Its acks may have keys of their own."""

    call: Call
    roots: UInt64Array
    has_keys: bool = False


class _Reply(NamedTuple):
    """Reply of an update script."""

    status: int
    applied: int


class Ledger:
    """Applies updates to the ledgers of one app."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._client = shards.client
        self._components: dict[str, int] = {}

    def init(self, roots: UInt64Array, vals: UInt64Array, spout_id: int) -> Init:
        """Make an update of inits with one spout_id. The first of equal roots applies; the others count as duplicates."""
        batch = Blocks.from_roots(roots, vals)
        return Init(batch, spout_id, len(roots) - len(batch.roots))

    def ack(self, roots: UInt64Array, vals: UInt64Array, component: str | None) -> Ack:
        """Make an update of acks, combined per root by XOR."""
        return Ack(Blocks.from_roots(roots, vals, "xor"), component)

    def ack_keyed(
        self, roots: UInt64Array, vals: UInt64Array, record_keys: UInt64Array, component: str | None
    ) -> KeyedAcks:
        """Make an update of acks with a key each. Of acks with equal root and key, the first applies."""
        return KeyedAcks.distinct(roots, record_keys, vals, component)

    def fail(self, roots: UInt64Array, reason: str | None, component: str | None, *, released: bool = False) -> Fail:
        """Make an update of fails, each root once. The text of the reason is cut to REASON_CHARS."""
        if reason is not None and not isinstance(reason, str):
            raise BadBatchError(f"reason={reason!r} is not a text. Pass a str, or None.")
        detail = (reason or "")[:REASON_CHARS].encode(errors="replace")
        return Fail(Blocks.from_roots(roots), detail, component, released)

    def send(self, updates: Sequence[Update], idempotency_key: str | None) -> Applied:
        """Send updates under one idempotency key, pipelined.

        Args:
            updates: updates of any kind, in any order. The order does not change the outcome.
            idempotency_key: name of the batch. None draws a random key, which makes the library's own retries exact.

        Raises:
            BadBatchError: the idempotency key or a component is not a valid name, and nothing was sent. Or an init would
                put roots of two spout_ids into one block, and that call was skipped.
            IdempotencyKeyReusedError: the idempotency key was used before for other content. That part was skipped.
            AckerError: error of the server. Parts may have been applied. Sending the batch again with its idempotency key
                is exact.
        """
        if idempotency_key is not None and (
            not isinstance(idempotency_key, str) or not idempotency_key or not _encodable(idempotency_key)
        ):
            raise BadBatchError(
                f"idempotency_key={idempotency_key!r} can't name a batch. Use a non-empty text that UTF-8 can encode, or None."
            )
        for update in updates:
            _check_component(update.component)
        base = secrets.token_bytes(_IDEMPOTENCY_KEY_BYTES) if idempotency_key is None else idempotency_key.encode()
        pieces = [piece for part, update in enumerate(updates) for piece in self._pieces(update, base, part)]
        replies = self._send(pieces)
        applied = sum(reply.applied for reply in replies)
        refused = sum(reply.status == _OTHER_SPOUT_ID for reply in replies)
        if refused:
            raise BadBatchError(
                f"A block already has roots of another spout_id. {refused} of {len(replies)} calls were skipped, {applied} "
                "updates were applied. Use one spout_id for all roots of a block (equal except for their top five bits)."
            )
        if idempotency_key is not None:
            _check_not_reused(idempotency_key, replies)
        duplicate = False
        for piece, reply in zip(pieces, replies, strict=True):
            if reply.status in (_SEEN, _PARTLY):
                if idempotency_key is not None or piece.has_keys:
                    duplicate = True
                else:  # our own first try, whose reply was lost
                    applied += len(piece.roots)
        return Applied(applied, duplicate)

    def release(self, roots: Int64Array, reason: str, idempotency_key: str | None = None) -> Applied:
        """Fail roots that a run gives back because no work on them failed. Metrics don't count them as failures.

        Raises:
            IdempotencyKeyReusedError, AckerError: as `send`.
        """
        return self.send([self.fail(roots.view(np.uint64), reason, None, released=True)], idempotency_key)

    def settle(
        self, roots: UInt64Array, vals: UInt64Array, spout_id: int, age_ms: int, idempotency_key: str
    ) -> UInt64Array:
        """Init roots and settle those that are done, in one call per chunk.

        Args:
            roots: distinct roots, whose blocks should be new to the ledger.
            vals: 0 for a root that is done, else the first ack val of a root that stays open.
            spout_id: owner of the roots.
            age_ms: time since the work on the roots began.
            idempotency_key: name of the batch.

        Returns:
            Roots of refused calls, which found a block that exists. Use init and ack for these.

        Raises:
            IdempotencyKeyReusedError, AckerError: as `send`.
        """
        update = Settle(Blocks.from_roots(roots, vals), spout_id, age_ms)
        pieces = list(self._pieces(update, idempotency_key.encode(), 0))
        replies = self._send(pieces)
        _check_not_reused(idempotency_key, replies)
        touched = [piece.roots for piece, reply in zip(pieces, replies, strict=True) if reply.status == _TOUCHED]
        return np.concatenate([np.array([], np.uint64), *touched])

    def reset_timeout(self, roots: UInt64Array) -> int:
        """Restart the timeout of roots. Returns the number of these roots in the nursery now."""
        batch = Blocks.from_roots(roots)
        batch, cuts = self._shards.cut(batch, np.ones(len(batch.numbers), np.int64), ROOTS_PER_CALL)
        packed, at = batch.packed()
        calls = [self._shards.call("reset_timeout", cut.shard, packed[at[cut.start] : at[cut.stop]]) for cut in cuts]
        return sum(applied for (applied,) in self._client.run(calls))

    def component_number(self, component: str | None) -> int:
        """Look up the number of a component name. First use assigns it and stores the name in every shard.

        Raises:
            BadBatchError: `component` is not a name of 1 to 100 characters, or the app has 255 components already.
        """
        if component is None:
            return 0
        number = self._components.get(component)
        if number is None:
            _check_component(component)
            call = scripts.load("component").call({"components": keys.components(self._shards.config.app)}, component)
            ((number,),) = self._client.run([call])
            if number == scripts.load("component").codes["FULL"]:
                raise BadBatchError(
                    f"component={component!r} is one too many, because the app has 255 components already. Name components "
                    "by operator, not by row."
                )
            self._client.run(self._shards.call_all("name_component", number, component))
            self._components[component] = number
        return int(number)

    def forget_components(self) -> None:
        """Forget components, so that their next use registers them again after the server lost its data."""
        self._components.clear()

    def _send(self, pieces: Sequence[_Piece]) -> list[_Reply]:
        return [_Reply(*reply) for reply in self._client.run([piece.call for piece in pieces])]

    def _pieces(self, update: Update, base: bytes, part: int) -> Iterator[_Piece]:
        """Make the calls of one update. Packs all blocks at once, so that a call costs a few microseconds of Python."""
        component = self.component_number(update.component)
        if isinstance(update, KeyedAcks):
            for piece in update.pieces(self._shards):
                call = self._shards.call("ack", piece.shard, b"", b"", component, piece.keyed, piece.updates)
                yield _Piece(call, piece.roots, has_keys=True)
            return
        batch, cuts = self._shards.cut(update.batch, *_weights(update))
        packed, at = batch.packed_open() if isinstance(update, Settle) else batch.packed()
        begins = np.concatenate(([0], np.cumsum(batch.sizes)))
        for number, cut in enumerate(cuts):
            rows = packed[at[cut.start] : at[cut.stop]]
            arguments = update.arguments(component, first=number == 0)
            label = b"%s:%d:%d:%d" % (update.script.encode(), part, cut.shard, cut.chunk)
            idempotency_key, digest = (
                _hash(base, label, _IDEMPOTENCY_KEY_BYTES),
                _hash(rows, repr(arguments).encode(), _DIGEST_BYTES),
            )
            call = self._shards.call(update.script, cut.shard, idempotency_key, digest, *arguments, rows)
            yield _Piece(call, batch.roots[begins[cut.start] : begins[cut.stop]])


def _weights(update: _InBlocks) -> tuple[Int64Array, int]:
    """Return the cost of each block, and the maximum cost of a call."""
    if isinstance(update, Fail):
        return update.batch.sizes, FAILS_PER_CALL
    if isinstance(update, Settle):
        return update.batch.open_sizes() + _BLOCK_WEIGHT, ROOTS_PER_CALL * _BLOCK_WEIGHT
    return update.batch.sizes + _BLOCK_WEIGHT, ROOTS_PER_CALL * (1 + _BLOCK_WEIGHT)


def _check_not_reused(idempotency_key: str, replies: Sequence[_Reply]) -> None:
    reused = sum(reply.status == _REUSED for reply in replies)
    if reused:
        raise IdempotencyKeyReusedError(
            f"idempotency_key={idempotency_key!r} was used before for a batch with other content. {reused} of "
            f"{len(replies)} calls were skipped, {sum(reply.applied for reply in replies)} updates were applied. Use one "
            "idempotency key per batch."
        )


def _check_component(component: str | None) -> None:
    if component is not None and not keys.is_name(component):
        raise BadBatchError(f"component={component!r} is not a name. Use a text of 1 to 100 characters.")


def _encodable(text: str) -> bool:
    """Return True if UTF-8 can encode a text. Python's strings may hold halves of surrogate pairs."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _hash(data: bytes, salt: bytes, size: int) -> bytes:
    hasher = hashlib.blake2b(data, digest_size=size)
    hasher.update(salt)
    return hasher.digest()
