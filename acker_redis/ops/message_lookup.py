"""What the ledger holds of one message, by its id."""

import numpy as np

from acker_redis.acker import Acker
from acker_redis.model import ids
from acker_redis.model.roots import root_ids
from acker_redis.model.types import LedgerRoot

_EMISSIONS_AT_ONCE = 1000


def pending_of_message(
    acker: Acker, message_id: int, run_id: str, emissions: int = 10_000
) -> list[tuple[int, LedgerRoot]]:
    """What the ledger holds of one message of a run: (number of the emission, record), of its first so many emissions.

    A message has another root in each emission; spouts number these from 0 over the whole run.

    Raises:
        BadIdError: the id is no 64-bit integer.
        AckerError: as `Acker.inspect_many`.
    """
    messages = np.array([ids.to_int64(ids.to_uint64(message_id, "message_id"))], np.int64)
    found = []
    for first in range(0, emissions, _EMISSIONS_AT_ONCE):
        numbers = range(first, min(first + _EMISSIONS_AT_ONCE, emissions))
        roots = np.concatenate([root_ids(acker.config.app, run_id, messages, number) for number in numbers])
        records = acker.inspect_many(roots)
        found += [(number, record) for number, record in zip(numbers, records, strict=True) if record is not None]
    return found
