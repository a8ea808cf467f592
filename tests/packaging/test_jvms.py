"""The bound on JVMs of the tests: files of tests that start some wait for places."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import jvms
from tests.support.jvms import Places

ROOT = Path(__file__).resolve().parents[2]
OTHER = """
import sys
from pathlib import Path
from tests.support.jvms import Places
places = Places(Path(sys.argv[1]), 3)
places.take(int(sys.argv[2]))
print("taken", flush=True)
sys.stdin.read()
"""


def other(folder: Path, count: int) -> "subprocess.Popen[str]":
    """Another process that takes places, and keeps them until it ends."""
    command = [sys.executable, "-c", OTHER, str(folder), str(count)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_places_are_taken_all_at_once_when_another_process_gives_them_back(tmp_path: Path) -> None:
    mine = Places(tmp_path, 3)
    mine.take(2)
    with other(tmp_path, 1) as small:
        assert small.stdout and small.stdout.readline() == "taken\n"
        with other(tmp_path, 3) as large:
            small.kill()
            small.wait()
            assert large.stdout and large.poll() is None
            mine.give_back()
            assert large.stdout.readline() == "taken\n"
            large.kill()
    mine.take(3)
    assert mine.held == 3
    mine.give_back()


def test_a_process_that_dies_gives_its_places_back(tmp_path: Path) -> None:
    with other(tmp_path, 3) as process:
        assert process.stdout and process.stdout.readline() == "taken\n"
        process.kill()
    mine = Places(tmp_path, 3)
    mine.take(3)
    mine.give_back()


def test_files_of_the_table_exist_and_fit() -> None:
    for file, count in jvms.FILES.items():
        assert (ROOT / "tests" / file).exists(), file
        assert 0 < count <= jvms.PLACES, file


HELD = "from tests.support import jvms\ndef test_a(): assert jvms._places.held == {0}\ndef test_b(): test_a()\n"


def test_places_belong_to_a_file_from_its_first_test_to_its_last(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for name, count in (("one", 2), ("other", 0), ("third", 3)):
        (tmp_path / "tests" / f"test_{name}.py").write_text(HELD.format(count))
    (tmp_path / "counts.py").write_text(
        "from tests.support import jvms\njvms.FILES.update({'test_one.py': 2, 'test_third.py': 3})\n"
    )
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -p tests.support.jvms -p counts --import-mode=importlib\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "6 passed" in done.stdout, done.stdout
