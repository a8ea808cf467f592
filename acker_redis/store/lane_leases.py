"""Leases on lanes. A run holds the lane whose outcomes it polls, until its process ends."""

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence

from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.client.replies import as_dict
from acker_redis.errors import AckerError, BadConfigError, ClosedError
from acker_redis.model import keys

log = logging.getLogger("acker_redis.spout")

LEASE_SECS = 5.0
"""Time until a lease expires after its last renewal, by the server's clock."""

RENEW_SECS = 1.0
"""Time between two renewals of a lease."""

_PAUSE_SECS = 0.2

_OF_HELD_LANE = "_acker_of_held_lane"
"""Attribute of the error of a lane that another run holds."""


class Lease:
    """Right of one run to poll the outcomes of a lane.

    Guarantee: if two living runs use one lane, one of them is refused or ends. Not guaranteed: that an older process has
    no work under way. A suspended process notices the loss when it resumes.

    Attributes:
        renew_secs: time between two renewals, in seconds.
    """

    def __init__(self, client: Client, app: str, lane: int, run_id: str) -> None:
        self.renew_secs = RENEW_SECS
        self._client, self._app, self._lane = client, app, lane
        self._key = keys.lane(app, lane)
        self._named = {"runs": keys.runs(app), "lease": self._key}
        self._holder = f"{run_id} {socket.gethostname()}:{os.getpid()}".encode()
        self._released = threading.Event()
        self._lost_to: bytes | None = None
        self._thread: threading.Thread | None = None

    def holds(self) -> bool:
        """Return True if this run holds the lane. Asks the server, because a suspended process may have lost it."""
        if self._thread is None or self._lost_to is not None:
            return False
        (holder,) = self._client.pipeline([("GET", self._key)])
        return bool(holder == self._holder)

    def acquire_if_free(self) -> bool:
        """Acquire the lane if it is free. Returns True if this run holds it now."""
        if self._thread is None and self._lost_to is None and self._try_to_hold() == self._holder:
            self.acquire()
        return self.holds()

    def acquire(self) -> None:
        """Acquire the lane, unless this run holds it. Waits until the lease of a dead process has expired.

        Raises:
            BadConfigError: another living run holds the lane.
            AckerError: another run took the lane over, because this process was suspended for too long.
        """
        if self._lost_to is not None:
            raise AckerError(
                f"Lane {self._lane} of app {self._app!r} was taken over by another run ({_text(self._lost_to)}), because this "
                "run did not renew its lease for too long. This run ends, and the other one continues."
            )
        if self._thread is not None:
            return
        deadline = time.monotonic() + LEASE_SECS + RENEW_SECS
        waits = False
        while True:
            asked = time.monotonic()  # a reply that reaches a stalled process late says nothing of the time since
            if (holder := self._try_to_hold()) == self._holder:
                break
            if not waits:
                log.info(
                    "waiting for a lane that another run holds app=%r lane=%d holder=%r",
                    self._app,
                    self._lane,
                    _text(holder),
                )
            if asked > deadline:
                error = BadConfigError(
                    f"Lane {self._lane} of app {self._app!r} is in use by another run (run id and process: "
                    f"{_text(holder)}). Two runs on one lane would consume each other's outcomes. Stop the other run, or "
                    "use another app. Or give each run its own spout_id, and the app more lanes than its highest spout_id."
                )
                vars(error)[_OF_HELD_LANE] = True
                raise error
            waits = True
            time.sleep(_PAUSE_SECS)
        self._released.clear()
        self._thread = threading.Thread(target=self._renew, name="acker-lane", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Release the lane for other runs."""
        if self._thread is None:
            return
        self._released.set()
        if self._thread.is_alive():  # it isn't if a signal interrupted its start
            self._thread.join()
        self._thread = None
        (holder,) = self._client.pipeline([("GET", self._key)])
        if holder == self._holder:
            self._client.pipeline([("DEL", self._key)])

    def abandon(self) -> None:
        """End without a word to the server, because it is away. The lease expires by itself."""
        self._released.set()
        self._thread = None

    def _renew(self) -> None:
        """Renew the lease in a thread, because a run may be busy with a long Spark job."""
        while not self._released.wait(self.renew_secs):
            try:
                holder = self._try_to_hold()
                if holder != self._holder:
                    self._lost_to = holder
                    return
            except ClosedError:
                return
            except AckerError as exc:
                log.debug("lease not renewed app=%r lane=%d error=%s", self._app, self._lane, exc)

    def _try_to_hold(self) -> bytes:
        """Acquire the lane if it is free, or renew its lease. Returns its holder."""
        call = scripts.load("hold_lane").call(self._named, self._lane, self._holder, round(LEASE_SECS * 1000))
        ((holder,),) = self._client.run([call])
        return bytes(holder)


def is_of_held_lane(error: BadConfigError) -> bool:
    """Return True if a run couldn't begin because another one holds its lane. Frames of this library add nothing to that."""
    return _OF_HELD_LANE in vars(error)


def hold_free_lane(client: Client, app: str, lanes: int, run_id: str, *, last_first: bool = False) -> tuple[int, Lease]:
    """Acquire the first free lane of an app. Waits until the leases of dead processes have expired.

    Another lease of the same run may take the lane over. Then call `Lease.abandon` on this one.

    Args:
        client: client of the server.
        app: name of the app.
        lanes: number of its lanes.
        run_id: id of the run.
        last_first: whether to begin with the last lane. The first ones stay free for runs that name theirs.

    Raises:
        BadConfigError: living runs hold all lanes.
    """
    deadline = time.monotonic() + LEASE_SECS + RENEW_SECS
    while True:
        asked = time.monotonic()
        for lane in sorted(range(lanes), reverse=last_first):
            lease = Lease(client, app, lane, run_id)
            if lease.acquire_if_free():
                return lane, lease
        if asked > deadline:
            raise BadConfigError(
                f"All {lanes} lanes of app {app!r} are in use by other runs. A run without a lane gets no outcomes. Stop one "
                "of them, or give the app as many lanes as there are drivers."
            )
        time.sleep(_PAUSE_SECS)


def last_runs(client: Client, app: str) -> dict[int, str]:
    """Read the current or last run of each lane: lane -> run id."""
    (reply,) = client.pipeline([("HGETALL", keys.runs(app))])
    runs = {lane.decode(errors="replace"): _text(holder).rpartition(" ")[0] for lane, holder in as_dict(reply).items()}
    return {int(lane): run_id for lane, run_id in sorted(runs.items()) if lane.isdecimal()}


def holders(client: Client, app: str, lanes: Sequence[int]) -> dict[int, str]:
    """Read the run and process that hold each lane now, without free lanes."""
    replies = client.pipeline([("GET", keys.lane(app, lane)) for lane in lanes])
    return {lane: _text(holder) for lane, holder in zip(lanes, replies, strict=True) if holder is not None}


def _text(holder: bytes) -> str:
    return holder.decode(errors="replace")
