"""Spouts of a run: the first turn of which a message may be pending, which decides about the roots of held tuples."""

from unittest.mock import Mock

from acker_redis import Acker
from acker_redis.storm.local.run import spout_id_of
from acker_redis.storm.turns.engine import TurnEngine
from acker_redis.storm.turns.plan import make_plan
from acker_redis.testing import fake_acker
from tests.storm.turns.parts import Heard, Passing, chain, spout_of


def engine_of(acker: Acker) -> TurnEngine:
    topology = chain(spout_of([], Heard()), Passing)
    plan = make_plan(topology._checked_graph(), {}, {}, 1)
    return TurnEngine(plan, acker, {}, run_id="run", spout_id=spout_id_of(plan.graph))


def test_turns_whose_messages_have_ended_are_over() -> None:
    with fake_acker() as acker:
        engine = engine_of(acker)
        (task,) = engine.spout_tasks
        roots: list[int] = []

        def turn(number: int, messages: int) -> int:
            for _ in range(messages):
                roots.append(engine.new_root())
                engine.init(task, roots[-1], 1, Mock())
            first = engine.begin_turn(number)
            engine.end_turn()
            return first

        def end(*places: int) -> None:
            for place in places:
                engine._roots.pop(roots[place])

        assert [turn(1, 0), turn(2, 2), turn(3, 0), turn(4, 1)] == [1, 2, 2, 2]
        end(0)
        assert turn(5, 0) == 2
        end(1)
        assert [turn(6, 0), turn(7, 1)] == [4, 4]
        end(2)
        assert turn(8, 0) == 7
        end(3)
        assert [turn(9, 0), turn(10, 1), turn(11, 0)] == [9, 10, 10]
