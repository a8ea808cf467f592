"""Plays a plan: builds its topology, drives its run, and compares it with the oracle at each pause."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from acker_redis import Acker, RetryPolicy
from acker_redis.storm import Topology, TopologyBuilder
from acker_redis.testing import fake_acker
from tests.model_based.topologies.components import CLASSES, Chooses, ProbeSpout, ReliableProbeSpout, World
from tests.model_based.topologies.oracle import Oracle, Wrong
from tests.model_based.topologies.plan import BoltPlan, Plan, SpoutPlan, draw
from tests.model_based.topologies.windows import Windows, windows_of


@dataclass
class Played:
    """What happened in a run, for the test that no kind of event is missing."""

    counts: Counter[str]


def build(world: World, config: dict[str, Any] | None = None) -> Topology:
    builder = TopologyBuilder()
    for spout in world.plan.spouts:
        builder.set_spout(spout.name, _source(world, spout), par=spout.par)
    for bolt in world.plan.bolts:
        declared = builder.set_bolt(
            bolt.name,
            type(
                "Step",
                (Windows if bolt.kind == "windowed" else CLASSES[bolt.kind],),
                {"world": world, "mine": bolt} | _settings(bolt),
            ),
            par=bolt.par,
            tasks=bolt.tasks,
            config={"topology.tick.tuple.freq.secs": bolt.tick_secs}
            if bolt.tick_secs and bolt.kind != "windowed"
            else None,
        )
        for one in bolt.inputs:
            if one.grouping == "custom":
                declared.custom_grouping(one.source, Chooses(), stream=one.stream)
            elif one.grouping in ("fields", "partial_key"):
                getattr(declared, f"{one.grouping}_grouping")(one.source, ["key"], stream=one.stream)
            else:
                getattr(declared, f"{one.grouping}_grouping")(one.source, stream=one.stream)
    return builder.create_topology(config=config)


def _source(world: World, spout: SpoutPlan) -> type[ProbeSpout]:
    common = {"world": world, "mine": spout}
    if spout.attempts is None:
        return type("Source", (ProbeSpout,), common)
    policy = RetryPolicy(
        max_attempts=spout.attempts, first_delay_secs=min(1, world.plan.timeout_secs), multiplier=1, jitter=0
    )
    return type("Source", (ReliableProbeSpout,), common | {"retry": policy})


def _settings(bolt: BoltPlan) -> dict[str, Any]:
    settings: dict[str, Any] = {"exit_on_exception": bolt.exits}
    if bolt.kind == "windowed":
        settings |= windows_of(bolt)
    if bolt.kind == "batching" and bolt.holds != 3:
        settings["batch_size"] = bolt.holds
    return settings


def play(seed: int, acker: Acker | None = None) -> Played:
    """Run one plan to its end: every message acked, failed, timed out, or a dead letter."""
    if acker is None:
        with fake_acker(shards=1, message_timeout_secs=60) as own:
            return play(seed, own)
    plan = draw(seed)
    world = World(plan, Oracle(timeout_secs=plan.timeout_secs))
    chance = random.Random(f"drive {seed}")
    with build(world).local(_conf(plan), seed=seed, acker=acker) as run:
        for _ in range(chance.randint(1, 4)):
            step(chance, world, run)
        finish(world, run, acker)
    return Played(world.oracle.counts)


def _conf(plan: Plan) -> dict[str, Any]:
    conf: dict[str, Any] = {"topology.message.timeout.secs": plan.timeout_secs}
    if plan.max_pending is not None:
        conf["topology.max.spout.pending"] = plan.max_pending
    return conf


def step(chance: random.Random, world: World, run: Any) -> None:
    what = chance.choice(("settle", "advance", "advance", "pause"))
    if what == "settle":
        run.settle()
    elif what == "advance":
        advance(world, run, int(chance.choice((1, world.plan.timeout_secs))))
    else:
        run.deactivate()
        advance(world, run, 1)
        run.activate()
        run.settle()
    check(world, run)


def advance(world: World, run: Any, secs: int) -> None:
    """Second by second, so that the oracle's time is that of ticks and timeouts."""
    for _ in range(secs):
        run.settle()
        world.oracle.now += 1
        run.advance(1)


def check(world: World, run: Any) -> None:
    run.settle()
    world.oracle.check_settled([tup_id for spout in world.plan.spouts for tup_id in run.pending(spout.name)])


def finish(world: World, run: Any, acker: Acker) -> None:
    """Let all that is left time out: replays first, which are bounded, then what the last ones hold."""
    for _ in range(50):
        check(world, run)
        letters = len(acker.dead_letters.read(10_000)) - world.letters_before
        world.oracle.counts["letters"] = letters
        if world.acked + letters > world.messages:
            raise Wrong(
                f"{world.messages} messages of reliable spouts: {world.acked} acked, and {letters} dead letters"
            )
        if (
            all(root.outcome for root in world.oracle.roots)
            and world.acked + letters == world.messages
            and not any(task.left for spout in world.plan.spouts for task in run.tasks(spout.name))
        ):
            return
        advance(world, run, int(2 * world.plan.timeout_secs))
    raise Wrong("messages are still pending after 50 timeouts")


def serve(seed: int, acker: Acker, disturb: Callable[[], object] | None = None, *, loses: bool = False) -> Played:
    """Run one plan as a service, in real time, with short timeouts. A busy machine turns them late, so ages aren't compared.

    Args:
        seed: seed of the plan.
        acker: acker of the run.
        disturb: function that makes trouble, called for each tuple that a bolt receives.
        loses: True if it may empty the ledger.
    """
    plan = draw(seed)
    plan = replace(
        plan,
        timeout_secs=0.2,
        bolts=tuple(replace(bolt, tick_secs=bolt.tick_secs and 0.02) for bolt in plan.bolts),
        spouts=tuple(replace(spout, attempts=spout.attempts and 2) for spout in plan.spouts),
    )
    world = World(plan, Oracle(timeout_secs=0.0, is_real_time=True, may_lose=loses))
    if disturb is not None:
        world.disturb = disturb
    before = len(acker.dead_letters.read(10_000))
    conf = _conf(plan) | {"topology.name": f"served {seed}"}
    result = build(world, conf).run_local(acker)
    counts = world.oracle.counts
    counts["letters"] = len(acker.dead_letters.read(10_000)) - before
    world.oracle.check_settled([])
    told = (result.acked, result.failed, result.timed_out, result.unfinished)
    seen = (counts["acks"], counts["fails"], counts["timeouts"], 0)
    if told != seen:
        raise Wrong(f"the run tells of {told}, and {seen} were seen")
    if loses:  # letters, too
        return Played(counts)
    if (
        disturb is None and result.dead_letters != counts["letters"]
    ):  # a letter may be written twice, as an add isn't idempotent
        raise Wrong(f"the run tells of {result.dead_letters} dead letters, and {counts['letters']} are there")
    if world.acked + result.dead_letters != world.messages:
        raise Wrong(
            f"{world.messages} messages of reliable spouts: {world.acked} acked, {result.dead_letters} dead letters"
        )
    return Played(counts)


def play_with_crashes(seed: int, acker: Acker, crashes: int) -> None:
    """Leave runs in the middle, each time with a new one over the same acker, then play one to its end.

    Messages of a run that is gone have no spout any more. The oracle of each run knows its own messages only: the outcome of
    an older one would be an outcome that nothing is pending for.
    """
    plan = draw(seed)
    chance = random.Random(f"crash {seed}")
    for number in range(crashes):
        world = World(plan, Oracle(timeout_secs=plan.timeout_secs))
        run = build(world).local(_conf(plan), seed=seed + number, acker=acker).__enter__()
        for _ in range(chance.randint(0, 2)):
            step(chance, world, run)
    world = World(plan, Oracle(timeout_secs=plan.timeout_secs))
    world.letters_before = len(acker.dead_letters.read(10_000))
    with build(world).local(_conf(plan), seed=seed, acker=acker) as run:
        finish(world, run, acker)
