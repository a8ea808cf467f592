"""The examples of topologies print what their docstrings say, are as short as they claim to be, and import no Spark."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.servers import VALKEY

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "spark" / "topologies"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("[a-z]_*.py"))
SERVICE, TEST = "e_service", "f_topology_test"


def promised(name: str) -> str:
    text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))) or ""
    return textwrap.dedent(text.partition("Prints:\n")[2]).strip()


def run(*arguments: str, url: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=ROOT,
        env={**os.environ, "ACKER_REDIS_URL": url},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_six_topology_examples() -> None:
    assert len(PROGRAMS) == 6
    assert {SERVICE, TEST} < set(PROGRAMS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_topology_example_is_short_and_listed_in_the_readme(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert "pyspark" not in text
    assert f"[{name}.py]({name}.py)" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in (SERVICE, TEST)])
def test_topology_example_prints_its_documented_output(name: str) -> None:
    assert run("-m", f"spark.topologies.{name}").strip() == promised(name) != ""


@pytest.mark.server
def test_example_of_a_service_prints_its_documented_output() -> None:
    with VALKEY.server() as server:
        assert run("-m", f"spark.topologies.{SERVICE}", url=server.url).strip() == promised(SERVICE) != ""


def test_example_of_a_topology_test_passes() -> None:
    printed = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", str(FOLDER / f"{TEST}.py"))
    assert "20 passed" in printed
