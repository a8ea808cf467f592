"""Errors are sentences with a full stop, and log lines are an event followed by `key=value`."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import acker_redis
from acker_redis import errors
from docsite.prose import MAX_WORDS, faults

PACKAGE = Path(acker_redis.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
ERRORS = {name for name in vars(errors) if name.endswith("Error")}
LEVELS = {"debug", "info", "warning", "error", "exception"}
HOLE = "{}"


def text_of(node: ast.expr) -> str | None:
    """A literal text, with `{}` for what is put in; None: it is made elsewhere."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(text_of(part) or HOLE for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (text_of(left) or HOLE) + (text_of(right) or HOLE)
    return None


@cache
def calls(path: Path) -> list[tuple[str, str, ast.Call]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Attribute(value=ast.Name(id=owner), attr=name):
                    found.append((owner, name, node))
                case ast.Name(id=name):
                    found.append(("", name, node))
    return found


def error_texts(path: Path) -> list[tuple[int, str]]:
    found = [(call.lineno, text_of(call.args[0])) for _, name, call in calls(path) if name in ERRORS and call.args]
    return [(line, text) for line, text in found if text is not None]


def log_texts(path: Path) -> list[tuple[int, str]]:
    found = [
        (call.lineno, text_of(call.args[0]))
        for owner, name, call in calls(path)
        if owner in ("log", "self._log") and name in LEVELS and call.args
    ]
    return [(line, text) for line, text in found if text is not None]


def fault_of_error(text: str) -> str | None:
    plain = text.replace(HOLE, "`x`").strip()
    if not re.search(r"([.!?][\"')]?|`x`|`x`\)?)$", plain):
        return "ends without a full stop"
    found = faults("error", plain)
    return found[0] if found else None


def test_errors_have_their_form() -> None:
    bad = [
        (f"{path}:{line}", fault, text)
        for path in FILES
        for line, text in error_texts(path)
        if (fault := fault_of_error(text))
    ]
    assert bad == []


def test_log_lines_are_an_event_and_key_value() -> None:
    bad = [
        (f"{path}:{line}", text)
        for path in FILES
        for line, text in log_texts(path)
        if re.match(r"[A-Z][a-z]", text)
        or re.search(r": \w+=%", text)
        or len(re.findall(r"(?<!:)%[-.\d]*[a-zA-Z]", text))
        != len(re.findall(r"(?:\b\w+=|^skipped )[^\s%]*%[-.\d]*[a-zA-Z](?::%d)?", text))
    ]
    assert bad == []


@pytest.mark.parametrize(
    "text",
    ["ends nowhere: {}: use one", "It is there. Whoever has it keeps it.", " ".join(["word"] * (MAX_WORDS + 2)) + "."],
)
def test_bad_error_is_found(text: str) -> None:
    assert fault_of_error(text) is not None


def test_every_file_is_read() -> None:
    assert sum(len(error_texts(path)) for path in FILES) > 150
    assert sum(len(log_texts(path)) for path in FILES) > 30
