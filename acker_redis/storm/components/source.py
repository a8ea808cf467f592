"""Source of a spout: what a runner tells it beside `ack` and `fail`, which belong to the user's class."""

from typing import Any

from acker_redis.store.dead_letter import DeadLetter


class Source:
    """Source of one task that hears which messages are done. This one has none, and does nothing."""

    def done(self, tup_id: Any) -> None:
        """Hear that a message was acked, after the spout heard of it."""

    def failed(self, tup_id: Any, reason: str, component: str | None) -> None:
        """Hear that an attempt failed and the message is replayed, and which component touched it last."""

    def buried(self, tup_id: Any, letter: DeadLetter) -> None:
        """Hear that the dead letter of a message was written."""

    def is_wanted(self, tup_id: Any) -> bool:  # noqa: ARG002
        """Return True if a message that failed may be replayed. Otherwise somebody else has it, and it is forgotten."""
        return True

    def place(self, tup_id: Any) -> str | None:  # noqa: ARG002
        """Return where a message is in the source, as JSON for its dead letter."""
        return None

    def close(self, *, is_orderly: bool) -> None:
        """Leave the source, after the spout was closed. `is_orderly` is False if an error ends the run."""


NO_SOURCE = Source()
"""Source of spouts that have none."""
