"""The embedded server, as a process that a user starts and ends."""

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from acker_redis import Acker
from acker_redis.testing import wait_until

pytestmark = pytest.mark.server


def started(process: Any) -> str:
    """Wait until it runs, and return its URL."""
    wait_until(lambda: "url=" in process.log(), "the server has started")
    return str(re.findall(r"url=(\S+)", process.log())[0])


def end(process: Any) -> None:
    process.popen.send_signal(signal.SIGTERM)
    assert process.popen.wait(timeout=60) == 0, process.log()


def test_server_has_the_reports_and_ends_with_its_command(start_process: Callable[..., Any]) -> None:
    process = start_process("server", "--port", "0")
    url = started(process)
    with redis.Redis.from_url(url) as raw:
        assert b"no app" in raw.fcall_ro("acker_dashboard", 0).lower()
    end(process)
    with redis.Redis.from_url(url) as raw, pytest.raises(redis.ConnectionError):
        raw.ping()


def test_server_with_a_folder_keeps_its_data(start_process: Callable[..., Any], tmp_path: Path) -> None:
    for is_first in (True, False):
        process = start_process("server", "--port", "0", "--folder", str(tmp_path / "data"))
        with Acker.connect(started(process), app="orders") as acker:
            assert acker.pending() == (0 if is_first else 1)
            acker.init(1, 5, spout_id=0)
        end(process)


def test_server_on_a_port_in_use_is_an_error_with_its_cause(start_process: Callable[..., Any], url: str) -> None:
    process = start_process("server", "--port", url.rpartition(":")[2].partition("/")[0])
    assert process.popen.wait(timeout=120) != 0
    assert "Traceback" not in process.log()
    assert "in use" in process.log()
