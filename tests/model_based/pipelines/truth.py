"""What must be in the sinks of an emission, in plain Python: of the messages that it really had."""

from collections import Counter
from dataclasses import dataclass

from tests.model_based.pipelines.data import Row, Value, comparable
from tests.model_based.pipelines.operators import FlatMap, Known, Rows
from tests.model_based.pipelines.pipeline import Pipeline


@dataclass(frozen=True)
class Truth:
    """What must come of some messages.

    Attributes:
        failed: messages that fail before any sink.
        sinks: of each, how often each row must be there.
        of: of each message, its rows: (number of the sink, row).
    """

    failed: frozenset[int]
    sinks: list[Counter[Value]]
    of: dict[int, set[tuple[int, Value]]]


def truth_of(pipeline: Pipeline, messages: list[Row], emission: int) -> Truth:
    """Go through the pipeline with the messages of an emission of this number."""
    rows: list[Rows] = [[Known(row, frozenset([row["id"]])) for row in messages]]
    needed = pipeline.before_sinks()
    failed: set[int] = set()
    for number, step in enumerate(pipeline.steps, 1):
        if number in needed:
            given = [rows[one] for one in step.inputs]
            if isinstance(step.operator, FlatMap):
                given = [step.operator.reached(emission, failed, given[0])]
            rows.append(step.operator.mean(failed, *given))
        else:
            rows.append([])
    of: dict[int, set[tuple[int, Value]]] = {row["id"]: set() for row in messages}
    sinks: list[Counter[Value]] = []
    for place, (_, frame) in enumerate(pipeline.sinks):
        sinks.append(Counter(comparable(one.row) for one in rows[frame]))
        for one in rows[frame]:
            for message in one.messages:
                of[message].add((place, comparable(one.row)))
    return Truth(frozenset(failed), sinks, of)
