"""How the roots of an emission are derived from its message ids, by spout, executors and SQL alike, without exchanging them.

There are two spellings of one formula. This one is numpy's, for the driver: `root_ids`. The other is Spark's SQL, for
frames: `spark.operators.tracking.tracked`. Change both together; `tests/spout/test_in_flight.py` has roots that Spark made.

    root = shiftleft(id & 31L, 59) | (xxhash64(salt, shiftright(id, 5)) & 576460752303423487L)
"""

import numpy as np

from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array
from acker_redis.model.xxhash64 import hash_longs, hash_salt

SLOT_BITS = 5
"""Last bits of a message id, which are its root's slot."""


def root_salt(app: str, run: str, number: int) -> str:
    """Give the salt that the roots of one emission are derived from; it stands in SQL, too.

    A text, not a number: Spark compiles a plan again for each number in it, 50 ms of a micro-batch, and for a text it does
    not.
    """
    return ids.derive_salt(app, run, number)


def root_ids(app: str, run: str, message_ids: Int64Array, number: int) -> Int64Array:
    """Derive the roots of one emission, whose number is never used again.

    The top five bits are the message id's last five; the others, the number of its block, a hash of the rest of the
    id. So 32 neighbours share a block.
    """
    salt = hash_salt(root_salt(app, run, number))
    numbers = hash_longs((message_ids >> SLOT_BITS).view(np.uint64), seed=salt)
    slots = (message_ids & (ids.SLOTS - 1)).view(np.uint64)
    return ids.mint(np.asarray(numbers), slots).view(np.int64)
