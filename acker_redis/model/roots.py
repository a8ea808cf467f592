"""Derivation of an emission's roots from its message ids. Spout, executors and SQL compute the same roots independently.

The formula is implemented twice. `root_ids` here is numpy's, for the driver. `spark.operators.tracking.tracked` is Spark's
SQL, for frames. Change both together. `tests/spout/test_in_flight.py` has roots computed by Spark.

    root = shiftleft(id & 31L, 59) | (xxhash64(salt, shiftright(id, 5)) & 576460752303423487L)
"""

import numpy as np

from acker_redis.model import ids
from acker_redis.model.arrays import Int64Array
from acker_redis.model.xxhash64 import hash_longs, hash_salt

SLOT_BITS = 5
"""Number of last bits of a message id that are its root's slot."""


def root_salt(app: str, run: str, number: int) -> str:
    """Compute the salt of one emission's roots, which is also part of its SQL.

    The salt is a text. Spark compiles a plan again for each new number in it (50 ms of a micro-batch), but not for a new text.
    """
    return ids.derive_salt(app, run, number)


def root_ids(app: str, run: str, message_ids: Int64Array, number: int) -> Int64Array:
    """Derive the roots of one emission. Use each `number` only once.

    The top five bits are the message id's last five bits. The others are the number of the block: a hash of the rest of the
    id. So 32 neighbouring ids share a block.
    """
    salt = hash_salt(root_salt(app, run, number))
    numbers = hash_longs((message_ids >> SLOT_BITS).view(np.uint64), seed=salt)
    slots = (message_ids & (ids.SLOTS - 1)).view(np.uint64)
    return ids.mint(np.asarray(numbers), slots).view(np.int64)
