"""The commands that show what apps do, and change nothing.

`status`, `top`, `pending`, `lag`, `doctor`, `script`, `stats`, `inspect` and `apps`.
"""

import json
import sys
from dataclasses import asdict, replace
from typing import Annotated

import typer

from acker_redis.acker import Acker
from acker_redis.cli import output
from acker_redis.cli.exit_status import DONE, UNHEALTHY, exit_on_error, status_of
from acker_redis.cli.options import DEFAULT_URL, AsJson, OneApp, Run, Url, UrlFile, connected, is_given
from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.errors import BadConfigError, BadIdError
from acker_redis.extras import install_hint
from acker_redis.model import ids
from acker_redis.ops import dashboard, message_lookup
from acker_redis.ops.doctor import examine
from acker_redis.ops.rotation_check import OF_THE_APP
from acker_redis.store.apps import apps, stored_config
from acker_redis.store.kafka_progress import KafkaPartition, KafkaProgress, decoded, groups

_GRADES = ("bad", "warning", "unknown", "ok")

_ROOTS_SHOWN = 3
"""Number of roots per component that `pending` prints by default."""

app = typer.Typer()


@app.command()
def status(
    context: typer.Context,
    app_name: Annotated[
        str | None, typer.Option("--app", envvar="ACKER_APP", help="Show only this app, in more detail.")
    ] = None,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Show which apps are sick, since when, and why; exit 1 if one is. A cluster has a report per node."""
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
    every_secs: Annotated[float, typer.Option("--every", min=0.2, max=3600, help="Seconds between updates.")] = 2.0,
) -> None:
    """Show all apps, live. s sorts by the next column, Enter opens one app, Escape closes it, q quits."""
    with exit_on_error():
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise BadConfigError("top needs a terminal. Use `acker-redis status` for a file, a pipe or a script.")
        try:
            from acker_redis.cli.top import Top
        except ImportError as exc:
            raise BadConfigError(
                f"top needs textual, which is not installed. {install_hint('top')} Or use `acker-redis status`."
            ) from exc
        with connected(context, redis, redis_file) as client:
            Top(client, every_secs).run()


@app.command()
def doctor(
    context: typer.Context,
    app_name: Annotated[
        str | None, typer.Option("--app", envvar="ACKER_APP", help="Check only this app, beside the server.")
    ] = None,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Check the server and its apps for present and future problems, and print advice; exit 1 if something is bad."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        findings = examine(client, app_name)
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
    name: Annotated[str, typer.Argument(help=f"Name of the report: {', '.join(scripts.REPORTS)}.", show_default=False)],
) -> None:
    """Print a report as a script for servers without functions: for `redis-cli --eval` or redis_exporter's --script."""
    with exit_on_error():
        if name not in scripts.REPORTS:
            raise BadConfigError(f"Report {name!r} does not exist. Use one of {', '.join(scripts.REPORTS)}.")
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
            "--by-component",
            help="Print only the number of pending roots per component, without roots unless --oldest is given.",
        ),
    ] = False,
    oldest: Annotated[
        int | None,
        typer.Option(
            "--oldest", min=1, max=1000, help="Print this many of the oldest roots per component. The default is 3."
        ),
    ] = None,
    message_id: Annotated[
        int | None, typer.Option("--message", help="Print only the pending roots of this message id. Needs --run.")
    ] = None,
    run_id: Run = None,
    emissions: Annotated[
        int,
        typer.Option(
            "--emissions", min=1, max=1_000_000, help="Search this many emissions of the run for the message."
        ),
    ] = 10_000,
    as_json: AsJson = False,
) -> None:
    """Show pending roots by the last component that touched them, or with --message those of one message."""
    if (message_id is None) != (run_id is None):
        raise typer.BadParameter(
            "--message and --run need each other, because a message id is only meaningful within its run. Pass both."
        )
    with exit_on_error(), connected(context, redis, redis_file) as client:
        config = stored_config(client, app_name)
        if message_id is not None and run_id is not None:
            acker = Acker(client, config, create=False)
            raise typer.Exit(_show_message(acker, message_id, run_id, emissions, as_json=as_json))
        shown = oldest if oldest is not None else 0 if by_component else _ROOTS_SHOWN
        _show_pending(client, app_name, shown, as_json=as_json)


@app.command()
def lag(
    context: typer.Context,
    app_name: OneApp,
    group: Annotated[
        str,
        typer.Option("--group", help="Consumer group that the app's streams or runs commit to.", show_default=False),
    ],
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what a consumer group of Kafka has left to do, by partition; exit 1 if no driver looks after one of them."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        stored_config(client, app_name)
        progress = KafkaProgress(client, app_name, group)
        partitions, now_ms = progress.texts(), progress.now_ms()
        stale = 0
        for name, text in partitions.items():
            partition = decoded(group, name, text, now_ms)
            if partition is None:
                output.line(f"{name}  damaged", err=True)
                stale += 1
                continue
            stale += partition.is_stale
            if as_json:
                shown = {"partition": name, "lag": partition.lag, "age_secs": partition.age_secs}
                output.json_line({**shown, "is_stale": partition.is_stale, **json.loads(text)})
            else:
                output.line(*_lag_lines(name, partition))
        if not partitions:
            others = ", ".join(map(repr, groups(client, app_name)))
            known = f"Those that have are {others}. Name one of them" if others else "Check the name of the app"
            output.line(
                f"Group {group!r} of app {app_name!r} has written nothing for a week. {known}, or start the program of the "
                "group.",
                err=True,
            )
        elif stale:
            output.line(
                f"{stale} of {len(partitions)} partitions have no driver now, so their numbers are old. Start the program "
                "again.",
                err=True,
            )
        raise typer.Exit(DONE if partitions and not stale else UNHEALTHY)


@app.command()
def stats(
    context: typer.Context,
    app_name: Annotated[str | None, typer.Option("--app", envvar="ACKER_APP", help="Name of the app.")] = None,
    all_apps: Annotated[bool, typer.Option("--all", help="Print every app on the server.")] = False,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the counters of one app or of all apps."""
    if (all_apps and is_given(context, "app_name")) or not (all_apps or app_name):
        raise typer.BadParameter("Pass either --app NAME for one app, or --all for every app on the server.")
    status = DONE
    with exit_on_error(), connected(context, redis, redis_file) as client:
        names = apps(client) if all_apps else [str(app_name)]
        for number, name in enumerate(names):
            try:
                counters = Acker(client, stored_config(client, name), create=False).stats()
            except OF_THE_APP as exc:
                output.line(f"error: {exc}", err=True)
                status = status_of(exc)
                continue
            values = {"app": name, **counters._asdict()}
            if as_json:
                output.json_line(values)
            else:
                if number:
                    output.line("")
                output.fields(values)
        if not names:
            output.line("no apps on this server", err=True)
    raise typer.Exit(status)


@app.command()
def inspect(
    context: typer.Context,
    root: Annotated[
        str,
        typer.Argument(
            help="Root id: decimal, or 16 hex digits as in the fail stream (with 0x if all of them are decimal)."
        ),
    ],
    app_name: OneApp,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the ledger's data of one root. Put -- before a negative id."""
    with exit_on_error():
        number = _parse_root(root)
        with connected(context, redis, redis_file) as client:
            held = Acker(client, stored_config(client, app_name), create=False).inspect(number)
        if held is None:
            output.line(
                f"Root {root} is not in the ledger. It was never seen here, or it settled or expired.", err=True
            )
            raise typer.Exit(UNHEALTHY)
        if as_json:
            output.json_line(held._asdict())
        else:
            output.fields(held._asdict())


@app.command(name="apps")
def list_apps(
    context: typer.Context, redis: Url = DEFAULT_URL, redis_file: UrlFile = None, as_json: AsJson = False
) -> None:
    """List the apps on a server."""
    with exit_on_error(), connected(context, redis, redis_file) as client:
        for name in apps(client):
            if as_json:
                output.json_line({"app": name})
            else:
                output.line(name)


def _lag_lines(name: str, partition: KafkaPartition) -> list[str]:
    oldest = _number(partition.oldest_open)
    if partition.oldest_reason is not None:
        where = "" if partition.oldest_component is None else f" in {partition.oldest_component}"
        oldest += f" ({partition.oldest_reason}{where})"
    state = ", ended" if partition.has_ended else ", stale" if partition.is_stale else ""
    lines = [
        f"{name}  lag {_number(partition.lag)}  open {partition.open}  done beyond {partition.done_beyond}  "
        f"earliest {_number(partition.earliest)}  committed {_number(partition.committed)}  "
        f"end {_number(partition.end)}  oldest open {oldest}  {partition.age_secs:.0f} s ago{state}"
    ]
    if partition.letters_not_copied:
        lines.append(f"  {partition.letters_not_copied} dead letters are not copied yet. Their offsets wait.")
    if partition.skipped:
        lines.append(f"  {partition.skipped} imported records were skipped. No message waits for them upstream.")
    if partition.problem is not None:
        lines.append(f"  Offsets are not committed: {partition.problem}.")
    return lines


def _number(value: object) -> str:
    return "-" if value is None else str(value)


def _show_pending(client: Client, app_name: str, oldest: int, *, as_json: bool) -> None:
    pending = dashboard.pending_roots(client, app_name, max(1, oldest))
    if not oldest:
        pending = replace(pending, components=[replace(component, oldest=[]) for component in pending.components])
    if as_json:
        output.json_line({"app": app_name, **asdict(pending)})
        return
    output.line(f"{app_name}: {pending.pending} pending, {pending.looked_at} examined, from those added longest ago")
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
            f"Message {message_id} has no pending root in the first {emissions} emissions of run {run_id}. It is done, is "
            "parked, waits for its next attempt, or was emitted later. To search more emissions, pass --emissions.",
            err=True,
        )
    return DONE if roots else UNHEALTHY


def _parse_root(text: str) -> int:
    try:
        hexadecimal = text.startswith("0x") or (len(text) == 16 and not text.lstrip("-").isdecimal())
        number = int(text, 16 if hexadecimal else 10)
    except ValueError as exc:
        raise BadIdError(f"Root {text!r} is invalid. Use a decimal 64-bit integer, or 16 hex digits.") from exc
    ids.to_uint64(number, "root")
    return number
