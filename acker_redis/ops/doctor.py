"""Findings about a server and its apps that are wrong or may go wrong, each with advice. Reads only."""

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
from acker_redis.ops.dashboard import OK, app_states
from acker_redis.ops.permissions import rights
from acker_redis.ops.rotation_check import OF_THE_APP
from acker_redis.store import limits, run_ends
from acker_redis.store.apps import find_apps, stored_config
from acker_redis.store.run_ends import End

Grade = Literal["ok", "warning", "bad", "unknown"]

_HEAD_ROOM, _FULL = 0.75, 0.90
"""Shares of maxmemory in use from which on there is little room, and none."""

_NEAR_LIMIT = 0.75
"""Share of the limit of pending roots from which on there is little room."""

_CLOCK_SECS = 2.0
"""Servers, and this machine, whose clocks differ by more show times that mislead people. No ledger depends on it."""

_TO_ASK = "+acl|whoami +acl|getuser +acl|dryrun"


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        subject: `server`, or an app.
        about: the thing that was checked, such as `persistence`.
        grade: `ok`; `warning`: may do harm some day; `bad`: does harm now; `unknown`: the user may not look.
        text: the result, for people.
        advice: what to do; empty: nothing.
    """

    subject: str
    about: str
    grade: Grade
    text: str
    advice: str = ""


def examine(client: Client) -> list[Finding]:
    """Check everything that can be checked.

    Raises:
        AckerError: a server does not answer.
    """
    infos = client.ask(server_info.infos)
    findings = [finding for info in infos for finding in _server(info, several=len(infos) > 1)]
    findings += _clocks(client)
    names, strays = find_apps(client)
    if strays:
        findings.append(
            Finding(
                "server", "keys", "warning", f"{len(strays)} keys look like an app's settings and can't be: {strays[0]!r} …",
                "find out who writes them, and delete them",
            )
        )  # fmt: skip
    findings += _user(client, names)
    findings += _states(client)
    for name in names:
        findings += _settings(client, name)
    return findings


def _server(info: dict[str, Any], *, several: bool) -> Iterator[Finding]:
    if not info:
        yield Finding(
            "server", "INFO", "unknown", "the user may not ask", "allow +info, for doctor and for every client"
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
            "CONFIG SET maxmemory-policy noeviction: under memory pressure ledgers are dropped",
        )
    )
    yield _memory(subject, int(info.get("used_memory", 0)), int(info.get("maxmemory", 0)))
    yield from _persistence(subject, info)
    yield _replicas(subject, info)


def _memory(subject: str, used: int, most: int) -> Finding:
    if not most:
        return Finding(
            subject, "memory", "warning", f"{used / 2**20:.0f} MiB used, no limit",
            "CONFIG SET maxmemory: without it the system ends the server when memory is gone; with it new roots are refused",
        )  # fmt: skip
    share = used / most
    text = f"{used / 2**20:.0f} of {most / 2**20:.0f} MiB used ({share:.0%})"
    if share < _HEAD_ROOM:
        return Finding(subject, "memory", "ok", text)
    advice = "CONFIG SET maxmemory higher, or find out what grows (acker-redis status: PEND, LAG, MEM)"
    return Finding(subject, "memory", "warning" if share < _FULL else "bad", text, advice)


def _persistence(subject: str, info: dict[str, Any]) -> Iterator[Finding]:
    aof, saves = int(info.get("aof_enabled", 0)), int(info.get("rdb_last_save_time", 0)) > 0
    if not aof:
        yield Finding(
            subject, "persistence", "warning", "no AOF" + (", snapshots only" if saves else ""),
            "CONFIG SET appendonly yes: else a restart loses the ledgers, and everything in flight is emitted again",
        )  # fmt: skip
    elif info.get("aof_last_write_status", "ok") != "ok":
        yield Finding(
            subject, "persistence", "bad", "the last write of the AOF failed", "look at the disk: is it full?"
        )
    else:
        yield Finding(subject, "persistence", "ok", "AOF")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        yield Finding(
            subject, "snapshots", "bad", "the last snapshot failed",
            "look at the server's log; with stop-writes-on-bgsave-error it refuses all writes until one succeeds",
        )  # fmt: skip


def _replicas(subject: str, info: dict[str, Any]) -> Finding:
    if info.get("role", "master") != "master":
        up = info.get("master_link_status") == "up"
        text = (
            f"a replica of {info.get('master_host')}:{info.get('master_port')}, link {info.get('master_link_status')}"
        )
        return Finding(subject, "role", "ok" if up else "bad", text, "" if up else "ask the primary; look at the link")
    count = int(info.get("connected_slaves", 0))
    if count:
        return Finding(subject, "replicas", "ok", f"{count} connected")
    return Finding(
        subject, "replicas", "warning", "none",
        "with two replicas and min-replicas-to-write 1 a failover loses next to nothing; without any there is no failover",
    )  # fmt: skip


def _clocks(client: Client) -> Iterator[Finding]:
    before = time.time()
    nodes = client.ask(server_info.node_clocks_ms)
    here = (before + time.time()) / 2
    apart = max(abs(now_ms / 1000 - here) for now_ms in nodes)
    between = (max(nodes) - min(nodes)) / 1000
    text = f"{apart:.1f} s apart from this machine's" + (f", {between:.1f} s from each other" if len(nodes) > 1 else "")
    fine = apart <= _CLOCK_SECS and between <= _CLOCK_SECS
    yield Finding("server", "clock", "ok" if fine else "warning", text, "" if fine else "let NTP set all clocks")


def _user(client: Client, apps: Sequence[str]) -> Iterator[Finding]:
    user = rights(client, apps)
    if user.name is None:
        yield Finding("server", "user", "unknown", "the user's name can't be asked", f"allow {_TO_ASK}, for doctor")
        return
    one_each = "one user per app, with no more than it needs: see `acker-redis acl`"
    if user.has_all:
        yield Finding("server", "user", "warning", f"{user.name}, who may do everything", one_each)
        return
    if user.dangerous is None:
        text = f"{user.name}; what this user may do can't be asked"
        yield Finding("server", "user", "unknown", text, f"allow {_TO_ASK}, for doctor; Redis 6.2 can't say")
        return
    if user.dangerous:
        text = f"{user.name}, who may run {', '.join(user.dangerous)}"
        yield Finding("server", "user", "warning", text, one_each)
    else:
        yield Finding("server", "user", "ok", user.name)
    for app, lacking in user.lacking.items():
        if lacking:
            yield Finding(
                app, "user", "warning", f"{user.name} may not run {', '.join(lacking)} on its keys",
                f"enough for looking only; for a program of the app: `acker-redis acl` with --app {app}",
            )  # fmt: skip
        else:
            yield Finding(app, "user", "ok", f"{user.name} may do what a program of the app needs")


def _states(client: Client) -> Iterator[Finding]:
    try:
        states = app_states(client)
    except ServerUnavailableError:
        raise
    except AckerError as exc:
        yield Finding(
            "server", "reports", "unknown", str(exc), 'see docs/operate/on-call.md, "Who may look", for a user who may'
        )
        return
    for state in states:
        grade: Grade = "ok" if state.state == OK else "warning" if state.healthy else "bad"
        text = "ok" if state.state == OK else f"{state.state}: {state.why}"
        advice = "" if state.state == OK else "docs/operate/on-call.md has a row for this state"
        yield Finding(state.app, "state", grade, text, advice)
        if state.dead_letters:
            yield Finding(
                state.app, "dead letters", "warning", f"{state.dead_letters}",
                f"acker-redis dead-letters --app {state.app}; then replay, or delete",
            )  # fmt: skip


def _settings(client: Client, app: str) -> Iterator[Finding]:
    try:
        config = stored_config(client, app)
        shards = Shards(client, config, create=False)
        allowed, pending = limits.read(client, app).max_pending, Inspection(shards).pending()
        last = run_ends.read(client, app)
    except OF_THE_APP as exc:
        yield Finding(app, "settings", "bad", str(exc), "one app, one set of settings: see the message")
        return
    holders = client.pipeline([("GET", keys.lane(app, lane)) for lane in range(config.lanes)])
    yield Finding(
        app, "settings", "ok",
        f"{config.shards} shards, {config.num_buckets} buckets, timeout {config.message_timeout_secs:g} s, "
        f"{config.lanes} lanes, of which {sum(holder is not None for holder in holders)} have a spout now",
    )  # fmt: skip
    if allowed is not None:
        yield _limit(app, pending, allowed)
    for lane, end in last.items():
        if end.state != "begun":
            yield _run(app, lane, end)


def _run(app: str, lane: int, end: End) -> Finding:
    """Report how the last run of a lane ended."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end.at_ms / 1000))
    text = f"lane {lane}: run {end.run_id} {end.state}, {when}"
    if end.state == "failed":
        advice = (
            f"fix it, and start it again; or give it up for good: acker-redis abandon --app {app} --run {end.run_id}"
        )
        return Finding(app, "last run", "bad", f"{text}: {end.error}", advice)
    if end.state == "interrupted":
        return Finding(app, "last run", "warning", text, "start it again: it does the rest")
    return Finding(app, "last run", "ok", text)


def _limit(app: str, pending: int, allowed: int) -> Finding:
    share = pending / allowed
    text = f"{pending} of {allowed} roots pending ({share:.0%})"
    if share < _NEAR_LIMIT:
        return Finding(app, "limit", "ok", text)
    advice = f"acker-redis pending --app {app} shows where roots hang; acker-redis limit --app {app} --max-pending allows more"
    return Finding(app, "limit", "warning" if share < 1 else "bad", text, advice)
