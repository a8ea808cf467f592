"""The commands that act on an app or a server.

`pause`, `resume`, `drain`, `rotate`, `limit`, `abandon`, `delete-app`, `install`, and `acl` for an app's users.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from acker_redis.acker import Acker, app_of
from acker_redis.cli import output
from acker_redis.cli.exit_status import DONE, UNHEALTHY, exit_on_error
from acker_redis.cli.options import DEFAULT_URL, AsJson, OneApp, Url, UrlFile, confirmed, connected
from acker_redis.errors import AppNotFoundError, BadConfigError
from acker_redis.ledger.inspection import Inspection
from acker_redis.ledger.shards import Shards
from acker_redis.ops import acl as acl_users
from acker_redis.ops import delete_app
from acker_redis.ops.abandon_run import REASON, abandon, preview
from acker_redis.ops.acl import Role, ServerKind
from acker_redis.store import topology_sizes
from acker_redis.store.apps import stored_config
from acker_redis.store.limits import Limits
from acker_redis.version import VERSION

_LOOK_SECS = 0.5

QUESTION = "Delete all of this?"

app = typer.Typer()


@app.command()
def pause(
    context: typer.Context,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    reason: Annotated[str, typer.Option("--reason", help="Reason to show while the app is paused.")] = "",
) -> None:
    """Stop the app's spouts from emitting until `resume`. Messages in flight continue."""
    with exit_on_error(), _acker(context, redis, redis_file, app_name) as acker:
        paused = acker.admin.pause(reason=reason)
        output.line(
            f"{app_name} is paused: {paused.reason or 'no reason given'}; {acker.stats(with_oldest_age=False).pending} pending"
        )


@app.command()
def resume(context: typer.Context, app_name: OneApp, redis: Url = DEFAULT_URL, redis_file: UrlFile = None) -> None:
    """Resume a paused app, so its spouts emit again."""
    with exit_on_error(), _acker(context, redis, redis_file, app_name) as acker:
        output.line(f"{app_name} is resumed" if acker.admin.resume() else f"{app_name} was not paused")


@app.command()
def drain(
    context: typer.Context,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    timeout_secs: Annotated[float, typer.Option("--timeout", min=0, help="Wait at most this many seconds.")] = 300.0,
    reason: Annotated[str, typer.Option("--reason", help="Reason to show while the app is paused.")] = "drained",
) -> None:
    """Pause the app, and wait until no root is pending and no outcome waits; exit 1 if something is left.

    The app stays paused.
    """
    with exit_on_error(), _acker(context, redis, redis_file, app_name) as acker:
        acker.admin.pause(reason=reason)
        deadline, stats = time.monotonic() + timeout_secs, acker.stats(with_oldest_age=False)
        with typer.progressbar(length=stats.pending, label="draining") as bar:
            while (stats.pending or stats.unconfirmed_outcomes) and time.monotonic() < deadline:
                time.sleep(_LOOK_SECS)
                before, stats = stats.pending, acker.stats(with_oldest_age=False)
                bar.update(max(0, before - stats.pending))
        output.line(
            f"{app_name} is paused: {stats.pending} pending, {stats.unconfirmed_outcomes} outcome entries wait for a spout"
        )
        raise typer.Exit(UNHEALTHY if stats.pending or stats.unconfirmed_outcomes else DONE)


@app.command()
def rotate(
    context: typer.Context,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    ticks: Annotated[int, typer.Option("--ticks", min=1, max=1001, help="Number of ticks.")] = 1,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
) -> None:
    """Tick now, whatever the clock says. As many ticks as there are buckets time out every pending root."""
    with exit_on_error(), _acker(context, redis, redis_file, app_name) as acker:
        pending, buckets = acker.stats(with_oldest_age=False).pending, acker.config.num_buckets
        times_out = (
            "all of them time out" if ticks >= buckets else f"{ticks} of {buckets} ticks to a timeout pass at once"
        )
        output.line(f"{app_name}: {pending} pending, {times_out}")
        if not yes and not confirmed("Tick now?"):
            output.line("Nothing was changed.", err=True)
            raise typer.Exit(UNHEALTHY)
        timed_out = 0
        with typer.progressbar(range(ticks), label="ticking") as bar:
            for _ in bar:
                timed_out += acker.admin.rotate(force=True).timed_out
        output.line(f"{ticks} ticks, {timed_out} timed out")


@app.command(name="abandon")
def abandon_run(
    context: typer.Context,
    app_name: OneApp,
    run_id: Annotated[str, typer.Option("--run", help="Id of the run that is over.")],
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
) -> None:
    """Abandon a dead run: fail its pending roots now instead of at their timeout, and drop the outcomes that wait for it.

    These are all pending roots in the lanes whose last spout was from this run. Messages that it kept for replay stay for
    their week. No message becomes a dead letter. Start the program again to replay the messages of its source. The command
    is refused while a spout holds the lane.
    """
    with exit_on_error(), connected(context, redis, redis_file) as client:
        config = stored_config(client, app_name)
        blocks = Inspection(Shards(client, config, create=False)).blocks()
        with typer.progressbar(length=blocks, label="looking") as bar:
            left = preview(client, config, run_id, bar.update)
        if not left.lanes:
            output.line(
                f"Run {run_id} is not the last run of any lane of {app_name}. A later run has acquired its lanes, or its "
                "spout acquired no lane (run_spout does). To see the run of each lane, use acker-redis status --app.",
                err=True,
            )
            raise typer.Exit(UNHEALTHY)
        if left.held:
            output.line(
                f"Run {run_id} is still running, or was a moment ago ("
                + ", ".join(f"lane {lane} is held by {holder}" for lane, holder in left.held.items())
                + "). End that process. Its hold expires 5 s after its death.",
                err=True,
            )
            raise typer.Exit(UNHEALTHY)
        output.line(
            f"{app_name}: {len(left.roots)} roots are pending from run {run_id}, or from earlier runs in its lanes "
            f"({', '.join(map(str, left.lanes))})"
        )
        if not yes and not confirmed("Abandon them?"):
            output.line("Nothing was abandoned.", err=True)
            raise typer.Exit(UNHEALTHY)
        with typer.progressbar(length=len(left.roots), label="failing") as bar:
            failed = abandon(client, config, left, bar.update)
        output.line(f"{failed} roots failed: {REASON}")


@app.command()
def limit(
    context: typer.Context,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    max_pending: Annotated[
        int | None,
        typer.Option("--max-pending", help="Largest number of pending roots. Spouts respect it, Redis refuses more."),
    ] = None,
    max_payload_bytes: Annotated[
        int | None,
        typer.Option("--max-payload-bytes", help="Largest message to keep for replay or with a dead letter, in bytes."),
    ] = None,
    max_state_bytes: Annotated[
        int | None,
        typer.Option(
            "--max-state-bytes", help="Largest size of the state of all topologies, in bytes of keys and values."
        ),
    ] = None,
    dead_letter_days: Annotated[
        float | None,
        typer.Option(
            "--dead-letter-days", help="Age from which the rotator removes dead letters, in days. Without it they stay."
        ),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Remove all limits.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set an app's limits and print those in force. Limits that you don't pass stay as they are."""
    given = {
        "max_pending": max_pending, "max_payload_bytes": max_payload_bytes, "max_state_bytes": max_state_bytes,
        "dead_letter_days": dead_letter_days,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    if none and given:
        raise typer.BadParameter(
            "--none removes all limits, so it excludes limits to set. Pass either --none or limits."
        )
    with exit_on_error(), _acker(context, redis, redis_file, app_name) as acker:
        if none or given:
            acker.admin.set_limits(Limits() if none else Limits(**{**asdict(acker.admin.limits()), **given}))
        state_bytes = topology_sizes.read_total(app_of(acker).client, app_name)
        shown = {
            "app": app_name, **asdict(acker.admin.limits()), "pending": acker.pending(), "state_bytes": state_bytes
        }  # fmt: skip
        if as_json:
            output.json_line(shown)
        else:
            output.fields({name: "no limit" if value is None else value for name, value in shown.items()})


@app.command(name="delete-app")
def delete(
    context: typer.Context,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False,
) -> None:
    """Delete all keys of an app, and no other keys. Stop its programs first. Running ones get LedgerLostError."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        holdings = delete_app.preview(client, app_name)
        output.line(f"{app_name} on {client.address}: {holdings.text}")
        if not yes and not confirmed(QUESTION):
            output.line("Nothing was deleted.", err=True)
            raise typer.Exit(UNHEALTHY)
        deleted = delete_app.delete(client, holdings)
        output.line(f"{deleted} keys deleted")
        try:
            back = delete_app.preview(client, app_name)
        except AppNotFoundError:
            return
        output.line(
            f"error: {len(back.keys)} keys came back, because a program of the app still runs. Stop its programs, and delete "
            "the app again.",
            err=True,
        )
        raise typer.Exit(UNHEALTHY)


@app.command()
def install(context: typer.Context, redis: Url = DEFAULT_URL, redis_file: UrlFile = None) -> None:
    """Load scripts and reports as functions (Redis 7, Valkey), so that no user needs EVAL. Repeat after an upgrade."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        installed = client.install()
        output.line(f"library {installed.library} is loaded: users need +fcall, but not +eval or +evalsha")
        for address, version in installed.newer_reports.items():
            output.line(f"{address} keeps its reports: version {version} is newer than {VERSION}")
        output.line("reports are loaded: try redis-cli --raw FCALL_RO acker_dashboard 0")


@contextmanager
def _acker(context: typer.Context, redis: str, redis_file: Path | None, app_name: str) -> Iterator[Acker]:
    """Open an existing app. If it doesn't exist, nothing is created."""
    with connected(context, redis, redis_file) as client:
        yield Acker(client, stored_config(client, app_name), create=False)


@app.command()
def acl(
    app_name: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="Name of the app. Without it: users that serve all apps.")
    ] = None,
    roles: Annotated[
        list[Role] | None, typer.Option("--role", help="Print only this user. Repeat for several.", show_default=False)
    ] = None,
    server: Annotated[
        ServerKind,
        typer.Option("--server", help="Redis 7 or newer, or Valkey, with `install`ed functions; or Redis 6.2."),
    ] = ServerKind.FUNCTIONS,
    as_file: Annotated[bool, typer.Option("--file", help="Print lines for the server's `aclfile`.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print ACL users with only the permissions they need. Each gets a new random password. No server is contacted."""
    if as_file and as_json:
        raise typer.BadParameter("--file and --json exclude each other. Pass one of them.")
    with exit_on_error():
        if app_name is None and any(role not in acl_users.SHARED_ROLES for role in roles or ()):
            raise BadConfigError(
                "--role spout and --role executor need the name of an app. Pass it, as in `acker-redis acl orders`."
            )
        for user in acl_users.users(app_name, roles=tuple(roles or Role), kind=server):
            if as_json:
                output.json_line({**asdict(user), "login": user.login})
            else:
                output.line(user.as_file_line if as_file else user.as_command)
