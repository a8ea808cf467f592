"""Rotation: the tick that turns the buckets, the bounded draining of death row (Storm: RotatingMap.rotate), the sweep."""

from collections import Counter
from collections.abc import Sequence

from acker_redis.client import scripts
from acker_redis.errors import AckerError
from acker_redis.ledger.shards import Shards
from acker_redis.model.types import Rotated

ROOTS_PER_EXPIRE = 250
"""Roots of one expire call: each that timed out is one entry of the fail stream."""

MAX_EXPIRE_ROUNDS = 4000
"""Expire calls per shard in one `rotate`: 1 million roots; the next `rotate` goes on."""

BLOCKS_PER_SWEEP = 250
"""Blocks that one sweep call looks at, roughly: what one step of HSCAN returns."""

TICKS_PER_PASS = 4
"""The sweeps of so many ticks go through a whole ledger; decision 012 in docs/internals/decisions has the reasons."""

MAX_SWEPT_PER_TICK = 8_000
"""Blocks of one shard looked at after a tick at most: about 12 ms of the server. Above 32 000 a pass takes more ticks."""


class Rotation:
    """Turns the buckets of one app's shards. Any number of these may run in any number of processes."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def rotate(self, *, force: bool = False, drain_calls: int | None = None) -> Rotated:
        """Rotate all shards, as `try_rotate`.

        Raises:
            AckerError: as the server answered for some shard, after the others were done. Nothing is lost: what is on death
                row stays there for the next call.
        """
        done, failed = self.try_rotate(force=force, drain_calls=drain_calls)
        if failed:
            raise failed[0]
        return done

    def try_rotate(
        self, *, force: bool = False, drain_calls: int | None = None, shards: Sequence[int] | None = None
    ) -> tuple[Rotated, list[AckerError]]:
        """Let each shard tick if a tick is due, and drain its death row before and after.

        A root put into the nursery expires on the num_buckets-th tick after. A tick waits until death row is empty. A shard
        that ticked is swept: a part of its ledger is looked through for blocks that no bucket holds any more (it was
        evicted), and those expire too.

        Args:
            force: turn the buckets now, whatever the server's clock says (for tests and people on call).
            drain_calls: expire calls per shard at most; None: MAX_EXPIRE_ROUNDS. What is left is for the next call.
            shards: only these; None: all.

        Returns:
            What was done, and what the server answered for shards that it could not be done for.
        """
        script = scripts.load("rotate")
        ticked_code, draining_code = script.codes["TICKED"], script.codes["DRAINING"]
        todo = list(range(len(self._shards.keys)) if shards is None else shards)
        ticked, timed_out, orphaned, due_in_ms = list[int](), 0, 0, 0
        draining: set[int] = set()
        failed: list[AckerError] = []
        for _ in range(2):  # a shard whose death row was not empty is drained first, then ticks
            replies = self._run("rotate", todo, int(force), failed)
            due = [due_ms for _, due_ms, _ in replies.values() if due_ms > 0]
            due_in_ms = min([due_in_ms, *due]) if due_in_ms else min(due, default=0)
            ticked += [shard for shard, (status, _, _) in replies.items() if status == ticked_code]
            dead = [shard for shard, (_, _, cohorts) in replies.items() if cohorts > 0]
            expired, lost_owner, left = self._drain(dead, drain_calls or MAX_EXPIRE_ROUNDS, failed)
            draining |= left
            timed_out, orphaned = timed_out + expired, orphaned + lost_owner
            todo = [
                shard for shard, (status, _, _) in replies.items() if status == draining_code and shard not in draining
            ]
            if not todo:
                break
        stale, without_owner = self._sweep(ticked, failed)
        return Rotated(len(ticked), timed_out + stale, orphaned + without_owner, len(draining), due_in_ms), failed

    def _drain(self, dead: list[int], rounds: int, failed: list[AckerError]) -> tuple[int, int, set[int]]:
        timed_out = orphaned = 0
        left = list(dead)
        for _ in range(rounds):
            if not left:
                break
            replies = self._run("expire", left, ROOTS_PER_EXPIRE, failed)
            timed_out += sum(reply[0] for reply in replies.values())
            orphaned += sum(reply[1] for reply in replies.values())
            left = [shard for shard, reply in replies.items() if reply[2] > 0]
        return timed_out, orphaned, set(left)

    def _sweep(self, left: list[int], failed: list[AckerError]) -> tuple[int, int]:
        more = scripts.load("sweep").codes["MORE"]
        timed_out = orphaned = 0
        looked_at, share = Counter[int](), dict[int, float]()
        while left:
            replies = self._run("sweep", left, BLOCKS_PER_SWEEP, failed)
            left = []
            for shard, (status, stale, without_owner, seen, blocks) in replies.items():
                timed_out, orphaned = timed_out + stale, orphaned + without_owner
                idle = not (stale or without_owner)  # a step through an emptied table costs, too
                looked_at[shard] += max(seen, BLOCKS_PER_SWEEP // 2 if idle else 1)
                share.setdefault(shard, min(max(blocks / TICKS_PER_PASS, BLOCKS_PER_SWEEP), MAX_SWEPT_PER_TICK))
                if status == more and looked_at[shard] < share[shard]:
                    left.append(shard)
        return timed_out, orphaned

    def _run(self, script: str, todo: list[int], argument: int, failed: list[AckerError]) -> dict[int, list[int]]:
        """Run a script on some shards; replies by shard. A shard that fails, as of a lost node, doesn't stop the others."""
        replies = self._shards.client.run_each([self._shards.call(script, shard, argument) for shard in todo])
        failed += [reply for reply in replies if isinstance(reply, AckerError)]
        return {shard: reply for shard, reply in zip(todo, replies, strict=True) if not isinstance(reply, AckerError)}
