"""`make stack`: the services of `docker-compose.yml` as plain processes, the job run to its end, and the dashboard."""

import signal
import tempfile
import time
from pathlib import Path
from typing import Annotated

import redis
import typer

from acker_redis.errors import AckerError
from stack.compose import selected, services
from stack.processes import Processes
from stack.users import PASSWORD

DASHBOARD_SECS = 5.0
INTERRUPTED = 130

program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@program.command()
def main(
    profiles: Annotated[
        list[str] | None,
        typer.Option(
            "--profile",
            help="This profile and the services it needs, instead of those without profile; several times for several.",
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="End when the job has, and all health checks are well, instead of with Ctrl-C."),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="A new folder for data and logs, kept; default: a temporary one."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="Server program; default: redis-server where it is on PATH, else the embedded Valkey."),
    ] = None,
) -> None:
    """Start the stack. Exit 0 if the job had every line accounted for, 1 if not, 3 if a service could not be started."""
    every = services()
    known = {profile for service in every.values() for profile in service.profiles}
    if strange := set(profiles or ()) - known:
        raise typer.BadParameter(
            f"no profile {min(strange)!r}: there are {', '.join(sorted(known))}", param_hint="--profile"
        )
    if folder is not None and folder.exists():
        raise typer.BadParameter(f"{folder} exists: give a new one", param_hint="--folder")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="acker-stack-", ignore_cleanup_errors=True) as temporary:
        place = (folder or Path(temporary)).resolve()
        place.mkdir(parents=True, exist_ok=True)
        chosen = selected(every, frozenset(profiles or ()))
        try:
            with Processes(chosen, place, server=server) as stack:
                status = _run(stack, once=once)
        except AckerError as exc:
            typer.echo(f"error: {exc}", err=True)
            raise typer.Exit(3) from exc
        except KeyboardInterrupt:
            typer.echo("ended", err=True)
            raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(status)


def _run(stack: Processes, *, once: bool) -> int:
    stack.start(typer.echo)
    status = 0
    if stack.has("job"):
        status = stack.wait_ended("job")
        typer.echo(stack.output_of("job"))
    for name in stack.with_health:
        stack.wait_healthy(name)
    typer.echo(f"all are well; their data and logs are in {stack.folder}")
    while True:
        stack.check()
        for dashboard in _dashboards(stack):
            typer.echo(dashboard)
        if once:
            return status
        time.sleep(DASHBOARD_SECS)


def _dashboards(stack: Processes) -> list[str]:
    """Ask every server for the dashboard, as the person on call sees it."""
    dashboards = []
    for name, port in stack.servers():
        with redis.Redis(port=port, username="acker-oncall", password=PASSWORD) as client:
            try:
                report = client.fcall_ro("acker_dashboard", 0).decode(errors="replace")
            except redis.RedisError as exc:
                report = str(exc)
        dashboards.append(f"{name}\n{report}")
    return dashboards


if __name__ == "__main__":
    program()
