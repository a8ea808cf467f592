"""Ranges of offsets that a stream's micro-batches read from topics, as Spark writes them into the checkpoint."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from acker_redis.kafka.log_ends import Partition
from acker_redis.model.arrays import Int64Array
from acker_redis.spark.streaming.parking.folder import Folder


class Ranges(NamedTuple):
    """Ranges of one micro-batch.

    Attributes:
        begins: partition -> first offset. A partition that was added since the last micro-batch has none.
        ends: partition -> offset behind the last one.
    """

    begins: dict[Partition, int]
    ends: dict[Partition, int]


class Gap(NamedTuple):
    """Offsets that were not read, and the number of others between them."""

    begin: int
    end: int
    missing: int


def read_ranges(checkpoint: str, batch_id: int) -> Ranges:
    """Read the ranges of a micro-batch, which Spark writes before it runs it.

    Raises:
        OSError: the checkpoint can't be read.
    """
    folder = Folder(checkpoint)
    first = [f"sources/{source}/0" for source in folder.names("sources")] if batch_id == 0 else []
    before = first or [f"offsets/{batch_id - 1}"]
    begins = [offsets_in(folder.read(name)) for name in before if folder.exists(name)]
    return Ranges(_together(begins), offsets_in(folder.read(f"offsets/{batch_id}")))


def read_ends(checkpoint: str, batch_id: int) -> dict[Partition, int]:
    """Read the ends of a micro-batch's ranges; empty if Spark has none.

    Raises:
        OSError: the checkpoint can't be read.
    """
    folder, name = Folder(checkpoint), f"offsets/{batch_id}"
    return offsets_in(folder.read(name)) if batch_id >= 0 and folder.exists(name) else {}


def offsets_in(data: bytes) -> dict[Partition, int]:
    """Return the offsets of topics in a file of the checkpoint. It may have offsets of other sources, too.

    If several sources read a partition, the smallest offset counts.
    """
    found = []
    for line in data.decode(errors="replace").splitlines():
        at = line.find("{")
        try:
            value: Any = json.loads(line[at:]) if at >= 0 else None
        except ValueError:
            continue
        if _is_of_topics(value):
            found.append({(topic, int(number)): end for topic, ends in value.items() for number, end in ends.items()})
    return _together(found)


def gap_of(offsets: Int64Array, begin: int, end: int) -> Gap | None:
    """Return the gap among offsets that were read from `begin` to before `end`; None: all of them were read."""
    there = np.unique(offsets[(offsets >= begin) & (offsets < end)])
    missing = end - begin - len(there)
    if missing <= 0:
        return None
    from_begin = np.arange(begin, begin + len(there))
    at_begin = int(np.argmin(there == from_begin)) if (there != from_begin).any() else len(there)
    from_end = np.arange(end - len(there), end)
    differs = np.flatnonzero(there != from_end)
    at_end = len(there) - 1 - int(differs[-1]) if len(differs) else len(there)
    return Gap(begin + at_begin, end - at_end, missing)


def _is_of_topics(value: object) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            isinstance(ends, dict)
            and bool(ends)
            and all(number.isdigit() and type(end) is int for number, end in ends.items())
            for ends in value.values()
        )
    )


def _together(parts: Iterable[Mapping[Partition, int]]) -> dict[Partition, int]:
    together: dict[Partition, int] = {}
    for part in parts:
        for partition, offset in part.items():
            together[partition] = min(offset, together.get(partition, offset))
    return together
