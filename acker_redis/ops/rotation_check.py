"""The check of `acker-redis rotator --check`: whether apps are rotated in time. Reads only, and creates nothing."""

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
"""Stands for the server, where a finding is no app's; always unhealthy."""

OF_THE_APP = (AppNotFoundError, DamagedDataError, FormatVersionError, LedgerLostError, SettingsConflictError)
"""Errors of a single app. Any other error says that the server can't be asked."""


@dataclass(frozen=True)
class Health:
    """How an app is doing; or, where `app` is SERVER, why the server doesn't know."""

    app: str
    healthy: bool
    text: str


def check(url: str, names: Sequence[str] = ()) -> list[Health]:
    """Check whether every app is rotated in time; an app that isn't there, lost a shard or is damaged is unhealthy.

    Args:
        url: of the server; a replica can be asked, too. A replica without apps, or whose link to its primary is down, is
            unhealthy.
        names: apps to look at; empty: every app on the server.

    Raises:
        AckerError: the server can't be asked.
    """
    client = Client(url, outage_timeout_secs=0)  # health checks have timeouts of their own: a silent server gets 1.5 s
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
            f"master_link_status {link}"
        )
        if link != "up":
            unhealthy.append(
                Health(SERVER, False, f"{replica}: its data may be old; ask the primary, and look at the link")
            )
        elif empty:
            unhealthy.append(Health(SERVER, False, f"{replica}, and holds no apps: ask the primary"))
    return unhealthy


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
