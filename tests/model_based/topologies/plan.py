"""A topology drawn from a seed: its components, streams, groupings, and how each component behaves."""

import random
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["auto", "manual", "holder", "stateful", "batching", "ticking", "windowed"]
Grouping = Literal["shuffle", "local_or_shuffle", "none", "all", "global", "fields", "partial_key", "custom", "direct"]

KINDS: tuple[Kind, ...] = ("auto", "manual", "holder", "stateful", "batching", "ticking", "windowed")
GROUPINGS: tuple[Grouping, ...] = (
    "shuffle", "local_or_shuffle", "none", "all", "global", "fields", "partial_key", "custom",
)  # fmt: skip


@dataclass(frozen=True)
class Input:
    source: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True)
class BoltPlan:
    name: str
    kind: Kind
    par: int
    tasks: int | None
    inputs: tuple[Input, ...]
    emits: int
    """Most tuples that it emits for one."""
    fails: float
    """Share of tuples that it fails or raises at."""
    forgets: float
    """Share of tuples that it never settles."""
    free: float
    """Share of emits without an anchor."""
    holds: int
    """Tuples that it keeps before it settles them together."""
    tick_secs: float | None
    """Time between two ticks, or the length of windows by time."""
    exits: bool
    """`exit_on_exception`."""


@dataclass(frozen=True)
class SpoutPlan:
    name: str
    par: int
    messages: int
    burst: int
    untracked: float
    same_id: float
    """Share of messages that use an id again."""
    replays: int
    """How often it emits a failed message again."""
    emits_in_ack: float
    attempts: int | None
    """Attempts of a reliable spout; None for a plain one."""


@dataclass(frozen=True)
class Plan:
    seed: int
    spouts: tuple[SpoutPlan, ...]
    bolts: tuple[BoltPlan, ...]
    depth: int
    """Longest path: cycles end there."""
    budget: int
    """Emits of the whole run after which bolts only settle."""
    timeout_secs: float
    max_pending: int | None
    streams: tuple[str, ...] = field(default=("default", "left", "dir"))


def draw(seed: int) -> Plan:
    """Small ones come first: the first seed that fails is nearly the smallest."""
    chance = random.Random(seed)
    size = 1 + min(seed // 8, 5)
    spouts = tuple(_spout(chance, number, size) for number in range(chance.randint(1, min(2, size))))
    names = [f"b{number}" for number in range(chance.randint(1, size + 1))]
    cyclic = chance.random() < 0.3
    bolts: list[BoltPlan] = []
    for number, name in enumerate(names):
        sources = [spout.name for spout in spouts] + (names if cyclic else names[:number])
        bolts.append(
            _bolt(chance, name, sources, must=spouts[number % len(spouts)].name if number < len(spouts) else None)
        )
    return Plan(
        seed=seed,
        spouts=spouts,
        bolts=tuple(bolts),
        depth=chance.randint(2, 5),
        budget=40 + 40 * size,
        timeout_secs=chance.choice((2, 5, 30)),
        max_pending=chance.choice((None, None, 1, 3)),
    )


def _spout(chance: random.Random, number: int, size: int) -> SpoutPlan:
    return SpoutPlan(
        name=f"s{number}",
        par=chance.choice((1, 1, 2, 3)),
        messages=chance.randint(1, 2 + 2 * size),
        burst=chance.choice((1, 1, 3)),
        untracked=chance.choice((0.0, 0.0, 0.3)),
        same_id=chance.choice((0.0, 0.3)),
        replays=chance.choice((0, 1, 2)),
        emits_in_ack=chance.choice((0.0, 0.2)),
        attempts=chance.choice((None, None, 1, 3)),
    )


def _bolt(chance: random.Random, name: str, sources: list[str], must: str | None) -> BoltPlan:
    chosen = {must} if must else set()
    chosen |= set(chance.sample(sources, chance.randint(1, min(3, len(sources)))))
    inputs: set[tuple[str, str]] = {(source, "default") for source in chosen}
    inputs |= {(source, chance.choice(("left", "dir"))) for source in sorted(chosen) if chance.random() < 0.4}
    kind = chance.choice(KINDS)
    tick_secs = chance.choice((1, 2)) if kind in ("ticking", "batching") else None
    if kind == "windowed":
        tick_secs = chance.choice((None, 1))
    par = chance.choice((1, 2, 3))
    return BoltPlan(
        name=name,
        kind=kind,
        par=par,
        tasks=chance.choice((None, None, par + 1)),
        inputs=tuple(
            Input(source, stream, "direct" if stream == "dir" else chance.choice(GROUPINGS))
            for source, stream in sorted(inputs)
        ),
        emits=chance.randint(0, 3),
        fails=chance.choice((0.0, 0.0, 0.1, 0.4)),
        forgets=chance.choice((0.0, 0.0, 0.2)) if kind in ("manual", "holder", "ticking") else 0.0,
        free=chance.choice((0.0, 0.2)),
        holds=chance.randint(2, 4),
        tick_secs=tick_secs,
        exits=chance.random() < 0.2,
    )
