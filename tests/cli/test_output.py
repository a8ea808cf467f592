"""Output of the command line can't act on a terminal, and is written in one module."""

import ast
import json
import logging
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import acker_redis
from acker_redis import Acker, AckerConfig, DeadLetter
from acker_redis.acker import app_of
from acker_redis.cli import app, operate, output
from acker_redis.testing import fake_acker

CLI = Path(acker_redis.__file__).parent / "cli"

NASTY = {
    "\x1b]0;owned\x07": r"\x1b]0;owned\x07",
    "\x1b[31mred": r"\x1b[31mred",
    "a\nb\r\tc": r"a\nb\r\tc",
    "\x9b31m": r"\x9b31m",
    "\x7f\x00": r"\x7f\x00",
    "\u202ereversed\u2066": r"\u202ereversed\u2066",
    "\u200bzero\ufeff\u00ad": r"\u200bzero\ufeff\xad",
    "\u2028\u2029\x85": r"\u2028\u2029\x85",
    "\U000e0041tag": r"\U000e0041tag",
    "\ud800": r"\ud800",
}


@pytest.mark.parametrize(("text", "shown"), NASTY.items())
def test_terminal_control_characters_are_escaped(text, shown) -> None:
    assert output.printable(text) == shown


def test_printable_text_is_left_unchanged() -> None:
    text = "plain 'text' with äöü, 日本\u3000語, ünïcode ✓ and \\ 🙂"
    assert output.printable(text) == text


def test_no_control_or_format_character_is_left() -> None:
    every = "".join(map(chr, range(0x110000)))
    left = {unicodedata.category(char) for char in output.printable(every)}
    assert not left & {"Cc", "Cf", "Cs", "Zl", "Zp"}


def test_cli_output_goes_through_the_output_module_only() -> None:
    """And a question is asked, with a text of our own."""
    writers = set()
    for path in CLI.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
                "echo", "secho", "print", "write", "confirm", "prompt", "StreamHandler",
            ):  # fmt: skip
                writers.add((path.name, ast.unparse(node.func)))
    assert writers == {
        ("output.py", "typer.echo"),
        ("output.py", "os.write"),
        ("options.py", "typer.confirm"),
    }


@pytest.fixture
def nasty(monkeypatch) -> Acker:
    """An app whose every text is nasty, on the server that the command line reaches."""
    text = "".join(NASTY).replace("\ud800", "")
    acker = fake_acker(AckerConfig(app="orders", shards=1))
    acker.init(1, 5, 0)
    acker.ack(1, 4, component=text[:100])
    acker.dead_letters.add([DeadLetter(7, text, 3, text, text, text, text.encode() + b"\xff\x9b")])
    app_of(acker).client.redis.xadd("acker:{orders}:dead_letters", {text: text})
    app_of(acker).client.redis.hset("acker:{damaged}:config", text, text)
    monkeypatch.setattr(
        "acker_redis.client.connection.connect_single", lambda url, **options: app_of(acker).client.redis
    )
    monkeypatch.setattr(app_of(acker).client.redis, "close", lambda: None)
    return acker


@pytest.mark.parametrize(
    "arguments",
    [
        ["dead-letters", "--app", "orders"],
        ["dead-letters", "--app", "orders", "--json"],
        ["inspect", "1", "--app", "orders"],
        ["inspect", "1", "--app", "orders", "--json"],
        ["stats", "--all"],
        ["rotator", "--check"],
        ["stats", "--app", "\x1b[31m"],
        ["inspect", "\x1b[31m", "--app", "orders"],
        ["stats", "--app", "orders", "--redis-file", "/\x1b[31m"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_commands_print_no_terminal_control_characters(nasty, arguments) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.output
    for char in result.output:
        assert char == "\n" or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}, repr(result.output)


def test_json_output_is_ascii_and_keeps_original_text(nasty) -> None:
    result = CliRunner().invoke(app, ["dead-letters", "--app", "orders", "--json"])
    assert result.stdout.isascii()
    letter, damaged = [json.loads(line) for line in result.stdout.splitlines()]
    assert letter["detail"] == "".join(NASTY).replace("\ud800", "")
    assert damaged["damaged"] == "field message_id is missing"


def test_line_break_in_log_message_is_escaped() -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 1, "app %s", ("a\n2026 INFO forged\x1b[2J",), None)
    assert output.LogFormatter().format(record).endswith(r" WARNING app a\n2026 INFO forged\x1b[2J")


def test_text_on_ascii_terminal_is_escaped(monkeypatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr("sys.stdout", SimpleNamespace(encoding="ascii"))
    monkeypatch.setattr("typer.echo", lambda text, err: written.append(text))
    output.line("日本")
    assert written == [r"\u65e5\u672c"]


def test_question_of_delete_app_has_printable_characters_only() -> None:
    assert output.printable(operate.QUESTION) == operate.QUESTION
