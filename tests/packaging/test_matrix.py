"""The matrix: environments that clones share, its cells, and the results that it keeps."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import environments
import matrix
import pytest

PIP = """#!/bin/sh
here=$(dirname "$0")
case "$*" in
  *"-m pip"*) echo "$@" >>"$here/../asked"; exit ${PIP_STATUS:-0} ;;
  *) exit $(cat "$here/../import-status" 2>/dev/null || echo 0) ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose environments have a Python that notes what pip is asked for."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "spark-versions").write_text(
        "# tried\npyspark==4.0.5 pandas==2.2.3\npyspark==4.1.4 pandas==3.1.1\n"
    )
    (tmp_path / "constraints.txt").write_text("numpy==2.4.6\npandas==2.3.3\npy4j==0.10.9.9\npyspark==4.3.0\n")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "it"\ndependencies = ["redis"]\n[project.optional-dependencies]\nspark = ["pyspark>=4", "pandas"]\n'
        'connect = ["pyspark-client"]\nspark-tests = ["it[spark]", "pytest"]\n'
    )
    run = subprocess.run

    def create(command: Any, **options: Any) -> Any:
        if command[1:3] != ["-m", "venv"]:
            return run(command, **options)
        (command[3] / "bin").mkdir(parents=True)
        (command[3] / "bin" / "python").write_text(PIP)
        (command[3] / "bin" / "python").chmod(0o755)
        return None

    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(subprocess, "run", create)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def asked(python: Path) -> list[str]:
    """What pip was asked for, once each time."""
    return (python.parents[1] / "asked").read_text().splitlines()


def test_environment_has_the_packages_of_the_tests_with_the_pins_of_its_spark(checkout: Path) -> None:
    python = environments.python_of("4.0")
    assert checkout / "cache" in python.parents
    (line,) = asked(python)
    assert line.split()[-4:] == ["redis", "pyspark>=4", "pandas", "pytest"]
    pins = (python.parents[1] / "constraints.txt").read_text().split()
    assert pins == ["pyspark==4.0.5", "pandas==2.2.3", "numpy==2.4.6"]


def test_environment_is_made_once_for_all_clones_with_the_same_pins(checkout: Path) -> None:
    python = environments.python_of("4.0")
    assert environments.python_of("4.0") == python
    assert len(asked(python)) == 1
    assert len({python, environments.python_of("4.1"), environments.python_of("4.0", "connect")}) == 3
    (checkout / "constraints.txt").write_text("numpy==2.4.7\n")
    assert environments.python_of("4.0") != python


@pytest.mark.parametrize("fault", ["half-made", "broken", "without a Python"])
def test_half_made_or_broken_environment_is_made_anew(checkout: Path, fault: str) -> None:
    python = environments.python_of("4.0")
    folder = python.parents[1]
    if fault == "half-made":
        (folder / ".complete").unlink()
    elif fault == "broken":
        (folder / "import-status").write_text("1")
    else:
        python.unlink()
    (folder / "left").touch()
    assert environments.python_of("4.0") == python
    assert not (folder / "left").exists()


def test_environment_that_pip_cant_fill_is_not_complete(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PIP_STATUS", "1")
    assert environments.main(["4.0"]) == 1
    assert "can't be made" in capfd.readouterr().err
    assert not list((checkout / "cache").rglob(".complete"))
    monkeypatch.delenv("PIP_STATUS")
    assert environments.main(["4.0"]) == 0
    assert "made" not in capfd.readouterr().err


def test_environments_that_nothing_used_for_long_are_removed(checkout: Path) -> None:
    old = environments.python_of("4.0").parents[1]
    other = environments.python_of("4.1").parents[1]
    ago = time.time() - environments.KEPT_SECS - 60
    for folder in (old, other):
        os.utime(folder / ".complete", (ago, ago))
    (checkout / "constraints.txt").write_text("numpy==2.4.7\n")
    environments.python_of("4.0")
    assert not old.exists()
    assert other.exists(), "the same kind alone"


@pytest.mark.parametrize("arguments", [[], ["3.5"], ["4"], ["4.0.5"], ["4.0", "classic"], ["4.0", "connect", "x"]])
def test_unknown_version_is_refused_with_the_known_ones(
    checkout: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert environments.main(arguments) == 2
    assert "4.0, 4.1" in capsys.readouterr().err
    assert not (checkout / "cache").exists()


def test_cells_are_versions_sessions_and_sinks_with_jars() -> None:
    names = [name for name, *_ in matrix.cells()]
    assert len(names) == len(set(names))
    assert {name for name in names if name.startswith("4.0")} == {
        "4.0", "4.0-connect", "4.0-delta", "4.0-iceberg", "4.0-kafka", "4.0-postgresql",
    }  # fmt: skip
    assert {name for name in names if name.startswith("4.3")} == {
        "4.3", "4.3-connect", "4.3-kafka", "4.3-postgresql", "4.3-rest",
    }  # fmt: skip


def test_unknown_cell_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.main(["4.0-conect"]) == 2
    shown = capsys.readouterr().out
    assert "No cell is called 4.0-conect." in shown
    assert "4.0-connect" in shown


def test_matrix_goes_on_after_a_red_cell_and_keeps_each_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{matrix.BEGIN}\nold\n{matrix.END}\nafter\n")
    monkeypatch.setattr(matrix, "PAGE", page)
    monkeypatch.setattr(matrix, "RESULTS", tmp_path / "matrix.json")
    installed = {"pyspark": "4.0.5", "pandas": "2.2.3", "java": "17"}

    def run(name: str, *_: object) -> dict[str, Any]:
        if name == "4.0-kafka":
            raise subprocess.TimeoutExpired("pytest", 3600)
        failed = int(name == "4.0-delta")
        return {
            **installed,
            "passed": 9 - failed,
            "failed": failed,
            "skipped": 0,
            "failures": [],
            "seconds": 5,
            "status": failed,
        }

    monkeypatch.setattr(matrix, "run", run)
    assert matrix.main(["4.0-[di]*"]) == 1
    assert matrix.main(["4.0-iceberg"]) == 0
    assert matrix.main(["4.0-kafka"]) == 1
    kept = json.loads((tmp_path / "matrix.json").read_text())
    assert {name: (one["passed"], one["failed"]) for name, one in kept.items()} == {
        "4.0-delta": (8, 1), "4.0-iceberg": (9, 0), "4.0-kafka": (0, 1),
    }  # fmt: skip
    assert all(len(one["commit"]) == 40 for one in kept.values())
    shown = page.read_text()
    assert shown.startswith("before\n") and shown.endswith("\nafter\n") and "old" not in shown
    assert "| 4.0.5 | 2.2.3 | 17 | Delta | 8 of 9 |" in shown
    assert "| 4.0.5 | 2.2.3 | 17 | Iceberg | 9 |" in shown
    assert "red" in capsys.readouterr().out


def test_counts_of_a_cell_are_pytest_s(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n@pytest.mark.skip\ndef test_c(): pass\n"
        "@pytest.fixture\ndef broken(): assert 0\ndef test_d(broken): pass\n"
    )
    report = tmp_path / "report.xml"
    subprocess.run([sys.executable, "-m", "pytest", f"--junitxml={report}", "."], cwd=tmp_path, check=False)
    assert matrix.counts(report) == {
        "passed": 1, "failed": 2, "skipped": 1, "failures": ["test_some::test_b", "test_some::test_d"],
    }  # fmt: skip
    assert matrix.counts(tmp_path / "missing.xml")["failed"] == 1


@pytest.mark.parametrize("name", matrix.results())
def test_cell_of_the_results_ran_with_the_pins_and_is_green(name: str) -> None:
    result, pins = matrix.results()[name], matrix.pins_of(name)
    assert {package: result[package] for package in ("pyspark", "pandas")} == {
        package: pins[package] for package in ("pyspark", "pandas")
    }, f"run make matrix ONLY={name}"
    assert (result["failures"], result["failed"], result["status"]) == ([], 0, 0)


def test_page_has_the_table_of_the_results() -> None:
    assert matrix.table() in matrix.PAGE.read_text(encoding="utf-8")
