"""Message ids of records, and what they are made of."""

import numpy as np

from acker_redis.kafka.record_ids import RecordIds


def test_message_ids_tell_partition_and_offset_of_many_records_at_once() -> None:
    ids = RecordIds()
    partitions = [("a", 0), ("a", 1), ("b", 0), ("a", 1)]
    first_ids = [ids.first_of(*partition) for partition in partitions]
    offsets = [0, 7, (1 << 48) - 1, 3]
    numbers, found = RecordIds.split(np.array(first_ids, np.int64) + np.array(offsets, np.int64))
    assert numbers.tolist() == [0, 1, 2, 1]
    assert found.tolist() == offsets
