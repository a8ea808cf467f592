"""The gate: which failures get a second look, what turns it red, and what it prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TESTS = """
import os, subprocess
from pathlib import Path
import pytest
from acker_redis.testing import wait_until

def again(name):
    there = Path(__file__).with_name(name).exists()
    Path(__file__).with_name(name).touch()
    return there

@pytest.fixture
def broken():
    wait_until(lambda: again("fixture"), "the fixture is there", timeout_secs=0)

def test_passes(): pass
def test_waits(): wait_until(lambda: again("test"), "the other has ended", timeout_secs=0)
def test_waits_for_ever(): wait_until(lambda: False, "it never ends", timeout_secs=0)
def test_program(): subprocess.run(["sleep", "60"], timeout=0.01)
def test_set_up(broken): pass
def test_compares(): assert {1: "ack"} == {1: "timeout"}
@pytest.mark.timeout(0.05)
def test_time_limit():
    if not again("limit"):
        os.read(os.pipe()[0], 1)
def test_dies(): os._exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def pytest_in(folder: Path, *arguments: str) -> list[dict[str, object]]:
    """The failures that a run of tests in a folder notes."""
    file = folder / "failures.json"
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.failures", f"--failures={file}", *arguments]
    subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False, timeout=300
    )
    found: list[dict[str, object]] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("processes", ["-n0", "-n2"])
def test_only_tests_that_waited_are_to_be_run_again(folder: Path, processes: str) -> None:
    failed = pytest_in(folder, processes, "-k", "not dies")
    assert {str(one["test"]).rpartition("::")[2]: one["again"] for one in failed} == {
        "test_waits": True, "test_waits_for_ever": True, "test_program": True, "test_set_up": True, "test_compares": False,
        "test_time_limit": True,
    }  # fmt: skip
    errors = {str(one["test"]).rpartition("::")[2]: str(one["error"]) for one in failed}
    assert errors["test_waits"] == "TimeoutError: Condition not met within 0 s: the other has ended"


def test_a_dead_process_and_a_file_that_cant_be_imported_are_not_run_again(folder: Path) -> None:
    (folder / "test_broken.py").write_text("import nothing_of_this_name")
    assert [one["again"] for one in pytest_in(folder, "-n0", "test_broken.py")] == [False]
    (died,) = pytest_in(folder, "-n1", "-k", "dies", "test_some.py")
    assert died["again"] is False
    assert "crashed while running" in str(died["error"])


@pytest.mark.parametrize("name", ["model_based", "lua", "spark/proof"])
def test_models_scripts_and_proofs_are_never_run_again(folder: Path, name: str) -> None:
    inner = folder / "tests" / name
    inner.mkdir(parents=True)
    (inner / "test_some.py").write_text(TESTS)
    (failed,) = pytest_in(folder, "-n0", "-k", "test_waits_for_ever", f"tests/{name}")
    assert failed["again"] is False


RUN = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / ".ci")!r})
import gate
from gate import Command, Stage
gate.ROOT = Path.cwd()
gate.ENDS_IN_SECS = 0.5
pytest = (sys.executable, "-m", "pytest", "-p", "tests.support.failures")
def tests(select):
    return Command((sys.executable, "make.py", *pytest, "-n0", "-k", select), pytest=pytest)
def sh(text, tries=1):
    return Command(("sh", "-c", text), tries)
"""
MAKE = """
import os, sys
*argv, last = sys.argv[1:]
os.execv(argv[0], [*argv, f"--failures={last.removeprefix('FAILURES=')}"])
"""
"""Stands for `make test`, whose last argument is FAILURES=file."""


def run_gate(folder: Path, stages: str) -> tuple[int, str]:
    """Exit status and output of a gate that runs in a folder."""
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    (folder / ".gitignore").write_text("*\n")
    (folder / "make.py").write_text(MAKE)
    done = subprocess.run(
        [sys.executable, "-c", f"{RUN}\nsys.exit(gate.main({stages}))"], cwd=folder, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_gate_is_green_and_names_what_passed_only_alone(folder: Path) -> None:
    select = "passes or set_up or (test_waits and not ever)"
    status, shown = run_gate(folder, f'[Stage("first", 60, (sh("true"),)), Stage("tests", 60, (tests("{select}"),))]')
    assert status == 0, shown
    table, alone = shown.partition(" passed only alone ")[::2]
    assert [line.split()[0] for line in table.partition(" stages ")[2].splitlines()[1:4]] == [
        "first",
        "tests",
        "second",
    ]
    assert "test_some.py::test_waits\n    TimeoutError: Condition not met within 0 s: the other has ended" in alone
    assert "test_some.py::test_set_up\n" in alone
    assert "1 failed, 1 passed" in shown.splitlines()[-1]
    assert "1 error" in shown.splitlines()[-1], "the suite's own last line"


@pytest.mark.parametrize(
    ("select", "wanted"),
    [
        ("compares", "red: test_some.py::test_compares gets no second look"),
        ("test_waits_for_ever or passes", "red: tests, in its second look, too"),
        ("compares or test_set_up", "red: test_some.py::test_compares gets no second look"),
        ("dies", "red: tests"),
        ("no_test_has_this_name", "red: tests"),
    ],
)
def test_gate_is_red(folder: Path, select: str, wanted: str) -> None:
    status, shown = run_gate(folder, f'[Stage("tests", 60, (tests("{select}"),)), Stage("next", 60, (sh("true"),))]')
    assert status == 1
    assert wanted in shown
    assert "- next -" not in shown, "a red stage ends the run"


def meets(own: str, other: str, then: str = "true") -> str:
    """A stage that ends once the other one runs."""
    return f'sh("touch {own}; until test -e {other}; do sleep 0.05; done; echo {own} met {other}; {then}")'


def test_stages_run_side_by_side_and_are_shown_one_after_another(folder: Path) -> None:
    both = f'(Stage("one", 60, ({meets("one", "two")},)), Stage("two", 60, ({meets("two", "one")}, tests("passes"))))'
    status, shown = run_gate(folder, f"[{both}]")
    assert status == 0, shown
    places = [
        shown.index(text) for text in ("- one -", "one met two", "- two -", "two met one", "1 passed", " stages ")
    ]
    assert places == sorted(places)
    assert [line.split()[0] for line in shown.partition(" stages ")[2].splitlines()[1:4]] == ["one", "two", "second"]


@pytest.mark.parametrize(
    ("one", "two", "wanted"),
    [
        ('sh("true")', 'sh("false")', "red: two"),
        ('sh("false")', 'sh("true")', "red: one"),
        ('sh("true")', 'tests("compares")', "red: test_some.py::test_compares gets no second look"),
        ('sh("true")', 'sh("setsid sleep 7655 >/dev/null 2>&1 & true")', "red: one and two left a process behind"),
    ],
)
def test_either_of_two_stages_side_by_side_ends_the_run(folder: Path, one: str, two: str, wanted: str) -> None:
    both = f'(Stage("one", 60, ({one},)), Stage("two", 60, ({two},)))'
    status, shown = run_gate(folder, f'[{both}, Stage("next", 60, (sh("true"),))]')
    assert status == 1 and wanted in shown
    assert "- next -" not in shown


def test_gate_tries_downloads_again(folder: Path) -> None:
    script = "echo x >>tried; test $(wc -l <tried) -eq 3"
    assert run_gate(folder, f'[Stage("set-up", 60, (sh("{script}", 3),))]')[0] == 0
    (folder / "tried").unlink()
    assert run_gate(folder, f'[Stage("set-up", 60, (sh("{script}", 2),))]')[0] == 1


def test_gate_names_and_ends_a_process_that_a_stage_left(folder: Path) -> None:
    script = "setsid sleep 7654 >/dev/null 2>&1 & true"
    status, shown = run_gate(folder, f'[Stage("tests", 60, (sh("{script}"),))]')
    assert status == 1
    (line,) = (line for line in shown.splitlines() if "left a process behind" in line)
    pid, *command = line.partition("behind: ")[2].split()
    assert command == ["sleep", "7654"]
    assert not Path("/proc", pid).exists() or Path("/proc", pid, "cmdline").read_bytes() == b""


def test_gate_ends_a_command_that_takes_too_long(folder: Path) -> None:
    status, shown = run_gate(folder, '[Stage("tests", 0.1, (sh("sleep 7654 & sleep 7653"),))]')
    assert status == 1
    assert "ended after 0 s: sh -c sleep 7654 & sleep 7653" in shown


def test_files_of_a_run_are_removed_at_its_end(folder: Path) -> None:
    status, shown = run_gate(folder, '[Stage("tests", 60, (sh("echo its folder: $TMPDIR; touch $TMPDIR/file"),))]')
    assert status == 0
    (line,) = (line for line in shown.splitlines() if line.startswith("its folder: "))
    assert not Path(line.removeprefix("its folder: ")).exists()


def test_gate_is_red_if_a_stage_writes_into_the_checkout(folder: Path) -> None:
    status, shown = run_gate(folder, '[Stage("tests", 60, (sh("rm .gitignore"),))]')
    assert status == 1
    assert "red: tests wrote into the checkout" in shown
