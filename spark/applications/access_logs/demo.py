"""`make logs`: access logs, a private server, a rotator beside it, and the pipeline, killed in the middle."""

import contextlib
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from acker_redis.ops.acl import Role
from spark.applications.access_logs.logs import generate
from spark.support.services import app_among, kill, services, start, wait_for

KILLED_IN_BATCH = 1


def main(
    context: typer.Context,
    lines: Annotated[int, typer.Option(min=10, help="Lines in all.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same logs.")] = 1,
    files: Annotated[int, typer.Option(min=3, help="Files they are spread over; two per micro-batch.")] = 8,
    folder: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="A new folder for logs and results, kept; default: a temporary one."),
    ] = None,
    without_kill: Annotated[bool, typer.Option("--without-kill", help="Let the pipeline run through.")] = False,
    server: Annotated[
        str | None, typer.Option(help="Server program to start, such as redis-server; default: the embedded Valkey.")
    ] = None,
) -> None:
    """Run the pipeline with everything it needs. Further options are the pipeline's own."""
    quiet = "--json" in context.args
    if folder is not None and folder.exists():
        raise typer.BadParameter(f"{folder} exists: its files may have been read already", param_hint="--folder")
    with contextlib.ExitStack() as stack:
        here = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="access-logs-")))
        truth = generate(here, lines, seed, files)
        if not quiet:
            typer.echo(f"logs: {lines} lines, {len(truth.malformed)} malformed, {len(truth.poison)} poison, in {here}")
        place = stack.enter_context(services(server, quiet=quiet))
        spout = place.url_of(Role.SPOUT, app_among(context.args, "access-logs"))
        command = (
            "spark.applications.access_logs", "--logs", str(here / "logs"), "--out", str(here / "out"),
            "--reference", str(here / "reference.csv"), "--truth", str(here / "truth.json"),
            "--message-timeout-secs", "15", *context.args,
        )  # fmt: skip
        job = start(*command, redis_url=spout)
        if not without_kill:
            try:
                reached = until_counted(job, here / "out" / "minutes.sqlite", KILLED_IN_BATCH)
            except KeyboardInterrupt:
                kill(job)
                raise typer.Exit(130) from None
            if not reached:
                typer.echo("error: the pipeline ended before it could be killed", err=True)
                raise typer.Exit(job.returncode or 1)
            kill(job)
            if not quiet:
                typer.echo(
                    "killed (SIGKILL) in its second micro-batch, whose hits were in SQLite by then; started again"
                )
            job = start(*command, redis_url=spout)
        status = wait_for(job)
    raise typer.Exit(status)


def until_counted(job: "subprocess.Popen[bytes]", database: Path, batch: int) -> bool:
    """Wait until hits of a micro-batch are in SQLite, and the batch still has lines to be tried again; False: it ended."""
    while job.poll() is None:
        with contextlib.suppress(sqlite3.OperationalError):  # not there yet, without its tables, or just being written
            reader = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)
            with contextlib.closing(reader):
                if reader.execute("SELECT 1 FROM counted WHERE batch >= ? LIMIT 1", (batch,)).fetchone():
                    return True
        time.sleep(0.02)
    return False


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(main)
    app()
