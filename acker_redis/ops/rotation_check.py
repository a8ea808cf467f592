"""Whether apps are rotated in time: what `acker-redis rotator --check` asks. Reads only, and creates nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.errors import (
    AppNotFoundError,
    DamagedDataError,
    LedgerLostError,
    SettingsConflictError,
)
from acker_redis.ledger.inspection import Inspection
from acker_redis.ledger.shards import Shards
from acker_redis.store.apps import apps, stored_config

SERVER = "server"
"""What a finding is of that is no app's; never the only one that is healthy."""

OF_THE_APP = (AppNotFoundError, DamagedDataError, LedgerLostError, SettingsConflictError)
"""Errors that say something of one app. Any other says that the server can't be asked."""


@dataclass(frozen=True)
class Health:
    """How one app is doing; or, where `app` is SERVER, why the server can't tell."""

    app: str
    healthy: bool
    text: str


def check(url: str, names: Sequence[str] = ()) -> list[Health]:
    """Whether every app is rotated in time; one that isn't there, lost a shard or is damaged is unhealthy.

    Args:
        url: server; a replica can be asked, too. One without apps, or whose link to its primary is down, is unhealthy.
        names: apps to look at; empty: every app found on the server.

    Raises:
        AckerError: the server can't be asked.
    """
    client = Client(
        url, outage_timeout_secs=0
    )  # whoever asks has a limit of their own: a silent server is given up after 1.5 s
    try:
        found = [_health(client, app) for app in (names or apps(client))]
        return [*_replicas(client, empty=not found), *found]
    finally:
        client.close()


def _replicas(client: Client, *, empty: bool) -> list[Health]:
    found = []
    for info in client.ask(server_info.infos, "replication"):
        if info.get("role", "master") == "master":
            continue
        link = info.get("master_link_status", "unknown")
        what = (
            f"{client.address} is a replica (role {info['role']}) of {info.get('master_host')}:{info.get('master_port')}, "
            f"master_link_status {link}"
        )
        if link != "up":
            found.append(
                Health(SERVER, False, f"{what}: what it holds may be old; ask the primary, and look at the link")
            )
        elif empty:
            found.append(Health(SERVER, False, f"{what}, and holds no apps: ask the primary"))
    return found


def _health(client: Client, app: str) -> Health:
    try:
        stats = Inspection(Shards(client, stored_config(client, app), create=False)).stats(oldest=False)
    except OF_THE_APP as exc:
        return Health(app, False, str(exc))
    healthy = not stats.rotation_is_late
    text = (
        f"last tick {stats.last_rotation_ms / 1000:.1f} s ago (tick every {stats.tick_ms / 1000:.1f} s), "
        f"{stats.pending} pending, {stats.unconfirmed_outcomes} outcome entries waiting"
    )
    return Health(app, healthy, text if healthy else f"NOT ROTATING: {text}; start a rotator for this app")
