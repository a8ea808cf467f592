"""Rotation: the tick that turns the buckets, and the bounded draining of death row (Storm: RotatingMap.rotate)."""

from acker_redis import scripts
from acker_redis.errors import AckerError
from acker_redis.ledger import Shards
from acker_redis.model import Rotated

ROOTS_PER_EXPIRE = 250
"""Roots of one expire call: each that timed out is one entry of the fail stream."""

MAX_EXPIRE_ROUNDS = 4000
"""Expire calls per shard in one `rotate`: 1 million roots; the next `rotate` goes on."""


class Rotation:
    """Turns the buckets of one app's shards. Any number of these may run in any number of processes."""

    def __init__(self, shards: Shards) -> None:
        """Work on opened shards."""
        self._shards = shards

    def rotate(self, *, force: bool = False, drain_calls: int | None = None) -> Rotated:
        """One guarded tick of every shard, and draining of what is on death row before and after it.

        A root put into the nursery expires on the num_buckets-th tick after. A tick waits until death row is empty.

        Args:
            force: turn the buckets now, whatever the server's clock says (for tests and operators).
            drain_calls: expire calls per shard at most; None: MAX_EXPIRE_ROUNDS. What is left is for the next call.

        Raises:
            AckerError: as the server answered. Nothing is lost: what is on death row stays there for the next call.
        """
        script = scripts.load("rotate")
        ticked_code, draining_code = script.codes["TICKED"], script.codes["DRAINING"]
        todo = list(range(len(self._shards.keys)))
        ticked, timed_out, orphaned, due_in_ms = 0, 0, 0, 0
        draining: set[int] = set()
        for _ in range(2):  # a shard whose death row was not empty is drained first, then ticks
            replies = self._run([self._shards.call("rotate", shard, int(force)) for shard in todo])
            due = [reply[1] for reply in replies if reply[1] > 0]
            due_in_ms = min([due_in_ms, *due]) if due_in_ms else min(due, default=0)
            ticked += sum(reply[0] == ticked_code for reply in replies)
            dead = [shard for shard, reply in zip(todo, replies, strict=True) if reply[2] > 0]
            expired, lost_owner, left = self._drain(dead, drain_calls or MAX_EXPIRE_ROUNDS)
            draining |= left
            timed_out, orphaned = timed_out + expired, orphaned + lost_owner
            todo = [
                shard
                for shard, reply in zip(todo, replies, strict=True)
                if reply[0] == draining_code and shard not in draining
            ]
            if not todo:
                break
        return Rotated(ticked, timed_out, orphaned, len(draining), due_in_ms)

    def _drain(self, dead: list[int], rounds: int) -> tuple[int, int, set[int]]:
        timed_out = orphaned = 0
        left = list(dead)
        for _ in range(rounds):
            if not left:
                break
            replies = self._run([self._shards.call("expire", shard, ROOTS_PER_EXPIRE) for shard in left])
            timed_out += sum(reply[0] for reply in replies)
            orphaned += sum(reply[1] for reply in replies)
            left = [shard for shard, reply in zip(left, replies, strict=True) if reply[2] > 0]
        return timed_out, orphaned, set(left)

    def _run(self, calls: list[scripts.Call]) -> list[list[int]]:
        replies = self._shards.client.run(calls)
        for reply in replies:
            if isinstance(reply, AckerError):
                raise reply
        return replies
