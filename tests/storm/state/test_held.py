"""Tuples in the values of a state: each turn may be in another worker."""

import copy
import pickle
from typing import Any

import pytest

from acker_redis import InvalidTopologyError
from acker_redis.storm import StatefulBolt, Topology, TopologyBuilder, Tuple
from acker_redis.storm.core.tuples import ACKED, PENDING, values_type
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.definition.streams import Stream
from acker_redis.storm.state.codec import TupleTooLongError, decode_value, encode_value
from acker_redis.storm.state.held import HeldTuples, Moment
from tests.storm.parts import Upto


class Keeps(StatefulBolt):
    def process(self, tup: Tuple) -> None: ...


def graph_of(bolt: Any) -> Graph:
    builder = TopologyBuilder()
    builder.set_spout("spout", Upto(0))
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    topology: Topology = builder.create_topology("held")
    return topology._checked_graph()


class Collector:
    """What held tuples need of a collector."""

    def __init__(self) -> None:
        self.open_tuples: dict[str, Tuple] = {}


def tuple_of(turn: int, number: int) -> Tuple:
    values = values_type(Stream(["v"]))._make([number])
    return Tuple(f"{turn}:1:{number}", "spout", "default", 1, values, {number + 100: turn})


def held_of(moment: Moment) -> tuple[HeldTuples, Collector]:
    held, collector = HeldTuples(graph_of(Keeps), "bolt"), Collector()
    held.begin(moment, collector)  # type: ignore[arg-type]
    return held, collector


def test_a_tuple_comes_back_with_its_edges_and_namedtuple_and_is_open() -> None:
    held, _ = held_of(Moment(1, 3, secs=10))
    data = encode_value({"a": [tuple_of(3, 7)]}, "k", "bolt", held)
    later, collector = held_of(Moment(1, 4, secs=12))
    (found,) = decode_value(data, later)["a"]
    assert (found.id, found.values.v, found.edges, found.state) == ("3:1:7", 7, {107: 3}, PENDING)
    assert collector.open_tuples == {"3:1:7": found}
    assert encode_value({"a": [found]}, "k", "bolt", later) == data, "a value that didn't change isn't written again"
    assert decode_value(data, later)["a"][0] is found, "one object"


@pytest.mark.parametrize(
    ("moment", "tup_id"),
    [(Moment(1, 9, since=4), "3:1:7"), (Moment(2, 1), "1/3:1:7"), (Moment(2, 9, since=9), "1/3:1:7")],
)
def test_a_tuple_whose_messages_have_ended_has_no_roots(moment: Moment, tup_id: str) -> None:
    """Of an older run, or of a turn of which nothing is pending."""
    data = encode_value(tuple_of(3, 7), "k", "bolt", held_of(Moment(1, 3))[0])
    found = decode_value(data, held_of(moment)[0])
    assert (found.id, found.edges, found.state, found.values.v) == (tup_id, {}, PENDING, 7)
    again = encode_value(found, "k", "bolt", held_of(moment)[0])
    assert decode_value(again, held_of(moment._replace(epoch=9))[0]).id.count("/") <= 1


def test_an_ack_changes_the_bytes_and_the_edges_go() -> None:
    held, _ = held_of(Moment(1, 3))
    tup = tuple_of(3, 7)
    before = encode_value([tup], "k", "bolt", held)
    tup.state = ACKED
    after = encode_value([tup], "k", "bolt", held)
    assert before != after
    later, collector = held_of(Moment(1, 4))
    assert decode_value(after, later)[0].state is ACKED and not collector.open_tuples


def test_a_pending_tuple_is_in_one_value_and_a_settled_one_may_be_in_several() -> None:
    held, _ = held_of(Moment(1, 3))
    tup = tuple_of(3, 7)
    encode_value([tup, tup], "k", "bolt", held)
    with pytest.raises(InvalidTopologyError, match="has the tuple '3:1:7' for 'k' and 'other'"):
        encode_value(tup, "other", "bolt", held)
    twin = Tuple(tup.id, tup.component, tup.stream, tup.task, tup.values, dict(tup.edges))
    with pytest.raises(InvalidTopologyError, match="has the tuple '3:1:7' for 'k' and 'k'"):
        encode_value(twin, "k", "bolt", held)
    tup.state = ACKED
    encode_value(tup, "other", "bolt", held)


def large(turn: int, nbytes: int = 1 << 20) -> Tuple:
    values = values_type(Stream(["v"]))._make([b"x" * nbytes])
    return Tuple(f"{turn}:1:9", "spout", "default", 1, values, {109: 5, 110: 6})


def test_a_tuple_that_makes_its_value_too_long_names_its_roots() -> None:
    for value in (large(3), [large(3)], {"at": 7, "tup": large(3)}, [tuple_of(3, 7), large(3, 1_048_500)]):
        held, _ = held_of(Moment(1, 3))
        with pytest.raises(
            TupleTooLongError, match=r"the tuple '3:1:9', which has 1,048,\d+ bytes, for 'k'.*Ack it"
        ) as found:
            encode_value(value, "k", "bolt", held)
        assert found.value.roots == {109, 110}


def test_a_value_that_grew_too_long_without_a_large_tuple_is_the_mistake_of_its_bolt() -> None:
    """No message is to blame: neither one of many, nor one that came in an earlier turn, nor one that isn't tracked."""
    untracked = large(4)
    untracked.edges = {}
    many = [Tuple(f"4:1:{n}", "spout", "default", 1, (b"x" * 2000,), {n: 1}) for n in range(600)]
    for value in (many, large(3), untracked, {"tup": tuple_of(4, 7), "text": "x" * (1 << 20)}):
        held, _ = held_of(Moment(1, 4))
        with pytest.raises(InvalidTopologyError, match=r"has a value of .* bytes for 'k'") as found:
            encode_value(value, "k", "bolt", held)
        assert not isinstance(found.value, TupleTooLongError)


def test_a_copy_belongs_to_no_message() -> None:
    tup = tuple_of(3, 7)
    for copied in (copy.copy(tup), copy.deepcopy([tup])[0], pickle.loads(pickle.dumps(tup))):
        assert (copied.id, copied.values.v, copied.edges) == (tup.id, 7, {})


def test_streams_of_an_older_run_may_be_gone_or_have_other_fields() -> None:
    gone = Tuple("3:1:7", "nobody", "default", 1, (7,))
    other = Tuple("3:1:8", "spout", "default", 1, (7, 8))
    data = encode_value([gone, other], "k", "bolt", held_of(Moment(1, 3))[0])
    assert [tup.values for tup in decode_value(data, held_of(Moment(2, 1))[0])] == [(7,), (7, 8)]
    assert [tup.values for tup in decode_value(data)] == [(7,), (7, 8)], "a reader without a task"
