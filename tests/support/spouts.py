"""A spout on an acker in memory."""

import numpy as np

from acker_redis import Acker
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import DeadLetter


def spout(acker: Acker, messages: int = 3, **options: object) -> Spout:
    given = {"run_id": "run", "retry": RetryPolicy(first_delay_secs=0), **options}
    made = Spout(acker, **given)  # type: ignore[arg-type]
    made.add(np.arange(messages, dtype=np.int64))
    return made


def emit(made: Spout) -> Emission:
    emission = made.next_emission()
    assert emission is not None
    made.acker.init_many(emission.roots, np.full(len(emission.roots), 7), made.spout_id)
    return emission


def expire(acker: Acker) -> None:
    for _ in range(acker.config.num_buckets):
        acker.admin.rotate(force=True)


def letters(made: Spout) -> dict[int, DeadLetter]:
    """Its dead letters, without the time of the first emission."""
    return {message: letter._replace(first_secs=None) for message, letter in made.dead_letters.items()}
