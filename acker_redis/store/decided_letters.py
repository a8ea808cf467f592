"""Dead letters that a publish log has decided. The server stores those of a record once, whoever repeats the call.

The entry of such a letter says by which record its message is dead. Readers of letters don't look at that field.
"""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.client.replies import Fields, as_dict
from acker_redis.model import keys
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.dead_letters import fields_of, within_limit

_PER_CALL, _CALL_BYTES = 100, 262_144
"""Letters that a call of a script writes at most, and bytes of payloads at which it ends."""

_PER_PIPELINE, _PAGE = 16, 64
"""Letters that are read at once, each of which may have 1 MiB."""

_DECISION = "decision"


class Decision(NamedTuple):
    """What made a message a dead letter.

    Attributes:
        log: random id of the publish log.
        record: number of its record.
        partition: partition of the message, as the log names it.
        number: number of the message there.
    """

    log: str
    record: int
    partition: str
    number: int


def add(client: Client, app: str, letters: Sequence[tuple[DeadLetter | None, Decision]]) -> None:
    """Write the letters of a record of a publish log, unless they or those of a later record were written.

    Call it with the same letters until it returns. It stores none twice.

    Args:
        client: client of the server.
        app: name of the app.
        letters: letters of one record, in the same order at each call, and what decided them; None in place of a letter that
            nobody needs any more. The log's id is random, because another log in the same place has letters of its own.

    Raises:
        ServerRefusesWritesError: the server refuses writes. Some letters may have been written.
    """
    values: list[str | int | bytes] = []
    before, size, count = 0, 0, 0
    kept = iter(within_limit(client, app, [letter for letter, _ in letters if letter is not None]))
    for number, (needed, decision) in enumerate(letters, 1):
        fields: list[str | int | bytes] = []
        if needed is not None:
            letter = next(kept)
            fields = [*fields_of(letter), _DECISION, json.dumps(decision._asdict())]
            size += len(letter.payload or b"")
        values += [len(fields), *fields]
        count += 1
        if size >= _CALL_BYTES or count == _PER_CALL or number == len(letters):
            _store(client, app, decision.log, decision.record, before, values)
            before, size, count, values = number, 0, 0, []


def note(client: Client, app: str, log: str, record: int) -> None:
    """Note that the letters of a record of a publish log are stored, which has none any more."""
    _store(client, app, log, record, 0, ())


def newest(client: Client, app: str, log: str) -> int:
    """Read the number of the newest record of a publish log whose letters were stored. 0: the server knows of none."""
    (place,) = client.pipeline([("HGET", keys.letter_logs(app), log)])
    record = (place or b"").partition(b":")[0]
    return int(record) if record.isdigit() else 0


def _store(client: Client, app: str, log: str, record: int, before: int, values: Sequence[str | int | bytes]) -> None:
    named = {"letter_logs": keys.letter_logs(app), "dead_letters": keys.dead_letters(app)}
    client.run([scripts.load("store_letters").call(named, log, record, before, *values)])


def decisions(client: Client, app: str, entry_ids: Sequence[str]) -> Iterator[Decision | None]:
    """Yield what decided some letters. None: a letter is gone, or no publish log has decided it."""
    key = keys.dead_letters(app)
    for start in range(0, len(entry_ids), _PER_PIPELINE):
        part = entry_ids[start : start + _PER_PIPELINE]
        for rows in client.pipeline([("XRANGE", key, entry_id, entry_id) for entry_id in part]):
            yield _decision_in(as_dict(rows[0][1])) if rows else None


def find(client: Client, app: str, log: str) -> Iterator[tuple[str, Decision]]:
    """Yield the entry ids of a publish log's letters, and what decided them."""
    key, after = keys.dead_letters(app), "-"
    while True:
        (rows,) = client.pipeline([("XRANGE", key, after, "+", "COUNT", _PAGE)])
        for entry_id, pairs in rows:
            after = f"({entry_id.decode()}"
            if (decision := _decision_in(as_dict(pairs))) is not None and decision.log == log:
                yield entry_id.decode(), decision
        if len(rows) < _PAGE:
            return


def _decision_in(fields: Fields) -> Decision | None:
    try:
        return Decision(**json.loads(fields[_DECISION.encode()]))
    except (KeyError, ValueError, TypeError):
        return None
