"""Makes a smaller pipeline that shows the same fault: fewer steps, sinks and messages."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.model_based.pipelines.judge import Fault
from tests.model_based.pipelines.pipeline import Pipeline, Step


def reduced(pipeline: Pipeline, kind: str, faults: Callable[[Pipeline], Sequence[Fault]]) -> Pipeline:
    """As long as a smaller one shows a fault of this kind, take it."""
    smaller = True
    while smaller:
        smaller = False
        for one in _smaller(pipeline):
            if any(fault.kind == kind for fault in faults(one)):
                pipeline, smaller = one, True
                break
    return pipeline


def _smaller(pipeline: Pipeline) -> Iterator[Pipeline]:
    for number in range(len(pipeline.steps), 0, -1):
        yield _without(pipeline, number)
    if len(pipeline.sinks) > 1:
        for place in range(len(pipeline.sinks)):
            gone = pipeline.sinks[place][1]
            kept = (*pipeline.sinks[:place], *pipeline.sinks[place + 1 :])
            ends = gone in {frame for _, frame in kept} | {one for step in pipeline.steps for one in step.inputs}
            yield replace(pipeline, sinks=kept, discards=pipeline.discards if ends else (*pipeline.discards, gone))
    if pipeline.in_flight is not None:
        yield replace(pipeline, in_flight=None)
    if pipeline.adaptive:
        yield replace(pipeline, adaptive=False)
    if pipeline.outage:
        yield replace(
            pipeline,
            steps=tuple(replace(step, operator=_always_there(step.operator)) for step in pipeline.steps),
            sinks=tuple((_always_there(sink), frame) for sink, frame in pipeline.sinks),
        )
    if pipeline.threads:
        yield replace(pipeline, threads=False)
    data = pipeline.data
    for smaller in (
        replace(data, count=data.count // 2),
        replace(data, partitions=0),
        replace(data, wide=0),
        replace(data, marks=False),
    ):
        if smaller != data:
            yield replace(pipeline, data=smaller)


def _always_there(one: Any) -> Any:
    """The same operator or sink, and its store is never away."""
    return replace(one, away=None) if getattr(one, "away", None) is not None else one


def _without(pipeline: Pipeline, number: int) -> Pipeline:
    """Without the step that makes frame `number`: who takes it takes what it took first."""
    instead = pipeline.steps[number - 1].inputs[0]

    def other(frame: int) -> int:
        frame = instead if frame == number else frame
        return frame - 1 if frame > number else frame

    steps = [step for i, step in enumerate(pipeline.steps, 1) if i != number]
    taken = pipeline.steps[number - 1].inputs[1:]
    reduced = replace(
        pipeline,
        steps=tuple(Step(step.operator, tuple(map(other, step.inputs))) for step in steps),
        sinks=tuple((sink, other(frame)) for sink, frame in pipeline.sinks),
        discards=tuple(other(frame) for frame in pipeline.discards),
    )
    used = (
        {one for step in reduced.steps for one in step.inputs} | {one for _, one in reduced.sinks} | {*reduced.discards}
    )
    return replace(reduced, discards=(*reduced.discards, *(other(one) for one in taken if other(one) not in used)))
