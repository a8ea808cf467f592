"""`make stack`: the compose file's services as plain processes, the job on a real standalone cluster, and the dashboard."""

import re
from pathlib import Path

import pytest

from acker_redis.testing import wait_until
from tests.stack.test_stack import end_of, is_gone, pids, run
from tests.support import java
from tests.support.servers import REDIS7

pytestmark = pytest.mark.spark


def test_stack_job_completes_and_dashboard_shows_both_apps(tmp_path: Path) -> None:
    REDIS7.program()
    folder = tmp_path / "stack"
    process = run("--once", "--folder", str(folder), JAVA_TOOL_OPTIONS=java.options())  # executors read it, too
    shown = end_of(process, 400)
    assert process.returncode == 0, shown
    assert re.search(r"every line accounted for\W+yes", shown)
    assert re.search(r"word counts equal an untracked count\W+yes", shown)
    dashboard = shown[shown.index("all are well") :]
    assert re.search(r"^word-count +ok +0 ", dashboard, re.MULTILINE)
    assert re.search(r"^order-str\S+\n +ok ", dashboard, re.MULTILINE)  # the name is too long for its column
    worker = (folder / "spark-worker.log").read_text()
    assert len(set(re.findall(r"Asked to launch executor (app-[\d-]+)/0", worker))) == 2
    wait_until(lambda: all(map(is_gone, pids(shown))), "nothing is left")
    account = (folder / "stream.log").read_text()
    assert "Nothing is lost." in account
