"""Why tests failed, for the gate (`.ci/gate.py`), which looks again at those that only waited for too long."""

import json
import re
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from acker_redis.errors import ServerNotFoundError

WAITS = (TimeoutError, subprocess.TimeoutExpired, ServerNotFoundError)
"""Errors of a wait that ran out, or of a process that didn't start."""

_TIME_LIMIT = re.compile(r"Timeout \(>")
"""How the failure of a test begins that reached its time limit (pytest-timeout)."""

NEVER_AGAIN = ("tests/model_based/", "tests/lua/", "tests/spark/proof/")
"""Folders whose tests get no second look: a race that acks too much must not pass because it didn't show twice."""

_WAITED = "waited"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that the gate uses."""
    parser.addoption("--failures", metavar="FILE", help="write the failed tests to FILE, each with its reason, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Collect failures in the process that has the file, not in those that run tests for it."""
    file = config.getoption("failures")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(file)), "failures-of-the-run")


def waited(error: BaseException) -> bool:
    """Return True if an error means that a wait ran out, or that a process didn't start."""
    if isinstance(error, pytest.fail.Exception):
        return _TIME_LIMIT.match(str(error)) is not None
    return isinstance(error, WAITS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note at the report of a failed test whether it only waited. Reports of other processes keep the note."""
    report = yield
    if report.failed and call.excinfo is not None:
        again = waited(call.excinfo.value) and not item.nodeid.startswith(NEVER_AGAIN)
        report.user_properties.append((_WAITED, again))
    return report


class Failures:
    """The failures of a run, written to a file at its end."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._failed: list[dict[str, Any]] = []
        file.unlink(missing_ok=True)  # a run that dies leaves none

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a failure of a test, or of its set-up or end."""
        if report.failed:
            again = dict(report.user_properties).get(_WAITED) is True
            self._failed.append({"test": report.nodeid, "again": again, "error": error_of(report)})

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take a file that can't be imported."""
        if report.failed:
            self._failed.append({"test": report.nodeid, "again": False, "error": error_of(report)})

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        self._file.write_text(json.dumps(self._failed), encoding="utf-8")


def error_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the message of the error."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr)
