"""Leases on lanes, one spout each: the run that takes a lane's outcomes holds it, until its process dies."""

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence

from acker_redis.client.client import Client
from acker_redis.client.replies import as_dict
from acker_redis.errors import AckerError, BadConfigError, ClosedError
from acker_redis.model import keys

log = logging.getLogger("acker_redis.spout")

LEASE_SECS = 5.0
"""A lease expires so long after it was last renewed, by the server's clock."""

RENEW_SECS = 1.0
"""A lease is renewed so often."""

_PAUSE_SECS = 0.2


class Lease:
    """The right of one run to take the outcomes of a lane.

    Guarantee: of two runs on one lane that both are alive, one is refused, or ends. Not guaranteed: that an older process
    has no work under way; a process that was suspended learns of the loss when it goes on.

    Attributes:
        renew_secs: it is renewed so often.
    """

    def __init__(self, client: Client, app: str, lane: int, run_id: str) -> None:
        self.renew_secs = RENEW_SECS
        self._client, self._app, self._lane = client, app, lane
        self._key = keys.lane(app, lane)
        self._holder = f"{run_id} {socket.gethostname()}:{os.getpid()}".encode()
        self._released = threading.Event()
        self._lost_to: bytes | None = None
        self._thread: threading.Thread | None = None

    def holds(self) -> bool:
        """Whether this run has the lane, by the server; it may have lost it while its process was suspended."""
        if self._thread is None or self._lost_to is not None:
            return False
        (holder,) = self._client.pipeline([("GET", self._key)])
        return bool(holder == self._holder)

    def acquire_if_free(self) -> bool:
        """Take the lane if this run has it or it is free; returns whether this run has it now."""
        if self._thread is None and self._lost_to is None and self._try_to_hold() == self._holder:
            self.acquire()
        return self.holds()

    def acquire(self) -> None:
        """Take the lane, if this run does not hold it; waits until the lease of a process that died has run out.

        Raises:
            BadConfigError: another living run holds it.
            AckerError: another run took it over, as this process was suspended for too long.
        """
        if self._lost_to is not None:
            raise AckerError(
                f"lane {self._lane} of app {self._app!r} was taken over by another run ({_text(self._lost_to)}), as this one "
                "did not renew its lease for too long: it ends here, and the other goes on"
            )
        if self._thread is not None:
            return
        deadline = time.monotonic() + LEASE_SECS + RENEW_SECS
        waits = False
        while (holder := self._try_to_hold()) != self._holder:
            if not waits:
                log.info("lane %d of app %r was another run's, which may be over", self._lane, self._app)
            if time.monotonic() > deadline:
                raise BadConfigError(
                    f"lane {self._lane} of app {self._app!r} is in use by another run (run id and process: "
                    f"{_text(holder)}), and both would take each other's outcomes: end that run, or give "
                    "each a spout_id of its own and the app more lanes than its highest spout_id, or each program an app"
                )
            waits = True
            time.sleep(_PAUSE_SECS)
        self._client.pipeline([("HSET", keys.runs(self._app), self._lane, self._holder)])
        self._released.clear()
        self._thread = threading.Thread(target=self._renew, name="acker-lane", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Release the lane for others."""
        if self._thread is None:
            return
        self._released.set()
        self._thread.join()
        self._thread = None
        (holder,) = self._client.pipeline([("GET", self._key)])
        if holder == self._holder:
            self._client.pipeline([("DEL", self._key)])

    def _renew(self) -> None:
        """Renew the lease, in a thread, as a run may be busy with a job of Spark's for long."""
        while not self._released.wait(self.renew_secs):
            try:
                holder = self._try_to_hold()
                if holder != self._holder:
                    self._lost_to = holder
                    return
                self._client.pipeline([("SET", self._key, self._holder, "XX", "PX", round(LEASE_SECS * 1000))])
            except ClosedError:
                return
            except AckerError as exc:
                log.debug("a lease could not be renewed: %s", exc)

    def _try_to_hold(self) -> bytes:
        """Take the lane if it is free; returns its holder."""
        ttl_ms = round(LEASE_SECS * 1000)
        _, holder = self._client.pipeline([("SET", self._key, self._holder, "NX", "PX", ttl_ms), ("GET", self._key)])
        return self._try_to_hold() if holder is None else bytes(holder)


def last_runs(client: Client, app: str) -> dict[int, str]:
    """Read which run has each lane, or had it last: lane -> run id."""
    (reply,) = client.pipeline([("HGETALL", keys.runs(app))])
    runs = {lane.decode(errors="replace"): _text(holder).rpartition(" ")[0] for lane, holder in as_dict(reply).items()}
    return {int(lane): run_id for lane, run_id in sorted(runs.items()) if lane.isdecimal()}


def holders(client: Client, app: str, lanes: Sequence[int]) -> dict[int, str]:
    """Read which run and process hold each lane now; free lanes are left out."""
    replies = client.pipeline([("GET", keys.lane(app, lane)) for lane in lanes])
    return {lane: _text(holder) for lane, holder in zip(lanes, replies, strict=True) if holder is not None}


def _text(holder: bytes) -> str:
    return holder.decode(errors="replace")
