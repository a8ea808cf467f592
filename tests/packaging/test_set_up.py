"""The set-up before the first command: programs that are missing are named, and nothing is left of one that was cut short."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acker_redis.testing import wait_until

ROOT = Path(__file__).resolve().parents[2]
WORKING = f"""#!/bin/sh
case "$*" in
  *"-m venv"*) {{venv}}; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *"-m pip"*) {{pip}} ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def start(tmp_path: Path):
    """Start it with a Python whose venv and pip do this; other programs go before those of the machine."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "here").mkdir()

    def starting(
        *arguments: str, venv: str = "true", pip: str = "true", python: str = "", **others: str
    ) -> subprocess.Popen[str]:
        for name, text in {"python": python or WORKING.format(venv=venv, pip=pip), **others}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        return subprocess.Popen(
            ["sh", str(ROOT / ".ci" / "set-up"), "python", "made", *arguments], cwd=tmp_path / "here", text=True,
            env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0,
        )  # fmt: skip

    return starting


def test_set_up_reports_its_steps_and_reuses_an_environment(start, tmp_path: Path) -> None:
    for wanted in (
        "1 of 2: a virtual environment in made, with Python 3",
        "1 of 2: the virtual environment in made is there",
    ):
        process = start()
        shown, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert wanted in shown
        assert "MB in made" in shown
    assert (tmp_path / "here" / "made").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"python": "#!/bin/sh\nexit 1\n"}, "is no Python 3.11 or newer: install python3.11"),
        ({"venv": "exit 1"}, "install its venv module"),
        ({"pip": "exit 1"}, "the package index has to be reachable"),
        ({"df": "#!/bin/sh\nprintf 'h\\nx 9 9 12 9%% /\\n'\n"}, "12 MiB are free here, 2500 are needed: make room"),
    ],
)
def test_set_up_names_missing_requirement_and_leaves_no_files(
    start, tmp_path: Path, given: dict[str, str], message: str
) -> None:
    process = start(**given)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert message in shown
    assert list((tmp_path / "here").iterdir()) == []


def test_newer_python_is_used_with_a_warning(start) -> None:
    newer = WORKING.format(venv="true", pip="true").replace(
        "*) exec", '*"(3, 15)"*) exit 1 ;;\n  --version) echo Python 3.15.0 ;;\n  *) exec'
    )
    process = start(python=newer)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Python 3.15.0 is newer than what this was tried with" in shown


@pytest.mark.parametrize("version", [(3, 11, 0), (3, 13, 9)])
def test_tested_python_version_is_used_without_warning(start, version: tuple[int, ...]) -> None:
    tried = (
        WORKING.format(venv="true", pip="true")
        .replace(
            f'*) exec {sys.executable} "$@"',
            f'-c*) exec {sys.executable} -c "import sys; sys.version_info = {(*version, "final", 0)}; $2" ;;\n'
            f'  *) exec {sys.executable} "$@"',
        )
        .replace('"final"', "'final'")
    )
    process = start(python=tried)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    assert "newer" not in shown


def test_interrupted_set_up_leaves_no_files(start, tmp_path: Path) -> None:
    process = start(pip="touch under-way; exec sleep 600")
    under_way = tmp_path / "here" / "under-way"
    wait_until(under_way.exists, "it is under way")
    under_way.unlink()
    os.killpg(process.pid, signal.SIGINT)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 130, shown
    assert "nothing is left of made" in shown
    assert list((tmp_path / "here").iterdir()) == []
