"""Updates of the ledgers: init, ack, fail, reset_timeout. One script each, one call per shard and chunk.

Guarantee: a batch sent again under its token changes nothing. Each call is atomic; a batch of several calls is not.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from acker_redis import ids, keys, scripts
from acker_redis.client import Client
from acker_redis.config import AckerConfig
from acker_redis.errors import AckerError, BadBatchError, SettingsConflictError, TokenReusedError
from acker_redis.ids import UInt64Array
from acker_redis.keys import ShardKeys
from acker_redis.model import Applied
from acker_redis.scripts import Call

ROOTS_PER_CALL = 1000
"""Rows of one script call: holds the server about 1 ms (Lua's unpack fails at 8000)."""

FAILS_PER_CALL = 500
"""Each failed root is one stream entry, which costs more than an ack."""

_TOKEN_BYTES = 12
_SEEN, _REUSED = scripts.load("ack").codes["SEEN"], scripts.load("ack").codes["REUSED"]


@dataclass(frozen=True)
class Update:
    """Updates of one kind, ready to be cut into calls: distinct roots, with values where the kind has them."""

    operation: str
    roots: UInt64Array
    vals: UInt64Array | None
    head: tuple[bytes | str | int, ...] = ()
    repeats: int = 0


class Shards:
    """The opened shards of one app: their keys and generation markers."""

    def __init__(self, client: Client, config: AckerConfig) -> None:
        """Open every shard; see `open`."""
        self.client = client
        self.config = config
        self.keys = [ShardKeys(config.app, s, config.num_buckets, config.lanes) for s in range(config.shards)]
        self.generations: list[bytes] = []
        self.open()

    def open(self) -> list[int]:
        """Make every shard ready; adopt the markers in force. Returns the shards that were new or had lost their data.

        Raises:
            SettingsConflictError: the app's settings were deleted or lost, and its shards were not.
            AckerError: a shard can't be opened.
        """
        config, script = self.config, scripts.load("open")
        settings = (config.num_buckets, config.lanes, config.clock, config.max_age_ms, config.tick_ms)
        calls = [script.call(_as_mapping(k, script), secrets.token_hex(8), *settings) for k in self.keys]
        replies = self.client.run(calls)
        _raise_first(replies)
        created, conflict = script.codes["CREATED"], script.codes["CONFLICT"]
        if any(reply[0] == conflict for reply in replies):
            raise SettingsConflictError(
                f"app {config.app!r} has shards that were created with other settings than its config key says: give all "
                "clients the settings the app was created with, or delete all of its keys, not one"
            )
        self.generations = [reply[1] for reply in replies]
        return [shard for shard, reply in enumerate(replies) if reply[0] == created]

    def call(self, name: str, shard: int, *args: bytes | str | int) -> Call:
        """A call of a script on one shard; the generation goes first, as every shard script has it."""
        script = scripts.load(name)
        return script.call(_as_mapping(self.keys[shard], script), self.generations[shard], *args)

    def call_all(self, name: str, *args: bytes | str | int) -> list[Call]:
        """The same call on every shard."""
        return [self.call(name, shard, *args) for shard in range(len(self.keys))]


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
        return Update("init", distinct, vals[first], (task,), repeats=len(roots) - len(distinct))

    def ack(self, roots: UInt64Array, vals: UInt64Array, stage: str | None) -> Update:
        """Acks, combined per root by XOR."""
        return Update("ack", *ids.xor_by_root(roots, vals), (self.stage_number(stage),))

    def fail(self, roots: UInt64Array, reason: str | None, stage: str | None) -> Update:
        """Fails, each root once."""
        return Update("fail", np.unique(roots), None, (self.stage_number(stage), reason or ""))

    def send(self, updates: Iterable[Update], token: str | None) -> Applied:
        """Send updates under one token, pipelined.

        Args:
            updates: any kinds, in any order; their outcome does not depend on it.
            token: names the batch. None: a token of this call's own, which makes the library's own retries exact.

        Raises:
            TokenReusedError: the token was used before for other content; that part was left out.
            AckerError: as the server answered; parts may have been applied, and sending again with the token is exact.
        """
        if token is not None and (not isinstance(token, str) or not token):
            raise BadBatchError(f"token={token!r}: give a text that names this batch, or None")
        base = secrets.token_bytes(_TOKEN_BYTES) if token is None else token.encode()
        calls: list[Call] = []
        for part, update in enumerate(updates):
            calls.extend(self._calls(update, base, part))
        replies = self._client.run(calls)
        applied, seen, reused = 0, False, 0
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, AckerError):
                continue
            status, count = reply
            if status == _SEEN and token is None:  # our own first try got through, its reply did not
                count = len(call.args[-1]) // (8 if call.script.name == "fail" else 16)
            applied += count
            seen = seen or status == _SEEN
            reused += status == _REUSED
        _raise_first(replies)
        if reused:
            raise TokenReusedError(
                f"token {token!r} was used before for a batch with other content: {reused} of {len(calls)} calls were "
                f"left out, {applied} updates applied. Use one token per batch"
            )
        return Applied(applied, seen and token is not None)

    def reset_timeout(self, roots: UInt64Array) -> int:
        """Give roots a whole timeout again; returns how many are in the nursery now."""
        calls = [
            self._shards.call("reset_timeout", shard, ids.pack(chunk))
            for shard, (chunk,) in self._split(ROOTS_PER_CALL, np.unique(roots))
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
            if not isinstance(stage, str) or not 0 < len(stage) <= 100:
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
        columns = (update.roots,) if update.vals is None else (update.roots, update.vals)
        calls: list[Call] = []
        repeats = update.repeats
        chunks = Counter[int]()  # per shard, so that a token meets itself whichever other shards a batch has
        for shard, cut in self._split(limit, *columns):
            packed = ids.pack(*cut)
            token = _digest(
                base, b"%s:%d:%d:%d" % (update.operation.encode(), part, shard, chunks[shard]), _TOKEN_BYTES
            )
            chunks[shard] += 1
            head = (*update.head, repeats) if update.operation == "init" else update.head
            content = _digest(packed, repr(head).encode(), 8)
            calls.append(self._shards.call(update.operation, shard, token, content, *head, packed))
            repeats = 0
        return calls

    def _split(self, limit: int, *columns: UInt64Array) -> Iterable[tuple[int, tuple[UInt64Array, ...]]]:
        """Cut columns by shard, then into chunks; the order within a shard is kept, so the cut is reproducible."""
        roots, shards = columns[0], self._shards.config.shards
        if len(roots) == 0:
            return
        if len(roots) == 1:
            yield int(ids.shard_of(roots, shards)[0]), columns
            return
        of_shard = ids.shard_of(roots, shards).astype(np.uint16)  # narrow, so that the stable sort is a radix sort
        order = np.argsort(of_shard, kind="stable")
        bounds = np.searchsorted(of_shard[order], np.arange(shards + 1))
        for shard in range(shards):
            for start in range(bounds[shard], bounds[shard + 1], limit):
                rows = order[start : min(start + limit, bounds[shard + 1])]
                yield shard, tuple(column[rows] for column in columns)


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
