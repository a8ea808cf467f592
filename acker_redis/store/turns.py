"""Turns of a topology on Spark: claims of bins, so that the updates of a bin are sent for one result of its tasks only.

The driver opens a turn before its job. A task claims a bin by compare-and-set before it sends the bin's updates. Before the
driver emits the messages of a broken turn again, it closes the turn, so that a task that wakes up late sends nothing.
"""

from enum import IntEnum

from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.model import keys
from acker_redis.model.config import AckerConfig


class Claim(IntEnum):
    """Answer to a claim of a bin.

    Attributes:
        CLAIMED: send the updates, then call `Turn.sent`.
        SENT: all of them were sent before.
        OTHER: another execution claimed the bin with other updates.
        CLOSED: the turn is closed or forgotten.
    """

    CLAIMED = 0
    SENT = 1
    OTHER = 2
    CLOSED = 3


class Turn:
    """Turn of a run.

    Guarantee: updates are sent for at most one digest per bin, and none after `close` returned True.

    Attributes:
        keep_ms: time after its last use until a turn is forgotten, in milliseconds: two dedup windows.
    """

    def __init__(self, client: Client, config: AckerConfig, run_id: str, number: int) -> None:
        """Name a turn, without opening it."""
        self._client = client
        self._key = keys.turn(config.app, run_id, number)
        self.keep_ms = 2 * (config.num_buckets + 1) * config.tick_ms

    def open(self) -> None:
        """Open the turn. Its number must be new."""
        self._client.pipeline([("HSET", self._key, "state", "open"), ("PEXPIRE", self._key, self.keep_ms)])

    def keep(self) -> None:
        """Keep the turn for two more dedup windows, because its job goes on."""
        self._client.pipeline([("PEXPIRE", self._key, self.keep_ms)])

    def claim(self, number: int, digest: bytes) -> Claim:
        """Claim a bin for the updates with this digest."""
        call = scripts.load("claim_bin").call({"turn": self._key}, number, digest, self.keep_ms)
        ((status,),) = self._client.run([call])
        return Claim(status)

    def sent(self, number: int, digest: bytes) -> None:
        """Note that all updates of a claimed bin were sent."""
        self._client.pipeline([("HSET", self._key, number, b"s" + digest), ("PEXPIRE", self._key, self.keep_ms)])

    def close(self) -> bool:
        """Close the turn, unless a bin was claimed. Returns True if it is closed."""
        call = scripts.load("close_turn").call({"turn": self._key}, self.keep_ms)
        ((status,),) = self._client.run([call])
        return bool(status == scripts.load("close_turn").codes["CLOSED"])
