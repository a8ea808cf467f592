"""A spout on an acker in memory."""

import numpy as np

from acker_redis import Acker
from acker_redis.spout.in_flight import Emission
from acker_redis.spout.retry import RetryPolicy
from acker_redis.spout.spout import Spout
from acker_redis.store.dead_letter import DeadLetter


def new_spout(acker: Acker, messages: int = 3, **options: object) -> Spout:
    given = {"run_id": "run", "retry": RetryPolicy(first_delay_secs=0), **options}
    spout = Spout(acker, **given)  # type: ignore[arg-type]
    spout.add(np.arange(messages, dtype=np.int64))
    return spout


def emit(spout: Spout) -> Emission:
    emission = spout.next_emission()
    assert emission is not None
    spout.acker.init_many(emission.roots, np.full(len(emission.roots), 7), spout.spout_id)
    return emission


def expire(acker: Acker) -> None:
    for _ in range(acker.config.num_buckets):
        acker.admin.rotate(force=True)


def letters(spout: Spout) -> dict[int, DeadLetter]:
    """Its dead letters, without the time of the first emission."""
    return {message: letter._replace(first_secs=None) for message, letter in spout.dead_letters.items()}
