"""Pages of the reference: docstrings (by mkdocstrings), the help of each command, and the headers of the scripts."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import typer.main
from typer.testing import CliRunner

import acker_redis
from acker_redis import spark, storm, testing
from acker_redis.cli import app
from acker_redis.client import scripts

_WIDTH = 100


def pages() -> dict[str, str]:
    """Return the text of each page by its place on the site."""
    names = [name for name in acker_redis.__all__ if not name.startswith("_")]
    errors = {name for name in names if _is_error(getattr(acker_redis, name))}
    return {
        "reference/api/library.md": _calls(
            "The library", "acker_redis", (name for name in names if name not in errors), "`import acker_redis`"
        ),
        "reference/api/spark.md": _calls(
            "Calls for Spark",
            "acker_redis.spark",
            sorted(spark.__all__, key=lambda name: isinstance(getattr(spark, name), type)),  # functions come first
            "`pip install '/path/to/acker-redis[spark]'`. [The guide](../../guides/spark.md) shows each of them in use.",
        ),
        "reference/api/topologies.md": _calls(
            "Topologies",
            "acker_redis.storm",
            (name for name in storm.__all__ if getattr(storm, name) is not getattr(acker_redis, name, None)),
            "`from acker_redis.storm import Bolt, Spout, Topology`. No other package is needed, except for `Topology.local`: "
            "`pip install '/path/to/acker-redis[testing]'`. [The guide](../../topologies/topologies.md) shows each of them in "
            "use.",
        ),
        "reference/api/errors.md": _calls(
            "Errors", "acker_redis", (name for name in names if name in errors), "Each message says what to do."
        ),
        "reference/api/testing.md": _calls(
            "For tests",
            "acker_redis.testing",
            testing.__all__,
            "`pip install '/path/to/acker-redis[testing]'`. [The guide](../../guides/testing.md).",
        ),
        "reference/api/commands.md": _commands(),
        "reference/api/scripts.md": _scripts(),
    }


def _is_error(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Exception)


def _calls(title: str, module: str, names: Iterable[str], first: str) -> str:
    return "\n\n".join([f"# {title}", first, *(f"::: {module}.{name}" for name in names), ""])


def _commands() -> str:
    parts = [
        "# The help of each command",
        "The output of `acker-redis COMMAND --help`. [Commands](../commands.md) explains when to use each. Every command ends "
        "with one of these [exit statuses](../commands.md#exit-statuses).",
    ]
    for path in _paths(typer.main.get_command(app), ()):
        shown = CliRunner().invoke(
            app, [*path, "--help"], prog_name="acker-redis", terminal_width=_WIDTH, max_content_width=_WIDTH
        )
        text, _, _ = shown.output.partition("\n\n  Exit status: ")
        parts.append(f"## {' '.join(('acker-redis', *path))}\n\n```text\n{text.strip()}\n```")
    return "\n\n".join([*parts, ""])


def _paths(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, one in getattr(command, "commands", {}).items():
        yield from _paths(one, (*path, name))


def _scripts() -> str:
    folder = scripts.root()
    parts = [
        "# Headers of the scripts",
        "Parameters and results of each script. [The scripts](../../lua.md) describes the form of the headers, the keys, the "
        "blocks and the result codes.",
    ]
    for name in scripts.NAMES:
        flags = ", ".join(f"`{flag}`" for flag in scripts.load(name).flags)
        parts += [f"## {name}", f"`lua/{scripts.script_path(name)}`." + (f" Flags: {flags}." if flags else "")]
        parts += _header(folder.joinpath(*scripts.script_path(name).split("/")).read_text(encoding="utf-8"))
    parts += ["## Reports", "[On call](../../operate/on-call.md) explains what they show."]
    for name in scripts.REPORTS:
        path = folder.joinpath(*scripts.report_path(name).split("/"))
        parts += [f"### acker_{name}", *_header(path.read_text(encoding="utf-8"))]
    return "\n\n".join([*parts, ""])


def _header(text: str) -> Iterator[str]:
    """Yield the description of a header as text, and its parameters and results verbatim."""
    found = re.search(r"--\[\[\n(.*?)\n(?=KEYS|ARGV|Returns|\]\])(.*?)^\]\]", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"no header: {text[:80]!r}")
    for paragraph in found[1].strip("\n").split("\n\n"):
        is_code = paragraph.startswith(" ")
        yield f"```text\n{paragraph}\n```" if is_code else re.sub(r"([\\_*<`\[])", r"\\\1", paragraph)
    yield f"```text\n{found[2].rstrip()}\n```"
