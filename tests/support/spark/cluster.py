"""A real standalone cluster of plain processes on loopback: a master, and two workers of one core on two host names.

Two names, because Spark never runs a speculative copy on the host of the attempt it copies. The application runs in another
process than the tests, since a JVM has one Spark context and the tests' session has it.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from acker_redis.spark import prepare_environment
from acker_redis.testing import wait_until
from tests.support import java

ROOT = Path(__file__).resolve().parents[3]
HOSTS = ("127.0.0.1", "127.0.0.2")
START_SECS = 90.0
JOB_SECS = 240.0
"""The machine may be busy."""


class Cluster:
    """Master and workers; everything they write is in `folder`.

    Attributes:
        url: of the master.
        pids: of the two worker daemons, whose children are the executors.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.pids: list[int] = []
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all three, and wait until the workers are registered."""
        self._start("master", "master", HOSTS[0], "--host", HOSTS[0], "--port", "0")
        found = self._wait(r"Starting Spark master at (spark://\S+)", "master")
        self.url = found[1]
        for number, host in enumerate(HOSTS):
            name = f"worker-{number}"
            work = str(self.folder / name)
            self.pids.append(
                self._start(
                    "worker", name, host, "--host", host, "--cores", "1", "--memory", "1G", "--work-dir", work, self.url
                )
            )
        for number in range(len(HOSTS)):
            self._wait("Successfully registered with master", f"worker-{number}")

    def stop(self) -> None:
        """End the workers, then the master; whatever is left of their sessions is killed."""
        for process in reversed(self._started.values()):
            process.terminate()
        for process in self._started.values():
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _kill_group(process.pid)

    def _start(self, kind: str, name: str, host: str, *arguments: str) -> int:
        env = environment(self.folder) | {
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{java_options(self.folder)} -Dspark.deploy.maxExecutorRetries=-1",
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "spark.support.standalone", kind, "--webui-port", "0", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self._started[name] = process
        return process.pid

    def _wait(self, pattern: str, name: str) -> re.Match[str]:
        log = self.folder / f"{name}.log"
        process = self._started[name]
        wait_until(
            lambda: process.poll() is not None or re.search(pattern, log.read_text(errors="replace")) is not None,
            f"{name} starts",
            START_SECS,
        )
        found = re.search(pattern, log.read_text(errors="replace"))
        assert found, log.read_text(errors="replace")[-2000:]
        return found


def java_options(folder: Path) -> str:
    """Nothing outside the folder: neither temporary files nor the JVM's own counters."""
    return f"-Djava.io.tmpdir={folder} -XX:-UsePerfData {java.options()}"


def session(folder: Path, settings: dict[str, str], master: str = "local[2,4]") -> Any:
    """A session in an application of its own, which writes nothing outside the folder."""
    from pyspark.sql import SparkSession

    prepare_environment()
    builder = SparkSession.builder.master(master).appName("tests")
    for name, value in {
        "spark.driver.extraJavaOptions": java_options(folder),
        "spark.driver.host": HOSTS[0],
        "spark.local.dir": str(folder),
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "tests.support.spark.daemon",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        **settings,
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def environment(folder: Path) -> dict[str, str]:
    """Of Spark's processes: loopback, workers that can import the tests, temporary files in `folder`."""
    prepare_environment()
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "SPARK_LOCAL_IP": HOSTS[0],
        "SPARK_LOCAL_DIRS": str(folder),
        "TMPDIR": str(folder),
    }


def start_python(folder: Path, module: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a Spark application in a process group of its own; its errors go into a file in `folder`."""
    with (folder / f"{module}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(folder), cwd=folder,
            start_new_session=True,
        )  # fmt: skip


def kill(process: subprocess.Popen[str]) -> None:
    """Driver and JVM at once (SIGKILL), as when the machine fails."""
    _kill_group(process.pid)
    process.communicate()


def run_python(folder: Path, module: str, *arguments: str) -> Any:
    """Run a Spark application to its end; returns what it printed as JSON on its last line."""
    process = start_python(folder, module, *arguments)
    try:
        printed, _ = process.communicate(timeout=JOB_SECS)
    finally:
        _kill_group(process.pid)
    assert process.returncode == 0, (folder / f"{module}.log").read_text(errors="replace")[-4000:]
    return json.loads(printed.splitlines()[-1])


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
