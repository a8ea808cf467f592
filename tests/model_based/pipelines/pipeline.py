"""A pipeline: steps over frames, and sinks. Drawn from a seed, it prints itself."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame

from tests.model_based.pipelines import data, operators, sinks, sparks
from tests.model_based.pipelines.faults import KINDS, Away, Fault
from tests.model_based.pipelines.operators import Known, Operator, Playing, Rows
from tests.model_based.pipelines.sinks import Sink

MAX_ROWS = 1500
MAX_BYTES = 3_000_000
"""No frame has more, whatever is joined."""

ZONES = ("UTC", "Asia/Kathmandu", "America/New_York", "Australia/Lord_Howe")
"""One a quarter of an hour off, and two with a summer time, of an hour and of half an hour."""


@dataclass(frozen=True)
class Step:
    """An operator and the numbers of the frames that it takes; frame 0 are the messages, and step i makes frame i."""

    operator: Operator
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Pipeline:
    """What was drawn.

    Attributes:
        seed: that it was drawn from.
        data: of the messages.
        steps: in the order in which they are called.
        sinks: and the number of the frame that each writes; in this order, behind all steps.
        forgets: a frame that no sink writes, and that isn't discarded; None: there is none.
        in_flight: at most so many messages; None: no bound.
        faults: whether tasks fail on purpose.
        adaptive: whether Spark plans anew while it runs.
        codegen: whether Spark compiles its plans, for which small data take longer.
        ansi: whether Spark is strict about casts and overflows.
        case_sensitive: whether Spark tells columns apart by case.
        zone: of the session.
        threads: whether each sink has a thread of its own.
    """

    seed: int
    data: data.Data
    steps: tuple[Step, ...]
    sinks: tuple[tuple[Sink, int], ...]
    discards: tuple[int, ...] = ()
    forgets: int | None = None
    in_flight: int | None = None
    faults: bool = False
    adaptive: bool = True
    codegen: bool = True
    ansi: bool = True
    case_sensitive: bool = False
    zone: str = "UTC"
    threads: bool = False

    @property
    def harmless(self) -> bool:
        """Whether it has to be proven."""
        return self.forgets is None and all(step.operator.harmless for step in self.steps)

    @property
    def outage(self) -> int:
        """Number of the first emissions in which a store is away; 0: it never is."""
        struck = [*(step.operator for step in self.steps), *(sink for sink, _ in self.sinks)]
        away = (getattr(one, "away", None) for one in struck)
        return max((one.emissions for one in away if one is not None), default=0)

    @property
    def may_fail(self) -> bool:
        """Whether a message may fail for itself, or its tasks do."""
        fails = [getattr(step.operator, "fails", isinstance(step.operator, operators.FailWhere)) for step in self.steps]
        refuses = [getattr(sink, "refuses", isinstance(sink, sinks.Blocked)) for sink, _ in self.sinks]
        return self.faults or any(fails) or any(refuses)

    @property
    def loses_shuffle_files(self) -> bool:
        """Whether a task takes Spark's shuffle files away."""
        struck = [*(step.operator for step in self.steps), *(sink for sink, _ in self.sinks)]
        faults = [getattr(one, "fault", None) for one in struck]
        return any(fault is not None and fault.kind == "lose-shuffle-files" for fault in faults)

    def with_ids_in_range(self) -> "Pipeline":
        """The same, over messages whose ids the job itself can tell."""
        return replace(self, data=replace(self.data, in_range=True, numbered=None), in_flight=None)

    def before_sinks(self) -> set[int]:
        """Numbers of the frames that sinks are made of."""
        needed = {frame for _, frame in self.sinks}
        for number in range(len(self.steps), 0, -1):
            if number in needed:
                step = self.steps[number - 1]
                needed.update(step.inputs[:1] if isinstance(step.operator, sparks.NativeJoin) else step.inputs)
        return needed

    def run(self, playing: Playing, messages: DataFrame) -> None:
        """Call it: what `run_tracked` takes as its pipeline."""
        frames = [messages]
        try:
            for step in self.steps:
                frames.append(step.operator.apply(playing, *(frames[one] for one in step.inputs)))  # noqa: PERF401
            ways = [
                partial(sink.write, playing, frames[frame], playing.folder / f"sink{place}")
                for place, (sink, frame) in enumerate(self.sinks)
            ]
            if self.threads:
                with ThreadPoolExecutor(len(ways)) as pool:
                    for done in [pool.submit(way) for way in ways]:
                        done.result()
            else:
                for way in ways:
                    way()
            for frame in self.discards:
                playing.tracker.discard(frames[frame])
        finally:
            for cached in playing.cached:
                cached.unpersist()

    def __str__(self) -> str:
        """As a program."""
        settings = f"in_flight={self.in_flight}, adaptive={self.adaptive}, codegen={self.codegen}, ansi={self.ansi}"
        settings += f", case_sensitive={self.case_sensitive}, zone={self.zone}, threads={self.threads}"
        lines = [f"seed {self.seed}: {settings}", f"  frame0 = {self.data}"]
        for number, step in enumerate(self.steps, 1):
            lines.append(f"  frame{number} = {step.operator}({', '.join(f'frame{one}' for one in step.inputs)})")
        lines += [f"  sink{place} = {sink}(frame{frame})" for place, (sink, frame) in enumerate(self.sinks)]
        lines += [f"  discard(frame{frame})" for frame in self.discards]
        if self.forgets is not None:
            lines.append(f"  # forgets frame{self.forgets}")
        return "\n".join(lines)


def draw(seed: int, *, harmful: bool | None = None) -> Pipeline:
    """Draw one. `harmful`: whether it has harmful operators; None: that is drawn, too."""
    chance, of_session = random.Random(seed), random.Random(f"session {seed}")
    ansi, case_sensitive = of_session.random() < 0.5, of_session.random() < 0.3
    of = replace(data.draw(chance), numbered=_numbered(random.Random(f"numbering {seed}")))
    harmful = chance.random() < 0.5 if harmful is None else harmful
    fails, faults = chance.random() < 0.5, chance.random() < 0.4
    rows: list[Rows] = [[Known(row, frozenset([row["id"]])) for row in of.rows()]]
    steps: list[Step] = []
    wanted = chance.randrange(1, 9)
    while len(steps) < wanted:
        kind = chance.random()
        ours = kind < 0.6
        operator = operators.draw(chance, fails=fails) if ours else sparks.draw(chance, harmful=harmful and kind < 0.8)
        if not ansi and isinstance(operator, operators.JoinTable) and operator.table == "texts":
            operator = operators.JoinTable("loose texts", operator.how)
        inputs = tuple(_input(chance, len(rows)) for _ in range(operator.inputs))
        derived = operator.mean(set(), *(rows[one] for one in inputs))
        if len(derived) > MAX_ROWS or sum(len(one.row["pad"] or "") for one in derived) > MAX_BYTES:
            continue
        steps.append(Step(operator, inputs))
        rows.append(derived)
    if faults:
        steps = _with_faults(chance, steps)
    taken = {one for step in steps for one in step.inputs}
    ends = [one for one in range(len(rows)) if one not in taken]
    written = [one for one in ends if chance.random() < 0.9] or ends[-1:]
    discards = [one for one in ends if one not in written]
    forgets = None
    if harmful and len(written) > 1 and chance.random() < 0.2 and _is_ours(steps[written[-1] - 1].operator):
        forgets = written.pop()
    if chance.random() < 0.25:
        written.append(chance.choice([one for one in range(len(rows)) if one != forgets]))
    chance.shuffle(written)
    ways = [(sinks.draw(chance, fails=fails), one) for one in written]
    if faults and chance.random() < 0.3:
        ways[0] = sinks.Partitions(fault=Fault(chance.choice(KINDS), 99)), ways[0][1]
    in_flight = chance.choice((None, None, None, max(1, of.count // 2)))
    adaptive, codegen = chance.random() < 0.8, chance.random() < 0.2
    # Two actions that fill one cache at once count its rows in any way.
    threads = random.Random(f"threads {seed}").random() < 0.3 and sparks.Cache(filled=False) not in [
        step.operator for step in steps
    ]
    steps, ways = _with_outage(random.Random(f"outage {seed}"), steps, ways)
    return Pipeline(
        seed, of, tuple(steps), tuple(ways), tuple(discards), forgets, in_flight, faults, adaptive, codegen,
        ansi, case_sensitive, of_session.choice(ZONES), threads,
    )  # fmt: skip


def _numbered(chance: random.Random) -> str | None:
    """Whether Spark numbers the messages, and how."""
    drawn = chance.random()
    return None if drawn < 0.7 else chance.choice([*data.NUMBERED]) if drawn < 0.9 else chance.choice([*data.REFUSED])


def _is_ours(operator: Operator) -> bool:
    """Whether the tracker made the frame, so that it misses it."""
    return type(operator).__module__ == operators.__name__


def _input(chance: random.Random, count: int) -> int:
    """Mostly the newest frame, so that there are chains, sometimes an older one, so that there are diamonds."""
    return count - 1 if chance.random() < 0.7 else chance.randrange(count)


def _with_faults(chance: random.Random, steps: list[Step]) -> list[Step]:
    """The same with one or two flat_maps that go wrong, which are added if there are none."""
    flat_maps = [i for i, step in enumerate(steps) if isinstance(step.operator, operators.FlatMap)]
    changed = list(steps)
    for number, i in enumerate(chance.sample(flat_maps, min(2, len(flat_maps)))):
        flat_map = changed[i].operator
        assert isinstance(flat_map, operators.FlatMap)
        fault = Fault(chance.choice(KINDS), number)
        changed[i] = Step(
            operators.FlatMap(flat_map.salt, flat_map.arrow, flat_map.fails, "raise", fault), changed[i].inputs
        )
    return changed


Ways = list[tuple[Sink, int]]


def _with_outage(chance: random.Random, steps: list[Step], ways: Ways) -> tuple[list[Step], Ways]:
    """The same, mostly. Otherwise a flat_map or a sink without a fault needs a store that is away at first."""
    flat_maps = {i: step.operator for i, step in enumerate(steps) if isinstance(step.operator, operators.FlatMap)}
    partitions = {i: sink for i, (sink, _) in enumerate(ways) if isinstance(sink, sinks.Partitions)}
    places = [("step", i) for i, one in flat_maps.items() if one.fault is None]
    places += [("sink", i) for i, one in partitions.items() if one.fault is None]
    if chance.random() < 0.75 or not places:
        return steps, ways
    away, (kind, place) = Away(chance.choice((1, 3)), chance.choice((1, 4, 20))), chance.choice(places)
    steps, ways = [*steps], [*ways]
    if kind == "step":
        steps[place] = replace(steps[place], operator=replace(flat_maps[place], away=away))
    else:
        ways[place] = replace(partitions[place], away=away), ways[place][1]
    return steps, ways
