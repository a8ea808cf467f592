"""Checks of a server and its apps for present and future problems, with advice. They only read."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.errors import AckerError, ServerUnavailableError
from acker_redis.ledger.inspection import Inspection
from acker_redis.ledger.shards import Shards
from acker_redis.model import keys
from acker_redis.ops.dashboard import OK, RUN_FAILED, app_states
from acker_redis.ops.permissions import rights
from acker_redis.ops.rotation_check import OF_THE_APP
from acker_redis.store import limits, run_ends, topology_sizes
from acker_redis.store.apps import find_apps, stored_config
from acker_redis.store.run_ends import End

Grade = Literal["ok", "warning", "bad", "unknown"]

_HEAD_ROOM, _FULL = 0.75, 0.90
"""Shares of maxmemory in use that are graded as a warning and as bad."""

_NEAR_LIMIT = 0.75
"""Share of a limit that is graded as a warning."""

_CLOCK_SECS = 2.0
"""Largest difference between clocks of servers and this machine. More misleads people, but affects no ledger."""

_TO_ASK = "+acl|whoami +acl|getuser +acl|dryrun"


@dataclass(frozen=True)
class Finding:
    """Result of a check.

    Attributes:
        subject: `server`, or the name of an app.
        about: topic of the check, such as `persistence`.
        grade: `ok`, `warning` (may do harm later), `bad` (does harm now), or `unknown` (the user lacks a permission).
        text: result, for people.
        advice: what to do. Empty if nothing.
    """

    subject: str
    about: str
    grade: Grade
    text: str
    advice: str = ""


def examine(client: Client, app: str | None = None) -> list[Finding]:
    """Run all checks that the user may run: of the server, and of all apps or one.

    Raises:
        AppNotFoundError: there is no such app.
        AckerError: if a server does not answer.
    """
    if app is not None:
        stored_config(client, app)
    infos = client.ask(server_info.infos)
    findings = [finding for info in infos for finding in _server(info, several=len(infos) > 1)]
    findings += _clocks(client)
    found, strays = find_apps(client)
    names = found if app is None else [app]
    if strays:
        findings.append(
            Finding(
                "server", "keys", "warning",
                f"{len(strays)} keys look like an app's settings but aren't, such as {strays[0]!r}.",
                "Find the program that writes them, and delete them.",
            )
        )  # fmt: skip
    findings += _user(client, names)
    findings += _states(client, app)
    for name in names:
        findings += _settings(client, name)
    return findings


def _server(info: dict[str, Any], *, several: bool) -> Iterator[Finding]:
    if not info:
        yield Finding(
            "server", "INFO", "unknown", "The user may not run INFO.", "Allow +info, for doctor and for every client."
        )
        return
    subject = f"server :{info.get('tcp_port', '?')}" if several else "server"
    version = info.get("valkey_version") or info.get("redis_version", "?")
    kind = "Valkey" if "valkey_version" in info else "Redis"
    yield Finding(subject, "version", "ok", f"{kind} {version}")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    yield (
        Finding(subject, "eviction", "ok", policy)
        if policy == "noeviction"
        else Finding(
            subject,
            "eviction",
            "bad",
            policy,
            "Run CONFIG SET maxmemory-policy noeviction. Otherwise the server deletes ledgers, and state of topologies, under "
            "memory pressure.",
        )
    )
    yield _memory(subject, int(info.get("used_memory", 0)), int(info.get("maxmemory", 0)))
    yield from _persistence(subject, info)
    yield _replicas(subject, info)


def _memory(subject: str, used: int, most: int) -> Finding:
    if not most:
        return Finding(
            subject, "memory", "warning", f"{used / 2**20:.0f} MiB used, maxmemory is not set.",
            "Run CONFIG SET maxmemory. A full server then refuses new roots. Without a limit the system kills the server when "
            "memory runs out.",
        )  # fmt: skip
    share = used / most
    text = f"{used / 2**20:.0f} of {most / 2**20:.0f} MiB used ({share:.0%})"
    if share < _HEAD_ROOM:
        return Finding(subject, "memory", "ok", text)
    advice = "Run CONFIG SET maxmemory to raise it, or find out what grows (acker-redis status: PEND, LAG, MEM)."
    return Finding(subject, "memory", "warning" if share < _FULL else "bad", text, advice)


def _persistence(subject: str, info: dict[str, Any]) -> Iterator[Finding]:
    saves = int(info.get("rdb_saves", 0)) > 0  # rdb_last_save_time is the server's start until there is one
    if not int(info.get("aof_enabled", 0)):
        yield Finding(
            subject, "persistence", "warning", "The AOF is off." + (" Only snapshots are written." if saves else ""),
            "Run CONFIG SET appendonly yes. Otherwise a restart loses the ledgers, and everything in flight is replayed.",
        )  # fmt: skip
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            subject, "persistence", "bad", "The last write of the AOF failed.", "Check the disk. It may be full."
        )
    else:
        yield Finding(subject, "persistence", "ok", "AOF")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield Finding(
            subject, "snapshots", "bad", "The last snapshot failed.",
            "Check the server's log. With stop-writes-on-bgsave-error it refuses all writes until a snapshot succeeds.",
        )  # fmt: skip


def _replicas(subject: str, info: dict[str, Any]) -> Finding:
    if info.get("role", "master") != "master":
        up = info.get("master_link_status") == "up"
        text = (
            f"a replica of {info.get('master_host')}:{info.get('master_port')}, link {info.get('master_link_status')}"
        )
        advice = "" if up else "Run doctor on the primary, and check the link."
        return Finding(subject, "role", "ok" if up else "bad", text, advice)
    count = int(info.get("connected_slaves", 0))
    if count:
        return Finding(subject, "replicas", "ok", f"{count} connected")
    return Finding(
        subject, "replicas", "warning", "No replica is connected, so no failover is possible.",
        "Add two replicas and set min-replicas-to-write 1. A failover then loses next to nothing.",
    )  # fmt: skip


def _clocks(client: Client) -> Iterator[Finding]:
    before = time.time()
    nodes = client.ask(server_info.node_clocks_ms)
    here = (before + time.time()) / 2
    apart = max(abs(now_ms / 1000 - here) for now_ms in nodes)
    between = (max(nodes) - min(nodes)) / 1000
    text = f"{apart:.1f} s apart from this machine's" + (f", {between:.1f} s from each other" if len(nodes) > 1 else "")
    fine = apart <= _CLOCK_SECS and between <= _CLOCK_SECS
    yield Finding(
        "server", "clock", "ok" if fine else "warning", text, "" if fine else "Synchronize all clocks with NTP."
    )


def _user(client: Client, apps: Sequence[str]) -> Iterator[Finding]:
    user = rights(client, apps)
    if user.name is None:
        yield Finding(
            "server", "user", "unknown", "The server doesn't report the user's name.", f"Allow {_TO_ASK}, for doctor."
        )
        return
    one_each = "Create one user per app, with only the permissions it needs. `acker-redis acl` prints them."
    if user.has_all:
        yield Finding("server", "user", "warning", f"User {user.name} has full access.", one_each)
        return
    if user.dangerous is None:
        text = f"The server doesn't report the permissions of user {user.name}."
        yield Finding("server", "user", "unknown", text, f"Allow {_TO_ASK}, for doctor. Redis 6.2 can't report them.")
        return
    if user.dangerous:
        text = f"User {user.name} may run {', '.join(user.dangerous)}, which no app needs."
        yield Finding("server", "user", "warning", text, one_each)
    else:
        yield Finding("server", "user", "ok", user.name)
    for app, lacking in user.lacking.items():
        if lacking:
            yield Finding(
                app, "user", "warning", f"User {user.name} may not run {', '.join(lacking)} on the app's keys.",
                f"This is enough for reading. Programs of the app need a user from `acker-redis acl {app}`.",
            )  # fmt: skip
        else:
            yield Finding(app, "user", "ok", f"{user.name} has the permissions that a program of the app needs")


def _states(client: Client, app: str | None) -> Iterator[Finding]:
    try:
        states = app_states(client, app)
    except ServerUnavailableError:
        raise
    except AckerError as exc:
        yield Finding(
            "server", "reports", "unknown", str(exc), "docs/operate/on-call.md describes a user that may read reports."
        )
        return
    for state in states:
        grade: Grade = "ok" if state.state == OK else "warning" if state.healthy else "bad"
        # How the run ended is a finding of its own.
        text = state.state if state.state in (OK, RUN_FAILED) else f"{state.state}: {state.why}"
        advice = "" if state.state == OK else "docs/operate/on-call.md has a row for this state."
        yield Finding(state.app, "state", grade, text, advice)
        for outage in state.outages:
            place = repr(outage.operator) if outage.operator else "something unreachable"
            yield Finding(
                state.app, "outage", "warning",
                f"run {outage.run_id} waits for {place} since {_utc(outage.since_ms)}, with {outage.messages} "
                f"message{'' if outage.messages == 1 else 's'}: {outage.error}",
                "Bring it back. The messages go out again by themselves, and no attempt counts.",
            )  # fmt: skip
        for aside in state.set_aside:
            yield Finding(
                state.app, "set aside", "warning",
                f"run {aside.run_id} has not tried {aside.messages} message{'' if aside.messages == 1 else 's'} since "
                f"{_utc(aside.since_ms)}, because {aside.operator!r} has processed no other: {aside.error}",
                "Fix the operator and restart the stream. If the messages are bad, start it with stop_if_broken=False.",
            )  # fmt: skip
        if state.dead_letters:
            yield Finding(
                state.app, "dead letters", "warning", f"{state.dead_letters}",
                f"Run acker-redis dead-letters --app {state.app}. Then replay or delete them.",
            )  # fmt: skip


def _settings(client: Client, app: str) -> Iterator[Finding]:
    try:
        config = stored_config(client, app)
        shards = Shards(client, config, create=False)
        allowed, pending = limits.read(client, app), Inspection(shards).pending()
        state_bytes = topology_sizes.read_total(client, app)
        last = run_ends.read(client, app)
    except OF_THE_APP as exc:
        advice = "The message says what to do. All programs of an app need the same settings."
        yield Finding(app, "settings", "bad", str(exc), advice)
        return
    holders = client.pipeline([("GET", keys.lane(app, lane)) for lane in range(config.lanes)])
    yield Finding(
        app, "settings", "ok",
        f"{config.shards} shards, {config.num_buckets} buckets, timeout {config.message_timeout_secs:g} s, "
        f"{config.lanes} lanes, {sum(holder is not None for holder in holders)} of them in use",
    )  # fmt: skip
    if allowed.max_pending is not None:
        yield _limit(app, pending, allowed.max_pending)
    if allowed.max_state_bytes is not None:
        yield _state_limit(app, state_bytes, allowed.max_state_bytes)
    for lane, end in last.items():
        if end.state != "begun":
            yield _run(app, lane, end)


def _run(app: str, lane: int, end: End) -> Finding:
    """Report how the last run of a lane ended."""
    text = f"lane {lane}: run {end.run_id} {end.state}, {_utc(end.at_ms)}"
    if end.state == "failed":
        advice = (
            "Fix the error and start the program again. If it is not to run again: "
            f"acker-redis abandon --app {app} --run {end.run_id}"
        )
        return Finding(app, "last run", "bad", f"{text}: {end.error}", advice)
    if end.state == "interrupted":
        return Finding(app, "last run", "warning", text, "Start the program again. It processes the rest.")
    return Finding(app, "last run", "ok", text)


def _utc(at_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms / 1000))


def _limit(app: str, pending: int, allowed: int) -> Finding:
    share = pending / allowed
    text = f"{pending} of {allowed} roots pending ({share:.0%})"
    if share < _NEAR_LIMIT:
        return Finding(app, "limit", "ok", text)
    advice = (
        f"Run acker-redis pending --app {app} to see where roots hang, or raise the limit with acker-redis limit --app {app} "
        "--max-pending."
    )
    return Finding(app, "limit", "warning" if share < 1 else "bad", text, advice)


def _state_limit(app: str, used: int, allowed: int) -> Finding:
    share = used / allowed if allowed else 1.0
    text = f"{used:,} of {allowed:,} bytes of state of topologies ({share:.0%})"
    if share < _NEAR_LIMIT:
        return Finding(app, "state limit", "ok", text)
    advice = (
        f"Run acker-redis topology metrics --app {app} to see which tasks are large, or raise the limit with acker-redis "
        f"limit --app {app} --max-state-bytes. A turn above it waits."
    )
    return Finding(app, "state limit", "warning" if share < 1 else "bad", text, advice)
