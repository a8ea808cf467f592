"""The examples print what their docstrings say, and are as short as they claim to be."""

import ast
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.spark.warm import Warm

FOLDER = Path(__file__).resolve().parents[3] / "spark" / "examples"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("[a-z]_*.py"))


def promised(name: str) -> str:
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return textwrap.dedent(text.partition("Prints:\n")[2]).strip()


@contextmanager
def rotating(url: str) -> Iterator[None]:
    """A rotator runs beside the programs."""
    rotator = subprocess.Popen(
        [sys.executable, "-m", "acker_redis", "rotator", "--redis", url, "--all"], stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        rotator.terminate()
        rotator.wait(timeout=30)


@pytest.mark.parametrize("name", PROGRAMS)
def test_example_is_short_and_listed_in_the_readme(name: str) -> None:
    lines = (FOLDER / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 30
    assert f"[{name}.py]({name}.py)" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.spark
def test_examples_print_their_documented_output(url: str, warm: Warm) -> None:
    assert len(PROGRAMS) == 8
    with rotating(url):
        status, printed, errors = warm.run_module("tests.support.jobs.examples_job", *PROGRAMS, url=url)
    assert status == 0, errors
    found = json.loads(printed.splitlines()[-1])
    for name in PROGRAMS:
        assert found[name].strip() == promised(name), name
