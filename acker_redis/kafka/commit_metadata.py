"""Text that a commit carries beside its offset: the topic id, and the runs of offsets that are done beyond it."""

import base64
import binascii
import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

MOST_BYTES = 4095
"""Longest text that brokers accept by default (`offset.metadata.max.bytes`)."""

NO_EPOCH = -1
"""Leader epoch of a partition of which no record was read, or whose broker names none."""

Run: TypeAlias = tuple[int, int]
"""First offset of a run, and the offset after its last one."""

_START = " start"
"""End of the text of a start, which a member without progress of a partition committed."""

_TEXT = re.compile(rf"acker1 ([A-Za-z0-9_-]{{22}}) (-?\d{{1,10}}) ([A-Za-z0-9_-]*)({_START})?")
_END = 1 << 63
_MOST_RUNS = MOST_BYTES // 2


class CommitMetadata(NamedTuple):
    """What the text of a commit says.

    Attributes:
        topic_id: id of the topic when the partition was assigned.
        epoch: highest leader epoch of the records in the runs.
        runs: runs from the committed offset on, in order and not adjacent.
        is_start: whether it was committed for all partitions of a topic without commits. Such an offset says nothing of what
            is done.
    """

    topic_id: str
    epoch: int
    runs: list[Run]
    is_start: bool = False


def encode(topic_id: str, offset: int, epoch: int, runs: Sequence[Run], most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a commit. If not all runs fit, it has the longest ones, and none if even that is too long.

    Args:
        topic_id: id of the topic, as the client spells it.
        offset: offset of the commit.
        epoch: highest leader epoch of the records in the runs.
        runs: runs from the offset on, in order and not adjacent.
        most_bytes: longest text.
    """
    head = f"acker1 {topic_id} {epoch} "
    room = most_bytes - len(head)
    if room < 0:
        return ""
    longest = sorted(range(len(runs)), key=lambda place: (runs[place][0] - runs[place][1], place))[:_MOST_RUNS]
    body = _packed(offset, [runs[place] for place in sorted(longest)])
    if len(body) <= room:
        return head + body
    fits, too_many = 0, len(longest)
    while too_many - fits > 1:
        count = (fits + too_many) // 2
        if len(_packed(offset, [runs[place] for place in sorted(longest[:count])])) <= room:
            fits = count
        else:
            too_many = count
    return head + _packed(offset, [runs[place] for place in sorted(longest[:fits])])


def start_of(topic_id: str) -> str:
    """Return the text of a start."""
    return encode(topic_id, 0, NO_EPOCH, []) + _START


def decode(text: str | None, offset: int) -> CommitMetadata | None:
    """Read the text of a commit at an offset.

    Returns:
        None if another program wrote it. Without runs if they are damaged, so that their records are repeated.
    """
    if not text or len(text) > MOST_BYTES or (found := _TEXT.fullmatch(text)) is None:
        return None
    topic_id, epoch, body, start = found.groups()
    try:
        runs = _unpacked(offset, base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, ValueError):
        runs = []
    return CommitMetadata(topic_id, max(NO_EPOCH, int(epoch)), runs, start is not None)


def _packed(offset: int, runs: Sequence[Run]) -> str:
    """Pack runs as pairs of distance and length, seven bits per byte."""
    packed = bytearray()
    at = offset
    for begin, end in runs:
        for number in (begin - at, end - begin):
            left = number
            while left > 127:
                packed.append(left & 127 | 128)
                left >>= 7
            packed.append(left)
        at = end
    return base64.urlsafe_b64encode(bytes(packed)).decode().rstrip("=")


def _unpacked(offset: int, packed: bytes) -> list[Run]:
    """Unpack runs.

    Raises:
        ValueError: these are no runs that `_packed` makes.
    """
    numbers: list[int] = []
    number = shift = 0
    for byte in packed:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            numbers.append(number)
            number = shift = 0
    if shift or len(numbers) % 2:
        raise ValueError("cut off")
    runs: list[Run] = []
    at = offset
    for distance, length in zip(numbers[::2], numbers[1::2], strict=True):
        begin = at + distance
        at = begin + length
        if (runs and not distance) or not length or at >= _END:
            raise ValueError("out of order")
        runs.append((begin, at))
    return runs
