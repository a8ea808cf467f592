"""`acker-redis topology`: run on Spark, describe, metrics, rescale, empty-state."""

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.cli import app, topology
from acker_redis.errors import BadConfigError
from acker_redis.store import topology_counts
from acker_redis.store.topology_counts import Counts
from acker_redis.storm.state.codec import encode_key, encode_value
from acker_redis.storm.state.shapes import shape_of
from acker_redis.testing import wait_until
from tests.support import java
from tests.support.jobs import counts_on_spark
from tests.support.jobs.words_on_spark import MESSAGES

ROOT = Path(__file__).parents[2]
JOB = "tests.support.jobs.words_on_spark"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["topology", *arguments])


@pytest.fixture
def counted(connect: Any, url: str) -> Acker:
    acker: Acker = connect(app="words")
    counts = {"emitted": {"default": 1234}, "acked": {"default": 1200}, "failed": {"default": 3}, "errors": 2}
    client = app_of(acker).client
    topology_counts.write(client, "words", Counts("Words", "run-1", "ended", 31, 7, components={"lines": counts}))
    topology_counts.write(client, "words", Counts("Broken", "run-2", "failed", 0, error="KeyError: 'x'."))
    return acker


def test_describe_draws_the_topology_without_a_server() -> None:
    shown = run("describe", f"{JOB}:Words")
    assert shown.exit_code == 0 and shown.output.startswith("flowchart LR\n") and "split x2" in shown.output


def test_describe_draws_the_counts_of_an_app(counted: Acker, url: str) -> None:
    shown = run("describe", f"{JOB}:Words", "--app", "words", "--redis", url)
    assert "lines<br/>acked 1200, failed 3" in shown.output and "default: shuffle<br/>1234" in shown.output


@pytest.mark.parametrize("which", [f"{JOB}:Words", "Words"])
def test_metrics_prints_the_counts_of_a_topology(counted: Acker, url: str, which: str) -> None:
    shown = run("metrics", which, "--app", "words", "--redis", url)
    assert shown.exit_code == 0 and shown.output.splitlines() == [
        "Words ended: run run-1: 7 turns, 31 pending",
        "  lines: emitted 1,234, acked 1,200, failed 3, errors 2",
    ]
    as_json = json.loads(run("metrics", which, "--app", "words", "--redis", url, "--json").output)
    assert as_json["turns"] == 7 and as_json["components"]["lines"]["acked"] == {"default": 1200}


def test_metrics_of_an_app_shows_all_topologies_and_exits_1_if_one_failed(counted: Acker, url: str) -> None:
    shown = run("metrics", "--app", "words", "--redis", url)
    assert shown.exit_code == 1
    assert shown.output.splitlines()[:2] == [
        "Broken failed with KeyError: 'x': run run-2: 0 pending",
        "Words ended: run run-1: 7 turns, 31 pending",
    ]


@pytest.mark.parametrize("command", ["metrics", "describe"])
def test_counts_that_are_missing_exit_1_and_say_what_there_is(counted: Acker, url: str, command: str) -> None:
    shown = run(command, f"{JOB}:Endless", "--app", "words", "--redis", url)
    assert (shown.exit_code, shown.output) == (
        1,
        "Topology 'Endless' has not run in app 'words' within the last week. The app has counts of 'Broken', 'Words'.\n",
    )


def test_metrics_of_an_app_without_topologies_and_without_data_exit_1(connect: Any, url: str) -> None:
    connect(app="plain")
    shown = run("metrics", "--app", "plain", "--redis", url)
    assert shown.exit_code == 1 and "No topology has run in app 'plain' within the last week." in shown.output
    for arguments in (("metrics",), ("describe", f"{JOB}:Words")):
        shown = run(*arguments, "--app", "nope", "--redis", url)
        assert shown.exit_code == 1 and "App 'nope' does not exist" in shown.output
    assert run("metrics", "--app", "no:name", "--redis", url).exit_code == 2


@pytest.mark.parametrize(
    ("which", "text"),
    [
        ("words", "names no topology"),
        ("no.such:Words", "can't be imported"),
        ("words_on_spark.py:Words", "is a file"),
        (f"{JOB}:Lines", "is not a topology"),
        (f"{JOB}:Word", "has no 'Word'. Its topologies are Endless, Waiting, Words."),
        ("tests.support.jobs.broken_module:Words", "raised ZeroDivisionError when it was imported"),
    ],
)
def test_a_topology_that_cant_be_found_is_wrong_usage(which: str, text: str) -> None:
    shown = run("describe", which)
    assert shown.exit_code == 2 and text in " ".join(shown.output.split())


def test_a_topology_with_a_mistake_is_wrong_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mistaken.py").write_text(
        "from acker_redis.storm import Bolt, Topology\nclass Words(Topology): split = Bolt.spec(inputs=[Bolt.spec()])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    shown = run("describe", "mistaken:Words")
    assert shown.exit_code == 2 and "error: An input of component 'split' is the unknown component" in shown.output


def start(which: str, url: str, *options: str, **environment: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "acker_redis",
        "topology",
        "run",
        f"{JOB}:{which}",
        "--app",
        "words",
        "--redis",
        url,
    ]
    env = {**java.preloaded(), **environment}
    return subprocess.Popen(
        [*command, "--master", "local[2]", *options],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_session_that_cant_be_started_is_an_error_of_one_line(url: str) -> None:
    command = [sys.executable, "-m", "acker_redis", "topology", "run", f"{JOB}:Words", "--app", "words", "--redis", url]
    done = subprocess.run(
        [*command, "--remote", "http://nowhere"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: No Spark session could be started (")
    assert done.stderr.endswith("Check --master or --remote, and Spark's output above.\n")


@pytest.mark.spark
@pytest.mark.classic("it starts a program with a JVM")
def test_run_ends_when_its_spouts_are_done(connect: Any, url: str) -> None:
    program = start("Words", url)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 0, err
    assert f"{MESSAGES} acked, 0 failed, 0 timed out, 0 dead letters, 0 unfinished" in out
    shown = run("metrics", f"{JOB}:Words", "--app", "words", "--redis", url)
    assert "Words ended" in shown.output and f"lower: emitted {2 * MESSAGES}" in shown.output


@pytest.fixture
def begin_a_job(url: str, tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a program, whose job then waits for a file."""
    programs = []

    def begin() -> subprocess.Popen[str]:
        program = start("Waiting", url, "--go-on", WAITS_IN=str(tmp_path))
        programs.append(program)
        wait_until(lambda: program.poll() is not None or (tmp_path / "began").exists(), "the job has begun", 120)
        assert program.poll() is None, program.communicate()[1]
        return program

    yield begin
    for program in programs:
        program.kill()
        program.communicate()


def drain(program: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal, and wait until the program says that it drains."""
    assert program.stderr
    program.send_signal(number)
    for line in program.stderr:
        if "draining, press Ctrl-C again" in line:
            return
    pytest.fail("it ended")


@pytest.mark.spark
@pytest.mark.classic("it starts a program with a JVM")
def test_sigterm_lets_a_job_end_and_drains_the_run(
    connect: Any, begin_a_job: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    acker, program = connect(app="words"), begin_a_job()
    drain(program, signal.SIGTERM)
    (tmp_path / "go").touch()
    out, err = program.communicate(timeout=120)
    assert program.returncode == 0, err
    assert "50 acked, 0 failed, 0 timed out, 0 dead letters, 0 unfinished" in out and acker.pending() == 0


@pytest.mark.spark
@pytest.mark.classic("it starts a program with a JVM")
def test_second_ctrl_c_ends_the_run_at_once(connect: Any, begin_a_job: Callable[[], subprocess.Popen[str]]) -> None:
    acker, program = connect(app="words"), begin_a_job()
    drain(program, signal.SIGINT)
    assert acker.pending() == 50
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=120)
    assert program.returncode != 0 and "unfinished" not in out, err
    assert acker.pending() == 0, "its roots have failed"


class Session:
    """Stands for a session, of which only its end is asked."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_spark_starts_ends_the_command_without_a_traceback(
    url: str, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    session, main = Session(), threading.main_thread()

    def start(*_: object) -> Session:
        assert main.ident is not None
        signal.pthread_kill(main.ident, number)
        assert threading.current_thread() is not main, "PySpark would set a handler of its own"
        return session

    monkeypatch.setattr(topology, "_session", start)
    shown = run("run", f"{JOB}:Words", "--app", "words", "--redis", url)
    assert (shown.exit_code, shown.stdout) == (1, "")
    assert shown.stderr.splitlines()[-1] == "stopped before the topology began, nothing was emitted"
    assert session.stopped
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_error_of_the_start_is_shown_as_before(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> Session:
        raise BadConfigError("No Spark session could be started (x).")

    monkeypatch.setattr(topology, "_session", start)
    shown = run("run", f"{JOB}:Words", "--app", "words", "--redis", url)
    assert shown.exit_code == 2 and shown.stderr == "error: No Spark session could be started (x).\n"


@pytest.fixture
def stateful(connect: Any, url: str) -> Acker:
    """An app whose topology Counts has 100 keys in its first task."""
    acker: Acker = connect(app="words")
    state = app_of(acker).topology_state("Counts")
    state.open({"count": shape_of(counts_on_spark.Counts._checked_graph().components["count"], 1)})
    turn = state.turn(1, 1)
    values = {encode_key(f"b{number}"): encode_value(number, None, "count") for number in range(100)}
    assert turn.commit([turn.write("count:0", "one", values)]) == 0
    state.turn(1, 2).load("count:0")
    return acker


SIZE = r"  state of count, task 0: 100 keys, 890 bytes\n"


def test_rescale_moves_the_state_of_a_topology(stateful: Acker, url: str) -> None:
    which = ("tests.support.jobs.counts_on_spark:Counts", "--app", "words", "--redis", url)
    shown = run("rescale", *which)
    assert shown.exit_code == 0 and re.fullmatch(r"count: 2 tasks, \d\d of 100 keys moved\n", shown.output), (
        shown.output
    )
    assert run("rescale", *which).output == "nothing to move\n"


def test_metrics_and_describe_show_the_size_of_the_state(stateful: Acker, url: str) -> None:
    client = app_of(stateful).client
    topology_counts.write(client, "words", Counts("Counts", "run-1", "ended", 0, 1))
    which = ("tests.support.jobs.counts_on_spark:Counts", "--app", "words", "--redis", url)
    shown = run("metrics", *which)
    assert shown.exit_code == 0 and re.fullmatch(rf"Counts ended: [^\n]*\n{SIZE}", shown.output), shown.output
    (size,) = json.loads(run("metrics", *which, "--json").output)["state_sizes"]
    assert size == {"topology": "Counts", "component": "count", "index": 0, "keys": 100, "bytes": 890}
    assert "count x2<br/>acked 0, failed 0<br/>state 100 keys, 890 bytes" in run("describe", *which).output
    limit = CliRunner().invoke(app, ["limit", "--app", "words", "--redis", url, "--max-state-bytes", "5000", "--json"])
    assert json.loads(limit.output)["state_bytes"] == 890 and json.loads(limit.output)["max_state_bytes"] == 5000


def test_a_state_is_shown_although_its_topology_has_not_run_within_a_week(stateful: Acker, url: str) -> None:
    which = ("tests.support.jobs.counts_on_spark:Counts", "--app", "words", "--redis", url)
    for arguments in (("metrics", *which), ("metrics", *which[1:])):
        shown = run(*arguments)
        assert shown.exit_code == 0, shown.output
        assert re.fullmatch(rf"Counts has not run within the last week\n{SIZE}", shown.output), shown.output
        found = json.loads(run(*arguments, "--json").output)
        assert (found["topology"], found["state"], found["state_sizes"][0]["keys"]) == ("Counts", None, 100)
    drawn = run("describe", *which)
    assert drawn.exit_code == 0 and 'count x2<br/>state 100 keys, 890 bytes"' in drawn.output
    topology_counts.write(app_of(stateful).client, "words", Counts("Others", "run-1", "ended", 0, 1))
    shown = run("metrics", *which[1:])
    assert re.fullmatch(rf"Others ended: [^\n]*\nCounts has not run [^\n]*\n{SIZE}", shown.output), shown.output
    shown = run("metrics", "Nobody", *which[1:])
    assert shown.exit_code == 1 and "Topology 'Nobody' has not run" in shown.output


def test_empty_state_asks_and_deletes_the_state_in_one_step(stateful: Acker, url: str, raw: Any) -> None:
    which = ("empty-state", "Counts", "--app", "words", "--redis", url)
    asked = CliRunner().invoke(app, ["topology", *which], input="n\n")
    assert asked.exit_code == 1 and "Nothing was deleted" in asked.output and "100 keys" in asked.output
    topology_counts.write(app_of(stateful).client, "words", Counts("Counts", "run-1", "running", 0))
    shown = run(*which, "--yes")
    assert shown.exit_code == 2 and "Stop it before you empty its state" in " ".join(shown.output.split())
    raw.unlink("acker:{words}:topologies")
    shown = run(*which, "--yes")
    assert shown.exit_code == 0 and re.fullmatch(SIZE + r"Counts: 100 keys and 890 bytes deleted\n", shown.output)
    assert raw.keys("acker:{words}:state_values*") == [] and app_of(stateful).topology_state("Counts").shapes() == {}
    shown = run(*which, "--yes")
    assert shown.exit_code == 1 and "Topology 'Counts' has no state in app 'words'" in shown.output


def test_empty_state_of_a_bolt_leaves_the_state_of_others(stateful: Acker, url: str) -> None:
    """The bolt may have other tasks in its next run. A repeat finds nothing."""
    state = app_of(stateful).topology_state("Counts")
    turn = state.turn(1, 2)
    assert turn.commit([turn.write("gone:0", "one", {b"sa": b"1"}), turn.write("gone:1", "two", {b"sb": b"22"})]) == 0
    state.set_shape("gone", "old")
    which = ("empty-state", "Counts", "--bolt", "gone", "--app", "words", "--redis", url, "--yes")
    shown = run(*which)
    assert shown.exit_code == 0 and shown.output.endswith(
        "task 1: 0 keys, 4 bytes\nCounts: 0 keys and 7 bytes deleted\n"
    )
    assert state.tasks() == ["count:0"] and state.shapes().keys() == {"count"}
    assert re.fullmatch(rf"Counts has not [^\n]*\n{SIZE}", run("metrics", "Counts", *which[4:8]).output)
    shown = run(*which)
    assert shown.exit_code == 1 and "has no state of the bolt 'gone' in app" in " ".join(shown.output.split())


def test_empty_state_deletes_what_a_run_that_committed_nothing_has_left(stateful: Acker, url: str) -> None:
    """The number of tasks and the groupings of its bolts. Otherwise nothing would let the next run have others."""
    left = "  no keys, only their number of tasks and groupings\nCounts: 0 keys and 0 bytes deleted\n"
    state = app_of(stateful).topology_state("Counts")
    state.set_shape("idle", "old")
    which = ("empty-state", "Counts", "--app", "words", "--redis", url, "--yes")
    shown = run(*which, "--bolt", "idle")
    assert shown.exit_code == 0 and shown.output == left
    assert state.tasks() == ["count:0"] and state.shapes().keys() == {"count"}
    assert run(*which).exit_code == 0
    state.set_shape("idle", "old")
    shown = run(*which)
    assert shown.exit_code == 0 and shown.output == left and state.shapes() == {}
    assert run(*which).exit_code == 1
