"""Clusters: one node, where a script that touches two slots fails, and three nodes with shards on each."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import redis
from redis.cluster import RedisCluster
from typer.testing import CliRunner

from acker_redis import (
    Acker,
    AckerConfig,
    AuthenticationError,
    ConnectionLostError,
    LedgerLostError,
    Limits,
    StateLostError,
)
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.client.client import Client
from acker_redis.model.keys import StateKeys
from acker_redis.ops import abandon_run
from acker_redis.ops.acl import Role, ServerKind
from acker_redis.ops.rotation_check import check
from acker_redis.ops.rotator import Rotator
from acker_redis.store import topology_sizes
from acker_redis.store.topology_state import Status
from acker_redis.storm.core.java_hash import task_index
from acker_redis.storm.state.codec import encode_key
from acker_redis.storm.state.rescale import rescale
from acker_redis.storm.state.shapes import shapes_of
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from benchmarks import cluster
from tests.acker.test_open_existing import fill, look
from tests.model_based.state.twin import Twin
from tests.model_based.state.world import Budget, World
from tests.storm.state.test_rescale import topology
from tests.support.rounds import exact_values, full_round, take
from tests.support.servers import REAL_KINDS, VALKEY
from tests.support.users import log_in


@pytest.fixture(scope="module", params=["valkey", "redis7"])
def one_node(request: pytest.FixtureRequest) -> Iterator[Server]:
    with cluster.node(REAL_KINDS[request.param].program()) as server:
        cluster.join([server])
        yield server


@pytest.fixture(scope="module")
def three_nodes() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(cluster.node(VALKEY.program())) for _ in range(3)]
        cluster.join(servers)
        yield servers


@pytest.fixture
def nodes(three_nodes: list[Server]) -> Iterator[list[Any]]:
    """A plain client of each node; the nodes are empty."""
    clients = [redis.Redis(port=server.port) for server in three_nodes]
    for node in clients:
        node.flushall()
        node.script_flush()
    yield clients
    for node in clients:
        node.close()


def test_single_node_cluster_runs_every_operation(one_node, open_acker) -> None:
    acker = open_acker(one_node.url, shards=5, lanes=2)
    assert app_of(acker).client.is_cluster
    full_round(acker)


def test_script_touching_two_slots_fails_on_a_single_node(one_node, open_acker) -> None:
    """What makes the leg above worth running."""
    acker: Acker = open_acker(one_node.url, app="slots", shards=1)
    script = "#!lua\nredis.call('SET', KEYS[1], 1)\nredis.call('SET', '{another}', 1)"
    with pytest.raises(redis.ResponseError, match=r"(?i)slot"):
        app_of(acker).client.redis.eval(script, 1, "{one}")


def test_three_node_cluster_runs_every_operation(three_nodes, nodes, open_acker) -> None:
    acker = open_acker(three_nodes[1].url, shards=9, lanes=2)
    assert all(len(node.keys("acker:{test:*}:meta")) > 0 for node in nodes)
    full_round(acker)
    assert sum(len(node.keys("acker:{test:*}:ledger")) for node in nodes) == 0


def test_scripts_of_a_topologys_state_run_on_a_single_node(one_node, open_acker) -> None:
    """In the orders of the model. A script that touched two slots would fail."""
    client = app_of(open_acker(one_node.url, app="lab")).client
    raw = redis.Redis(port=one_node.port)
    for seed in range(3):
        for key in raw.keys("acker:{lab}:state*"):
            raw.unlink(key)
        rng, twin = random.Random(seed), Twin(client, raw)
        world = World(("ab", "a", "b"), Budget(1, 1, 1, 0, 1), server=twin)
        while steps := list(world.steps()):
            world.take(rng.choice(steps))
            twin.check_server()
    raw.close()


def test_state_of_topologies_is_kept_moved_and_emptied_on_three_nodes(three_nodes, nodes, open_acker) -> None:
    graphs = {tasks: topology(tasks) for tasks in (3, 2)}
    for number in range(4):  # the state of each app is on one node
        acker: Acker = open_acker(three_nodes[0].url, app=f"app{number}", shards=3)
        state, client = app_of(acker).topology_state("words"), app_of(acker).client
        epoch, _ = state.open(shapes_of(graphs[3]))
        changes: dict[str, dict[bytes, bytes]] = {f"count:{task}": {} for task in range(3)}
        for number_of_word in range(400):
            word = f"w{number_of_word}"
            changes[f"count:{task_index([word], 3)}"][encode_key(word)] = b"value"
        turn = state.turn(epoch, 1)
        assert turn.commit([turn.write(task, "one", of) for task, of in changes.items()]) is Status.OPEN
        state.end(epoch, 1)
        assert sum(moved.keys for moved in rescale(graphs[2], acker)) == 400
        epoch, _ = state.open(shapes_of(graphs[2]))
        turn = state.turn(epoch, 1)
        for task in ("count:0", "count:1"):
            turn.load(task)
        assert sum(len(part) for task in ("count:0", "count:1") for part in turn.read_all(task)) == 400
        assert sum(size.keys or 0 for size in topology_sizes.read(client, f"app{number}")) == 400
        client.pipeline([("HDEL", StateKeys(f"app{number}", "words").values("count:0"), *changes["count:0"])])
        with pytest.raises(StateLostError, match="fields of task count:0 are gone"):
            state.open({})
        assert state.empty().keys < 400 and topology_sizes.read_total(client, f"app{number}") == 0
    assert sum(bool(node.keys("acker:{app*}:state:words")) for node in nodes) > 1


def test_provided_cluster_client_is_used_and_left_open(three_nodes, nodes, open_acker) -> None:
    given = RedisCluster(host="127.0.0.1", port=three_nodes[0].port)
    with Acker.connect(given, AckerConfig(app="test", shards=6)) as acker:
        full_round(acker)
    assert given.ping()
    given.close()


def test_closed_client_has_no_connection_to_a_node(three_nodes, nodes) -> None:
    """Else they stay until they are collected as garbage, with a warning that fails whichever test runs then."""

    def connections() -> list[int]:
        return [sum(one["name"] == "closed" for one in node.client_list(_type="normal")) for node in nodes]

    client = Client(f"{three_nodes[0].url}?client_name=closed")
    assert all(connections())
    client.close()
    wait_until(lambda: not any(connections()), "every node has heard of the end")


def test_functions_installed_on_every_node_are_used_on_each(three_nodes, nodes, open_acker) -> None:
    client = Client(three_nodes[1].url)
    client.install()
    client.close()
    for node in nodes:
        node.config_resetstat()
    full_round(open_acker(three_nodes[1].url, shards=9, lanes=2))
    for node in nodes:
        used = {name.removeprefix("cmdstat_") for name in node.info("commandstats")}
        assert "fcall" in used
        assert not used & {"eval", "evalsha", "command|getkeys"}
    nodes[0].execute_command("FUNCTION", "FLUSH")  # one node was added, or lost its memory
    full_round(open_acker(three_nodes[1].url, app="another", shards=9))
    for node in nodes[1:]:
        node.execute_command("FUNCTION", "FLUSH")


def test_script_flush_on_a_node_during_a_batch_stays_exact(three_nodes, nodes, open_acker) -> None:
    acker: Acker = open_acker(three_nodes[0].url, shards=9)
    roots = np.arange(1, 5_001)
    acker.init_many(roots, roots * 3, 0)
    nodes[1].script_flush()
    acker.ack_many(roots, roots)
    exact_values(acker, roots, (roots * 3) ^ roots)
    assert acker.stats().deduplicated == 0


def test_blocking_poll_collects_outcomes_of_all_nodes(three_nodes, nodes, open_acker) -> None:
    acker: Acker = open_acker(three_nodes[0].url, shards=9)
    began = time.monotonic()
    assert acker.poll(block_ms=100) == []
    assert time.monotonic() - began >= 0.1
    acker.init_many(np.arange(1, 101), np.zeros(100, np.int64), 0)
    assert len(take(acker, 100)) == 100


def test_ages_use_the_server_clock_not_the_client_clock(three_nodes, nodes, open_acker, monkeypatch) -> None:
    acker: Acker = open_acker(three_nodes[0].url, shards=9)
    acker.init(1, 1, 0)
    monkeypatch.setattr(time, "time", lambda: 1_000.0)
    assert 0 <= acker.stats().last_rotation_ms < 60_000
    held = acker.inspect(1)
    assert held is not None
    assert 0 <= held.age_ms < 60_000


def test_rotator_times_out_roots_on_every_node(three_nodes, nodes, open_acker) -> None:
    acker: Acker = open_acker(three_nodes[0].url, shards=9, num_buckets=2, message_timeout_secs=0.2)
    acker.init_many(np.arange(1, 1_001), np.arange(1, 1_001), 0)
    rotator = Rotator(three_nodes[2].url)

    def rotated() -> bool:
        rotator.run_once()
        return acker.stats().timed_out == 1_000

    wait_until(rotated, "everything timed out")
    rotator.close()
    assert {outcome.age_ms >= 200 for outcome in take(acker, 1_000)} == {True}
    assert [(health.app, health.healthy) for health in check(three_nodes[0].url)] == [("test", True)]


def test_rotator_removes_old_letters_on_every_node(three_nodes, nodes, open_acker) -> None:
    """A script that touched two slots would fail."""
    apps = [open_acker(three_nodes[0].url, app=f"app{number}", shards=1) for number in range(6)]
    for acker in apps:
        acker.admin.set_limits(Limits(dead_letter_days=1))
        old = [("XADD", f"acker:{{{acker.config.app}}}:dead_letters", f"{n}-1", "spout_id", n) for n in range(1, 4)]
        app_of(acker).client.pipeline([*old, ("ZADD", f"acker:{{{acker.config.app}}}:replay:2", 1, "2-1")])
    assert all(node.keys("acker:{app*}:dead_letters") for node in nodes)
    rotator = Rotator(three_nodes[2].url)

    def removed() -> bool:
        rotator.run_once()
        return all(acker.dead_letters.count() == 1 for acker in apps)

    wait_until(removed, "the letters without a request are removed")
    rotator.close()


def test_dead_node_raises_and_its_lost_shards_are_reported(three_nodes, nodes, open_acker) -> None:
    acker: Acker = open_acker(three_nodes[0].url, shards=9, outage_timeout_secs=1)
    roots = np.arange(1, 5_001)
    acker.init_many(roots, roots * 3, 0)
    gone = three_nodes[2]
    gone.kill()
    try:
        for call in (
            lambda: acker.ack_many(roots, roots, idempotency_key="acks"),
            lambda: acker.poll(),
            lambda: acker.stats(),
        ):
            began = time.monotonic()
            with pytest.raises(ConnectionLostError, match="Check that the server runs"):
                call()
            assert time.monotonic() - began < 120
    finally:
        gone.start()
    wait_until(lambda: all(cluster.is_whole(node, 3) for node in nodes), "the cluster is whole again", 60)
    with pytest.raises(LedgerLostError):
        acker.ack_many(roots, roots, idempotency_key="acks")
    lost = set(acker.reopen())
    assert 0 < len(lost) < 9
    kept = roots[[held is not None for held in acker.inspect_many(roots)]]
    assert 0 < len(kept) < len(roots)
    exact_values(acker, kept, (kept * 3) ^ kept)


def test_app_user_on_a_cluster_is_limited_to_its_app(one_node, open_acker, plain) -> None:
    url = log_in(plain(one_node.url), one_node.url, Role.SPOUT, rules=ServerKind.FUNCTIONS)
    acker = open_acker(url, app="orders", shards=5)
    full_round(acker)
    with pytest.raises(AuthenticationError, match="lacks a permission"):
        open_acker(url, app="payments")
    rotator = Rotator(url)
    with pytest.raises(AuthenticationError, match=r"(?i)permission.*scan"):
        rotator.run_once()
    rotator.close()


def test_read_only_user_can_inspect_a_cluster(three_nodes, nodes, open_acker) -> None:
    fill(open_acker(three_nodes[0].url, app="orders", shards=9))
    urls = [
        log_in(node, server.url, Role.ONCALL, rules=ServerKind.SCRIPTS)
        for node, server in zip(nodes, three_nodes, strict=True)
    ]
    look(urls[0])


def test_delete_app_removes_the_app_from_every_node(three_nodes, nodes, open_acker) -> None:
    acker: Acker = open_acker(three_nodes[0].url, app="orders", shards=9)
    fill(acker)
    fill(open_acker(three_nodes[0].url, app="orders2", shards=3))
    assert all(any(b"{orders:" in name for name in node.scan_iter()) for node in nodes)
    options = ("--app", "orders", "--redis", three_nodes[1].url, "--yes")
    result = CliRunner().invoke(app, ["delete-app", *options])
    assert (result.exit_code, result.exception) == (0, None), result.output
    left = [name for node in nodes for name in node.scan_iter()]
    assert left and all(b"{orders2" in name for name in left)
    with pytest.raises(LedgerLostError):
        acker.ack(1, 1)


def test_abandoned_run_is_failed_on_every_node(three_nodes, nodes, open_acker) -> None:
    acker = open_acker(three_nodes[0].url, shards=8)
    roots = np.arange(1, 2001)
    acker.init_many(roots, roots, 0)
    lease = app_of(acker).lease(lane=0, run_id="run")
    lease.acquire()
    lease.release()
    client = Client(three_nodes[0].url)
    left = abandon_run.preview(client, acker.config, "run")
    assert left.spout_ids == {0: 2000}
    assert abandon_run.abandon(client, acker.config, left) == 2000
    assert (acker.pending(), acker.stats().unconfirmed_outcomes) == (0, 0)
    client.close()
