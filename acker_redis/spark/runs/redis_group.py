"""Consumer of a Redis stream's group: read entries, keep them claimed, claim those of dead consumers, acknowledge."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from acker_redis.client.client import Client
from acker_redis.client.replies import Fields, as_dict, claimed_entries, read_reply
from acker_redis.errors import AckerError

_PART = 1000
"""Number of entry ids per command."""


class RedisGroup:
    """Read and acknowledge entries as one consumer of a group.

    It takes over entries that were not acknowledged for `claim_secs`, and whose consumer has not renewed its claim for so
    long.
    """

    def __init__(self, client: Client, stream: str, group: str, consumer: str, claim_secs: float) -> None:
        """Create the group at the beginning of the stream if it doesn't exist.

        Raises:
            AckerError: the server is unreachable, or refuses the command.
        """
        self._client, self._stream, self._group, self._consumer = client, stream, group, consumer
        self._claim_ms = max(1, round(claim_secs * 1000))
        self._own_after: str | None = "0"
        self._cursor = b"0-0"
        self._claimed_at = self._kept_at = time.monotonic()
        self._create_group()

    def read(self, count: int, block_ms: int) -> list[tuple[bytes, Fields]]:
        """Read up to `count` entries.

        Entries that an earlier process of this consumer left come first, then claimed ones, then new ones. If there are no
        others, wait up to `block_ms` for new ones. An entry that was deleted from the stream has no fields.

        Raises:
            AckerError: the server is unreachable.
        """
        if self._own_after is not None:
            after, self._own_after = self._own_after, None
            entries = self._read(count, after)
            if entries:
                self._own_after = entries[-1][0].decode()
                return entries
        return self._claimed(count) or self._read(count, ">", block_ms)

    def find(self, entries: Sequence[bytes]) -> dict[bytes, Fields]:
        """Look up entries of the stream, read by any consumer. Entries that are gone are omitted."""
        replies = self._client.pipeline([("XRANGE", self._stream, entry_id, entry_id) for entry_id in entries])
        return {bytes(rows[0][0]): as_dict(rows[0][1]) for rows in replies if rows}

    def keep_claimed(self, entries: Iterable[bytes]) -> None:
        """Renew the claim to these entries at intervals, so that no other consumer takes them over."""
        if time.monotonic() - self._kept_at < self._claim_ms / 3000:
            return
        self._kept_at = time.monotonic()
        just_ids = () if self._client.is_cluster else ("JUSTID",)  # redis-py can't read such replies to a text command
        self._send_in_parts(
            (self._name("XCLAIM"), self._stream, self._group, self._consumer, 0), list(entries), *just_ids
        )

    def acknowledge(self, entries: Sequence[bytes]) -> None:
        """Acknowledge completed entries."""
        self._send_in_parts(("XACK", self._stream, self._group), entries)

    def _send_in_parts(self, command: tuple[Any, ...], entries: Sequence[bytes], *rest: str) -> None:
        parts = [entries[at : at + _PART] for at in range(0, len(entries), _PART)]
        for reply in self._client.pipeline_each([(*command, *part, *rest) for part in parts]):
            if isinstance(reply, AckerError) and not _is_gone(reply):
                raise reply

    def _read(self, count: int, after: str, block_ms: int = 0) -> list[tuple[bytes, Fields]]:
        wait = ("BLOCK", block_ms) if block_ms else ()
        reply = self._call(
            ("XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", count, *wait, "STREAMS", self._stream, after)
        )
        return [(entry_id, fields) for _, entry_id, fields in read_reply(reply)]

    def _claimed(self, count: int) -> list[tuple[bytes, Fields]]:
        """Claim the next part of the entries that others hold. A pass over all starts twice per `claim_secs`."""
        if self._cursor == b"0-0" and time.monotonic() - self._claimed_at < self._claim_ms / 2000:
            return []
        self._claimed_at = time.monotonic()
        reply = self._call(
            ("XAUTOCLAIM", self._stream, self._group, self._consumer, self._claim_ms, self._cursor, "COUNT", count)
        )
        if not reply:
            return []
        self._cursor = bytes(reply[0])
        entry_ids, rows = claimed_entries(reply)
        gone = [(entry_id, Fields()) for entry_id in (reply[2] if len(reply) > 2 else ())]  # Redis has forgotten them
        return [*zip(entry_ids, map(as_dict, rows), strict=True), *gone]

    def _call(self, command: tuple[Any, ...]) -> Any:
        """Send a command. If the stream or group is gone, create it again and return None."""
        (reply,) = self._client.pipeline_each([(self._name(command[0]), *command[1:])], on_resend=self._read_own_again)
        if isinstance(reply, AckerError):
            self._read_own_again()
            if not _is_gone(reply):
                raise reply
            self._create_group()  # the stream was deleted, or lost with the server's memory
            self._cursor = b"0-0"
            return None
        return reply

    def _read_own_again(self) -> None:
        """Make the next read start with this consumer's own entries, as a reply with some may have been lost."""
        self._own_after = "0"

    def _name(self, command: str) -> str | bytes:
        """Return the command name as bytes, for which redis-py keeps the raw reply; a cluster client needs text."""
        return command if self._client.is_cluster else command.encode()

    def _create_group(self) -> None:
        (reply,) = self._client.pipeline_each([("XGROUP", "CREATE", self._stream, self._group, "0", "MKSTREAM")])
        if isinstance(reply, AckerError) and not str(reply.__cause__).startswith("BUSYGROUP"):
            raise reply


def _is_gone(error: AckerError) -> bool:
    return str(error.__cause__).startswith(("NOGROUP", "UNBLOCKED"))
