"""Spark's master and worker daemons from the pyspark wheel, with the installed Java.

Run `python -m spark.support.standalone master` or `python -m spark.support.standalone worker`. Further options are passed to
the daemon; `--help` lists them. The process becomes the daemon, so signals reach it.
"""

import os
import sys
from pathlib import Path

import pyspark
import typer

from acker_redis import AckerError
from acker_redis.spark import prepare_environment

DAEMONS = {"master": "org.apache.spark.deploy.master.Master", "worker": "org.apache.spark.deploy.worker.Worker"}


def main(arguments: list[str]) -> None:
    """Replace this process by a daemon.

    Raises:
        typer.Exit: 2 for wrong usage, 3 if there is no Java.
    """
    if not arguments or arguments[0] not in DAEMONS:
        typer.echo(f"error: Missing daemon. Pass {' or '.join(DAEMONS)}.", err=True)
        raise typer.Exit(2)
    try:
        prepare_environment()
    except AckerError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(3) from exc
    program = str(Path(str(pyspark.__file__)).parent / "bin" / "spark-class")
    os.execv(program, [program, DAEMONS[arguments[0]], *arguments[1:]])  # noqa: S606


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except typer.Exit as ended:
        sys.exit(ended.exit_code)
