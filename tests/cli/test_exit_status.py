"""One table of exit statuses, kept by every command in every situation."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acker_redis.cli import app, program
from acker_redis.cli.exit_status import EPILOG, MEANINGS, SERVER, UNHEALTHY, USAGE, status_of
from acker_redis.client import client
from acker_redis.errors import (
    AckerError,
    ConnectionLostError,
    InvalidTopologyError,
    JobFailedError,
    OperatorBrokenError,
    PipelineError,
    StateLostError,
)
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing.server import Server

COMMANDS = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")

CHECK, STATS, INSPECT, LETTERS = ("rotator", "--check"), ("stats",), ("inspect", "1"), ("dead-letters",)
APPS, STATUS, PENDING, EVICT = ("apps",), ("status",), ("pending",), ("delete-app", "--yes")
LIMIT = ("limit",)
ALL = (CHECK, STATS, INSPECT, LETTERS, APPS, STATUS, PENDING, LIMIT, EVICT)
OF_AN_APP = (CHECK, STATS, INSPECT, LETTERS, STATUS, PENDING, LIMIT, EVICT)


class Place:
    """A server with an app, which a situation then spoils: it gives the options for a command."""

    def __init__(self, server: Server, raw: Any, folder: Path) -> None:
        self.server, self.raw, self.folder = server, raw, folder
        self.url = server.url


def sound(place: Place) -> list[str]:
    return ["--app", "orders", "--redis", place.url]


def unknown_app(place: Place) -> list[str]:
    return ["--app", "nobody", "--redis", place.url]


def bad_app_name(place: Place) -> list[str]:
    return ["--app", "a}:*", "--redis", place.url]


def no_app(place: Place) -> list[str]:
    return ["--redis", place.url]


def empty_app(place: Place) -> list[str]:
    return ["--app", "", "--redis", place.url]


def server_down(place: Place) -> list[str]:
    place.server.kill()
    return sound(place)


def bad_scheme(place: Place) -> list[str]:
    return ["--app", "orders", "--redis", place.url.replace("redis:", "http:")]


def bad_database(place: Place) -> list[str]:
    return ["--app", "orders", "--redis", place.url.removesuffix("0") + "notadb"]


def bad_login(place: Place) -> list[str]:
    return ["--app", "orders", "--redis", place.url.replace("//", "//nobody:wrong@")]


def no_permission(place: Place) -> list[str]:
    place.raw.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "~*", "+ping", "+info")
    return ["--app", "orders", "--redis", place.url.replace("//", "//narrow:pw@")]


def shard_lost(place: Place) -> list[str]:
    place.raw.delete("acker:{orders:1}:meta")
    return sound(place)


def not_rotated(place: Place) -> list[str]:
    place.raw.hset("acker:{orders:1}:meta", "last_rotation_ms", 0)
    return sound(place)


def damaged_settings(place: Place) -> list[str]:
    place.raw.hset("acker:{orders}:config", mapping={"lanes": b"\xff", b"\xff": ""})
    return sound(place)


def other_settings(place: Place) -> list[str]:
    place.raw.hset("acker:{orders}:config", "lanes", "3")
    return sound(place)


def foreign_settings(place: Place) -> list[str]:
    place.raw.set("acker:{orders}:config", "theirs")
    return sound(place)


def foreign_shard(place: Place) -> list[str]:
    place.raw.set("acker:{orders:1}:meta", "theirs")
    return sound(place)


def foreign_letters(place: Place) -> list[str]:
    place.raw.set("acker:{orders}:dead_letters", "theirs")
    return sound(place)


def foreign_neighbours(place: Place) -> list[str]:
    for name in (b"acker:{a b}:config", b"acker:{\xff}:config", b"acker:{orders2:0}:meta", b"acker:{}:config"):
        place.raw.set(name, "theirs")
    return sound(place)


def missing_file(place: Place) -> list[str]:
    return ["--app", "orders", "--redis-file", str(place.folder / "missing")]


def empty_file(place: Place) -> list[str]:
    (place.folder / "empty").write_text("\n")
    return ["--app", "orders", "--redis-file", str(place.folder / "empty")]


def two_servers(place: Place) -> list[str]:
    return [*sound(place), "--redis-file", str(place.folder / "missing")]


def unknown_option(place: Place) -> list[str]:
    return [*sound(place), "--no-such-option"]


SITUATIONS: list[tuple[Callable[[Place], list[str]], dict[tuple[str, ...], int]]] = [
    (sound, dict.fromkeys(ALL, 0)),
    (unknown_app, dict.fromkeys(OF_AN_APP, 1)),
    (bad_app_name, dict.fromkeys(OF_AN_APP, 2)),
    (no_app, {**dict.fromkeys(OF_AN_APP, 2), CHECK: 0, APPS: 0, STATUS: 0}),
    (empty_app, dict.fromkeys(OF_AN_APP, 2)),
    (server_down, dict.fromkeys(ALL, 3)),
    (bad_scheme, dict.fromkeys(ALL, 2)),
    (bad_database, dict.fromkeys(ALL, 2)),
    (bad_login, dict.fromkeys(ALL, 3)),
    (no_permission, dict.fromkeys(ALL, 3)),
    (shard_lost, {CHECK: 1, STATS: 1, INSPECT: 1, LETTERS: 0, APPS: 0, STATUS: 1, PENDING: 0, LIMIT: 1, EVICT: 0}),
    (not_rotated, {**dict.fromkeys(ALL, 0), CHECK: 1, STATUS: 1}),
    (damaged_settings, {**dict.fromkeys(ALL, 1), APPS: 0, STATUS: 0, EVICT: 0}),
    (other_settings, {CHECK: 1, STATS: 1, INSPECT: 1, LETTERS: 0, APPS: 0, STATUS: 0, PENDING: 0, LIMIT: 1, EVICT: 0}),
    (foreign_settings, {**dict.fromkeys(ALL, 1), APPS: 0, EVICT: 0}),
    (foreign_shard, {CHECK: 1, STATS: 1, INSPECT: 1, LETTERS: 0, APPS: 0, STATUS: 1, PENDING: 0, LIMIT: 1, EVICT: 0}),
    (foreign_letters, {**dict.fromkeys(ALL, 0), LETTERS: 1}),
    (foreign_neighbours, dict.fromkeys(ALL, 0)),
    (missing_file, dict.fromkeys(ALL, 2)),
    (empty_file, dict.fromkeys(ALL, 2)),
    (two_servers, dict.fromkeys(ALL, 2)),
    (unknown_option, dict.fromkeys(ALL, 2)),
]


@pytest.fixture
def place(start_server, open_acker, plain, tmp_path) -> Place:
    server = start_server()
    acker = open_acker(server.url, app="orders", shards=2)
    acker.init(1, 5, 0)
    acker.dead_letters.add([DeadLetter(7, "run", 3, "failed")])
    return Place(server, plain(server.url), tmp_path)


@pytest.mark.parametrize(("situation", "expected"), SITUATIONS, ids=[one.__name__ for one, _ in SITUATIONS])
def test_every_command_has_the_expected_status_in_each_situation(place, monkeypatch, situation, expected) -> None:
    monkeypatch.setattr(client, "CONNECT_SECS", 0.0)
    for name in ("ACKER_APP", "ACKER_APPS", "ACKER_REDIS_URL", "ACKER_REDIS_URL_FILE"):
        monkeypatch.delenv(name, raising=False)
    options = situation(place)
    for command, status in expected.items():
        given = options if command != APPS or "--app" not in options else options[2:]
        result = CliRunner().invoke(app, [*command, *given])
        assert result.exit_code == status, (command, result.output, result.exception)
        assert status == 0 or result.output.strip(), command


@pytest.mark.parametrize("root", ["seven", "", "0x", "1" * 5000, str(2**64)])
def test_inspect_of_an_invalid_root_is_wrong_usage(root) -> None:
    result = CliRunner().invoke(app, ["inspect", root, "--app", "a", "--redis", "redis://127.0.0.1:1/0"])
    assert result.exit_code == 2, result.output


def test_inspect_of_an_unknown_root_exits_with_status_1(place) -> None:
    assert CliRunner().invoke(app, ["inspect", "8", *sound(place)]).exit_code == 1


def process(*arguments: str, stdout: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "acker_redis", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


OUTPUTS = [(*command, "of the app") for command in (CHECK, STATS, INSPECT, LETTERS, EVICT)]
OUTPUTS += [(*LETTERS, "--delete", "--json", "of the app"), (*APPS, "of the server"), ("--version",), ("--help",)]


def arguments_of(command: tuple[str, ...], place: Place) -> list[str]:
    options = {"of the app": sound(place), "of the server": ["--redis", place.url]}
    return [part for word in command for part in options.get(word, [word])]


@pytest.mark.parametrize("command", OUTPUTS, ids=" ".join)
def test_output_to_a_full_disk_exits_with_4_and_deletes_nothing(place, command) -> None:
    before = place.raw.dbsize()
    with Path("/dev/full").open("w") as full:
        done = process(*arguments_of(command, place), stdout=full)
    assert done.returncode == 4, done.stderr
    assert done.stderr == "error: The output can't be written (No space left on device). Nothing after this was done.\n"
    assert place.raw.dbsize() == before
    assert place.raw.xlen("acker:{orders}:dead_letters") == 1


def test_error_of_a_service_that_is_gone_is_not_taken_for_the_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_spark() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            socket.create_connection(unused.getsockname())

    monkeypatch.setattr(program, "app", run_spark)
    with pytest.raises(SystemExit) as ended:
        program.main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (SERVER, "")
    assert shown.err.startswith("error: A file or a service can't be used (ConnectionRefusedError: [Errno 111] ")


@pytest.mark.parametrize("command", [one for one in OUTPUTS if one != ("--help",)], ids=" ".join)
def test_output_to_a_closed_pipe_exits_with_4_quietly(place, command) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = process(*arguments_of(command, place), stdout=writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (4, "")
    assert place.raw.xlen("acker:{orders}:dead_letters") == 1


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (InvalidTopologyError, USAGE),
        (PipelineError, USAGE),
        (StateLostError, UNHEALTHY),
        (OperatorBrokenError, UNHEALTHY),
        (JobFailedError, UNHEALTHY),
        (ConnectionLostError, SERVER),
    ],
)
def test_a_topology_that_is_wrong_or_failed_blames_no_server(kind: type[AckerError], status: int) -> None:
    assert status_of(kind("text")) == status


def test_docs_and_help_show_the_exit_status_table() -> None:
    rows = re.findall(r"^\| ([0-9]) \| (.*?) \|$", COMMANDS, re.MULTILINE)
    assert {int(status): meaning.replace("`", "") for status, meaning in rows} == MEANINGS
    shown = CliRunner().invoke(app, ["--help"]).output
    assert " ".join(EPILOG.removeprefix("\b").split()) in " ".join(shown.split())
    assert all(f"\n    {status}  " in shown for status in MEANINGS), "a row each"
    for command in (
        ["rotator"],
        ["stats"],
        ["inspect"],
        ["dead-letters"],
        ["dead-letters", "show"],
        ["apps"],
        ["delete-app"],
    ):
        assert "Exit status" not in CliRunner().invoke(app, [*command, "--help"]).output, "they stand in one place"


def test_python_warning_is_printed_on_a_single_line(place) -> None:
    place.raw.config_set("maxmemory-policy", "allkeys-lru")
    done = process(*APPS, "--redis", place.url, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, "orders\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: redis://127.0.0.1:") and line.endswith("Set maxmemory-policy to noeviction.")
