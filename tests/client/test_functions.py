"""The scripts as functions: loaded once by somebody who may, called by users who may run no script of their own."""

from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from acker_redis import Acker, AckerConfig, AuthenticationError, ServerVersionError
from acker_redis.cli import app
from acker_redis.client import scripts
from acker_redis.client.client import Client
from acker_redis.ops.acl import Role, ServerKind, users
from acker_redis.ops.rotator import Rotator
from tests.support.rounds import full_round, take


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


def test_a_user_without_eval_can_do_everything(server, plain, open_acker) -> None:
    raw = plain(server.url)
    result = install(server.url)
    assert (result.exit_code, scripts.library().name in result.output) == (0, True)
    url = login(raw, server.url, ServerKind.FUNCTIONS)
    raw.config_resetstat()
    full_round(open_acker(url, app="orders", shards=2, lanes=2))
    rotator = Rotator(url, ["orders"])
    rotator.run_once()
    rotator.close()
    assert calls(raw) == {"fcall"}


def test_without_functions_and_without_eval_it_says_what_to_do(server, plain, open_acker) -> None:
    raw = plain(server.url)
    url = login(raw, server.url, ServerKind.FUNCTIONS)
    client = Client(url)
    with pytest.raises(AuthenticationError, match="acker-redis install"):
        Acker(client, AckerConfig("orders"))
    assert install(server.url).exit_code == 0
    full_round(Acker(client, AckerConfig("orders")))
    client.close()


def test_functions_that_are_gone_are_done_without(server, plain, open_acker) -> None:
    raw = plain(server.url)
    install(server.url)
    acker: Acker = open_acker(server.url, shards=2)
    roots = np.arange(1, 2_001)
    acker.init_many(roots, roots, 0)
    raw.execute_command("FUNCTION", "FLUSH")
    acker.ack_many(roots, roots)
    assert len(take(acker, 2_000)) == 2_000
    full_round(open_acker(server.url, app="another"))


def test_a_user_who_may_run_scripts_only_uses_them(server, plain, open_acker) -> None:
    raw = plain(server.url)
    install(server.url)
    raw.config_resetstat()
    full_round(open_acker(login(raw, server.url, ServerKind.SCRIPTS), app="orders"))
    assert "evalsha" in calls(raw)


def test_libraries_of_two_versions_live_beside_each_other(server, plain, open_acker, monkeypatch) -> None:
    raw = plain(server.url)
    install(server.url)
    ours = scripts.library()
    older = ours.text.replace(ours.name.removeprefix("acker_"), "0123456789ab")
    raw.execute_command("FUNCTION", "LOAD", older)
    assert install(server.url).exit_code == 0
    assert len(raw.execute_command("FUNCTION", "LIST", "LIBRARYNAME", "acker_*")) == 2
    full_round(open_acker(server.url))


def test_a_server_without_functions_says_so(start_server, open_acker) -> None:
    server = start_server(kind="redis62")
    result = install(server.url)
    assert (result.exit_code, "use Redis 7 or newer" in result.stderr) == (3, True)
    with pytest.raises(ServerVersionError):
        Client(server.url).install()


def test_the_functions_survive_a_restart_and_a_failover(start_server, plain, open_acker) -> None:
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
