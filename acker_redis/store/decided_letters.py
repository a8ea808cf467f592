"""Dead letters that a publish log has decided. The server stores those of a record once, whoever repeats the call."""

from collections.abc import Sequence

from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.model import keys
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.dead_letters import fields_of, within_limit

_PER_CALL, _CALL_BYTES = 100, 262_144
"""Letters that a call of a script writes at most, and bytes of payloads at which it ends."""


def add(client: Client, app: str, log: str, record: int, letters: Sequence[DeadLetter]) -> None:
    """Write the letters of a record of a publish log, unless they or those of a later record were written.

    Call it with the same letters until it returns. It stores none twice.

    Args:
        client: client of the server.
        app: name of the app.
        log: random id of the log. Another log in the same place has letters of its own.
        record: number of the record.
        letters: its letters, in the same order at each call.

    Raises:
        ServerRefusesWritesError: the server refuses writes. Some letters may have been written.
    """
    script = scripts.load("store_letters")
    named = {"letter_logs": keys.letter_logs(app), "dead_letters": keys.dead_letters(app)}
    values: list[str | int | bytes] = []
    before, size, count = 0, 0, 0
    for number, letter in enumerate(within_limit(client, app, letters), 1):
        fields = list(fields_of(letter))
        values += [len(fields), *fields]
        size, count = size + len(letter.payload or b""), count + 1
        if size >= _CALL_BYTES or count == _PER_CALL or number == len(letters):
            client.run([script.call(named, log, record, before, *values)])
            before, size, count, values = number, 0, 0, []
