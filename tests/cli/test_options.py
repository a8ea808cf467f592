"""Which server and which apps: options, environment, files; and the image's defaults."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acker_redis.cli import app
from acker_redis.ops import rotator
from stack.compose import services

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "redis://127.0.0.1:1/0"


def run(*arguments: str, **environment: str) -> Any:
    return CliRunner(env=environment).invoke(app, arguments)


@pytest.fixture
def secret(url, tmp_path) -> str:
    path = tmp_path / "url"
    path.write_text(f"{url}\n")
    return str(path)


@pytest.fixture(autouse=True)
def orders(connect, monkeypatch) -> None:
    for name in ("ACKER_APP", "ACKER_APPS", "ACKER_REDIS_URL", "ACKER_REDIS_URL_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("acker_redis.client.client.CONNECT_SECS", 0.0)
    connect(app="orders")
    connect(app="payments")


def test_url_is_read_from_a_file(url, secret) -> None:
    assert run("apps", "--redis-file", secret).output == "orders\npayments\n"


def test_url_is_read_from_the_environment(url, secret) -> None:
    assert run("apps", ACKER_REDIS_URL=url).output == "orders\npayments\n"
    assert run("apps", ACKER_REDIS_URL_FILE=secret).output == "orders\npayments\n"


def test_url_file_overrides_url_within_the_environment(url, secret) -> None:
    result = run("apps", ACKER_REDIS_URL=NOWHERE, ACKER_REDIS_URL_FILE=secret)
    assert (result.exit_code, result.output) == (0, "orders\npayments\n")


def test_command_line_url_overrides_the_environment(url, secret) -> None:
    environment = {"ACKER_REDIS_URL": NOWHERE, "ACKER_REDIS_URL_FILE": "/no/such/file"}
    assert run("apps", "--redis", url, **environment).exit_code == 0
    assert run("apps", "--redis-file", secret, **environment).exit_code == 0


def test_invalid_url_in_a_file_is_refused_without_showing_it(url, tmp_path) -> None:
    path = tmp_path / "url"
    for text in ("", "s3cret and more", "redis://:s3cret@h/notadb"):
        path.write_text(text)
        result = run("apps", "--redis-file", str(path))
        assert result.exit_code == 2
        assert "s3cret" not in result.output
    path.write_bytes(b"\xff")
    assert run("apps", "--redis-file", str(path)).exit_code == 2
    assert run("apps", "--redis-file", str(tmp_path)).exit_code == 2


@pytest.mark.parametrize("place", ["{}:s3cret@", "{}:s3@cret@", "?"])
def test_password_on_the_command_line_warns(url, raw, place, request) -> None:
    raw.execute_command("ACL", "SETUSER", "u", "reset", "on", ">s3cret", "~*", "+@all")
    raw.execute_command("ACL", "SETUSER", "u", ">s3@cret")
    request.addfinalizer(lambda: raw.execute_command("ACL", "DELUSER", "u"))
    with_password = f"{url}?username=u&password=s3cret" if place == "?" else url.replace("//", f"//{place.format('u')}")
    result = run("apps", "--redis", with_password)
    assert "The password in --redis is visible in the list of processes." in result.stderr
    assert "s3" not in result.stderr.replace("a server", "")
    assert "warning" not in run("apps", ACKER_REDIS_URL=with_password).stderr
    assert "warning" not in run("apps", "--redis", url.replace("//", "//u@")).stderr


@pytest.mark.parametrize("named", ["orders,payments", "orders payments", " orders , payments,", "orders\npayments"])
def test_app_names_separated_by_commas_or_blanks_are_accepted(url, named) -> None:
    for result in (
        run("rotator", "--check", "--redis", url, ACKER_APPS=named),
        run("rotator", "--check", "--redis", url, "--app", named),
    ):
        assert result.exit_code == 0, result.output
        assert [line.split(":")[0] for line in result.output.splitlines()] == ["orders", "payments"]


def test_no_app_name_means_all_apps(url, connect) -> None:
    for result in (
        run("rotator", "--check", "--redis", url),
        run("rotator", "--check", "--redis", url, ACKER_APPS=""),
        run("rotator", "--check", "--redis", url, "--all"),
        run("rotator", "--check", "--redis", url, "--all", ACKER_APPS="orders"),
    ):
        assert [line.split(":")[0] for line in result.output.splitlines()] == ["orders", "payments"]


@pytest.mark.parametrize("arguments", [("--app", ""), ("--app", " , "), ("--app", "orders", "--all")])
def test_blank_or_conflicting_app_option_is_wrong_usage(url, arguments) -> None:
    result = run("rotator", "--check", "--redis", url, *arguments)
    assert result.exit_code == 2


@pytest.fixture
def rotated(monkeypatch) -> list[tuple[str, ...]]:
    """What rotators were started for; they do nothing."""
    started: list[tuple[str, ...]] = []

    class Still(rotator.Rotator):
        def run(self, stop: Any) -> None:
            started.append(self._names)

    monkeypatch.setattr(rotator, "Rotator", Still)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return started


def image_command() -> list[str]:
    """What the image of rotators runs by itself, without the name of the program."""
    first, *_ = re.findall(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    name, *arguments = json.loads(first)
    assert name == "acker-redis"
    return list(arguments)


def test_image_rotates_all_apps_or_those_of_the_environment(url, rotated) -> None:
    assert run(*image_command(), ACKER_REDIS_URL=url).exit_code == 0
    assert run(*image_command(), ACKER_REDIS_URL=url, ACKER_APPS="orders,payments").exit_code == 0
    assert rotated == [(), ("orders", "payments")]


def test_compose_health_check_covers_the_rotated_apps(url) -> None:
    name, *arguments = services()["rotator-1"].health
    assert (name, arguments) == ("acker-redis", [*image_command(), "--check"])
    for environment, apps in (({}, ["orders", "payments"]), ({"ACKER_APPS": "payments"}, ["payments"])):
        shown = run(*arguments, ACKER_REDIS_URL=url, **environment).output
        assert [line.split(":")[0] for line in shown.splitlines()] == apps


def test_top_without_a_terminal_is_wrong_usage(url) -> None:
    result = run("top", "--redis", url)
    assert result.exit_code == 2
    assert "Use `acker-redis status`" in result.output


def test_missing_app_error_points_to_the_apps_command(url) -> None:
    result = run("stats", "--app", "nobody", "--redis", url)
    assert result.exit_code == 1
    assert "List the existing apps with `acker-redis apps`." in result.output


def test_unknown_reason_of_letters_is_refused(url) -> None:
    done = run("dead-letters", "--app", "orders", "--reason", "oops", ACKER_REDIS_URL=url)
    assert done.exit_code == 2
    assert "--reason 'oops' is unknown" in done.output
