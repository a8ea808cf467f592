"""Drawings of topologies."""

from acker_redis.storm import TopologyBuilder
from tests.storm.parts import Upto, chain, holding, passing, sink


def test_drawing_has_boxes_arrows_and_live_counts() -> None:
    topology = chain(passing(), sink(), spout=Upto(2))
    assert "shuffle" in topology.describe() and "acked" not in topology.describe()
    with topology.local() as run:
        run.settle()
        assert topology.describe() == run.describe()
        assert run.describe().splitlines() == [
            "flowchart LR",
            '    c0["a<br/>acked 2, failed 0"]',
            '    c1["b<br/>acked 2, failed 0"]',
            '    c2(["spout<br/>acked 2, failed 0"])',
            '    c2 -->|"default: shuffle<br/>2"| c0',
            '    c0 -->|"default: shuffle<br/>2"| c1',
        ]


def test_drawing_counts_messages_that_timed_out() -> None:
    with chain(holding(), spout=Upto(2)).local() as run:
        run.advance(60)
        assert '(["spout<br/>acked 0, failed 0, timed out 2"])' in run.describe()


def test_names_with_marks_of_mermaid_are_escaped() -> None:
    builder = TopologyBuilder()
    builder.set_spout('a "b" <c>', Upto())
    assert '(["a #34;b#34; #60;c#62;"])' in builder.create_topology().describe()


def test_a_name_of_several_lines_stays_one_box() -> None:
    builder = TopologyBuilder()
    builder.set_spout("a\n`b`", Upto())
    assert builder.create_topology().describe().splitlines() == ["flowchart LR", '    c0(["a#10;#96;b#96;"])']
