"""The commands that show how apps are doing: `status`, `top`, `pending`, `doctor`, `script`."""

import sys
from dataclasses import asdict, replace
from typing import Annotated

import typer

from acker_redis.acker import Acker
from acker_redis.cli import output
from acker_redis.cli.exit_status import DONE, UNHEALTHY, exit_on_error
from acker_redis.cli.options import DEFAULT_URL, AsJson, OneApp, Run, Url, UrlFile, connected
from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.errors import BadConfigError
from acker_redis.model import ids
from acker_redis.ops import dashboard, message_lookup
from acker_redis.ops.doctor import examine
from acker_redis.store.apps import stored_config

_GRADES = ("bad", "warning", "unknown", "ok")

_ROOTS_SHOWN = 3
"""Roots of each component that `pending` shows by default."""

app = typer.Typer()


@app.command()
def status(
    context: typer.Context,
    app_name: Annotated[
        str | None, typer.Option("--app", envvar="ACKER_APP", help="Only this app, with more of it.")
    ] = None,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Say which app is sick, since when, and why; exit 1 if one is. A cluster has a report per node."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        states = dashboard.app_states(client, app_name)
        if as_json:
            for state in states:
                output.json_line(asdict(state))
        else:
            for number, report in enumerate(dashboard.dashboard(client, app_name)):
                output.line(*([""] if number else []), *report.split("\n"))
        missing = app_name is not None and not states
        raise typer.Exit(UNHEALTHY if missing or not all(state.healthy for state in states) else DONE)


@app.command()
def top(
    context: typer.Context,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    every_secs: Annotated[float, typer.Option("--every", min=0.2, max=3600, help="Seconds between two looks.")] = 2.0,
) -> None:
    """Show all apps, live: s sorts by the next column, Enter looks into one app, Escape goes back, q ends."""
    with exit_on_error():
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise BadConfigError("top needs a terminal: take `acker-redis status` for a file, a pipe or a script")
        try:
            from acker_redis.cli.top import Top
        except ImportError as exc:
            raise BadConfigError(
                "top needs textual: pip install 'acker-redis[top]'; or take `acker-redis status`"
            ) from exc
        with connected(context, redis, redis_file) as client:
            Top(client, every_secs).run()


@app.command()
def doctor(
    context: typer.Context, redis: Url = DEFAULT_URL, redis_file: UrlFile = None, as_json: AsJson = False
) -> None:
    """Look for what is wrong with the server and its apps, or may go wrong, and say what to do; exit 1 if something is bad."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        findings = examine(client)
        for finding in sorted(findings, key=lambda finding: _GRADES.index(finding.grade)):
            if as_json:
                output.json_line(asdict(finding))
            else:
                output.line(
                    f"{finding.grade:<8} {finding.subject}: {finding.about}: {finding.text}",
                    *([f"         -> {finding.advice}"] if finding.advice else []),
                )
        raise typer.Exit(UNHEALTHY if any(finding.grade == "bad" for finding in findings) else DONE)


@app.command()
def script(
    name: Annotated[str, typer.Argument(help=f"Name of a report: {', '.join(scripts.REPORTS)}.", show_default=False)],
) -> None:
    """Print a report as a file for `redis-cli --eval`, or for redis_exporter's --script, where it is no function."""
    with exit_on_error():
        if name not in scripts.REPORTS:
            raise BadConfigError(f"there is no report {name!r}: take one of {', '.join(scripts.REPORTS)}")
        output.line(*scripts.report(name).rstrip("\n").split("\n"))


@app.command()
def pending(
    context: typer.Context,
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    by_component: Annotated[
        bool,
        typer.Option(
            "--by-component", help="Only how many roots are pending of each component; no roots without --oldest."
        ),
    ] = False,
    oldest: Annotated[
        int | None,
        typer.Option(
            "--oldest", min=1, max=1000, help="Show so many of the oldest roots of each component; 3 if not given."
        ),
    ] = None,
    message_id: Annotated[
        int | None, typer.Option("--message", help="Only what is pending of this message id; needs --run.")
    ] = None,
    run_id: Run = None,
    emissions: Annotated[
        int,
        typer.Option("--emissions", min=1, max=1_000_000, help="Look for a message in so many emissions of its run."),
    ] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Show roots without outcome, by the last component that touched them; with --message, those of one message."""
    if (message_id is None) != (run_id is None):
        raise typer.BadParameter(
            "give --message ID and --run RUN together: a message id means something in its run only"
        )
    with exit_on_error(), connected(context, redis, redis_file) as client:
        config = stored_config(client, app_name)
        if message_id is not None and run_id is not None:
            acker = Acker(client, config, create=False)
            raise typer.Exit(_show_message(acker, message_id, run_id, emissions, as_json=as_json))
        shown = oldest if oldest is not None else 0 if by_component else _ROOTS_SHOWN
        _show_pending(client, app_name, shown, as_json=as_json)


def _show_pending(client: Client, app_name: str, oldest: int, *, as_json: bool) -> None:
    pending = dashboard.pending_roots(client, app_name, max(1, oldest))
    if not oldest:
        pending = replace(pending, components=[replace(component, oldest=[]) for component in pending.components])
    if as_json:
        output.json_line({"app": app_name, **asdict(pending)})
        return
    output.line(f"{app_name}: {pending.pending} pending, {pending.looked_at} looked at, the longest there first")
    for component in pending.components:
        share = 100 * component.count / pending.looked_at
        output.line(
            f"{component.component or '(no component yet)'}  {component.count} roots ({share:.0f} %), oldest "
            f"{component.oldest_ms / 1000:.1f} s",
            *(f"  root {root.root}  spout_id {root.spout_id}  {root.age_ms / 1000:.1f} s" for root in component.oldest),
        )


def _show_message(acker: Acker, message_id: int, run_id: str, emissions: int, *, as_json: bool) -> int:
    roots = message_lookup.pending_of_message(acker, message_id, run_id, emissions)
    for number, root in roots:
        values = {"emission": number, "hex": f"{ids.to_uint64(root.root, 'root'):016x}", **root._asdict()}
        if as_json:
            output.json_line(values)
        else:
            output.fields(values)
    if not roots:
        output.line(
            f"nothing is pending of message {message_id} in the first {emissions} emissions of run {run_id}: it is done, or "
            "parked, or waits for its next attempt; or it went out later (--emissions)",
            err=True,
        )
    return DONE if roots else UNHEALTHY
