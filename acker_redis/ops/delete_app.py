"""Deletion of an app: all its keys, and no key of another app, on a single server or all nodes of a cluster."""

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
"""Kinds of keys to delete first.

Without settings no rotator opens the app again. Without its generation a shard accepts no updates.
"""


@dataclass(frozen=True)
class Holdings:
    """Keys of an app on a server.

    Attributes:
        app: name of the app.
        keys: all keys of the app, in the order in which they must be deleted.
        counts: number of elements per kind of key.
    """

    app: str
    keys: tuple[bytes, ...]
    counts: Counter[str]

    @property
    def text(self) -> str:
        """Summary for people, to show before the deletion."""
        counts = self.counts
        return (
            f"{len(self.keys)} keys, with {counts['ledger']} blocks in its ledgers, {counts['acked'] + counts['failed']} "
            f"unconfirmed outcome entries, {counts['dead_letters'] + counts['dead']} dead letters, "
            f"{counts['payloads']} kept messages"
        )


def preview(client: Client, app: str) -> Holdings:
    """Find all keys of an app by SCAN, including keys of other settings or of an interrupted deletion.

    Raises:
        BadConfigError: if the name is not valid for an app.
        AppNotFoundError: if the app has no keys.
    """
    check_app_name(app)
    kinds = {
        key: keys.kind_of(key.decode(errors="replace"))
        for pattern in keys.patterns_of(app)
        for key in client.ask(server_info.find_keys, pattern)
    }
    if not kinds:
        raise AppNotFoundError(
            f"App {app!r} does not exist on {client.address}. It has no keys there. Check the name and the server."
        )
    order = {kind: place for place, kind in enumerate(_FIRST)}
    names = tuple(sorted(kinds, key=lambda key: (order.get(kinds[key], len(order)), key)))
    counted = [key for key in names if kinds[key] in _LENGTHS]
    counts = Counter[str]()
    for at in range(0, len(counted), _PER_PIPELINE):
        part = counted[at : at + _PER_PIPELINE]
        replies = client.pipeline_each([(_LENGTHS[kinds[key]], key) for key in part])
        for key, reply in zip(part, replies, strict=True):
            counts[kinds[key]] += reply if isinstance(reply, int) else 0  # a key of another type is deleted, too
    return Holdings(app, names, counts)


def delete(client: Client, holdings: Holdings) -> int:
    """Delete these keys. Return the number of keys that still existed.

    The next call of running clients of the app raises a LedgerLostError. You can repeat an interrupted call: `preview` finds
    the keys that are left.

    Raises:
        AckerError: if the server refuses or fails. Some keys may be deleted.
    """
    deleted = 0
    for at in range(0, len(holdings.keys), _PER_PIPELINE):
        part = holdings.keys[at : at + _PER_PIPELINE]
        deleted += sum(client.pipeline([("UNLINK", key) for key in part]))  # one key each: they lie in different slots
    return deleted
