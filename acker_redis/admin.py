"""Calls for the person on call: pause, limit and rotate an app, and see how its runs ended."""

from collections.abc import Iterator

from acker_redis.ledger.app import App
from acker_redis.model.arrays import Int64Array
from acker_redis.model.types import Rotated
from acker_redis.store import limits, pause
from acker_redis.store.limits import Limits
from acker_redis.store.pause import Paused
from acker_redis.store.run_ends import End


class Admin:
    """Acts on an app for the person on call and their tools: `Acker.admin`."""

    def __init__(self, app: App) -> None:
        """Work on an opened app."""
        self._app = app

    def pause(self, *, reason: str = "") -> Paused:
        """Have all spouts of the app emit nothing, from within about a second, until `resume`.

        Roots in flight go on or time out, and their outcomes are taken; messages due for another attempt wait. A paused app
        stays so over restarts of its programs. If it was paused already, the first reason stays.

        Raises:
            BadConfigError: the reason has more than 200 characters.

        >>> acker.admin.pause(reason="the store is being moved").reason
        'the store is being moved'
        """
        return pause.pause(self._app.client, self._app.config.app, reason)

    def resume(self) -> bool:
        """Let the app's spouts emit again. Returns whether it was paused.

        >>> acker.admin.pause().reason
        ''
        >>> acker.admin.resume(), acker.admin.resume()
        (True, False)
        """
        return pause.resume(self._app.client, self._app.config.app)

    def paused(self) -> Paused | None:
        """Read since when and why the app is paused; None: it is not.

        >>> acker.admin.paused()
        """
        return pause.paused(self._app.client, self._app.config.app)

    def limits(self) -> Limits:
        """Read the limits of the app; see `Limits`.

        >>> acker.admin.limits().max_pending is None
        True
        """
        return limits.read(self._app.client, self._app.config.app)

    def set_limits(self, allowed: Limits) -> None:
        """Set all limits of the app, in place of those in force. Spouts keep to them within a second.

        A spout at `max_pending` emits nothing until roots settle. Beyond it Redis refuses new roots (PendingLimitError): of
        one shard at once, of several with room for the chance by which roots are spread. Roots that are pending already stay.

        >>> acker.admin.set_limits(Limits(max_pending=100_000))
        >>> acker.admin.limits().max_pending
        100000
        """
        limits.write(self._app.client, self._app.config, allowed)

    def rotate(self, force: bool = False) -> Rotated:
        """Do one guarded tick, bounded draining of death row, and a bounded sweep (Storm: RotatingMap.rotate).

        Between T and T * num_buckets / (num_buckets - 1) after it entered the nursery a root expires, given that
        something calls this about every tick: `acker-redis rotator` does. Safe to call from anywhere, at any time. Drains up
        to a million roots per shard; `Rotated.draining` says whether something is left for the next call.

        Args:
            force: turn the buckets now, whatever the server's clock says; for tests and people on call.

        >>> acker.init(1, 5, spout_id=0)
        True
        >>> [acker.admin.rotate(force=True).timed_out for _ in range(3)]
        [0, 0, 1]
        """
        return self._app.rotation.rotate(force=force)

    def ends(self) -> dict[int, End]:
        """Read how the last run of each lane ended.

        >>> acker.admin.ends()
        {}
        """
        return self._app.ends()

    def each_pending(self) -> Iterator[tuple[int, Int64Array, Int64Array]]:
        """Go through all ledgers in steps: each yields the number of blocks it looked at, their pending roots and spout ids.

        Guarantee: a root that is pending all the while comes at least once. Not guaranteed: roots that begin or settle
        meanwhile.

        >>> acker.init_many([1, 2], [5, 6], spout_id=3).applied
        2
        >>> steps = list(acker.admin.each_pending())
        >>> sorted((int(root), int(spout_id)) for _, roots, spout_ids in steps for root, spout_id in zip(roots, spout_ids))
        [(1, 3), (2, 3)]
        """
        return self._app.inspection.each_pending()
