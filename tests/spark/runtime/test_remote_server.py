"""A remote server of Spark Connect: in an environment without the library, under another user, for clients without a JVM."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from acker_redis.client.scripts import library_files
from acker_redis.spark import prepare_environment
from spark.support.connect import Server, command
from tests.docs.test_readme import blocks
from tests.support.environments import create
from tests.support.servers import IN_CI

pytestmark = [pytest.mark.spark, pytest.mark.connect]

ROOT = Path(__file__).resolve().parents[3]
JOBS = ROOT / "tests" / "support" / "jobs"
JOB_SECS = 280
WARNINGS = ("-W", "error", "-W", "ignore:PySpark does not yet fully support pandas:FutureWarning")
"""The tests run with newer pandas than Spark 4.2 knows of."""

USER = "nobody"
SERVER_OF_STREAMS = "pyspark[connect]"
"""What the documentation names as needed for streams."""

WORKERS = ("pandas", "pyarrow", "redis", "numpy", "async-timeout")
"""What the documentation names as needed by Python workers, and what redis needs on their Python."""


def other_user() -> str | None:
    """A user that isn't this one; None where only root could start its processes."""
    return USER if os.geteuid() == 0 else None


def python_of_all() -> str:
    """A Python of this version that the other user may start."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    running = Path(sys.base_prefix) / "bin" / f"python{version}"
    for found in (running, *(Path(folder) / f"python{version}" for folder in ("/usr/local/bin", "/usr/bin"))):
        if found.exists() and all(parent.stat().st_mode & 0o5 == 0o5 for parent in found.resolve().parents):
            return str(found)
    reason = f"no Python {version} that another user may start (apt-get install python{version})"
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def client() -> str:
    """The Python of an environment that has pyspark-client, and no PySpark."""
    python = os.environ.get("ACKER_CLIENT_PYTHON")
    if python is None:
        reason = "ACKER_CLIENT_PYTHON names no Python with pyspark-client alone, as make test-connect does"
        if IN_CI:
            pytest.fail(reason)
        pytest.skip(reason)
    return python


class Remote:
    """A server with folders of its own, which its user owns."""

    def __init__(self, packages: tuple[str, ...], *, has_library: bool = False) -> None:
        self.user = other_user()
        self.folder = Path(tempfile.mkdtemp(prefix="acker-remote-"))  # pytest's own folders are closed to other users
        prepare_environment()
        environment = self.folder / "venv"
        python = python_of_all() if self.user else sys.executable
        site = create(
            environment,
            [SERVER_OF_STREAMS if has_library else "pyspark", *packages],
            python,
            for_all=self.user is not None,
        )
        for name, text in (library_files() if has_library else {}).items():  # as an installed wheel
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_bytes(text)
        home = self.folder / "home"
        home.mkdir()
        self.folder.chmod(0o755)
        if self.user:
            shutil.chown(home, self.user)
        env = {
            "HOME": str(home),
            "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
            "PATH": f"{environment}/bin:{os.environ['PATH']}",
            "PYSPARK_PYTHON": str(environment / "bin" / "python"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOG_DIR": str(home / "logs"),
            "SPARK_NO_DAEMONIZE": "1",  # it ends with its script
            "SPARK_PID_DIR": str(home),
            # Its own folder for temporary files: Spark 4.1 shares one there, which belongs to the first user.
            "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={home}",
        }
        found = site / "pyspark" / "sbin" / "start-connect-server.sh"
        script = ["bash", str(found), "--master", "local[2,4]"]
        if not found.exists():  # such as in the wheel of 4.0
            script = command("local[2,4]", "remote", site / "pyspark")
        self.server = Server(script, {name: value for name, value in env.items() if value}, home, self.user)

    def start(self) -> str:
        """Start it; its URL."""
        self.server.start(**{"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"})
        return self.server.url

    def stop(self) -> None:
        self.server.stop()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    remote = Remote(WORKERS)
    try:
        remote.start()
        yield remote
    finally:
        remote.stop()


def run_client(python: str, job: Path, *arguments: str, **variables: str) -> str:
    """What a program prints, in that environment and with nothing of this one but the library."""
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [python, *WARNINGS, str(job), *arguments],
        cwd="/", env=env, capture_output=True, text=True, timeout=JOB_SECS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


def test_server_runs_under_another_user(remote: Remote) -> None:
    owner = Path(f"/proc/{remote.server.pid}").stat().st_uid
    assert owner == (pwd.getpwnam(USER).pw_uid if os.geteuid() == 0 else os.geteuid())


def test_pipeline_runs_on_a_remote_server_that_got_the_library_by_ship(remote: Remote, client: str, url: str) -> None:
    shown = run_client(client, JOBS / "remote_job.py", remote.server.url, url, str(remote.folder / "home" / "out"))
    assert json.loads(shown.splitlines()[-1]) == {
        "acked": 199,
        "letters": {"7": "seven"},
        "pending": 0,
        "written": 298,
    }


def test_stream_and_export_run_on_a_server_that_has_the_library_installed(client: str, url: str) -> None:
    remote = Remote(WORKERS, has_library=True)
    try:
        server, folder = remote.start(), remote.folder / "home" / "data"
        shown = run_client(client, JOBS / "remote_stream_job.py", server, url, str(folder))
        assert json.loads(shown.splitlines()[-1]) == {
            "parked": 0, "written": 39, "acked": 20, "done": 20, "letters": [7],
        }  # fmt: skip
    finally:
        remote.stop()


def test_program_of_the_page_runs_on_a_remote_server(remote: Remote, client: str, url: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("\n".join(blocks("python", "docs/operate/connect.md")))
    shown = run_client(client, program, SPARK_REMOTE=remote.server.url, ACKER_REDIS_URL=url)
    assert shown == "2 orders are done, no items\n"
    assert list((remote.folder / "home" / "order-items").glob("*.parquet"))


def test_another_python_on_the_server_is_named_in_the_error(remote: Remote, client: str) -> None:
    worker = f"{sys.version_info[0]}.{sys.version_info[1]}"
    shown = run_client(client, JOBS / "remote_check_job.py", remote.server.url, "3.10")
    assert shown.startswith(f"The workers of Spark have Python {worker}, and this process has Python 3.10. ")


def test_missing_package_on_the_server_is_named_in_the_error(client: str) -> None:
    remote = Remote(tuple(set(WORKERS) - {"redis"}))
    try:
        shown = run_client(client, JOBS / "remote_check_job.py", remote.start())
        assert shown.startswith("The workers of Spark can't import a module: No module named 'redis'. ")
    finally:
        remote.stop()
