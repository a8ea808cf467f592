"""The dashboard, for programs and on the command line: of a single server, and of the nodes of a cluster."""

import json
import re
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from acker_redis import Acker, AckerConfig, BadConfigError
from acker_redis.cli import app
from acker_redis.client.client import Client
from acker_redis.errors import AuthenticationError
from acker_redis.model.roots import root_ids
from acker_redis.ops.dashboard import app_states, pending_roots
from acker_redis.ops.message_lookup import pending_of_message
from benchmarks import cluster
from tests.support.servers import VALKEY


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Any:
    with ExitStack() as stack:
        started = [stack.enter_context(cluster.node(VALKEY.program())) for _ in range(3)]
        cluster.join(started)
        yield started


def fill(acker: Acker) -> None:
    """1 000 messages in the fourth emission of a run: 600 were heard of, 100 of them are done."""
    roots = root_ids(acker.config.app, "run", np.arange(1000), 3)
    acker.init_many(roots, roots, 7)
    acker.ack_many(roots[:600], np.full(600, 1 << 40), component="parse")
    acker.ack_many(roots[:100], roots[:100] ^ (1 << 40), component="parse")


def test_dashboard_of_a_single_server_covers_the_whole_app(url: str, connect: Any) -> None:
    acker = connect(app="orders")
    fill(acker)
    with_client = Client(url)
    (state,) = app_states(with_client)
    assert (state.app, state.state, state.healthy) == ("orders", "ok", True)
    assert (state.shards, state.shards_seen, state.pending, state.dead_letters) == (8, 8, 900, 0)
    assert state.pending_by_component.keys() == {"parse", ""}
    assert state.memory_bytes and state.memory_bytes > 10_000
    assert state.oldest_ms is not None and state.rotated_ms_ago is not None
    assert app_states(with_client, "nobody") == []
    with pytest.raises(BadConfigError, match="app="):
        app_states(with_client, "no name")
    with_client.close()


def test_dashboard_of_a_cluster_sums_its_nodes(nodes: Any) -> None:
    with Acker.connect(nodes[0].url, AckerConfig(app="orders", shards=8)) as acker:
        fill(acker)
        client = Client(nodes[0].url)
        (state,) = app_states(client)
        assert (state.state, state.shards, state.shards_seen, state.pending, state.dead_letters) == ("ok", 8, 8, 900, 0)
        pending = pending_roots(client, "orders", oldest=2)
        assert (pending.pending, pending.looked_at) == (900, 900)
        assert [(component.component, component.count, len(component.oldest)) for component in pending.components] == [
            ("parse", 500, 2),
            ("", 400, 2),
        ]
        client.close()
        shown = run("status", "--app", "orders", "--redis", nodes[0].url)
        assert shown.exit_code == 0
        assert all(f"acker 127.0.0.1:{node.port} " in shown.output for node in nodes)


def test_pending_command_groups_roots_by_component(url: str, connect: Any) -> None:
    fill(connect(app="orders"))
    shown = run("pending", "--app", "orders", "--redis", url, "--oldest", "1").output.splitlines()
    assert shown[0] == "orders: 900 pending, 900 examined, from those added longest ago"
    assert re.match(r"parse  500 roots \(56 %\), oldest \d", shown[1])
    assert re.match(r"\(no component yet\)  400 roots \(44 %\), oldest \d", shown[3])
    asked = ("pending", "--app", "orders", "--redis", url)
    for options, roots in (((), 3), (("--by-component",), 0), (("--by-component", "--oldest", "2"), 2)):
        values = json.loads(run(*asked, *options, "--json").output)
        assert [(component["count"], len(component["oldest"])) for component in values["components"]] == [
            (500, roots),
            (400, roots),
        ]
    assert len(run(*asked, "--by-component").output.splitlines()) == 3


def test_pending_command_locates_the_root_of_a_message(url: str, connect: Any) -> None:
    acker = connect(app="orders")
    fill(acker)
    ((number, record),) = pending_of_message(acker, 599, "run")
    assert (number, record.spout_id, record.last_component) == (3, 7, "parse")
    asked = ("pending", "--app", "orders", "--redis", url, "--run")
    shown = run(*asked, "run", "--message", "599", "--json")
    assert (shown.exit_code, json.loads(shown.output)["emission"]) == (0, 3)
    assert json.loads(shown.output)["hex"] == f"{record.root & (1 << 64) - 1:016x}"
    for run_id, message, more in (("run", "5", ()), ("other", "599", ()), ("run", "599", ("--emissions", "3"))):
        shown = run(*asked, run_id, "--message", message, *more)
        assert (shown.exit_code, "has no pending root in the first" in shown.output) == (1, True)
    assert run(*asked, "run").exit_code == 2


def test_sick_app_makes_status_exit_with_1(url: str, raw: Any, connect: Any) -> None:
    connect(app="orders")
    connect(app="sick")
    raw.delete("acker:{sick:0}:meta")
    shown = run("status", "--redis", url)
    assert shown.exit_code == 1
    assert "sick LOST: 1 of 8 shards have no data" in shown.output
    assert run("status", "--app", "orders", "--redis", url).exit_code == 0
    states = [json.loads(line)["state"] for line in run("status", "--redis", url, "--json").output.splitlines()]
    assert states == ["LOST", "ok"]


def test_dashboard_lists_every_app_among_many_foreign_keys(url: str, raw: Any, connect: Any) -> None:
    for number in range(3):
        connect(app=f"app-{number}", shards=1)
    raw.mset({f"other:{number}": "x" for number in range(60_000)})
    client = Client(url)
    assert json.loads(client.report("dashboard", "--json")[0])["is_whole"] is False
    assert [state.app for state in app_states(client)] == ["app-0", "app-1", "app-2"]
    client.close()


def test_user_without_eval_gets_an_error_naming_it(url: str, raw: Any, connect: Any) -> None:
    connect(app="orders")
    raw.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "~*", "+@read", "+ping", "+info")
    client = Client(url.replace("//", "//narrow:pw@"))
    with pytest.raises(AuthenticationError, match=r"(?i)eval"):
        app_states(client)
    client.close()
    raw.execute_command("ACL", "DELUSER", "narrow")
