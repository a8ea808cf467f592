"""Bolts that hold rows of a micro-batch until the next one comes: refused, or warned about."""

from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql.types import StructType

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm import BatchSpout, Bolt, Grouping, Stream, TopologyBuilder
from acker_redis.storm.definition.graph import Graph
from acker_redis.storm.turns.holders import check_rows_of_batches
from tests.storm.turns.batch_parts import ByEventTime, ByMoment, ByNumber, ByTicks, ByTime, LastOne, LastThree
from tests.storm.turns.parts import Heard, Passing, spout_of


class Between(Passing):
    outputs = ["v", "at"]


class OneByOne(ByNumber):
    batch_size = 1


class EverySecond(LastOne):
    """The first of two tuples waits for the second one."""

    slide = 2


class EachMoment(LastOne):
    """A tuple waits for the next moment of event time."""

    outputs = [Stream(["v string"])]
    timestamp_field = "at"


def graph_of(bolt: type[Bolt], *, between: bool = False, other: bool = False) -> Graph:
    """A graph with a bolt behind the rows of a stream, or behind another bolt, or with another input, too."""
    builder = TopologyBuilder()
    stream = Mock(isStreaming=True, schema=StructType().add("v", "string").add("at", "long"))
    builder.set_spout("rows", BatchSpout(stream, "checkpoint"))
    builder.set_spout("other", spout_of([], Heard(), ["v", "at"]))
    builder.set_bolt("between", Between).shuffle_grouping("rows")
    declared = builder.set_bolt("bolt", bolt).grouping("between" if between else "rows", Grouping.SHUFFLE)
    if other:
        declared.shuffle_grouping("other")
    return builder.create_topology("held")._checked_graph()


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("bolt", [LastThree, EverySecond, EachMoment, ByEventTime, ByNumber])
def test_a_bolt_that_waits_for_the_next_batch_is_refused(bolt: type[Bolt], goes_on: bool) -> None:
    """A run that ends when nothing is emitted lets bolts process their batches then."""
    if bolt is ByNumber and not goes_on:
        check_rows_of_batches(graph_of(bolt), goes_on=goes_on)
        return
    with pytest.raises(
        InvalidTopologyError, match=r"'bolt' holds rows of BatchSpout 'rows' until.*TicklessBatchingBolt"
    ):
        check_rows_of_batches(graph_of(bolt), goes_on=goes_on)


@pytest.mark.parametrize("bolt", [ByMoment, ByTicks, ByTime, OneByOne, LastOne, Between])
def test_bolts_that_time_alone_brings_on_or_that_hold_nothing_are_not(
    bolt: type[Bolt], caplog: pytest.LogCaptureFixture
) -> None:
    for how in ({}, {"between": True}, {"other": True}):
        check_rows_of_batches(graph_of(bolt, **how), goes_on=True)
    assert caplog.text == ""


@pytest.mark.parametrize("how", [{"between": True}, {"other": True}])
def test_a_bolt_that_may_get_other_tuples_is_warned_about(how: Any, caplog: pytest.LogCaptureFixture) -> None:
    check_rows_of_batches(graph_of(LastThree, **how), goes_on=True)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "their messages time out bolt='bolt' spouts=rows" in record.getMessage()
