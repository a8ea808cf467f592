"""Plans: levels, sinks as components, and partitions of tasks."""

from typing import Any

import pytest

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm import TopologyBuilder
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.definition.streams import StreamId
from acker_redis.storm.turns.plan import levels_of, make_plan, partition_keys
from tests.storm.parts import Upto, passing


def graph_of(*edges: tuple[str, str], par: int = 1) -> Graph:
    builder = TopologyBuilder()
    builder.set_spout("s", Upto(1))
    for name in dict.fromkeys(target for _, target in edges):
        declarer = builder.set_bolt(name, passing(), par=par)
        for source, target in edges:
            if target == name:
                declarer.shuffle_grouping(source)
    graph = builder.create_topology()._graph
    assert graph is not None
    return graph


def test_a_level_is_the_longest_path_from_a_spout() -> None:
    graph = graph_of(("s", "a"), ("a", "b"), ("s", "c"), ("b", "c"))
    assert levels_of(graph) == {"s": 0, "a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize("edges", [[("a", "a")], [("s", "a"), ("a", "b"), ("b", "c"), ("c", "a")]])
def test_cycles_are_refused(edges: list[tuple[str, str]]) -> None:
    with pytest.raises(InvalidTopologyError, match="has the cycle a -> "):
        levels_of(graph_of(*edges))


def test_sinks_get_tasks_behind_all_others_and_the_last_ranks() -> None:
    graph = graph_of(("s", "a"), ("a", "b"), par=2)
    stream = StreamId("a", "default")
    plan = make_plan(graph, {stream: "__sink:a"}, {stream: ("int",)}, 4)
    assert plan.sinks == {stream: 6} and plan.graph.component_of[6] == "__sink:a"
    assert plan.levels == ((1, 2), (3, 4)) and plan.component_names == ["s", "a", "b", "__sink:a"]
    assert [one.target for one in plan.graph.subscribers[stream]] == ["b", "__sink:a"]
    assert plan.types == {"a": {"default": ("int",)}}


def test_a_levels_tasks_spread_over_its_partitions() -> None:
    plan = make_plan(graph_of(("s", "a"), ("s", "b"), par=3), {}, {}, 4)
    keys = [plan.key_of[task] for task in plan.levels[0]]
    assert len(plan.keys) == 4 and [keys.count(key) for key in plan.keys] == [2, 2, 1, 1]


@pytest.mark.spark
@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_spark_sends_each_key_to_its_partition(spark: Any, count: int) -> None:
    frame = spark.createDataFrame([(key,) for key in partition_keys(count)], "key int").repartition(count, "key")
    rows = frame.selectExpr("key", "spark_partition_id() AS partition").collect()
    assert {row.partition: row.key for row in rows} == dict(enumerate(partition_keys(count)))
