"""A consumer group of somebody's Redis stream: entries are read, kept as one's own, claimed from the dead, acknowledged."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from acker_redis.client.client import Client
from acker_redis.client.replies import Fields, as_dict, claimed_entries, read_reply
from acker_redis.errors import AckerError

_PART = 1000
"""Entry ids per command."""


class RedisGroup:
    """What one consumer does in its group.

    An entry that nobody acknowledged for `claim_secs`, and whose consumer did not say that it works on it, is taken over.
    """

    def __init__(self, client: Client, stream: str, group: str, consumer: str, claim_secs: float) -> None:
        """Make the group at the stream's beginning, if it is not there.

        Raises:
            AckerError: the server can't, or won't.
        """
        self._client, self._stream, self._group, self._consumer = client, stream, group, consumer
        self._claim_ms = max(1, round(claim_secs * 1000))
        self._mine: str | None = "0"
        self._cursor = b"0-0"
        self._claimed_at = self._kept_at = time.monotonic()
        self._make()

    def read(self, count: int, block_ms: int) -> list[tuple[bytes, Fields]]:
        """At most so many entries: first those that an earlier process of this consumer left, then claimed and new ones.

        Of an entry that was deleted from the stream meanwhile there are no fields. Waits for new ones, if there are no
        others.

        Raises:
            AckerError: the server can't be reached.
        """
        if self._mine is not None:
            found = self._read(count, self._mine)
            self._mine = found[-1][0].decode() if found else None
            if found:
                return found
        return self._claimed(count) or self._read(count, ">", block_ms)

    def find(self, entries: Sequence[bytes]) -> dict[bytes, Fields]:
        """Entries of the stream, whoever has read them; without those that are gone."""
        found = self._client.pipeline([("XRANGE", self._stream, one, one) for one in entries])
        return {bytes(rows[0][0]): as_dict(rows[0][1]) for rows in found if rows}

    def keep(self, entries: Iterable[bytes]) -> None:
        """Say now and then that these are still worked on, so that nobody claims them."""
        if time.monotonic() - self._kept_at < self._claim_ms / 3000:
            return
        self._kept_at = time.monotonic()
        just_ids = () if self._client.is_cluster else ("JUSTID",)  # redis-py can't read these under a name of text
        self._of_each((self._name("XCLAIM"), self._stream, self._group, self._consumer, 0), list(entries), *just_ids)

    def acknowledge(self, entries: Sequence[bytes]) -> None:
        """They are done."""
        self._of_each(("XACK", self._stream, self._group), entries)

    def _of_each(self, command: tuple[Any, ...], entries: Sequence[bytes], *rest: str) -> None:
        parts = [entries[at : at + _PART] for at in range(0, len(entries), _PART)]
        for reply in self._client.pipeline_each([(*command, *part, *rest) for part in parts]):
            if isinstance(reply, AckerError) and not _is_gone(reply):
                raise reply

    def _read(self, count: int, after: str, block_ms: int = 0) -> list[tuple[bytes, Fields]]:
        wait = ("BLOCK", block_ms) if block_ms else ()
        found = self._ask(
            ("XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", count, *wait, "STREAMS", self._stream, after)
        )
        return [(entry_id, fields) for _, entry_id, fields in read_reply(found)]

    def _claimed(self, count: int) -> list[tuple[bytes, Fields]]:
        """One step of a pass over what others hold; a pass begins twice per `claim_secs`."""
        if self._cursor == b"0-0" and time.monotonic() - self._claimed_at < self._claim_ms / 2000:
            return []
        self._claimed_at = time.monotonic()
        found = self._ask(
            ("XAUTOCLAIM", self._stream, self._group, self._consumer, self._claim_ms, self._cursor, "COUNT", count)
        )
        if not found:
            return []
        self._cursor = bytes(found[0])
        entry_ids, rows = claimed_entries(found)
        gone = [(entry_id, Fields()) for entry_id in (found[2] if len(found) > 2 else ())]  # Redis has forgotten them
        return [*zip(entry_ids, map(as_dict, rows), strict=True), *gone]

    def _ask(self, command: tuple[Any, ...]) -> Any:
        """A reply; nothing, where stream or group went away, which are there again then."""
        name = (
            command[0] if self._client.is_cluster else command[0].encode()
        )  # of bytes: redis-py leaves the reply as it is
        (reply,) = self._client.pipeline_each([(name, *command[1:])])
        if isinstance(reply, AckerError):
            if not _is_gone(reply):
                raise reply
            self._make()  # the stream was deleted, or lost with the server's memory
            self._mine, self._cursor = "0", b"0-0"
            return None
        return reply

    def _name(self, command: str) -> str | bytes:
        """Under a name of bytes redis-py leaves a reply as it is; a cluster client needs text, to find the node."""
        return command if self._client.is_cluster else command.encode()

    def _make(self) -> None:
        (made,) = self._client.pipeline_each([("XGROUP", "CREATE", self._stream, self._group, "0", "MKSTREAM")])
        if isinstance(made, AckerError) and not str(made.__cause__).startswith("BUSYGROUP"):
            raise made


def _is_gone(error: AckerError) -> bool:
    return str(error.__cause__).startswith(("NOGROUP", "UNBLOCKED"))
