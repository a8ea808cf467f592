"""The command `acker-redis rotator`."""

import signal
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import typer

from acker_redis.cli import output
from acker_redis.cli.exit_status import DONE, UNHEALTHY, exit_on_error
from acker_redis.cli.options import DEFAULT_URL, Url, UrlFile, app_names, server_url
from acker_redis.errors import BadConfigError
from acker_redis.extras import install_hint
from acker_redis.ops import rotator as rotation_process
from acker_redis.ops.rotation_check import check


def rotator(
    context: typer.Context,
    redis: Url = DEFAULT_URL,
    redis_file: UrlFile = None,
    app_name: Annotated[
        list[str] | None,
        typer.Option("--app", envvar="ACKER_APPS", help="App to rotate. Repeat, or use commas, for several."),
    ] = None,
    all_apps: Annotated[
        bool, typer.Option("--all", help="Rotate every app on the server, as without any --app.")
    ] = False,
    check_only: Annotated[
        bool, typer.Option("--check", help="Only check whether the apps are rotated in time, and exit with 0 or 1.")
    ] = False,
    metrics: Annotated[
        int | None, typer.Option("--metrics", min=0, max=65535, help="Serve metrics for Prometheus on this port.")
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Address to serve metrics on. 0.0.0.0 means all addresses.")
    ] = "127.0.0.1",
) -> None:
    """Run the rotator until SIGTERM or Ctrl-C. Any number of copies may run."""
    if check_only and metrics is not None:
        raise typer.BadParameter(
            "--check and --metrics exclude each other, because --check exits at once. Pass --metrics to a running rotator."
        )
    with exit_on_error():
        names = app_names(context, app_name or [], all_apps)
        url = server_url(context, redis, redis_file)
        if check_only:
            raise typer.Exit(_check(url, names))
        _rotate(url, names, _metrics(url, names, metrics_host, metrics))


def _metrics(url: str, names: list[str], host: str, port: int | None) -> AbstractContextManager[object]:
    if port is None:
        return nullcontext()
    try:
        from acker_redis.ops.metrics import MetricsServer
    except ImportError as exc:
        raise BadConfigError(
            f"--metrics needs prometheus-client, which is not installed. {install_hint('metrics')}"
        ) from exc
    return MetricsServer(url, names, host, port)


def _check(url: str, names: list[str]) -> int:
    apps = check(url, names)
    for health in apps:
        output.line(f"{health.app}: {health.text}")
    if not apps:
        output.line("no apps on this server")
    return DONE if all(health.healthy for health in apps) else UNHEALTHY


def _rotate(url: str, names: list[str], metrics: AbstractContextManager[object]) -> None:
    output.log_to_stderr()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    process = rotation_process.Rotator(url, names)
    rotation_process.log.info("rotator started apps=%s", ",".join(names) or "all")
    try:
        with metrics:
            process.run(stop)
    finally:
        process.close()
    rotation_process.log.info("rotator stopped")
