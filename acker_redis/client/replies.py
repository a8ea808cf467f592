"""Conversion of Redis replies to one shape: RESP2 or RESP3, as text, as a mapping, or flat."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, TypeAlias

Fields: TypeAlias = dict[bytes, bytes]
Flat: TypeAlias = list[bytes]
"""Alternating names and values of an entry. Empty if the entry was trimmed."""


def as_dict(pairs: Any) -> Fields:
    """Convert the fields of an entry or a hash, which arrive as a mapping, a flat list, or None."""
    if not pairs:
        return {}
    if isinstance(pairs, dict):
        return pairs
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def as_texts(reply: object) -> dict[str, str]:
    """Convert the fields of a hash to text."""
    return {name.decode(errors="replace"): value.decode(errors="replace") for name, value in as_dict(reply).items()}


def read_reply(reply: Any) -> list[tuple[str, bytes, Fields]]:
    """Read (stream, entry id, fields) from an XREADGROUP reply. A trimmed entry has no fields."""
    return [
        (name, entry_id, as_dict(fields))
        for name, entry_ids, rows in read_flat(reply)
        for entry_id, fields in zip(entry_ids, rows, strict=True)
    ]


def read_flat(reply: Any) -> Iterator[tuple[str, list[bytes], list[Flat]]]:
    """Read (stream, entry ids, fields) from an XREADGROUP reply: a list of pairs, or (RESP3) a mapping."""
    if not reply:
        return
    for name, rows in reply.items() if isinstance(reply, dict) else reply:
        if rows and isinstance(rows[0], list) and not (rows[0] and isinstance(rows[0][0], bytes)):
            rows = rows[0]  # some drivers wrap the rows once more
        yield (
            name.decode(),
            [row[0] for row in rows],
            [row[1] if type(row[1]) is list else _flat(row[1]) for row in rows],
        )


def claimed_entries(reply: Any) -> tuple[list[bytes], list[Flat]]:
    """Read (entry ids, fields) from an XAUTOCLAIM reply, without Redis 6.2's nils for trimmed entries."""
    rows = [row for row in reply[1] if row and row[0]] if len(reply) > 1 else []
    return [row[0] for row in rows], [row[1] if type(row[1]) is list else _flat(row[1]) for row in rows]


def _flat(pairs: Any) -> Flat:
    return list(chain.from_iterable(pairs.items())) if isinstance(pairs, dict) else pairs or []
