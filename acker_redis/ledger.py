"""Updates of the ledgers: init, ack, fail, reset_timeout. One script each, one call per shard and chunk.

Guarantee: a batch sent again under its token changes nothing. Each call is atomic; a batch of several calls is not.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from acker_redis import ids, keys, scripts
from acker_redis.errors import BadBatchError, TokenReusedError
from acker_redis.ids import UInt64Array
from acker_redis.model import Applied
from acker_redis.scripts import Argument, Call
from acker_redis.shards import Shards

ROOTS_PER_CALL = 500
"""Rows of one script call: holds the server about 1 ms (Lua's unpack fails at 8000)."""

FAILS_PER_CALL = 250
"""Each failed root is one stream entry, which costs more than an ack."""

REASON_CHARS = 1000
"""Of a fail's text so much is kept: it stands in the stream once per root."""

_TOKEN_BYTES = 12
_DIGEST_BYTES = 8
_SEEN, _REUSED = (scripts.load("ack").codes[code] for code in ("SEEN", "REUSED"))


@dataclass(frozen=True)
class Init:
    """Inits of one task: distinct roots and their first values, and how many repeats of roots were left out."""

    script: ClassVar[str] = "init"
    per_call: ClassVar[int] = ROOTS_PER_CALL
    stage: ClassVar[None] = None

    roots: UInt64Array
    vals: UInt64Array
    task: int
    repeats: int

    def columns(self) -> tuple[UInt64Array, ...]:
        """What the script reads of each root."""
        return self.roots, self.vals

    def arguments(self, stage: int, *, first: bool) -> tuple[Argument, ...]:
        """What it reads before them; repeats are counted by the first call."""
        return self.task, self.repeats if first else 0


@dataclass(frozen=True)
class Ack:
    """Acks of one stage, or of none: distinct roots and their values."""

    script: ClassVar[str] = "ack"
    per_call: ClassVar[int] = ROOTS_PER_CALL

    roots: UInt64Array
    vals: UInt64Array
    stage: str | None

    def columns(self) -> tuple[UInt64Array, ...]:
        """As `Init.columns`."""
        return self.roots, self.vals

    def arguments(self, stage: int, *, first: bool) -> tuple[Argument, ...]:
        """As `Init.arguments`."""
        return (stage,)


@dataclass(frozen=True)
class Fail:
    """Fails of one stage, or of none, with one text: distinct roots."""

    script: ClassVar[str] = "fail"
    per_call: ClassVar[int] = FAILS_PER_CALL

    roots: UInt64Array
    detail: bytes
    stage: str | None

    def columns(self) -> tuple[UInt64Array, ...]:
        """As `Init.columns`."""
        return (self.roots,)

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
        """Work on opened shards."""
        self._shards = shards
        self._client = shards.client
        self._stages: dict[str, int] = {}

    def init(self, roots: UInt64Array, vals: UInt64Array, task: int) -> Init:
        """Inits of one task's roots; of a root that stands twice the first counts, the others are counted as duplicates."""
        distinct, first = np.unique(roots, return_index=True)
        return Init(distinct, vals[first], task, len(roots) - len(distinct))

    def ack(self, roots: UInt64Array, vals: UInt64Array, stage: str | None) -> Ack:
        """Acks, combined per root by XOR."""
        return Ack(*ids.xor_by_root(roots, vals), stage)

    def fail(self, roots: UInt64Array, reason: str | None, stage: str | None) -> Fail:
        """Fails, each root once; the text of the reason is cut to REASON_CHARS."""
        if reason is not None and not isinstance(reason, str):
            raise BadBatchError(f"reason={reason!r}: give a text, or None")
        return Fail(np.unique(roots), (reason or "")[:REASON_CHARS].encode(errors="replace"), stage)

    def send(self, updates: Sequence[Update], token: str | None) -> Applied:
        """Send updates under one token, pipelined.

        Args:
            updates: any kinds, in any order; their outcome does not depend on it.
            token: names the batch. None: a token of this call's own, which makes the library's own retries exact.

        Raises:
            BadBatchError: the token or a stage is no name; nothing was sent.
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
        distinct = np.unique(roots)
        order, cuts = self._shards.cut(distinct, ROOTS_PER_CALL)
        ordered = distinct[order]
        calls = [self._shards.call("reset_timeout", cut.shard, ids.pack(ordered[cut.start : cut.stop])) for cut in cuts]
        return sum(applied for (applied,) in self._client.run(calls))

    def stage_number(self, stage: str | None) -> int:
        """The number of a stage name; given at its first use, and told to every shard so that its entries are readable.

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
        """Register stages anew at their next use: after the server lost its data."""
        self._stages.clear()

    def _pieces(self, update: Update, base: bytes, part: int) -> Iterator[_Piece]:
        """Calls of one update. All rows are packed at once, so that a call costs a few microseconds of Python."""
        stage = self.stage_number(update.stage)
        order, cuts = self._shards.cut(update.roots, update.per_call)
        columns = update.columns()
        packed, width = ids.pack(*(column[order] for column in columns)), 8 * len(columns)
        for number, cut in enumerate(cuts):
            rows = packed[cut.start * width : cut.stop * width]
            arguments = update.arguments(stage, first=number == 0)
            label = b"%s:%d:%d:%d" % (update.script.encode(), part, cut.shard, cut.chunk)
            token, digest = _hash(base, label, _TOKEN_BYTES), _hash(rows, repr(arguments).encode(), _DIGEST_BYTES)
            call = self._shards.call(update.script, cut.shard, token, digest, *arguments, rows)
            yield _Piece(call, cut.stop - cut.start)


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
