"""The services of `docker-compose.yml`, as far as processes without containers need them."""

from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parent.parent / "docker-compose.yml"


@dataclass(frozen=True)
class Service:
    """A service.

    Attributes:
        name: as in the file.
        addresses: that other services use: its name, and a fixed address if it has any.
        command: program and arguments; empty where the image's own are used.
        environment: variables.
        files: place in the container -> place here, of files mounted from the repository.
        volumes: place in the container -> name of the volume; a service's own `/data` where it has none.
        ports: it listens on.
        after: service -> `service_healthy`, `service_completed_successfully` or `service_started`.
        health: command that ends with 0 when the service is well; empty: there is none.
        profiles: it belongs to; none: to all.
        ends: whether it runs to its end.
        stop_signal: ends it.
    """

    name: str
    addresses: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    files: Mapping[str, Path]
    volumes: Mapping[str, str]
    ports: tuple[int, ...]
    after: Mapping[str, str]
    health: tuple[str, ...]
    profiles: frozenset[str]
    ends: bool
    stop_signal: str


def services(file: Path = FILE) -> dict[str, Service]:
    """Read all services of the file, each after those it depends on.

    Raises:
        ValueError: the file has something that this doesn't know.
    """
    with file.open(encoding="utf-8") as text:
        given: dict[str, Any] = yaml.safe_load(text)["services"]
    waits_for = {name: _after(service) for name, service in given.items()}
    return {name: _service(name, given[name], file.parent) for name in TopologicalSorter(waits_for).static_order()}


def selected(every: Mapping[str, Service], profiles: frozenset[str]) -> dict[str, Service]:
    """Select the services of these profiles with all they depend on; without profiles, those that belong to none."""
    wanted = {
        name for name, service in every.items() if (service.profiles & profiles if profiles else not service.profiles)
    }
    for name in reversed(list(every)):  # each is after those it depends on
        if name in wanted:
            wanted.update(every[name].after)
    return {name: service for name, service in every.items() if name in wanted}


def _service(name: str, given: dict[str, Any], folder: Path) -> Service:
    files: dict[str, Path] = {}
    volumes: dict[str, str] = {"/data": f"{name}-data"}
    for mount in given.get("volumes", []):
        source, target, *_ = mount.split(":")
        if source.startswith("./"):
            files[target] = (folder / source).resolve()
        else:
            volumes[target] = source
    networks = given.get("networks", {})
    fixed = [network["ipv4_address"] for network in networks.values()] if isinstance(networks, dict) else []
    test = given.get("healthcheck", {}).get("test", [])
    if test and test[0] != "CMD":
        raise ValueError(f"{name}: a health check has to begin with CMD, not with {test[0]!r}")
    return Service(
        name=name,
        addresses=(name, *fixed),
        command=(*given.get("entrypoint", ()), *given.get("command", ())),
        environment={key: str(value) for key, value in given.get("environment", {}).items()},
        files=files,
        volumes=volumes,
        ports=tuple(int(port) for port in given.get("expose", ())),
        after=_after(given),
        health=() if given.get("healthcheck", {}).get("disable") else tuple(test[1:]),
        profiles=frozenset(given.get("profiles", ())),
        ends=given.get("restart") in ("no", "on-failure"),
        stop_signal=given.get("stop_signal", "SIGTERM"),
    )


def _after(given: dict[str, Any]) -> dict[str, str]:
    return {name: dependency["condition"] for name, dependency in given.get("depends_on", {}).items()}
