"""The wheel holds the Lua files, and they load from it without unpacking (`--py-files`, zipimport)."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from acker_redis import scripts

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_every_lua_file_as_it_is(wheel: Path) -> None:
    folder = ROOT / "lua"
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.lua")}
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".lua")]
        assert {name.removeprefix("acker_redis/lua/"): archive.read(name) for name in names} == files
        assert "acker_redis/py.typed" in archive.namelist()
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"acker_redis"}


def test_the_library_works_from_the_wheel_as_a_zip(wheel: Path, tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(wheel)!r})
from acker_redis import scripts
from acker_redis.testing import fake_acker, settle
assert scripts.__file__.startswith(sys.path[0]), scripts.__file__
acker = fake_acker()
acker.init(1, 5, 7)
acker.ack(1, 5)
assert settle(acker) == {{1: "ack"}}
for name in scripts.NAMES:
    print(name, scripts.sha1(scripts.load(name).text_for(shebang=True)))
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = dict(line.split() for line in done.stdout.splitlines())
    assert loaded == {name: scripts.sha1(scripts.load(name).text_for(shebang=True)) for name in scripts.NAMES}
