"""An unsupported PySpark, or none, is told in one sentence when the Spark layer is imported."""

import subprocess
import sys
import tomllib
from pathlib import Path

import environments
import matrix
import pytest
from packaging.requirements import Requirement

from acker_redis.spark.runtime.version import RANGE, SUPPORTED, check_pyspark
from tests.docs import test_docs
from tests.spark.applications import test_over_connect as over_connect
from tests.support.spark.versions import LEFT_OUT, TRIED_ON_ALL, TRIED_ON_NEWEST

ROOT = Path(__file__).resolve().parents[3]


def imported(folder: Path) -> str:
    """The last line of a program that has only the PySpark in the folder, or finds a folder without one."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from acker_redis.spark import run_tracked"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("3.5.9", "Older ones lack Python data sources and DataFrame.toArrow."),
        ("4.4.0", "No other one was tried."),
        ("4.30.0", "No other one was tried."),
        ("5.0.0.dev1", "No other one was tried."),
    ],
)
def test_unsupported_pyspark_version_is_named_in_the_error(version: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    assert imported(tmp_path) == (
        f"acker_redis.errors.SparkVersionError: PySpark {version} is installed, but acker_redis.spark needs PySpark 4.0 to "
        f"4.3. {why} Run `pip install 'pyspark>=4.0,<4.4'`."
    )


@pytest.mark.parametrize("version", ["4.0.0", "4.1.4", "4.2.1", "4.3.10"])
def test_supported_pyspark_version_passes(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    check_pyspark()


def test_missing_pyspark_error_names_pip_install_command(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError(\"No module named 'pyspark'\", name='pyspark')\n")
    assert imported(tmp_path) == (
        "acker_redis.errors.SparkVersionError: pyspark is not installed. acker_redis.spark needs PySpark 4.0 to 4.3. "
        "Run `pip install '/path/to/acker-redis[spark]'` with the path of your clone. A client of Spark Connect needs the "
        "extra `connect` instead."
    )


@pytest.mark.parametrize(("extra", "package"), [("spark", "pyspark"), ("connect", "pyspark-client")])
def test_supported_versions_match_extras_of_pyproject(extra: str, package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wanted,) = (one for one in project["optional-dependencies"][extra] if one.startswith("pyspark"))
    assert wanted == f"{package}{RANGE}"
    major, newest = SUPPORTED[-1].split(".")
    assert f">={SUPPORTED[0]},<{major}.{int(newest) + 1}" == RANGE


def constrained() -> dict[str, str]:
    """The pins of constraints.txt that hold here: some are for a part of Python's versions."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {one.name: str(one.specifier).removeprefix("==")
            for one in wanted if one.marker is None or one.marker.evaluate()}  # fmt: skip


def test_documented_versions_are_those_of_the_matrix() -> None:
    """One patch of each; the whole suite runs on the newest."""
    assert list(environments.versions()) == list(SUPPORTED)
    assert constrained()["pyspark"] == environments.versions()[SUPPORTED[-1]]["pyspark"]
    page = (ROOT / "docs" / "reference" / "spark-versions.md").read_text(encoding="utf-8")
    assert matrix.table() in page, "make matrix writes the table"


def test_every_cell_of_the_matrix_has_the_folders_of_the_chosen_tests() -> None:
    """And each beginning in the list is that of a test."""
    given = {name: arguments for name, _, arguments in matrix.cells() if "versions" in " ".join(arguments)}
    assert len(given) == 2 * len(SUPPORTED)
    for beginning in (*TRIED_ON_ALL, *TRIED_ON_NEWEST):
        path, _, name = beginning.partition("::")
        assert (ROOT / path).exists(), beginning
        assert not name or f"def {name.partition('[')[0]}" in (ROOT / path).read_text(encoding="utf-8"), beginning
        for cell, arguments in given.items():
            is_program = path.startswith("tests/docs/")  # of a classic session: test_over_connect.py has the same
            assert any(path.startswith(one) for one in arguments) or (is_program and "connect" in cell), (
                cell,
                beginning,
            )


def test_what_the_cells_leave_out_is_left_out_of_something() -> None:
    """And a page among it runs over Spark Connect, in each version."""
    for beginning in LEFT_OUT:
        path, _, name = beginning.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text(encoding="utf-8"), beginning
        assert beginning.startswith(TRIED_ON_ALL), beginning
        if path.startswith("tests/docs/"):
            assert f"{name.partition('[')[2]}.md" in over_connect.PAGES, beginning


def test_every_page_and_application_runs_over_connect_or_has_a_reason() -> None:
    folder = ROOT / "spark" / "applications"
    applications = {path.parent.name for path in folder.glob("*/__main__.py")}
    assert {*over_connect.PAGES, *over_connect.ARGUMENTS}.isdisjoint(over_connect.NOT_HERE)
    assert {*over_connect.PAGES, *over_connect.ARGUMENTS, *over_connect.NOT_HERE, "direct_acks"} == {
        *test_docs.PAGES,
        *applications,
    }
