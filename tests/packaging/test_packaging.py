"""Wheel and sdist are whole and pass the index's checks; the library works from the wheel, installed or as a zip."""

import email
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

import acker_redis
from acker_redis.client import scripts
from tests.support.environments import create

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both. Without a build environment of its own, which would have to be fetched."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    (path,) = built.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def about(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_wheel_and_sdist_pass_twine_check(built: Path) -> None:
    """Among others that the README can be shown."""
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_wheel_metadata_has_license_version_and_classifiers(about: Message) -> None:
    assert about["License-Expression"] == "Apache-2.0"
    assert about.get_all("License-File") == ["LICENSE"]
    assert about["Version"] == acker_redis.__version__
    assert about["Requires-Python"] == ">=3.11"
    assert {"redis", "pyspark"} <= set(about["Keywords"].split(","))
    assert "Typing :: Typed" in about.get_all("Classifier", [])
    assert about["Description-Content-Type"] == "text/markdown"


def test_the_changelog_has_the_version() -> None:
    newest = re.search(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest and newest[1] in (acker_redis.__version__, "Unreleased")


def test_sdist_contains_all_sources_of_the_wheel(sdist: Path, wheel: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "pyproject.toml"} <= names
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if ".dist-info/" not in name]
    assert {name.replace("acker_redis/lua/", "lua/") for name in files} <= names


def test_installed_wheel_works_with_its_requirements_only(wheel: Path, about: Message, tmp_path: Path) -> None:
    """What it needs comes from this environment's folders, the library itself from the wheel."""
    folder = tmp_path / "venv"
    site = create(folder, about.get_all("Requires-Dist", []))
    pip = f"-m pip --python {folder}/bin/python install --quiet --no-index --no-deps {wheel}"
    assert run_alone(sys.executable, *pip.split()) == ""
    assert run_alone(folder / "bin" / "acker-redis", "--version") == f"acker-redis {acker_redis.__version__}\n"
    program = """
import sys
from acker_redis import Acker, AckerConfig
from acker_redis.client import scripts
from acker_redis.cli import app
print(scripts.__file__, *(scripts.load(name).name for name in scripts.NAMES))
assert not any(name in sys.modules for name in ("pyspark", "fakeredis", "pandas", "pyarrow"))
"""
    shown = run_alone(folder / "bin" / "python", "-W", "error", "-c", program)
    assert shown.split() == [str(site / "acker_redis" / "client" / "scripts.py"), *scripts.NAMES]


def run_alone(program: Path | str, *arguments: str) -> str:
    """What it prints, without this environment's variables; nothing may go wrong."""
    command = [str(program), *arguments]
    done = subprocess.run(command, cwd="/", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


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
from acker_redis.client import scripts
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
