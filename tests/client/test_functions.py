"""The scripts as functions: loaded once by somebody who may, called by users who may run no script of their own."""

import re
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import redis
from typer.testing import CliRunner

from acker_redis import Acker, AckerConfig, AuthenticationError, ServerVersionError
from acker_redis.cli import app
from acker_redis.client import function_library
from acker_redis.client.client import Client
from acker_redis.ops.acl import Role, ServerKind, users
from acker_redis.ops.dashboard import app_states, dashboard
from acker_redis.ops.rotator import Rotator
from acker_redis.testing import wait_until
from acker_redis.version import VERSION
from benchmarks import cluster
from tests.support.rounds import full_round, take
from tests.support.servers import VALKEY


def install(url: str) -> Any:
    return CliRunner().invoke(app, ["install", "--redis", url])


def calls(raw: Any) -> set[str]:
    """Script and function commands that the server ran since `config_resetstat`."""
    used = {name.removeprefix("cmdstat_") for name in raw.info("commandstats")}
    return used & {"eval", "evalsha", "fcall"}


@pytest.fixture(params=["valkey", "redis7"])
def server(request: pytest.FixtureRequest, start_server: Any) -> Any:
    return start_server(kind=request.param)


def login(raw: Any, url: str, rules: ServerKind) -> str:
    """The spout of `orders`, who may call functions or may run scripts."""
    (user,) = users("orders", roles=[Role.SPOUT], kind=rules)
    raw.execute_command(*user.as_command.split())
    return url.replace("redis://", f"redis://{user.login}")


def test_user_without_eval_runs_every_operation_by_functions(server, plain, open_acker) -> None:
    raw = plain(server.url)
    result = install(server.url)
    assert (result.exit_code, function_library.library().name in result.output) == (0, True)
    url = login(raw, server.url, ServerKind.FUNCTIONS)
    raw.config_resetstat()
    full_round(open_acker(url, app="orders", shards=2, lanes=2))
    rotator = Rotator(url, ["orders"])
    rotator.run_once()
    rotator.close()
    assert calls(raw) == {"fcall"}


def test_user_without_functions_or_eval_is_advised_to_install(server, plain, open_acker) -> None:
    raw = plain(server.url)
    url = login(raw, server.url, ServerKind.FUNCTIONS)
    client = Client(url)
    with pytest.raises(AuthenticationError, match="acker-redis install"):
        Acker(client, AckerConfig("orders"))
    assert install(server.url).exit_code == 0
    full_round(Acker(client, AckerConfig("orders")))
    client.close()


def test_flushed_functions_fall_back_to_scripts(server, plain, open_acker) -> None:
    raw = plain(server.url)
    install(server.url)
    acker: Acker = open_acker(server.url, shards=2)
    roots = np.arange(1, 2_001)
    acker.init_many(roots, roots, 0)
    raw.execute_command("FUNCTION", "FLUSH")
    acker.ack_many(roots, roots)
    assert len(take(acker, 2_000)) == 2_000
    full_round(open_acker(server.url, app="another"))


def test_user_limited_to_scripts_uses_evalsha(server, plain, open_acker) -> None:
    raw = plain(server.url)
    install(server.url)
    raw.config_resetstat()
    full_round(open_acker(login(raw, server.url, ServerKind.SCRIPTS), app="orders"))
    assert "evalsha" in calls(raw)


def test_libraries_of_two_versions_coexist(server, plain, open_acker, monkeypatch) -> None:
    raw = plain(server.url)
    install(server.url)
    ours = function_library.library()
    older = ours.text.replace(ours.name.removeprefix("acker_"), "0123456789ab")
    raw.execute_command("FUNCTION", "LOAD", older)
    assert install(server.url).exit_code == 0
    found = str(raw.execute_command("FUNCTION", "LIST", "LIBRARYNAME", "acker_*"))
    assert all(f"'{name}'" in found for name in (ours.name, "acker_0123456789ab", "acker_reports"))
    full_round(open_acker(server.url))


def test_install_on_a_server_without_functions_is_refused(start_server, open_acker) -> None:
    server = start_server(kind="redis62")
    result = install(server.url)
    assert (result.exit_code, "use Redis 7 or newer" in result.stderr) == (3, True)
    with pytest.raises(ServerVersionError):
        Client(server.url).install()


def test_functions_survive_a_server_restart(start_server, plain, open_acker) -> None:
    server = start_server("--appendonly", "yes", "--appendfsync", "always")
    install(server.url)
    open_acker(server.url).init(1, 1, 0)
    server.kill()
    server.start()
    raw = plain(server.url)
    raw.config_resetstat()
    acker: Acker = open_acker(server.url)
    acker.ack(1, 1)
    assert (len(acker.poll()), calls(raw)) == (1, {"fcall"})


def with_reports(raw: Any, version: str) -> str:
    """Load the reports as another version did; returns what the dashboard says then."""
    text = function_library.reports().text
    own = f"return '{VERSION}'\n"
    assert text.count(own) == 1
    other = text.replace(own, f"return '{version}'\n").replace("no apps here", f"reports of {version}")
    raw.function_load(other, replace=True)
    return asked(raw)


def asked(raw: Any) -> str:
    return str(raw.fcall_ro("acker_dashboard", 0).decode())


def test_an_older_install_leaves_newer_reports(server, plain) -> None:
    raw = plain(server.url)
    assert "reports of 99.0.1" in with_reports(raw, "99.0.1")
    shown = install(server.url)
    assert shown.exit_code == 0
    assert re.search(
        rf"^127\.0\.0\.1:\d+ keeps its reports: version 99\.0\.1 is newer than {VERSION}$",
        shown.output,
        re.MULTILINE,
    )
    assert "reports of 99.0.1" in asked(raw)
    client = Client(server.url)
    assert "reports of 99.0.1" in dashboard(client)[0]  # what an older program reads is still there
    client.close()


def test_older_reports_are_replaced_and_not_used_by_a_newer_program(server, plain) -> None:
    raw = plain(server.url)
    with_reports(raw, "0.0.9")
    client, on_call = Client(server.url), Client(oncall(raw, server.url))
    assert "no apps here" in dashboard(client)[0]
    for attempt in (dashboard, app_states):
        with pytest.raises(AuthenticationError, match=r"no reports of this version as functions.*acker-redis install"):
            attempt(on_call)
    assert "reports of 0.0.9" in asked(raw)
    assert "keeps" not in install(server.url).output
    assert "no apps here" in asked(raw)
    assert "no apps here" in dashboard(on_call)[0]
    client.close()
    on_call.close()


def oncall(raw: Any, url: str) -> str:
    (user,) = users(roles=[Role.ONCALL])
    raw.execute_command(*user.as_command.split())
    return url.replace("redis://", f"redis://{user.login}")


def test_reports_are_functions_for_who_may_not_eval(server, plain, open_acker) -> None:
    """And only where they are loaded; a user who may EVAL does without."""
    raw = plain(server.url)
    open_acker(server.url, app="orders")
    on_call, other = Client(oncall(raw, server.url)), Client(server.url)
    with pytest.raises(AuthenticationError, match="acker-redis install"):
        app_states(on_call)
    raw.config_resetstat()
    assert [state.app for state in app_states(other)] == ["orders"]
    assert "cmdstat_eval_ro" in raw.info("commandstats")
    install(server.url)
    raw.config_resetstat()
    for client in (on_call, other):
        assert [state.app for state in app_states(client)] == ["orders"]
        client.close()
    assert not {name for name in raw.info("commandstats") if "eval" in name}


def test_a_full_server_is_reported_on(server, plain, open_acker) -> None:
    raw = plain(server.url)
    open_acker(server.url, app="orders")
    install(server.url)
    raw.config_set("maxmemory", 1)
    assert "orders FULL" in asked(raw)
    assert install(server.url).exit_code != 0


def test_a_replica_has_the_functions_and_says_when_it_may_not_tell(start_server, plain, open_acker) -> None:
    primary = start_server()
    open_acker(primary.url, app="orders")
    install(primary.url)
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    raw = plain(replica.url)
    wait_until(lambda: raw.info("replication")["master_link_status"] == "up", "the replica follows")
    wait_until(lambda: "link up" in asked(raw) and "orders " in asked(raw), "it has the app")
    primary.kill()
    wait_until(lambda: "link down" in asked(raw), "the link is down")
    raw.config_set("replica-serve-stale-data", "no")
    for arguments in ((), ("orders",)):
        with pytest.raises(redis.ResponseError, match="on a stale replica"):
            raw.fcall_ro("acker_dashboard", 0, *arguments)


def test_a_new_node_of_a_cluster_needs_them_loaded(plain) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(cluster.node(VALKEY.program())) for _ in range(3)]
        cluster.join(nodes)
        install(nodes[0].url)
        on_nodes = [plain(node.url) for node in nodes]
        assert all("no apps here" in asked(raw) for raw in on_nodes)
        on_nodes[1].function_flush()  # a primary that joins by itself is empty
        with pytest.raises(redis.ResponseError, match="Function not found"):
            asked(on_nodes[1])
        install(nodes[0].url)
        assert all("no apps here" in asked(raw) for raw in on_nodes)
