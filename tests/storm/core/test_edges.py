"""Edges: none repeats, and they depend on everything that makes a tuple."""

import threading

from acker_redis.storm.core.edges import CallEdges, content_of, task_key


def test_edges_differ_by_everything_that_makes_a_tuple() -> None:
    edges = set()
    for run, turn, task, call in [
        ("r", 0, 1, "1"),
        ("s", 0, 1, "1"),
        ("r", 1, 1, "1"),
        ("r", 0, 2, "1"),
        ("r", 0, 1, "2"),
    ]:
        of_call = CallEdges(task_key(run, turn, task), call)
        for ordinal in (1, 2):
            of_call.ordinal = ordinal
            edges |= {
                of_call.edge(root, place, target, content)
                for root in (1, 2) for place in (0, 1) for target in (5, 6) for content in (b"a", b"b")
            }  # fmt: skip
    assert len(edges) == 5 * 2 * 16


def test_the_same_call_with_the_same_values_makes_the_same_edge() -> None:
    one, again = (CallEdges(task_key("r", 0, 1), "1") for _ in range(2))
    assert one.edge(1, 0, 2, content_of(["a"])) == again.edge(1, 0, 2, content_of(["a"]))


def test_choices_are_even_and_independent_of_the_subscription() -> None:
    counts = [0] * 4
    together = 0
    for call in range(400):
        edges = CallEdges(task_key("r", 0, 1), str(call))
        edges.ordinal = 1
        counts[edges.choice(0, 4)] += 1
        together += edges.choice(0, 4) == edges.choice(1, 4)
    assert min(counts) > 60 and 60 < together < 140


def test_values_that_cannot_be_serialised_have_no_content() -> None:
    assert content_of([threading.Lock()]) == b""
