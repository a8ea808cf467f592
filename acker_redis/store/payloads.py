"""Messages of a run, kept in Redis from first emission until done, for replays if the source can't be read again.

Each run has one hash, so on a cluster one node holds it. The hash is removed when the run ends. It expires `KEEP_SECS` after
the last message was added, so that a crashed run leaves nothing behind.
"""

from collections.abc import Sequence

from acker_redis.client.client import WINDOW_BYTES, Client
from acker_redis.errors import BadBatchError
from acker_redis.model import keys
from acker_redis.model.types import MAX_PAYLOAD_BYTES
from acker_redis.store import limits

KEEP_SECS = 7 * 24 * 3600

_PER_PIPELINE = 1000


class Payloads:
    """Stores, reads and removes the payloads of one run."""

    def __init__(self, client: Client, app: str, run_id: str) -> None:
        self._client, self._app = client, app
        self._key = keys.payloads(app, run_id)

    def put(self, payloads: Sequence[tuple[int, bytes]]) -> None:
        """Store (message id, payload) pairs. Storing a pair again changes nothing.

        Payloads above the app's limit (`Limits.max_payload_bytes`) are skipped.

        Raises:
            BadBatchError: a payload is longer than MAX_PAYLOAD_BYTES. None was stored.
            ServerOutOfMemoryError: the server is above maxmemory. Some may have been stored.

        >>> payloads = app.payloads("run-1")
        >>> payloads.put([(7, b"message")])
        """
        for message_id, payload in payloads:
            if len(payload) > MAX_PAYLOAD_BYTES:
                raise BadBatchError(
                    f"The payload of message {message_id} has {len(payload)} bytes, but at most {MAX_PAYLOAD_BYTES} are kept. "
                    "Replay longer messages from their source."
                )
        longest = limits.read(self._client, self._app).max_payload_bytes
        if longest is not None:
            payloads = [(message_id, payload) for message_id, payload in payloads if len(payload) <= longest]
        pairs: list[int | bytes] = []
        size = 0
        for number, (message_id, payload) in enumerate(payloads, 1):
            pairs += (message_id, payload)
            size += len(payload)
            if size >= WINDOW_BYTES or len(pairs) >= 2 * _PER_PIPELINE or number == len(payloads):
                self._client.pipeline([("HSET", self._key, *pairs), ("EXPIRE", self._key, KEEP_SECS)])
                pairs, size = [], 0

    def get(self, message_ids: Sequence[int]) -> list[bytes | None]:
        """Get the payload of each message. None replaces a payload that is not stored.

        >>> app.payloads("run-1").put([(7, b"message")])
        >>> app.payloads("run-1").get([7, 8])
        [b'message', None]
        """
        parts = [message_ids[at : at + _PER_PIPELINE] for at in range(0, len(message_ids), _PER_PIPELINE)]
        replies = self._client.pipeline([("HMGET", self._key, *part) for part in parts])
        return [payload for reply in replies for payload in reply]

    def remove(self, message_ids: Sequence[int]) -> None:
        """Remove the payloads of messages that are done.

        >>> app.payloads("run-1").remove([7])
        >>> app.payloads("run-1").get([7])
        [None]
        """
        parts = [message_ids[at : at + _PER_PIPELINE] for at in range(0, len(message_ids), _PER_PIPELINE)]
        self._client.pipeline([("HDEL", self._key, *part) for part in parts])

    def clear(self) -> None:
        """Remove all payloads after the run has ended.

        >>> app.payloads("run-1").clear()
        """
        self._client.pipeline([("UNLINK", self._key)])
