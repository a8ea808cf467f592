"""Delete an app: every key of it, and none of another, on a single server and on all nodes of a cluster."""

from collections import Counter
from dataclasses import dataclass

from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.errors import AppNotFoundError
from acker_redis.model import keys
from acker_redis.model.config import check_app_name

_PER_PIPELINE = 1000
_LENGTHS = {
    "ledger": "HLEN",
    "acked": "XLEN",
    "failed": "XLEN",
    "dead_letters": "XLEN",
    "dead": "XLEN",
    "payloads": "HLEN",
}
_FIRST = ("config", "meta")
"""Go first: without settings no rotator opens the app again, and without its generation a shard takes no more updates."""


@dataclass(frozen=True)
class Holdings:
    """The keys that a server holds of an app.

    Attributes:
        app: its name.
        keys: all its keys, in the order in which they have to go.
        counts: kind of key -> number of elements in the keys of this kind.
    """

    app: str
    keys: tuple[bytes, ...]
    counts: Counter[str]

    @property
    def text(self) -> str:
        """The same for people, before it is deleted."""
        counts = self.counts
        return (
            f"{len(self.keys)} keys, with {counts['ledger']} blocks in its ledgers, {counts['acked'] + counts['failed']} "
            f"entries of outcomes that no spout has confirmed, {counts['dead_letters'] + counts['dead']} dead letters, "
            f"{counts['payloads']} kept messages"
        )


def preview(client: Client, app: str) -> Holdings:
    """Find all keys of an app by SCAN, also those left of other settings or of a deletion cut short.

    Raises:
        BadConfigError: this can't be the name of an app.
        AppNotFoundError: there is no key of it.
    """
    check_app_name(app)
    kinds = {
        key: keys.kind_of(key.decode(errors="replace"))
        for pattern in keys.patterns_of(app)
        for key in client.ask(server_info.find_keys, pattern)
    }
    if not kinds:
        raise AppNotFoundError(f"no app {app!r} on {client.address}: it has no keys there")
    order = {kind: place for place, kind in enumerate(_FIRST)}
    names = tuple(sorted(kinds, key=lambda key: (order.get(kinds[key], len(order)), key)))
    counted = [key for key in names if kinds[key] in _LENGTHS]
    counts = Counter[str]()
    for at in range(0, len(counted), _PER_PIPELINE):
        part = counted[at : at + _PER_PIPELINE]
        replies = client.pipeline_each([(_LENGTHS[kinds[key]], key) for key in part])
        for key, reply in zip(part, replies, strict=True):
            counts[kinds[key]] += (
                reply if isinstance(reply, int) else 0
            )  # a key of another type is deleted all the same
    return Holdings(app, names, counts)


def delete(client: Client, holdings: Holdings) -> int:
    """Delete these keys; returns how many were still there.

    Running clients of the app get a LedgerLostError from their next call. Cut short, the call can be repeated: `preview`
    finds the keys that are left.

    Raises:
        AckerError: as the server answered; some keys may be gone.
    """
    deleted = 0
    for at in range(0, len(holdings.keys), _PER_PIPELINE):
        part = holdings.keys[at : at + _PER_PIPELINE]
        deleted += sum(client.pipeline([("UNLINK", key) for key in part]))  # one key each: they lie in different slots
    return deleted
