"""Dead letters of topologies. They keep a message of any type, and a replay emits it again by its spout."""

import base64
import json
import logging
import math
import pickle
from typing import Any, NamedTuple

from acker_redis.model import ids
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.store.dead_letter import FROM_PAYLOAD, DeadLetter
from acker_redis.storm.core.collectors import Emission
from acker_redis.storm.local.pending import Message

log = logging.getLogger("acker_redis.storm")

TEXT_CHARS = 200
"""Number of characters shown of a value that JSON can't hold."""


class Kept(NamedTuple):
    """Message that a letter keeps.

    Attributes:
        spout: name of the spout.
        emission: id, stream and values.
    """

    spout: str
    emission: Emission


def letter_of(message: Message, run_id: str, spout_id: int, attempts: int, reason: str) -> DeadLetter:
    """Make the letter of a message whose attempts are exhausted.

    An id that is a 64-bit integer is the letter's message id. Other ids are hashed. The payload has the id itself.
    """
    spout, emission = message.task.name, message.emission
    whole = encode(Kept(spout, emission))
    fits = whole is not None and len(whole) <= MAX_PAYLOAD_BYTES
    if not fits:
        why = "its id or values can't be pickled" if whole is None else f"it has more than {MAX_PAYLOAD_BYTES} bytes"
        log.warning(
            "dead letter without its message, so no replay spout=%r tup_id=%s why=%r",
            spout,
            shown(emission.tup_id),
            why,
        )
    kind = kind_of(message, reason)
    return DeadLetter(
        message_id=_message_id(emission.tup_id, spout),
        run_id=run_id,
        attempts=attempts,
        reason=kind,
        last_component=message.last_component,
        detail=None if kind != "failed" else reason,
        payload=whole if fits else _json(Kept(spout, emission), {"id": shown(emission.tup_id)}),
        spout_id=spout_id,
        first_secs=int(message.history.first_secs),
        replay=FROM_PAYLOAD if fits else None,
        place=message.task.source.place(emission.tup_id),
    )


def kind_of(message: Message, reason: str) -> str:
    """Return the reason of a failed attempt, as dead letters have it: `failed`, `timeout` or `lost`."""
    return reason if reason in ("timeout", "lost") and message.reason is None else "failed"


def encode(kept: Kept) -> bytes | None:
    """Encode a message as JSON, with its pickled bytes if JSON would change it. Returns None if neither holds it."""
    tup_id, values = kept.emission.tup_id, list(kept.emission.values)
    try:
        if _is_plain(tup_id) and _is_plain(values):
            return _json(kept, {"id": tup_id, "values": values})
    except (RecursionError, ValueError):  # a list that contains itself, or an integer of thousands of digits
        log.debug("message isn't JSON spout=%r", kept.spout, exc_info=True)
    try:
        pickled = pickle.dumps((tup_id, values), 5)
    except Exception:  # pickle raises what a value's own code raises
        return None
    encoded = base64.b64encode(pickled).decode()
    return _json(kept, {"id": shown(tup_id), "values": shown(values), "pickled": encoded})


def shown(value: Any) -> str:
    """Return the beginning of a value's text, for people."""
    return _repr(value)[:TEXT_CHARS]


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # repr raises what a value's own code raises
        return f"<{type(value).__name__} without a text>"


def _json(kept: Kept, fields: dict[str, Any]) -> bytes:
    direct = {} if kept.emission.direct_task is None else {"direct_task": kept.emission.direct_task}
    return json.dumps({"spout": kept.spout, "stream": kept.emission.stream, **direct, **fields}).encode()


def decode(payload: bytes) -> Kept | None:
    """Decode a message. Returns None if the payload isn't that of a topology's letter.

    It may unpickle the message, so letters must come from a server whose writers you trust.
    """
    try:
        fields = json.loads(payload)
        if "pickled" in fields:
            tup_id, values = pickle.loads(base64.b64decode(fields["pickled"]))  # noqa: S301  # see above
        else:
            tup_id, values = fields["id"], fields["values"]
        return Kept(fields["spout"], Emission(tup_id, fields["stream"], values, fields.get("direct_task")))
    except Exception:  # a payload of another program
        return None


def _is_plain(value: Any) -> bool:
    """Return True if JSON gives a value back unchanged."""
    if value is None or type(value) in (str, bool, int):
        return True
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is list:
        return all(map(_is_plain, value))
    return type(value) is dict and all(type(key) is str and _is_plain(part) for key, part in value.items())


def _message_id(tup_id: Any, spout: str) -> int:
    if type(tup_id) is int and -(1 << 63) <= tup_id < 1 << 63:
        return tup_id
    return ids.derive("letter", spout, _repr(tup_id))
