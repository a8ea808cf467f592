"""Shards of an app: opening them, routing roots to them, and the generations that reveal a loss of data."""

import secrets
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from acker_redis.client import scripts
from acker_redis.client.client import OUTAGE_TIMEOUT_SECS, Client
from acker_redis.client.replies import as_texts
from acker_redis.client.scripts import Argument, Call
from acker_redis.errors import (
    AckerError,
    FormatVersionError,
    LedgerLostError,
    ServerUnavailableError,
    SettingsConflictError,
)
from acker_redis.model import ids, keys
from acker_redis.model.arrays import Int64Array, UInt64Array
from acker_redis.model.blocks import Blocks, Cut
from acker_redis.model.config import AckerConfig
from acker_redis.model.keys import ShardKeys
from acker_redis.store import limits

FORMAT = 4
"""Version of the layout of keys, blocks and outcomes that this version supports. Stored in every shard's `meta`."""

_FORMAT = b"%d" % FORMAT


class Shards:
    """Opened shards of one app: their keys and generations."""

    def __init__(self, client: Client, config: AckerConfig, *, create: bool = True, partly: bool = False) -> None:
        """Open every shard (see `open`), or only adopt existing ones (see `adopt`)."""
        self.client = client
        self.config = config
        self.keys = [ShardKeys(config.app, s, config.num_buckets, config.lanes) for s in range(config.shards)]
        self.generations: list[bytes] = []
        self._picked: dict[tuple[str, int], tuple[str, ...]] = {}
        """(script, shard) -> keys, cached because a call has about thirty of them."""
        self._create = create
        if create:
            self.open()
        else:
            self.adopt(partly=partly)

    def open(self) -> list[int]:
        """Check or write the settings, create missing shards, and adopt the generations in force.

        Returns the shards that were new or had lost their data.

        Raises:
            SettingsConflictError: the app is in use with other settings, or its settings were deleted or lost but its
                shards were not.
            FormatVersionError: another version of this library created the shards.
            AckerError: a shard can't be opened.
        """
        self._agree()
        config, script = self.config, scripts.load("open")
        settings = _shard_settings(config).values()
        part = limits.shard_limit(limits.read(self.client, config.app), config.shards)
        rest = (*settings, FORMAT, "" if part is None else part)
        calls = [script.call(_as_mapping(k, script), secrets.token_hex(8), *rest) for k in self.keys]
        replies = self.client.run(calls)
        created, conflict, other_format = (script.codes[code] for code in ("CREATED", "CONFLICT", "OTHER_FORMAT"))
        other = next((reply[1] for reply in replies if reply[0] == other_format), None)
        if other is not None:
            raise _other_format(config.app, other)
        if any(reply[0] == conflict for reply in replies):
            raise _conflict(config.app)
        self.generations = [reply[1] for reply in replies]
        return [shard for shard, reply in enumerate(replies) if reply[0] == created]

    def reopen(self) -> list[int]:
        """Open every shard again after a loss of data, or adopt them if they were adopted before."""
        if self._create:
            return self.open()
        self.adopt()
        return []

    def adopt(self, *, partly: bool = False) -> None:
        """Adopt the generations in force with plain reads, without creating or writing anything.

        Args:
            partly: True to skip shards that are unavailable now. Their generations are empty.

        Raises:
            LedgerLostError: a shard is missing.
            SettingsConflictError, FormatVersionError: as `open`.
        """
        settings, expected = _shard_settings(self.config), _expected(self.config)
        metas = self.client.pipeline_each([("HMGET", k.meta, "generation", "format", *settings) for k in self.keys])
        for shard, reply in enumerate(metas):
            if isinstance(reply, AckerError):
                if not (partly and isinstance(reply, ServerUnavailableError)):
                    raise reply
                metas[shard] = [b"", _FORMAT, *expected]
        lost = [k.shard for k, (generation, *_) in zip(self.keys, metas, strict=True) if generation is None]
        if lost:
            raise lost_shards(self.client.address, self.config, lost)
        _refuse_other_format(self.config.app, [form for _, form, *_ in metas])
        if any(values != expected for _, _, *values in metas):
            raise _conflict(self.config.app)
        self.generations = [generation for generation, *_ in metas]

    def check_generations(self, generations: Sequence[bytes | None], first: int = 0) -> None:
        """Compare generations read from the server with those that this client opened.

        Args:
            generations: generations read, of shards from `first` on.
            first: number of the first of these shards.

        Raises:
            LedgerLostError: they differ.
        """
        lost = [shard for shard, read in enumerate(generations, first) if read != self.generations[shard]]
        if lost:
            raise lost_shards(self.client.address, self.config, lost)

    def check_all(self) -> None:
        """Check with plain reads that every shard still has the generation that this client opened.

        Raises:
            LedgerLostError: one doesn't.
        """
        self.check_generations(self.client.pipeline([("HGET", k.meta, "generation") for k in self.keys]))

    def holds(self, generation: bytes | None) -> bool:
        """Return True if `generation` (see `generation_at`) is this app's, i.e. both URLs lead to the same server."""
        return bool(self.client.pipeline([_generation(self.config)]) == [generation])

    def call(self, name: str, shard: int, *args: Argument) -> Call:
        """Make a call of a script on one shard. Its first argument is the generation."""
        script = scripts.load(name)
        picked = self._picked.get((name, shard))
        if picked is None:
            picked = self._picked[name, shard] = script.pick(_as_mapping(self.keys[shard], script))
        return Call(script, picked, (self.generations[shard], *args))

    def call_all(self, name: str, *args: Argument) -> list[Call]:
        """Make the same call for every shard."""
        return [self.call(name, shard, *args) for shard in range(len(self.keys))]

    def rows_by_shard(self, roots: UInt64Array) -> list[Int64Array]:
        """Return the positions of the roots of each shard, in order."""
        of_shard = ids.shard_of(roots, self.config.shards)
        order = np.argsort(of_shard, kind="stable")
        return np.split(order, np.searchsorted(of_shard[order], np.arange(1, self.config.shards)))

    def cut(self, batch: Blocks, weights: Int64Array, limit: int) -> tuple[Blocks, list[Cut]]:
        """Sort a batch by shard and split it into calls whose blocks weigh about `limit` each.

        Blocks of one shard keep their order, so a batch is split the same way each time.
        """
        shards = self.config.shards
        if len(batch.numbers) == 1:  # the slow path of single updates, kept short
            return batch, [Cut(int(ids.shard_of(batch.numbers, shards)[0]), 0, 0, 1)]
        bounds = np.array([0, len(batch.numbers)])
        if shards > 1:
            of_shard = ids.shard_of(batch.numbers, shards).astype(np.uint16)  # narrow: the stable sort is a radix sort
            order = np.argsort(of_shard, kind="stable")
            bounds = np.searchsorted(of_shard[order], np.arange(shards + 1))
            batch, weights = batch.reordered(order), weights[order]
        before = np.concatenate(([0], np.cumsum(weights)))
        cuts = []
        for shard, (first, stop) in enumerate(pairwise(bounds.tolist())):
            begins = np.searchsorted(before[first:stop], np.arange(before[first], before[stop], limit)) + first
            chunks = [(start, end) for start, end in pairwise([*begins.tolist(), stop]) if start < end]
            cuts += [Cut(shard, chunk, start, end) for chunk, (start, end) in enumerate(chunks)]
        return batch, cuts

    def _agree(self) -> None:
        (stored,) = self.client.pipeline([("HGETALL", keys.config(self.config.app))])
        if not stored:
            self._refuse_other_settings()  # before the first client writes its own
        own = self.config.as_fields()
        pairs = [part for pair in own.items() for part in pair]
        (reply,) = self.client.run([scripts.load("configure").call({"config": keys.config(self.config.app)}, *pairs)])
        stored_settings = as_texts(reply)
        different = [
            f"{name} is {stored_settings.get(name)!r} in Redis and {value!r} here"
            for name, value in own.items()
            if stored_settings.get(name) != value
        ]
        if different:
            raise SettingsConflictError(
                f"App {self.config.app!r} is in use with other settings ({', '.join(different)}). Give all clients the same "
                "AckerConfig, or use another app name."
            )

    def _refuse_other_settings(self) -> None:
        """Raise if shards with other settings exist, without writing anything."""
        settings, expected = _shard_settings(self.config), _expected(self.config)
        metas = self.client.pipeline([("HMGET", k.meta, "generation", "format", *settings) for k in self.keys])
        _refuse_other_format(self.config.app, [form for generation, form, *_ in metas if generation is not None])
        if any(generation is not None and values != expected for generation, _, *values in metas):
            raise _conflict(self.config.app)


def generation_at(url: str, config: AckerConfig) -> bytes | None:
    """Read the generation of the app's first shard on the server at a URL, without creating anything there.

    Returns None if the app is not on this server. The call retries during an outage for the usual time, including the first
    connection.

    Raises:
        BadConfigError: the URL is malformed.
        ServerUnavailableError: no server answered during all that time.
        AckerError: the login or the certificate is refused.
    """
    client = Client(url, connect_secs=OUTAGE_TIMEOUT_SECS)
    try:
        generation: bytes | None = client.pipeline([_generation(config)])[0]
    finally:
        client.close()
    return generation


def lost_shards(address: str, config: AckerConfig, lost: Sequence[int]) -> LedgerLostError:
    """Make the error for shards whose generation is missing, or is not the one that this client opened."""
    return LedgerLostError(
        f"App {config.app!r} has lost its data in {len(lost)} of {config.shards} shards on {address} (the first is shard "
        f"{lost[0]}). The cause is a restart without persistence, FLUSHALL or eviction. Call Acker.reopen() and replay every "
        "root that has no outcome yet. A running Spout does both by itself."
    )


def _generation(config: AckerConfig) -> tuple[str, ...]:
    return "HGET", ShardKeys(config.app, 0, config.num_buckets, config.lanes).meta, "generation"


def _shard_settings(config: AckerConfig) -> dict[str, int | str]:
    """Return the settings as stored in every shard's `meta`."""
    return {
        "num_buckets": config.num_buckets,
        "lanes": config.lanes,
        "clock": config.clock,
        "max_age_ms": config.max_age_ms,
        "tick_ms": config.tick_ms,
        "shards": config.shards,
    }


def _expected(config: AckerConfig) -> list[bytes]:
    """Return the values of `_shard_settings` as Redis returns them."""
    return [str(value).encode() for value in _shard_settings(config).values()]


def _refuse_other_format(app: str, stored: Sequence[bytes | None]) -> None:
    other = next((form or b"" for form in stored if form != _FORMAT), None)
    if other is not None:
        raise _other_format(app, other)


def _other_format(app: str, stored: bytes) -> FormatVersionError:
    form = f"format {stored.decode(errors='replace')}" if stored else "a format without number"
    return FormatVersionError(
        f"App {app!r} has shards of {form}, but this version of acker-redis reads format {FORMAT}. Nothing was changed. "
        "With the version that created the app, let its programs finish and export its dead letters. Then delete the app "
        f"(`acker-redis delete-app --app {app}`) and start again, or use another app name."
    )


def _conflict(app: str) -> SettingsConflictError:
    return SettingsConflictError(
        f"App {app!r} has shards that were created with other settings than those in its config key. Give all clients the "
        "settings that the app was created with, or delete all keys of the app."
    )


def _as_mapping(shard_keys: ShardKeys, script: scripts.Script) -> dict[str, str | list[str]]:
    return {slot.name: getattr(shard_keys, slot.name) for slot in script.keys}
