"""Code of the README and of short pages runs as it stands there: programs on a real server and real Spark, one-liners too."""

import os
import re
import shlex
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
from typer.testing import CliRunner

from acker_redis import Acker, AckerConfig
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.ops.acl import Role, users
from acker_redis.store import topology_counts
from acker_redis.store.dead_letter import FROM_PAYLOAD, DeadLetter
from acker_redis.store.kafka_progress import KafkaProgress
from acker_redis.store.topology_state import TopologyState
from acker_redis.storm.state.codec import encode_key, encode_value
from acker_redis.testing.server import Server
from benchmarks import cluster
from tests.support.servers import VALKEY, required
from tests.support.spark.warm import Warm

ROOT = Path(__file__).resolve().parents[2]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks_of(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def blocks(language: str, name: str) -> list[str]:
    return blocks_of(page(name), language)


HEALTH = ("rotator --check", "acker-redis doctor", "acker-redis status")
"""Words of commands whose status tells whether an app is healthy."""


def program(name: str) -> str:
    found, *_ = blocks("python", name)
    return found


def run_program(text: str, url: str, folder: Path) -> str:
    script = folder / "program.py"
    script.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=folder,
        env={**os.environ, "ACKER_REDIS_URL": url, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def server():
    with VALKEY.server() as server:
        yield server


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("README.md", "detail=\"AttributeError: 'NoneType' object has no attribute 'split'\""),
        ("docs/start/pipeline.md", "detail='no items'"),
    ],
)
def test_documented_pipeline_runs_with_the_shown_result(server: Server, warm: Warm, name: str, detail: str) -> None:
    shown = warm.run(program(name), server.url)
    assert "emitted=5, acked=2, failed=3, timed_out=0, lost=0, replayed=2, dead_lettered=1, late=0" in shown
    assert "DeadLetter(message_id=3, " in shown
    assert f"attempts=3, reason='failed', last_component='split', {detail}" in shown
    expected = [(1, "milk"), (1, "tea"), (2, "bread")]
    if name != "README.md":
        written = pa.concat_tables(pq.read_table(path) for path in warm.folder.glob("items/*.parquet"))
        assert set(zip(written["order"].to_pylist(), written["item"].to_pylist(), strict=True)) == set(expected)
        return
    assert "acked=2" in warm.run(program(name), server.url), "it runs again"
    with closing(sqlite3.connect(warm.folder / "items.sqlite")) as store:
        assert sorted(store.execute("SELECT * FROM items")) == expected, "and each item is there once"


def test_documented_bare_acker_runs_with_the_shown_result(server: Server, tmp_path: Path) -> None:
    shown = run_program("\n".join(blocks("python", "docs/guides/bare.md")), server.url, tmp_path)
    assert sorted(shown.splitlines()) == ["ack 1 None write None", "fail 2 failed parse no such customer"]
    for line in shown.splitlines():
        assert f"`{line}`" in page("docs/guides/bare.md")
    with Acker.open_existing(server.url, "bare") as acker:
        stats = acker.stats()
    assert (stats.pending, stats.unconfirmed_outcomes) == (0, 0), "or the dashboard says SPOUT GONE"


@pytest.fixture(params=["single", "cluster"])
def servers(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    """One server, or three nodes; the node that has the app's settings comes first."""
    with ExitStack() as stack:
        if request.param == "single":
            yield [stack.enter_context(VALKEY.server())]
            return
        nodes = [stack.enter_context(cluster.node(VALKEY.program())) for _ in range(3)]
        cluster.join(nodes)
        yield sorted(nodes, key=lambda node: bool(is_elsewhere(node, "acker:{orders}:config")))


def is_elsewhere(node: Server, key: str) -> bool:
    client = redis.Redis(port=node.port)
    try:
        client.exists(key)
    except redis.exceptions.MovedError:
        return True
    finally:
        client.close()
    return False


SHELL_PAGES = (
    "operate/access",
    "operate/troubleshooting",
    "operate/production",
    "operate/on-call",
    "operate/run-again",
    "reference/commands",
    "reference/settings",
)
"""Pages whose shell lines run one by one, in this order: health is checked before a tick is overdue, the last line deletes the
app."""


def test_every_operating_page_with_shell_blocks_is_tested() -> None:
    folder, elsewhere = ROOT / "docs" / "operate", {"disaster": "test_disaster.py", "upgrade": "test_upgrade.py"}
    with_blocks = {path.stem for path in folder.glob("*.md") if "```sh\n" in path.read_text(encoding="utf-8")}
    assert with_blocks == {name.removeprefix("operate/") for name in SHELL_PAGES if "operate/" in name} | set(elsewhere)
    for name, module in elsewhere.items():
        assert f"{name}.md" in (Path(__file__).parent / module).read_text(encoding="utf-8")
    for name in SHELL_PAGES:  # blocks that are set in would be overlooked
        assert page(f"docs/{name}.md").count("```sh\n") == len(blocks("sh", f"docs/{name}.md"))


def allow_oncall(servers: list[Server]) -> None:
    """Make the user of the page's people on call, as `acker-redis acl --role oncall` prints it."""
    (oncall,) = users(roles=[Role.ONCALL], password="password")
    for server in servers:
        client = redis.Redis(port=server.port)
        client.execute_command(*oncall.as_command.split())  # type: ignore[no-untyped-call]
        client.close()


PROGRESS = {
    "earliest": 0, "end": 158, "committed": 117, "done_beyond": 39, "open": 2, "oldest_open": 117, "letters_not_copied": 0,
    "oldest_reason": "failed", "oldest_component": "fail_where",
}  # fmt: skip
"""Numbers of a partition, as a driver of `run_kafka` writes them."""


@contextmanager
def driver(acker: Acker) -> Iterator[None]:
    """Run the program of the app beside the commands: to them it is gone after 15 s, and its progress old after 60 s."""
    over, progress = threading.Event(), KafkaProgress(app_of(acker).client, "orders", "billing")

    def step() -> None:
        acker.poll(max_outcomes=10)
        progress.write({"orders/0": PROGRESS})

    def run() -> None:
        while not over.wait(1):
            step()

    step()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def write_state(acker: Acker) -> None:
    """Commit a turn that counts a word, and begin the next one, so that the count is among the values."""
    state = TopologyState(app_of(acker).client, "orders", "Words")
    epoch, _ = state.open({"count": "shape"})
    turn = state.turn(epoch, 1)
    turn.load("count:0")
    turn.commit([turn.write("count:0", "name", {encode_key("the"): encode_value(2, "the", "count")})])
    state.turn(epoch, 2).load("count:0")


def run_line(line: str, servers: list[Server], programs: Path) -> str:
    """Output of a line, which has to succeed. Commands of the library run in this process, others in a shell."""
    if line.startswith("acker-redis "):
        ran = CliRunner().invoke(app, shlex.split(line)[1:], input="y\n", env={"ACKER_REDIS_URL": servers[0].url})
        assert ran.exit_code == 0 and ran.stdout.strip() and not ran.stderr.strip(), (line, ran.output)
        return ran.stdout
    done = subprocess.run(
        ["sh", "-c", line.replace(" -r -1 -i 2 ", " -r 2 -i 0.1 ")],  # it would go on
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "REDISCLI_AUTH": "password",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.strip() and not done.stderr.strip(), (line, done)
    return done.stdout


def test_documented_shell_commands_run(servers: list[Server], tmp_path: Path) -> None:
    """Those with redis-cli run as the user of the people on call."""
    redis_cli = required("redis-cli", "redis-tools")
    allow_oncall(servers)
    program = tmp_path / "redis-cli"
    program.write_text(f'#!/bin/sh\nexec {redis_cli} --user acker-oncall -e -p {servers[0].port} "$@"\n')
    program.chmod(0o755)
    shown = {}
    # A long timeout: no rotator runs, which the commands would report after two ticks.
    with Acker.connect(servers[0].url, AckerConfig(app="orders", message_timeout_secs=600)) as acker:
        acker.init_many(range(1, 201), range(1, 201), spout_id=0)
        acker.fail_many(range(1, 101), reason="broken", component="parse")
        acker.admin.rotate(force=True)
        acker.dead_letters.add([DeadLetter(1, "run", 5, "failed", "parse", "broken", b"{}", replay=FROM_PAYLOAD)])
        topology_counts.write(app_of(acker).client, "orders", topology_counts.Counts("Words", "run", "ended", 0))
        write_state(acker)
        pages = [block for name in SHELL_PAGES for block in blocks("sh", f"docs/{name}.md")]
        lines = [line for block in pages for line in block.splitlines() if not line.startswith("#")]
        # Some stand on several pages. Those that fail where no rotator runs come first, because a slow machine needs long.
        *lines, deletes = sorted(dict.fromkeys(lines), key=lambda line: not any(word in line for word in HEALTH))
        with driver(acker):
            for line in lines:
                shown[line] = run_line(line, servers, tmp_path)
        shown[deletes] = run_line(deletes, servers, tmp_path)
        left = [redis.Redis(port=server.port) for server in servers]
        assert [node.dbsize() for node in left] == [0] * len(servers)
        for node in left:
            node.close()
    (age,) = (text for line, text in shown.items() if "TIME" in line)
    assert 0 <= int(age) < 600
    (settings,) = (text for line, text in shown.items() if "HGETALL" in line and "config" in line)
    assert "message_timeout_secs\n600.0" in settings
    (value,) = (text for line, text in shown.items() if "pickletools" in line)
    assert "BININT1    2" in value
    (lag,) = (text for line, text in shown.items() if line.startswith("acker-redis lag"))
    assert re.sub(r"\d+ s ago", "1 s ago", lag).strip() in page("docs/operate/on-call.md")
    for failures in (text for line, text in shown.items() if "XREVRANGE" in line):
        assert all(word in failures for word in ("broken", "parse", "failed"))
    (held,) = (text for line, text in shown.items() if "for s in" in line)
    assert sum(map(int, held.split())) == 200  # 100 pending, 100 closed


def test_settings_table_lists_every_default() -> None:
    table = page("docs/reference/settings.md")
    defaults = AckerConfig(app="x")
    for name, value in defaults.as_fields().items():
        (row,) = re.findall(rf"^\| `{name}` \| (.*?) \|", table, re.MULTILINE)
        assert row.strip("`") == (value or "none")


def test_readme_measurements_match_the_benchmarks_docs() -> None:
    """All that is measured stands between the marks; the README repeats some rows, to the letter."""
    whole = page("docs/reference/benchmarks.md")
    measured = whole[whole.index("<!-- measured:begin -->") : whole.index("<!-- measured:end -->")].splitlines()
    readme = page("README.md")
    shown = readme[readme.index("## Measured") : readme.index("## Where to read on")].splitlines()
    rows = [line for line in shown if line.startswith("|")]
    assert len(rows) == 12
    assert [row for row in rows if row not in measured] == []


def test_readme_stays_short() -> None:
    assert len(page("README.md").splitlines()) <= 150
    assert len([line for line in program("README.md").splitlines() if line.strip()]) <= 21


def test_links_in_docs_lead_to_existing_files_and_headings() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").rglob("*.md")]
    for path in pages:
        for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", path.read_text(encoding="utf-8")):
            if "://" not in target:
                found = path.parent / target if target else path
                assert found.exists(), f"{path.name}: {target}"
                assert not heading or heading in headings(found), f"{path.name}: {target}#{heading}"


def headings(path: Path) -> set[str]:
    """As GitHub names them in links."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    shown = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-") for title in shown}
