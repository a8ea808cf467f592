"""A cluster of which one node does not answer: the others' shards go on."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import redis

from acker_redis import Acker, ConnectionLostError, Limits
from acker_redis.acker import app_of
from acker_redis.client.client import Client
from acker_redis.client.cluster import Nodes
from acker_redis.ops import letter_retention
from acker_redis.ops.rotator import Rotator
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from benchmarks import cluster
from tests.support.servers import VALKEY

SHARDS, APPS = 6, 12


@pytest.fixture
def nodes() -> Iterator[list[Server]]:
    """Three nodes that go on without each other; the last one is what a test breaks."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(cluster.node(VALKEY.program(), "--cluster-require-full-coverage", "no"))
            for _ in range(3)
        ]
        cluster.join(servers)
        yield servers
        os.kill(servers[2].pid, signal.SIGCONT)


def ticks(server: Server) -> dict[str, int]:
    """Ticks so far, by shard of this node."""
    with redis.Redis(port=server.port) as node:
        found = sorted(node.scan_iter(match="acker:*:meta", count=1000))
        return {key.decode(): int(node.hget(key, "tick") or 0) for key in found}


def all_tick(servers: list[Server], description: str, apps: tuple[str, ...] = ("app",)) -> None:
    """Every shard of these nodes, of apps whose names begin so, ticks twice more."""
    prefixes = tuple(f"acker:{{{app}" for app in apps)
    before = {key: tick for server in servers for key, tick in ticks(server).items() if key.startswith(prefixes)}
    assert before

    def ticked() -> bool:
        now = {key: tick for server in servers for key, tick in ticks(server).items()}
        return all(now[key] >= tick + 2 for key, tick in before.items())

    wait_until(ticked, description)


def apps_with_settings_on(server: Server) -> list[str]:
    with redis.Redis(port=server.port) as node:
        return [key.decode()[7:].partition("}")[0] for key in node.scan_iter(match="acker:*:config", count=1000)]


def fill(open_acker: Any, url: str) -> None:
    for number in range(APPS):
        acker: Acker = open_acker(url, app=f"app{number}", shards=SHARDS, num_buckets=2, message_timeout_secs=0.3)
        acker.init_many(np.arange(1, 101), np.arange(1, 101), 0)


def test_frozen_node_delays_only_its_own_shards(nodes, open_acker, start_process) -> None:
    fill(open_acker, nodes[0].url)
    process = start_process("rotator", "--redis", nodes[0].url, "--all")
    all_tick(nodes, "everything is rotated")
    os.kill(nodes[2].pid, signal.SIGSTOP)
    frozen = f"node=127.0.0.1:{nodes[2].port}"
    wait_until(lambda: frozen in process.log(), "the rotator misses the node")
    all_tick(nodes[:2], "the other nodes' shards are rotated")
    all_tick(nodes[:2], "and go on")
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(timeout=60) == 0
    lines = [line for line in process.log().splitlines() if " WARNING " in line or " ERROR " in line]
    assert len(lines) == 1, lines

    another = start_process("rotator", "--redis", nodes[0].url, "--all")
    readable = tuple(f"{app}:" for server in nodes[:2] for app in apps_with_settings_on(server))
    all_tick(nodes[:2], "a rotator that starts now rotates what it can", readable)
    os.kill(nodes[2].pid, signal.SIGCONT)
    all_tick(nodes, "and the rest once the node answers")
    assert f"node back or replaced {frozen}" in another.log()
    assert "not rotated until it exists again" not in another.log()


def test_dead_node_delays_only_its_own_shards(nodes, open_acker) -> None:
    fill(open_acker, nodes[0].url)
    rotator = Rotator(nodes[0].url)
    rotator.run_once()
    nodes[2].kill()
    before = ticks(nodes[0]) | ticks(nodes[1])

    def ticked() -> bool:
        rotator.run_once()
        now = ticks(nodes[0]) | ticks(nodes[1])
        return all(now[key] >= tick + 2 for key, tick in before.items())

    wait_until(ticked, "the other nodes' shards are rotated")
    rotator.close()
    nodes[2].start()


def test_dead_node_keeps_no_old_letters_of_other_nodes(nodes, open_acker, caplog, monkeypatch) -> None:
    monkeypatch.setattr(letter_retention, "PASS_SECS", 0.0)
    fill(open_acker, nodes[0].url)
    rotator = Rotator(nodes[0].url)
    rotator.run_once()
    readable = [app for server in nodes[:2] for app in apps_with_settings_on(server)]
    for app in readable:
        acker: Acker = Acker.open_existing(nodes[0].url, app)
        acker.admin.set_limits(Limits(dead_letter_days=1))
        app_of(acker).client.pipeline([("XADD", f"acker:{{{app}}}:dead_letters", "1-1", "spout_id", 0)])
        acker.close()
    nodes[2].kill()

    def removed() -> bool:
        rotator.run_once()
        found = []
        for server in nodes[:2]:
            with redis.Redis(port=server.port) as node:
                found += [node.xlen(key) for key in node.scan_iter(match="acker:*:dead_letters", count=1000)]
        return len(found) == len(readable) and not any(found)

    wait_until(removed, "the letters on the other nodes are removed")
    rotator.close()
    nodes[2].start()
    assert "dead letters not expired" not in caplog.text


def test_frozen_node_does_not_affect_replies_of_other_nodes(nodes, open_acker) -> None:
    acker: Acker = open_acker(nodes[0].url, shards=9)
    client = Client(nodes[0].url, outage_timeout_secs=0)
    assert isinstance(client.nodes, Nodes)
    commands = [("HGET", f"acker:{{test:{shard}}}:meta", "tick") for shard in range(9)]
    assert client.pipeline(commands) == [b"0"] * 9
    os.kill(nodes[2].pid, signal.SIGSTOP)
    replies = client.pipeline_each(commands)
    assert {type(reply) for reply in replies} == {bytes, ConnectionLostError}
    assert list(client.nodes.down) == [f"127.0.0.1:{nodes[2].port}"]
    for _ in range(2):  # what was asked before is not read as an answer to this
        again = client.pipeline_each([("HGET", key, "num_buckets") for _, key, _ in commands])
        assert [reply for reply in again if isinstance(reply, bytes)] == [b"3"] * replies.count(b"0")
    with pytest.raises(ConnectionLostError):
        client.pipeline(commands)
    os.kill(nodes[2].pid, signal.SIGCONT)
    wait_until(lambda: client.pipeline_each(commands) == [b"0"] * 9, "the node answers again")
    assert client.nodes.down == {}
    client.close()
    assert acker.stats().pending == 0
