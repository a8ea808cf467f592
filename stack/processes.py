"""Services of the compose file as plain processes on loopback, in a folder of their own.

Everything that a container would see is translated: names of services and their ports to 127.0.0.1 and free ports,
places of mounted files and volumes to places here, programs to those of this machine.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from acker_redis.errors import AckerError, ServerNotFoundError
from acker_redis.testing.server import find_program, free_port
from stack.compose import Service

ROOT = Path(__file__).resolve().parent.parent
LOOPBACK = "127.0.0.1"
STARTS_IN_SECS, ENDS_IN_SECS, HEALTH_SECS = 180.0, 60.0, 30.0
_LOOK_SECS = 0.2
_BUS = 10_000
"""A Redis of a cluster listens on its port, and on another so much higher."""

_KAFKA_HOME = "/opt/kafka/bin"
_KAFKA = {
    "kafka-storage.sh": "kafka.tools.StorageTool",
    "kafka-server-start.sh": "kafka.Kafka",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}
"""Programs of Kafka -> their classes."""


class StackError(AckerError):
    """A service doesn't do its work; the text has the end of its output."""


class Processes:
    """Services that run; all end with the `with` block.

    Attributes:
        folder: has their data and logs.
    """

    def __init__(self, services: Mapping[str, Service], folder: Path, *, server: str | None = None) -> None:
        """Start nothing yet.

        Args:
            services: each after those it depends on.
            folder: for volumes and logs.
            server: program for services that run `redis-server`; None: `redis-server`, or else the embedded Valkey.
        """
        self.folder = folder
        self._services, self._server = services, server
        self._ports = {(name, port): _free_port() for name, service in services.items() for port in service.ports}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, report: Callable[[str], object]) -> None:
        """Start the services in their order, each when those it depends on are ready.

        Args:
            report: called with a line on each service, when it was started.

        Raises:
            StackError: a service doesn't get ready.
        """
        for service in self._services.values():
            for name, condition in service.after.items():
                if name in self._services:
                    self._wait(name, condition)
            if not service.command:
                report(f"{service.name}: its image's own program, which is not here; left out")
                continue
            try:
                process = self._start(service)
            except ServerNotFoundError as exc:
                report(f"{service.name}: left out: {exc}")
                continue
            ports = ", ".join(str(self._ports[service.name, port]) for port in service.ports)
            report(f"{service.name}: pid {process.pid}" + (f", port {ports}" if ports else ""))

    @property
    def with_health(self) -> list[str]:
        """Names of the services that run on and say how they are."""
        return [name for name in self._running if self._services[name].health and not self._services[name].ends]

    def servers(self) -> list[tuple[str, int]]:
        """Name and port of each server that holds ledgers."""
        return [
            (name, self._ports[name, port])
            for name in self._running
            for port in self._services[name].ports
            if Path(self._services[name].command[0]).name in ("redis-server", "valkey-server")
        ]

    def has(self, name: str) -> bool:
        """Whether a service was started."""
        return name in self._running

    def wait_healthy(self, name: str) -> None:
        """Wait until a service's own health check says that it is well."""
        self._wait(name, "service_healthy")

    def wait_ended(self, name: str) -> int:
        """Wait until a service has ended; returns its exit status.

        Raises:
            StackError: a service that should run has ended meanwhile.
        """
        while (status := self._running[name].poll()) is None:
            self.check()
            time.sleep(_LOOK_SECS)
        return status

    def check(self) -> None:
        """Check that all services that should run do.

        Raises:
            StackError: a service has ended.
        """
        for name, process in self._running.items():
            if not self._services[name].ends and process.poll() is not None:
                raise StackError(f"{name} ended with {process.returncode}: {self.output_of(name)[-2000:]}")

    def output_of(self, name: str) -> str:
        """Read the output of a service."""
        log = self.folder / f"{name}.log"
        return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""

    def translated(self, name: str, text: str) -> str:
        """Translate places and addresses in a text of a service to those here."""
        return self._with_addresses(_with_places(text, self._places(self._services[name])))

    def stop(self) -> None:
        """End all, the last one first; those that don't end are killed with their children, and all are at a second Ctrl-C."""
        try:
            for name, process in reversed(self._running.items()):
                if process.poll() is None:
                    process.send_signal(signal.Signals[self._services[name].stop_signal])
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=ENDS_IN_SECS)
        finally:
            while self._running:
                _, process = self._running.popitem()
                _kill_group(process.pid)
                process.wait()

    def _start(self, service: Service) -> subprocess.Popen[bytes]:
        argv = self._command(service, service.command)
        with (self.folder / f"{service.name}.log").open("wb") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment(service),
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self._running[service.name] = process
        return process

    def _wait(self, name: str, condition: str) -> None:
        service, process = self._services[name], self._running.get(name)
        if process is None:
            raise StackError(f"{name} was left out, and another service needs it")
        deadline = time.monotonic() + STARTS_IN_SECS
        while time.monotonic() < deadline:
            ended = process.poll()
            if condition == "service_completed_successfully":
                if ended == 0:
                    return
            elif ended is None and (condition == "service_started" or self._is_healthy(service)):
                return
            if ended is not None:
                raise StackError(f"{name} ended with {ended}: {self.output_of(name)[-2000:]}")
            time.sleep(_LOOK_SECS)
        raise StackError(f"{name} is not there after {STARTS_IN_SECS:.0f} s: {self.output_of(name)[-2000:]}")

    def _is_healthy(self, service: Service) -> bool:
        try:
            done = subprocess.run(
                self._command(service, service.health), env=self._environment(service), cwd=self.folder,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=HEALTH_SECS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def _command(self, service: Service, command: Sequence[str]) -> list[str]:
        program, *arguments = command
        return [*self._program(Path(program).name), *(self._argument(service, argument) for argument in arguments)]

    def _argument(self, service: Service, text: str) -> str:
        if text.isdecimal() and int(text) in service.ports:
            return str(self._ports[service.name, int(text)])
        if text in service.addresses:
            return LOOPBACK
        own = re.sub(r"(?<==):(\d+)$", lambda match: f"{LOOPBACK}:{self._own(service, match[1])}", text)
        own = re.sub(r"(?<=--port )(\d+)", lambda match: self._own(service, match[1]), own)
        return self.translated(service.name, own)

    def _own(self, service: Service, port: str) -> str:
        return str(self._ports.get((service.name, int(port)), port))

    def _environment(self, service: Service) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("ACKER_")}
        return inherited | {
            "PATH": os.pathsep.join([str(self._programs()), os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "SPARK_LOCAL_IP": LOOPBACK,
            **{name: self.translated(service.name, value) for name, value in service.environment.items()},
        }

    def _programs(self) -> Path:
        """Make a folder with the programs that a shell in a container would find."""
        folder = self.folder / "programs"
        if not folder.exists():
            folder.mkdir()
            (folder / "redis-server").symlink_to(self._program("redis-server")[0])
            if not shutil.which("redis-cli"):
                (folder / "redis-cli").write_text(f'#!/bin/sh\nexec {shlex.join(self._program("redis-cli"))} "$@"\n')
                (folder / "redis-cli").chmod(0o755)
        return folder

    def _kafka(self) -> Path:
        """Make a folder with the programs of Kafka that the services use. Their jars are downloaded first.

        Raises:
            AckerError: there are no jars, or no Java.
        """
        from spark.support import kafka

        folder = self.folder / "kafka-programs"
        if not folder.exists():
            kafka.jars()
            folder.mkdir()
            for name, main in _KAFKA.items():
                (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(kafka.command_of(folder, main))} "$@"\n')
                (folder / name).chmod(0o755)
        return folder

    def _program(self, name: str) -> list[str]:
        if name == "python":
            return [sys.executable]
        if name == "acker-redis":
            return [sys.executable, "-m", "acker_redis"]
        if name == "redis-server":
            wanted = self._server or ("redis-server" if shutil.which("redis-server") else "embedded")
            return [str(find_program(wanted))]
        if name == "valkey-server":
            return [str(find_program("embedded"))]
        if name in _KAFKA:
            return [str(self._kafka() / name)]
        if name in ("redis-cli", "valkey-cli"):  # the embedded server comes without
            installed = shutil.which("redis-cli")
            return [installed] if installed else [sys.executable, "-m", "stack.redis_cli"]
        return [str(find_program(name))]

    def _places(self, service: Service) -> dict[str, Path]:
        """Places of mounted files and volumes; files of the repository are copied with the names and ports of here."""
        places = {}
        for target, name in service.volumes.items():
            places[target] = self.folder / name
            places[target].mkdir(exist_ok=True)
        if any(_KAFKA_HOME in word for word in service.command):
            places[_KAFKA_HOME] = self._kafka()
        volumes = dict(places)
        for target, source in service.files.items():
            places[target] = self._copied(service, source, volumes) if source.is_file() else source
        return dict(sorted(places.items(), reverse=True))

    def _copied(self, service: Service, source: Path, volumes: Mapping[str, Path]) -> Path:
        folder = self.folder / f"{service.name}-files"
        folder.mkdir(exist_ok=True)
        copy = folder / source.name
        if not copy.exists():
            text = _with_places(source.read_text(encoding="utf-8"), volumes)
            copy.write_text(self._with_addresses(text), encoding="utf-8")
        return copy

    def _with_addresses(self, text: str) -> str:
        for (name, port), local in self._ports.items():
            for address in self._services[name].addresses:
                for between in (":", " "):
                    text = re.sub(
                        rf"(?<![\w.-]){re.escape(address)}{between}{port}(?!\d)", f"{LOOPBACK}{between}{local}", text
                    )
        return text


def _free_port() -> int:
    """Find a port that is free, like the one `_BUS` above it."""
    while True:
        port = free_port()
        with socket.socket() as probe, contextlib.suppress(OSError, OverflowError):
            probe.bind((LOOPBACK, port + _BUS))
            return port


def _with_places(text: str, places: Mapping[str, Path]) -> str:
    for target, place in places.items():
        text = re.sub(rf"(?<![\w.]){re.escape(target)}(?=/|$|[\s\"'])", str(place), text)
    return text


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
