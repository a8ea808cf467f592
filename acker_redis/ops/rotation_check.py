"""Health check of `acker-redis rotator --check`: are apps rotated in time? It only reads."""

from collections.abc import Sequence
from dataclasses import dataclass

from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.errors import (
    AppNotFoundError,
    DamagedDataError,
    FormatVersionError,
    LedgerLostError,
    SettingsConflictError,
)
from acker_redis.ledger.inspection import Inspection
from acker_redis.ledger.shards import Shards
from acker_redis.store.apps import apps, stored_config

SERVER = "server"
"""Name in place of an app's, for findings about the server. They are always unhealthy."""

OF_THE_APP = (AppNotFoundError, DamagedDataError, FormatVersionError, LedgerLostError, SettingsConflictError)
"""Errors of a single app. Any other error means that the server can't be asked."""


@dataclass(frozen=True)
class Health:
    """Health of an app. If `app` is SERVER, the reason why the server doesn't know it."""

    app: str
    healthy: bool
    text: str


def check(url: str, names: Sequence[str] = ()) -> list[Health]:
    """Check that every app is rotated in time. Apps that don't exist, lost a shard or are damaged are unhealthy.

    Args:
        url: URL of the server or of a replica. A replica is unhealthy if it has no apps, or if the link to its primary is
            down.
        names: names of the apps to check. Empty means every app on the server.

    Raises:
        AckerError: if the server can't be asked.
    """
    client = Client(url, outage_timeout_secs=0)  # health checks have their own timeouts: a silent server gets 1.5 s
    try:
        of_apps = [_health(client, app) for app in (names or apps(client))]
        return [*_replicas(client, empty=not of_apps), *of_apps]
    finally:
        client.close()


def _replicas(client: Client, *, empty: bool) -> list[Health]:
    unhealthy = []
    for info in client.ask(server_info.infos, "replication"):
        if info.get("role", "master") == "master":
            continue
        link = info.get("master_link_status", "unknown")
        replica = (
            f"{client.address} is a replica (role {info['role']}) of {info.get('master_host')}:{info.get('master_port')}, "
            f"master_link_status {link}."
        )
        if link != "up":
            unhealthy.append(
                Health(SERVER, False, f"{replica} Its data may be stale. Ask the primary, and check the link.")
            )
        elif empty:
            unhealthy.append(Health(SERVER, False, f"{replica} It holds no apps. Ask the primary."))
    return unhealthy


def _health(client: Client, app: str) -> Health:
    try:
        stats = Inspection(Shards(client, stored_config(client, app), create=False)).stats(with_oldest_age=False)
    except OF_THE_APP as exc:
        return Health(app, False, str(exc))
    healthy = not stats.rotation_is_late
    text = (
        f"last tick {stats.last_rotation_ms / 1000:.1f} s ago (tick every {stats.tick_ms / 1000:.1f} s), "
        f"{stats.pending} pending, {stats.unconfirmed_outcomes} outcome entries waiting"
    )
    return Health(app, healthy, text if healthy else f"NOT ROTATING: {text}. Start a rotator for this app.")
