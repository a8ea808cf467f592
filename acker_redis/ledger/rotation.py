"""Rotation: ticks that turn the buckets, the bounded drain of death row (Storm: RotatingMap.rotate), and the sweep."""

from collections import Counter
from collections.abc import Sequence

from acker_redis.client import scripts
from acker_redis.errors import AckerError
from acker_redis.ledger.shards import Shards
from acker_redis.model.types import Rotated

ROOTS_PER_EXPIRE = 250
"""Maximum number of roots per expire call. Each root that timed out is one entry of the fail stream."""

MAX_EXPIRE_ROUNDS = 4000
"""Maximum number of expire calls per shard in one `rotate`: 1 million roots. The next `rotate` continues."""

BLOCKS_PER_SWEEP = 250
"""Approximate number of blocks per sweep call: one step of HSCAN."""

TICKS_PER_PASS = 4
"""Number of ticks in which the sweeps cover a whole ledger. Decision 012 in docs/internals/decisions has the reasons."""

MAX_SWEPT_PER_TICK = 8_000
"""Maximum number of blocks swept per shard and tick: about 12 ms of the server. Above 32 000 a pass takes more ticks."""


class Rotation:
    """Turns the buckets of one app's shards. Safe to run in any number of copies and processes."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def rotate(self, *, force: bool = False, drain_calls: int | None = None) -> Rotated:
        """Rotate all shards, as `try_rotate`.

        Raises:
            AckerError: error of some shard, after all others were rotated. No root is lost: death row keeps its roots for
                the next call.
        """
        done, failed = self.try_rotate(force=force, drain_calls=drain_calls)
        if failed:
            raise failed[0]
        return done

    def try_rotate(
        self, *, force: bool = False, drain_calls: int | None = None, shards: Sequence[int] | None = None
    ) -> tuple[Rotated, list[AckerError]]:
        """Tick each shard that is due, and drain its death row before and after.

        A root in the nursery expires on the num_buckets-th tick after it entered. A tick waits until death row is empty. A
        shard that ticked is swept: part of its ledger is scanned for blocks that no bucket holds any more (because the
        bucket was evicted). Those blocks expire too.

        Args:
            force: True to turn the buckets now, regardless of the server's clock (for tests and people on call).
            drain_calls: maximum number of expire calls per shard; None means MAX_EXPIRE_ROUNDS. The next call drains the
                rest.
            shards: shards to rotate; None for all.

        Returns:
            Result over all shards, and the errors of shards that failed.
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
        """Run a script on some shards and return replies by shard. A failed shard (lost node) doesn't stop the others."""
        replies = self._shards.client.run_each([self._shards.call(script, shard, argument) for shard in todo])
        failed += [reply for reply in replies if isinstance(reply, AckerError)]
        return {shard: reply for shard, reply in zip(todo, replies, strict=True) if not isinstance(reply, AckerError)}
