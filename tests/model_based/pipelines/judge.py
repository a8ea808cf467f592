"""Compares the outcomes of a run with what is really in its sinks."""

from collections.abc import Iterator
from dataclasses import dataclass

from acker_redis.errors import InexactPipelineError, PipelineError, UnprovenEmissionError
from tests.model_based.pipelines import data
from tests.model_based.pipelines.pipeline import Pipeline
from tests.model_based.pipelines.play import Emitted, Played
from tests.model_based.pipelines.truth import truth_of


@dataclass(frozen=True)
class Fault:
    """What the product did wrong: the kind of it, and where."""

    kind: str
    text: str

    def __str__(self) -> str:
        """For people."""
        return f"{self.kind}: {self.text}"


def judge(pipeline: Pipeline, played: Played) -> list[Fault]:
    """Everything that is wrong."""
    found = [fault for emitted in played.emissions for fault in _of_emission(pipeline, played, emitted)]
    return found + list(_of_run(pipeline, played))


def _of_run(pipeline: Pipeline, played: Played) -> Iterator[Fault]:
    error = played.error
    if pipeline.data.numbered in data.REFUSED:
        if not isinstance(error, PipelineError) or played.emissions:
            yield Fault("ids not refused", f"{pipeline.data.numbered}: {len(played.emissions)} emissions, {error}")
        return
    if pipeline.harmless and error is not None:
        yield Fault("harmless pipeline ended", f"{type(error).__name__}: {error}")
    elif error is not None and not _is_of_proof(error):
        yield Fault("ended by another error", f"{type(error).__name__}: {error}")
    elif pipeline.forgets is not None and error is None:
        yield Fault("forgotten frame", f"nothing was done with frame{pipeline.forgets}, and nobody said so")
    if error is None and played.result is not None:
        acked = {m for emitted in played.emissions for m, outcomes in emitted.outcomes.items() if outcomes == ["ack"]}
        dead = set(played.result.dead_letters)
        messages = {row["id"] for row in played.messages}
        if pipeline.outage and pipeline.harmless and not pipeline.may_fail and dead:
            yield Fault("dead letters for an outage", f"{len(dead)} of {len(messages)} messages")
        if acked | dead != messages or acked & dead:
            yield Fault("not done", f"{len(acked)} acked and {len(dead)} dead letters of {len(messages)} messages")


def _is_of_proof(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, (InexactPipelineError, UnprovenEmissionError)):
            return True
        error = error.__cause__
    return False


def _of_emission(pipeline: Pipeline, played: Played, emitted: Emitted) -> Iterator[Fault]:
    where, is_away = f"emission {emitted.number}", emitted.number < pipeline.outage
    if emitted.broken_off is not None and pipeline.harmless and not pipeline.faults and not is_away:
        yield Fault("harmless emission failed", f"{where}: {emitted.broken_off}")
    messages = [row for row in played.messages if row["id"] in emitted.outcomes]
    truth = truth_of(pipeline, messages, emitted.number)
    written = [sink.read(emitted.folder / f"sink{place}") for place, (sink, _) in enumerate(pipeline.sinks)]
    for message, outcomes in emitted.outcomes.items():
        if len(outcomes) != 1:
            yield Fault("not one outcome", f"{where}: message {message}: {outcomes}")
            continue
        of_message = f"{where}: message {message}"
        wrong = [
            f"sink{place} has {written[place][row]} of {truth.sinks[place][row]}: {row}"
            for place, row in truth.of[message]
            if written[place][row] != truth.sinks[place][row]
        ]
        if outcomes == ["ack"]:
            if emitted.broken_off is not None:
                yield Fault("acked though its emission failed", f"{of_message}: {emitted.broken_off}")
            if message in truth.failed:
                yield Fault("acked though a row of it failed", of_message)
            if wrong:
                yield Fault("false completion", f"{of_message}: {wrong[0]:.500}")
        elif emitted.broken_off is None and not (wrong or message in truth.failed or is_away):
            yield Fault("failed though all was written", f"{of_message}: {outcomes[0]}")
