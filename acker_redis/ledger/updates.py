"""Updates of the ledgers: init, ack, fail, reset_timeout. One script each, one call per shard and chunk.

Guarantee: a batch sent again under its token changes nothing. Each call is atomic; a batch of several calls is not.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from acker_redis.client import scripts
from acker_redis.client.scripts import Argument, Call
from acker_redis.errors import BadBatchError, TokenReusedError
from acker_redis.ledger.shards import Shards
from acker_redis.model import keys
from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.blocks import ROOTS_PER_CALL, Blocks
from acker_redis.model.types import Applied

FAILS_PER_CALL = 250
"""Each failed root is one stream entry, which costs more than an ack."""

_BLOCK_WEIGHT = 8
"""What a block costs besides its roots, in roots of it."""

REASON_CHARS = 1000
"""Of a fail's text so much is kept: it stands in the stream once per root."""

_TOKEN_BYTES = 12
_DIGEST_BYTES = 8
_SEEN, _REUSED, _OTHER_TASK = (scripts.load("init").codes[code] for code in ("SEEN", "REUSED", "OTHER_TASK"))


@dataclass(frozen=True)
class Init:
    """Inits of one task: roots and their first values, and how many repeats of roots were left out."""

    script: ClassVar[str] = "init"
    stage: ClassVar[None] = None

    batch: Blocks
    task: int
    repeats: int

    def arguments(self, stage: int, *, first: bool) -> tuple[Argument, ...]:
        """What the script reads before the roots; repeats are counted by the first call."""
        return self.task, self.repeats if first else 0


@dataclass(frozen=True)
class Ack:
    """Acks of one stage, or of none: roots and their values."""

    script: ClassVar[str] = "ack"

    batch: Blocks
    stage: str | None

    def arguments(self, stage: int, *, first: bool) -> tuple[Argument, ...]:
        """As `Init.arguments`."""
        return (stage,)


@dataclass(frozen=True)
class Fail:
    """Fails of one stage, or of none, with one text: roots."""

    script: ClassVar[str] = "fail"

    batch: Blocks
    detail: bytes
    stage: str | None

    def arguments(self, stage: int, *, first: bool) -> tuple[Argument, ...]:
        """As `Init.arguments`."""
        return stage, self.detail


Update: TypeAlias = Init | Ack | Fail


class _Piece(NamedTuple):
    """One call of a batch, and how many roots are in it."""

    call: Call
    roots: int


class _Reply(NamedTuple):
    """What the scripts of all updates answer."""

    status: int
    applied: int


class Ledger:
    """Applies updates to the ledgers of one app."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._client = shards.client
        self._stages: dict[str, int] = {}

    def init(self, roots: UInt64Array, vals: UInt64Array, task: int) -> Init:
        """Inits of one task's roots; of a root that stands twice the first counts, the others are counted as duplicates."""
        batch = Blocks.from_roots(roots, vals)
        return Init(batch, task, len(roots) - len(batch.roots))

    def ack(self, roots: UInt64Array, vals: UInt64Array, stage: str | None) -> Ack:
        """Acks, combined per root by XOR."""
        return Ack(Blocks.from_roots(roots, vals, "xor"), stage)

    def fail(self, roots: UInt64Array, reason: str | None, stage: str | None) -> Fail:
        """Fails, each root once; the text of the reason is cut to REASON_CHARS."""
        if reason is not None and not isinstance(reason, str):
            raise BadBatchError(f"reason={reason!r}: give a text, or None")
        return Fail(Blocks.from_roots(roots), (reason or "")[:REASON_CHARS].encode(errors="replace"), stage)

    def send(self, updates: Sequence[Update], token: str | None) -> Applied:
        """Send updates under one token, pipelined.

        Args:
            updates: any kinds, in any order; their outcome does not depend on it.
            token: names the batch. None: a token of this call's own, which makes the library's own retries exact.

        Raises:
            BadBatchError: the token or a stage is no name; nothing was sent. Or an init would put roots of two tasks into one
                block; that call was left out.
            TokenReusedError: the token was used before for other content; that part was left out.
            AckerError: as the server answered; parts may have been applied, and sending again with the token is exact.
        """
        if token is not None and (not isinstance(token, str) or not token or not _encodable(token)):
            raise BadBatchError(f"token={token!r}: give a text that names this batch, or None")
        for update in updates:
            _check_stage(update.stage)
        base = secrets.token_bytes(_TOKEN_BYTES) if token is None else token.encode()
        pieces = [piece for part, update in enumerate(updates) for piece in self._pieces(update, base, part)]
        replies = [_Reply(*reply) for reply in self._client.run([piece.call for piece in pieces])]
        applied = sum(reply.applied for reply in replies)
        refused = sum(reply.status == _OTHER_TASK for reply in replies)
        if refused:
            raise BadBatchError(
                f"a block has roots of another task already: {refused} of {len(replies)} calls were left out, {applied} "
                "updates applied. Roots that share a block (equal but for their top five bits) need one task for all"
            )
        if token is None:  # a call that was seen is our own first try, which got through while its reply did not
            applied += sum(p.roots for p, reply in zip(pieces, replies, strict=True) if reply.status == _SEEN)
            return Applied(applied, False)
        reused = sum(reply.status == _REUSED for reply in replies)
        if reused:
            raise TokenReusedError(
                f"token {token!r} was used before for a batch with other content: {reused} of {len(replies)} calls were "
                f"left out, {applied} updates applied. Use one token per batch"
            )
        return Applied(applied, any(reply.status == _SEEN for reply in replies))

    def reset_timeout(self, roots: UInt64Array) -> int:
        """Give roots a whole timeout again; returns how many are in the nursery now."""
        batch = Blocks.from_roots(roots)
        batch, cuts = self._shards.cut(batch, np.ones(len(batch.numbers), np.int64), ROOTS_PER_CALL)
        packed, at = batch.packed()
        calls = [self._shards.call("reset_timeout", cut.shard, packed[at[cut.start] : at[cut.stop]]) for cut in cuts]
        return sum(applied for (applied,) in self._client.run(calls))

    def stage_number(self, stage: str | None) -> int:
        """The number of a stage name; given at its first use, and noted in every shard so that its entries are readable.

        Raises:
            BadBatchError: not a name of 1 to 100 characters, or the app has 255 stages already.
        """
        if stage is None:
            return 0
        number = self._stages.get(stage)
        if number is None:
            _check_stage(stage)
            call = scripts.load("stage").call({"stages": keys.stages(self._shards.config.app)}, stage)
            ((number,),) = self._client.run([call])
            if number == scripts.load("stage").codes["FULL"]:
                raise BadBatchError(
                    f"stage={stage!r}: the app has 255 stages already; name stages by operator, not by row"
                )
            self._client.run(self._shards.call_all("name_stage", number, stage))
            self._stages[stage] = number
        return int(number)

    def forget_stages(self) -> None:
        """Register stages again at their next use: after the server lost its data."""
        self._stages.clear()

    def _pieces(self, update: Update, base: bytes, part: int) -> Iterator[_Piece]:
        """Calls of one update. All blocks are packed at once, so that a call costs a few microseconds of Python."""
        stage = self.stage_number(update.stage)
        batch, cuts = self._shards.cut(update.batch, *_weights(update))
        packed, at = batch.packed()
        roots = np.concatenate(([0], np.cumsum(batch.sizes)))
        for number, cut in enumerate(cuts):
            rows = packed[at[cut.start] : at[cut.stop]]
            arguments = update.arguments(stage, first=number == 0)
            label = b"%s:%d:%d:%d" % (update.script.encode(), part, cut.shard, cut.chunk)
            token, digest = _hash(base, label, _TOKEN_BYTES), _hash(rows, repr(arguments).encode(), _DIGEST_BYTES)
            call = self._shards.call(update.script, cut.shard, token, digest, *arguments, rows)
            yield _Piece(call, int(roots[cut.stop] - roots[cut.start]))


def _weights(update: Update) -> tuple[Int64Array, int]:
    """What each block costs its call, and how much of that a call takes."""
    if isinstance(update, Fail):
        return update.batch.sizes, FAILS_PER_CALL
    return update.batch.sizes + _BLOCK_WEIGHT, ROOTS_PER_CALL * (1 + _BLOCK_WEIGHT)


def _check_stage(stage: str | None) -> None:
    if stage is not None and not keys.is_name(stage):
        raise BadBatchError(f"stage={stage!r}: use a name of 1 to 100 characters")


def _encodable(text: str) -> bool:
    """Python's strings may hold halves of surrogate pairs, which UTF-8 can't."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _hash(data: bytes, salt: bytes, size: int) -> bytes:
    hasher = hashlib.blake2b(data, digest_size=size)
    hasher.update(salt)
    return hasher.digest()
