"""Windows by number."""

from tests.storm.conformance.recording import Recording, spout, take, upto, windows
from tests.storm.conformance.recording import bolt as step
from tests.storm.conformance.scenarios.scenario import Built, Divergence, Run, also, line, scenario

_AT_ONCE = "Storm acks a tuple when the next window fires, and finished work times out and is replayed if none does."


@scenario(
    instead=Divergence(
        reason=_AT_ONCE,
        facts={"acked": [["spout", 0, "m1"], ["spout", 0, "m2"], ["spout", 0, "m3"], ["spout", 0, "m4"]]},
    ),
    leaves_out=["lifecycle"],
)
def window_tumbling_2(recording: Recording) -> Built:
    return line(recording, spout(recording, upto(5)), win=windows(recording, 2, 2), sink=step(recording, take))


@scenario(
    instead=Divergence(reason=_AT_ONCE, facts={"acked": [["spout", 0, "m1"], ["spout", 0, "m2"], ["spout", 0, "m3"]]}),
    leaves_out=["lifecycle"],
)
def window_sliding_3_1(recording: Recording) -> Built:
    return line(recording, spout(recording, upto(5)), win=windows(recording, 3, 1), sink=step(recording, take))


@also(window_tumbling_2)
def _tumbling_windows_have_new_tuples_only(recording: Recording, run: Run) -> None:
    assert _seen(recording) == [([1, 2], [1, 2], []), ([3, 4], [3, 4], [1, 2])]


@also(window_sliding_3_1)
def _sliding_windows_say_which_tuples_are_new_and_which_have_left(recording: Recording, run: Run) -> None:
    assert _seen(recording) == [
        ([1], [1], []), ([1, 2], [2], []), ([1, 2, 3], [3], []), ([2, 3, 4], [4], [1]), ([3, 4, 5], [5], [2])
    ]  # fmt: skip


def _seen(recording: Recording) -> list[tuple[list[int], list[int], list[int]]]:
    calls = recording.calls("execute", component="win")
    return [(e.data["values"], e.data["new"], e.data["expired"]) for e in calls]
