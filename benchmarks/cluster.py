"""Clusters of servers on this machine, for benchmarks and tests."""

from pathlib import Path
from typing import Any

import numpy as np
import redis

from acker_redis.testing import wait_until
from acker_redis.testing.server import Server, free_port

SLOTS = 16_384


def node(program: Path, *arguments: str) -> Server:
    """Return a node without slots that isn't started.

    Its bus port is chosen, too, because the default one may be out of range.
    """
    return Server(program, "--cluster-enabled", "yes", "--cluster-port", str(free_port()), *arguments)


def join(servers: list[Server]) -> None:
    """Join running nodes, distribute the slots, and wait until all nodes agree."""
    clients: list[Any] = [redis.Redis(port=server.port) for server in servers]
    try:
        bounds = np.linspace(0, SLOTS, len(servers) + 1).astype(int).tolist()
        for epoch, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", epoch + 1)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[epoch], bounds[epoch + 1] - 1)
        bus_port = clients[0].config_get("cluster-port")["cluster-port"]
        for client in clients[1:]:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port, bus_port)
        wait_until(lambda: all(is_whole(client, len(servers)) for client in clients), "the cluster is whole")
    finally:
        for client in clients:
            client.close()


def is_whole(client: Any, wanted: int) -> bool:
    """Return True if a node knows this many nodes with slots, and all slots."""
    info = client.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and int(info["cluster_size"]) == wanted)
