"""Look-up of a message in the ledger by its id."""

import numpy as np

from acker_redis.acker import Acker
from acker_redis.model import ids
from acker_redis.model.roots import root_ids
from acker_redis.model.types import LedgerRoot

_EMISSIONS_AT_ONCE = 1000


def pending_of_message(
    acker: Acker, message_id: int, run_id: str, emissions: int = 10_000
) -> list[tuple[int, LedgerRoot]]:
    """Return a message's pending roots in the first emissions of a run, as (number of the emission, root).

    A message has a different root in each emission. A spout numbers its emissions from 0, over the whole run.

    Args:
        acker: acker of the app.
        message_id: id of the message.
        run_id: id of the run.
        emissions: number of emissions to search.

    Raises:
        BadIdError: if the id is not a 64-bit integer.
        AckerError: as for `Acker.inspect_many`.
    """
    messages = np.array([ids.to_int64(ids.to_uint64(message_id, "message_id"))], np.int64)
    pending = []
    for first in range(0, emissions, _EMISSIONS_AT_ONCE):
        numbers = range(first, min(first + _EMISSIONS_AT_ONCE, emissions))
        roots = np.concatenate([root_ids(acker.config.app, run_id, messages, number) for number in numbers])
        in_ledger = acker.inspect_many(roots)
        pending += [(number, root) for number, root in zip(numbers, in_ledger, strict=True) if root is not None]
    return pending
