"""Demo for `make logs`: generates logs, starts a server and a rotator, and kills and restarts the pipeline."""

import contextlib
import sqlite3
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from acker_redis.ops.acl import Role
from spark.applications.access_logs.__main__ import main as access_logs
from spark.applications.access_logs.logs import generate
from spark.support.services import app_among, check_arguments, kill, services, start, wait_for

KILLED_IN_BATCH = 1


def main(
    context: typer.Context,
    lines: Annotated[int, typer.Option(min=10, help="Number of lines.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed; the same seed generates the same logs.")] = 1,
    files: Annotated[int, typer.Option(min=3, help="Number of files; a micro-batch reads two.")] = 8,
    folder: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="New folder for logs and results, which is kept. Default: a temporary one."),
    ] = None,
    without_kill: Annotated[bool, typer.Option("--without-kill", help="Don't kill the pipeline.")] = False,
    server: Annotated[
        str | None, typer.Option(help="Server program to start, such as redis-server. Default: the embedded Valkey.")
    ] = None,
) -> None:
    """Run the pipeline with everything it needs. Further options are passed to the pipeline."""
    quiet = "--json" in context.args
    if folder is not None and folder.exists():
        raise typer.BadParameter(
            f"{folder} already exists, and its files may have been read before. Pass a new folder.",
            param_hint="--folder",
        )
    with contextlib.ExitStack() as stack:
        here = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="access-logs-")))
        truth = generate(here, lines, seed, files)
        if not quiet:
            typer.echo(
                f"Generated {lines} lines in {here}: {len(truth.malformed)} malformed, {len(truth.poison)} poison"
            )
        arguments = (
            "--logs", str(here / "logs"), "--out", str(here / "out"),
            "--reference", str(here / "reference.csv"), "--truth", str(here / "truth.json"),
            "--message-timeout-secs", "15", *context.args,
        )  # fmt: skip
        check_arguments(access_logs, arguments)
        place = stack.enter_context(services(server, quiet=quiet))
        spout = place.url_of(Role.SPOUT, app_among(context.args, "access-logs"))
        job = start("spark.applications.access_logs", *arguments, redis_url=spout)
        if not without_kill:
            try:
                reached = until_counted(job, here / "out" / "minutes.sqlite", KILLED_IN_BATCH)
            except KeyboardInterrupt:
                kill(job)
                raise typer.Exit(130) from None
            if not reached:
                typer.echo("error: The pipeline ended before it could be killed.", err=True)
                raise typer.Exit(job.returncode or 1)
            kill(job)
            if not quiet:
                typer.echo(
                    "Killed the pipeline (SIGKILL) in its second micro-batch, after its hits reached SQLite. Restarting it."
                )
            job = start("spark.applications.access_logs", *arguments, redis_url=spout)
        status = wait_for(job)
    raise typer.Exit(status)


def until_counted(job: "subprocess.Popen[bytes]", database: Path, batch: int) -> bool:
    """Wait until SQLite has hits of a micro-batch that still has lines to retry. Return False if the job ended."""
    while job.poll() is None:
        with contextlib.suppress(sqlite3.OperationalError):  # missing, without tables, or being written
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
