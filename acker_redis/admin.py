"""Calls for the person on call: pause, limit and rotate an app, and read how its runs ended."""

from collections.abc import Iterator

from acker_redis.ledger.app import App
from acker_redis.model.arrays import Int64Array
from acker_redis.model.types import Rotated
from acker_redis.store import limits, pause
from acker_redis.store.limits import Limits
from acker_redis.store.pause import Paused
from acker_redis.store.run_ends import End


class Admin:
    """Calls for the person on call and their tools, available as `Acker.admin`."""

    def __init__(self, app: App) -> None:
        """Wrap an opened app."""
        self._app = app

    def pause(self, *, reason: str = "") -> Paused:
        """Pause the app: within about a second its spouts stop emitting, until `resume`.

        Roots in flight complete, fail or time out, and spouts still process their outcomes. Messages due for another
        attempt wait. The app stays paused over restarts of its programs. If it was paused already, the first reason stays.

        Raises:
            BadConfigError: the reason has more than 200 characters.

        >>> acker.admin.pause(reason="the store is being moved").reason
        'the store is being moved'
        """
        return pause.pause(self._app.client, self._app.config.app, reason)

    def resume(self) -> bool:
        """Resume the app, so that its spouts emit again. Returns True if it was paused.

        >>> acker.admin.pause().reason
        ''
        >>> acker.admin.resume(), acker.admin.resume()
        (True, False)
        """
        return pause.resume(self._app.client, self._app.config.app)

    def paused(self) -> Paused | None:
        """Read since when and why the app is paused. Returns None if it is not.

        >>> acker.admin.paused()
        """
        return pause.paused(self._app.client, self._app.config.app)

    def limits(self) -> Limits:
        """Read the limits of the app. See `Limits`.

        >>> acker.admin.limits().max_pending is None
        True
        """
        return limits.read(self._app.client, self._app.config.app)

    def set_limits(self, allowed: Limits) -> None:
        """Replace all limits of the app. Spouts apply them within a second.

        A spout at `max_pending` emits nothing until roots settle. Redis refuses new roots above it (PendingLimitError). With
        one shard the limit is exact. With several, each shard allows some more, because a hash spreads roots unevenly.
        Roots that are pending already stay.

        >>> acker.admin.set_limits(Limits(max_pending=100_000))
        >>> acker.admin.limits().max_pending
        100000
        """
        limits.write(self._app.client, self._app.config, allowed)

    def rotate(self, force: bool = False) -> Rotated:
        """Run one guarded tick, a bounded drain of death row, and a bounded sweep (Storm: RotatingMap.rotate).

        Call this about every tick, as `acker-redis rotator` does. A root then expires between T and
        T * num_buckets / (num_buckets - 1) after it entered the nursery. The call is safe from anywhere, at any time. It
        drains up to a million roots per shard. `Rotated.draining` counts the shards with roots left for the next call.

        Args:
            force: True to turn the buckets now, regardless of the server's clock. Meant for tests and people on call.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> [acker.admin.rotate(force=True).timed_out for _ in range(3)]
        [0, 0, 1]
        """
        return self._app.rotation.rotate(force=force)

    def last_run_ends(self) -> dict[int, End]:
        """Read how the last run of each lane ended.

        >>> acker.admin.last_run_ends()
        {}
        """
        return self._app.last_run_ends()

    def each_pending(self) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Iterate over all pending roots in steps.

        Each step yields a number of blocks, their pending roots and spout_ids. Guarantee: a root that is pending during the
        whole iteration is yielded at least once. Not guaranteed: roots that are initialised
        or settle meanwhile.

        >>> acker.init_many([1, 2], [5, 6], spout_id=3).applied
        2
        >>> steps = list(acker.admin.each_pending())
        >>> sorted((int(root), int(spout_id)) for _, roots, spout_ids in steps for root, spout_id in zip(roots, spout_ids))
        [(1, 3), (2, 3)]
        """
        return self._app.inspection.each_pending()
