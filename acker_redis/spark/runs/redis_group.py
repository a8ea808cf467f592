"""Read a Redis stream as a consumer of a group: read entries, keep them, claim those of dead consumers, acknowledge."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

from acker_redis.client.client import Client
from acker_redis.client.replies import Fields, as_dict, claimed_entries, read_reply
from acker_redis.errors import AckerError

_PART = 1000
"""Entry ids per command."""


class RedisGroup:
    """Read and acknowledge entries as one consumer of a group.

    An entry that was not acknowledged for `claim_secs`, and was not kept by its consumer meanwhile, is taken over.
    """

    def __init__(self, client: Client, stream: str, group: str, consumer: str, claim_secs: float) -> None:
        """Make the group at the stream's beginning, if it is not there.

        Raises:
            AckerError: the server can't be reached, or refuses.
        """
        self._client, self._stream, self._group, self._consumer = client, stream, group, consumer
        self._claim_ms = max(1, round(claim_secs * 1000))
        self._own_after: str | None = "0"
        self._cursor = b"0-0"
        self._claimed_at = self._kept_at = time.monotonic()
        self._create_group()

    def read(self, count: int, block_ms: int) -> list[tuple[bytes, Fields]]:
        """Read at most so many entries: first those that an earlier process of this consumer left, then claimed and new ones.

        Of an entry that was deleted from the stream meanwhile there are no fields. Waits for new ones, if there are no
        others.

        Raises:
            AckerError: the server can't be reached.
        """
        if self._own_after is not None:
            after, self._own_after = self._own_after, None
            entries = self._read(count, after)
            if entries:
                self._own_after = entries[-1][0].decode()
                return entries
        return self._claimed(count) or self._read(count, ">", block_ms)

    def find(self, entries: Sequence[bytes]) -> dict[bytes, Fields]:
        """Look up entries of the stream, whoever has read them; without those that are gone."""
        replies = self._client.pipeline([("XRANGE", self._stream, entry_id, entry_id) for entry_id in entries])
        return {bytes(rows[0][0]): as_dict(rows[0][1]) for rows in replies if rows}

    def keep_claimed(self, entries: Iterable[bytes]) -> None:
        """Renew the claim to these entries now and then, so that no other consumer takes them over."""
        if time.monotonic() - self._kept_at < self._claim_ms / 3000:
            return
        self._kept_at = time.monotonic()
        just_ids = () if self._client.is_cluster else ("JUSTID",)  # redis-py can't read these under a name of text
        self._send_in_parts(
            (self._name("XCLAIM"), self._stream, self._group, self._consumer, 0), list(entries), *just_ids
        )

    def acknowledge(self, entries: Sequence[bytes]) -> None:
        """Acknowledge entries that are done."""
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
        """Take one step of a pass over what others hold; a pass begins twice per `claim_secs`."""
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
        """Send a command; where stream or group went away, create them again and give nothing."""
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
        """Let the next read begin with what is this consumer's: a reply may be lost, and what it held."""
        self._own_after = "0"

    def _name(self, command: str) -> str | bytes:
        """Make a command's name: under one of bytes redis-py leaves the reply as it is; a cluster client needs text."""
        return command if self._client.is_cluster else command.encode()

    def _create_group(self) -> None:
        (reply,) = self._client.pipeline_each([("XGROUP", "CREATE", self._stream, self._group, "0", "MKSTREAM")])
        if isinstance(reply, AckerError) and not str(reply.__cause__).startswith("BUSYGROUP"):
            raise reply


def _is_gone(error: AckerError) -> bool:
    return str(error.__cause__).startswith(("NOGROUP", "UNBLOCKED"))
