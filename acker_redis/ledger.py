"""Updates of the ledgers: init, ack, fail, reset_timeout. One script each, one call per shard and chunk.

Guarantee: a batch sent again under its token changes nothing. Each call is atomic; a batch of several calls is not.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acker_redis import ids, keys, scripts
from acker_redis.client import Client
from acker_redis.config import AckerConfig
from acker_redis.errors import AckerError, BadBatchError, LedgerLostError, SettingsConflictError, TokenReusedError
from acker_redis.ids import UInt64Array
from acker_redis.keys import ShardKeys
from acker_redis.model import Applied
from acker_redis.scripts import Call

ROOTS_PER_CALL = 500
"""Rows of one script call: holds the server about 1 ms (Lua's unpack fails at 8000)."""

FAILS_PER_CALL = 250
"""Each failed root is one stream entry, which costs more than an ack."""

REASON_CHARS = 1000
"""Of a fail's text so much is kept: it stands in the stream once per root."""

_TOKEN_BYTES = 12
_DIGEST_BYTES = 8
_APPLIED, _SEEN, _REUSED, _PARTLY = (scripts.load("ack").codes[c] for c in ("APPLIED", "SEEN", "REUSED", "PARTLY"))
_TOKEN = scripts.load("ack").args.index("tokens")


@dataclass(frozen=True)
class Update:
    """Updates of one kind, ready to be cut into calls: distinct roots, with values where the kind has them."""

    operation: str
    roots: UInt64Array
    vals: UInt64Array | None
    head: tuple[bytes | str | int, ...] = ()
    repeats: int = 0


@dataclass(frozen=True)
class Part:
    """One of several updates that are folded into one value per root: an init or acks, under a token of its own."""

    token: str
    update: Update


class Shards:
    """The opened shards of one app: their keys and generation markers."""

    def __init__(self, client: Client, config: AckerConfig, *, create: bool = True) -> None:
        """Open every shard, see `open`; or only find them, see `find`."""
        self.client = client
        self.config = config
        self.keys = [ShardKeys(config.app, s, config.num_buckets, config.lanes) for s in range(config.shards)]
        self.generations: list[bytes] = []
        if create:
            self.open()
        else:
            self.find()

    def open(self) -> list[int]:
        """Make every shard ready; adopt the markers in force. Returns the shards that were new or had lost their data.

        Raises:
            SettingsConflictError: the app's settings were deleted or lost, and its shards were not.
            AckerError: a shard can't be opened.
        """
        config, script = self.config, scripts.load("open")
        settings = _shard_settings(config).values()
        calls = [script.call(_as_mapping(k, script), secrets.token_hex(8), *settings) for k in self.keys]
        replies = self.client.run(calls)
        _raise_first(replies)
        created, conflict = script.codes["CREATED"], script.codes["CONFLICT"]
        if any(reply[0] == conflict for reply in replies):
            raise _conflict(config.app)
        self.generations = [reply[1] for reply in replies]
        return [shard for shard, reply in enumerate(replies) if reply[0] == created]

    def find(self) -> None:
        """Adopt the markers in force with plain reads; nothing is made or written.

        Raises:
            LedgerLostError: a shard is not there.
            SettingsConflictError: as `open`.
        """
        settings = _shard_settings(self.config)
        found = self.client.pipeline([("HMGET", k.meta, "generation", *settings) for k in self.keys])
        lost = [k.shard for k, (generation, *_) in zip(self.keys, found, strict=True) if generation is None]
        if lost:
            raise lost_shards(self.client.address, self.config, lost)
        expected = [str(value).encode() for value in settings.values()]
        if any(values != expected for _, *values in found):
            raise _conflict(self.config.app)
        self.generations = [generation for generation, *_ in found]

    def call(self, name: str, shard: int, *args: bytes | str | int) -> Call:
        """A call of a script on one shard; the generation goes first, as every shard script has it."""
        script = scripts.load(name)
        return script.call(_as_mapping(self.keys[shard], script), self.generations[shard], *args)

    def call_all(self, name: str, *args: bytes | str | int) -> list[Call]:
        """The same call on every shard."""
        return [self.call(name, shard, *args) for shard in range(len(self.keys))]

    def split(self, limit: int, roots: UInt64Array) -> Iterable[tuple[int, npt.NDArray[np.int64]]]:
        """Cut by shard, then into chunks: (shard, rows). The order within a shard is kept, so the cut is reproducible."""
        shards = self.config.shards
        if len(roots) < 2:  # the slow path of single updates, kept short
            yield from ((int(shard), np.zeros(1, np.int64)) for shard in ids.shard_of(roots, shards))
            return
        of_shard = ids.shard_of(roots, shards).astype(np.uint16)  # narrow, so that the stable sort is a radix sort
        order = np.argsort(of_shard, kind="stable")
        bounds = np.searchsorted(of_shard[order], np.arange(shards + 1))
        for shard in range(shards):
            for start in range(bounds[shard], bounds[shard + 1], limit):
                yield shard, order[start : min(start + limit, bounds[shard + 1])]


class Ledger:
    """Applies updates to the ledgers of one app."""

    def __init__(self, shards: Shards) -> None:
        """Work on opened shards."""
        self._shards = shards
        self._client = shards.client
        self._stages: dict[str, int] = {}

    def init(self, roots: UInt64Array, vals: UInt64Array, task: int) -> Update:
        """Inits of one task's roots; of a root that stands twice the first counts, the others are counted as duplicates."""
        distinct, first = np.unique(roots, return_index=True)
        return Update("init", distinct, vals[first], (task, 0), repeats=len(roots) - len(distinct))

    def ack(self, roots: UInt64Array, vals: UInt64Array, stage: str | None) -> Update:
        """Acks, combined per root by XOR."""
        return Update("ack", *ids.xor_by_root(roots, vals), (self.stage_number(stage),))

    def fail(self, roots: UInt64Array, reason: str | None, stage: str | None) -> Update:
        """Fails, each root once; the text of the reason is cut to REASON_CHARS."""
        if reason is not None and not isinstance(reason, str):
            raise BadBatchError(f"reason={reason!r}: give a text, or None")
        text = (reason or "")[:REASON_CHARS].encode(errors="replace")
        return Update("fail", np.unique(roots), None, (self.stage_number(stage), text))

    def send(self, updates: Iterable[Update], token: str | None) -> Applied:
        """Send updates under one token, pipelined.

        Args:
            updates: any kinds, in any order; their outcome does not depend on it.
            token: names the batch. None: a token of this call's own, which makes the library's own retries exact.

        Raises:
            TokenReusedError: the token was used before for other content; that part was left out.
            AckerError: as the server answered; parts may have been applied, and sending again with the token is exact.
        """
        if token is not None and (not isinstance(token, str) or not token or not _encodable(token)):
            raise BadBatchError(f"token={token!r}: give a text that names this batch, or None")
        base = secrets.token_bytes(_TOKEN_BYTES) if token is None else token.encode()
        calls: list[Call] = []
        for part, update in enumerate(updates):
            calls.extend(self._calls(update, base, part))
        replies = self._client.run(calls)
        _raise_first(replies)
        if token is None:  # a call that was seen is our own first try, which got through while its reply did not
            replies = [
                [_APPLIED, _rows(call)] if reply[0] == _SEEN else reply
                for call, reply in zip(calls, replies, strict=True)
            ]
        return _applied(replies, token)

    def send_folded(self, parts: Sequence[Part]) -> Applied:
        """Send parts as one value per root: what a partition's spout and bolts have to say of a root is one update.

        Each part keeps its own token, so it makes no difference to the ledger which parts were folded together: where some
        of them were applied before, the others are sent by themselves.

        Args:
            parts: an init or acks first, then acks. The roots of the later ones must be among those of the first, whose
                cut into calls holds for all.

        Raises:
            TokenReusedError: a token was used before for other content; the calls it was met in were left out.
            AckerError: as the server answered; sending again with the same tokens is exact.
        """
        cuts, places = self._cut(parts)
        combined = np.zeros(len(parts[0].update.roots), np.uint64)
        for part, place in zip(parts, places, strict=True):
            if part.update.vals is not None:
                combined[place] ^= part.update.vals
        first, last = parts[0].update, parts[-1].update
        repeats = first.repeats
        calls: list[Call] = []
        for cut in cuts:
            tokens = b"".join(call.args[_TOKEN] for call in cut.calls)
            digests = b"".join(call.args[_TOKEN + 1] for call in cut.calls)
            stage = last.head[0] if last.operation == "ack" else 0
            head = (first.head[0], stage, repeats) if first.operation == "init" else (stage,)
            repeats = 0
            packed = ids.pack(first.roots[cut.rows], combined[cut.rows])
            calls.append(self._shards.call(first.operation, cut.shard, tokens, digests, *head, packed))
        replies = self._client.run(calls)
        _raise_first(replies)
        alone = [call for cut, reply in zip(cuts, replies, strict=True) if reply[0] == _PARTLY for call in cut.calls]
        by_themselves = self._client.run(alone)
        _raise_first(by_themselves)
        names = ", ".join(part.token for part in parts)
        return _applied([*(reply for reply in replies if reply[0] != _PARTLY), *by_themselves], names)

    def reset_timeout(self, roots: UInt64Array) -> int:
        """Give roots a whole timeout again; returns how many are in the nursery now."""
        distinct = np.unique(roots)
        calls = [
            self._shards.call("reset_timeout", shard, ids.pack(distinct[rows]))
            for shard, rows in self._shards.split(ROOTS_PER_CALL, distinct)
        ]
        replies = self._client.run(calls)
        _raise_first(replies)
        return sum(reply[0] for reply in replies)

    def stage_number(self, stage: str | None) -> int:
        """The number of a stage name; given at its first use, and told to every shard so that its entries are readable.

        Raises:
            BadBatchError: not a name of 1 to 100 characters, or the app has 255 stages already.
        """
        if stage is None:
            return 0
        number = self._stages.get(stage)
        if number is None:
            if not keys.is_name(stage):
                raise BadBatchError(f"stage={stage!r}: use a name of 1 to 100 characters")
            call = scripts.load("stage").call({"stages": keys.stages(self._shards.config.app)}, stage)
            number = int(self._client.run_one(call)[0])
            if number == scripts.load("stage").codes["FULL"]:
                raise BadBatchError(
                    f"stage={stage!r}: the app has 255 stages already; name stages by operator, not by row"
                )
            _raise_first(self._client.run(self._shards.call_all("name_stage", number, stage)))
            self._stages[stage] = number
        return number

    def forget_stages(self) -> None:
        """Register stages anew at their next use: after the server lost its data."""
        self._stages.clear()

    def _calls(self, update: Update, base: bytes, part: int) -> list[Call]:
        limit = FAILS_PER_CALL if update.operation == "fail" else ROOTS_PER_CALL
        calls: list[Call] = []
        repeats = update.repeats
        chunks = Counter[int]()  # per shard, so that a token meets itself whichever other shards a batch has
        for shard, rows in self._shards.split(limit, update.roots):
            calls.append(self._call(update, base, part, shard, chunks[shard], rows, repeats))
            chunks[shard] += 1
            repeats = 0
        return calls

    def _call(
        self,
        update: Update,
        base: bytes,
        part: int,
        shard: int,
        chunk: int,
        rows: npt.NDArray[np.int64],
        repeats: int,
    ) -> Call:
        columns = (update.roots,) if update.vals is None else (update.roots, update.vals)
        packed = ids.pack(*(column[rows] for column in columns))
        label = b"%s:%d:%d:%d" % (update.operation.encode(), part, shard, chunk)
        head = (*update.head, repeats) if update.operation == "init" else update.head
        token, content = _digest(base, label, _TOKEN_BYTES), _digest(packed, repr(head).encode(), _DIGEST_BYTES)
        return self._shards.call(update.operation, shard, token, content, *head, packed)

    def _cut(self, parts: Sequence[Part]) -> tuple[list["_Cut"], list[npt.NDArray[np.int64]]]:
        """Cut the first part into calls, and the others along the same lines; also where the others' roots stand in it."""
        roots = parts[0].update.roots
        places = [_places(roots, part) for part in parts]
        cuts: list[_Cut] = []
        cut_of = np.empty(len(roots), np.int64)
        chunks = Counter[int]()
        for shard, rows in self._shards.split(ROOTS_PER_CALL, roots):
            cut_of[rows] = len(cuts)
            cuts.append(_Cut(shard, chunks[shard], rows, []))
            chunks[shard] += 1
        for part, place in zip(parts, places, strict=True):
            update, of_row = part.update, cut_of[place]
            order = np.argsort(of_row, kind="stable")
            bounds = np.searchsorted(of_row[order], np.arange(len(cuts) + 1))
            repeats = update.repeats
            for number, cut in enumerate(cuts):
                rows = order[bounds[number] : bounds[number + 1]]
                if len(rows):
                    call = self._call(update, part.token.encode(), 0, cut.shard, cut.chunk, rows, repeats)
                    cut.calls.append(call)
                    repeats = 0
        return cuts, places


@dataclass(frozen=True)
class _Cut:
    """One call's worth of a first part: its rows, and a call of each part that has any of their roots."""

    shard: int
    chunk: int
    rows: npt.NDArray[np.int64]
    calls: list[Call]


def _places(roots: UInt64Array, part: Part) -> npt.NDArray[np.int64]:
    """Where a part's roots stand among these; both are sorted."""
    if np.array_equal(roots, part.update.roots):
        return np.arange(len(roots))
    places = np.searchsorted(roots, part.update.roots)
    if not bool((roots[np.minimum(places, len(roots) - 1)] == part.update.roots).all()):
        raise BadBatchError(f"part {part.token!r} has roots that the first part does not have")
    return places


def lost_shards(address: str, config: AckerConfig, lost: Sequence[int]) -> LedgerLostError:
    """The error of shards whose marker is gone, or another one than this client knows."""
    return LedgerLostError(
        f"{address}: app {config.app!r} has lost its data in {len(lost)} of {config.shards} shards (the first is "
        f"{lost[0]}), by a restart without persistence, FLUSHALL or eviction. "
        "Call Acker.recover() and replay every root that has no outcome yet; a Spout that runs does so by itself"
    )


def _shard_settings(config: AckerConfig) -> dict[str, int | str]:
    """Settings as they stand in every shard's `meta`."""
    return {
        "num_buckets": config.num_buckets,
        "lanes": config.lanes,
        "clock": config.clock,
        "max_age_ms": config.max_age_ms,
        "tick_ms": config.tick_ms,
    }


def _conflict(app: str) -> SettingsConflictError:
    return SettingsConflictError(
        f"app {app!r} has shards that were created with other settings than its config key says: give all clients the "
        "settings the app was created with, or delete all of its keys, not one"
    )


def _applied(replies: Sequence[Sequence[int]], token: str | None) -> Applied:
    applied = sum(reply[1] for reply in replies)
    reused = sum(reply[0] == _REUSED for reply in replies)
    if reused:
        raise TokenReusedError(
            f"token {token!r} was used before for a batch with other content: {reused} of {len(replies)} calls were left "
            f"out, {applied} updates applied. Use one token per batch"
        )
    return Applied(applied, token is not None and any(reply[0] == _SEEN for reply in replies))


def _encodable(text: str) -> bool:
    """Python's strings may hold halves of surrogate pairs, which UTF-8 can't."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _rows(call: Call) -> int:
    return len(call.args[-1]) // (8 if call.script.name == "fail" else 16)


def _digest(data: bytes, salt: bytes, size: int) -> bytes:
    hasher = hashlib.blake2b(data, digest_size=size)
    hasher.update(salt)
    return hasher.digest()


def _as_mapping(shard_keys: ShardKeys, script: scripts.Script) -> dict[str, str | list[str]]:
    return {slot.name: getattr(shard_keys, slot.name) for slot in script.keys}


def _raise_first(replies: list[object]) -> None:
    for reply in replies:
        if isinstance(reply, AckerError):
            raise reply
