"""The README's code runs as it stands there: its programs against a real server and real Spark, its one-liners too."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from acker_redis import Acker, AckerConfig
from acker_redis.dead_letters import DeadLetter
from acker_redis.server import Server
from tests.servers import IN_CI, VALKEY

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def program(mark: str) -> str:
    (found,) = (block for block in blocks("python") if mark in block)
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
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def server():
    with VALKEY.server() as server:
        yield server


@pytest.mark.spark
def test_the_pipeline_runs(server: Server, tmp_path: Path) -> None:
    shown = run_program(program("SparkSession"), server.url, tmp_path)
    assert "emitted=5, acked=2, failed=3, timed_out=0, lost=0, replayed=2, dead_lettered=1, late=0" in shown
    assert "DeadLetter(message_id=3, " in shown
    assert "attempts=3, reason='failed', last_stage='split', detail='no items'" in shown
    written = pa.concat_tables(pq.read_table(path) for path in tmp_path.glob("items/*/*.parquet"))
    found = zip(written["order"].to_pylist(), written["item"].to_pylist(), strict=True)
    assert sorted(found) == [(1, "milk"), (1, "tea"), (2, "bread")]


def test_the_bare_acker_runs(server: Server, tmp_path: Path) -> None:
    shown = run_program(program('app="bare"'), server.url, tmp_path)
    assert sorted(shown.splitlines()) == ["ack 1 None write None", "fail 2 failed parse no such customer"]
    for line in shown.splitlines():
        assert f"`{line}`" in README


def test_the_redis_cli_lines_run(server: Server, tmp_path: Path) -> None:
    redis_cli = shutil.which("redis-cli")
    if redis_cli is None:
        if IN_CI:
            pytest.fail("redis-cli is required in CI (apt-get install redis-tools)")
        pytest.skip("redis-cli is not on PATH")
    here = tmp_path / "redis-cli"
    here.write_text(f'#!/bin/sh\nexec {redis_cli} -e -p {server.port} "$@"\n')
    here.chmod(0o755)
    with Acker.connect(server.url, AckerConfig(app="orders")) as acker:
        acker.init_many(range(1, 201), range(1, 201), task=0)
        acker.fail_many(range(1, 101), reason="broken", stage="parse")
        acker.poll(max_outcomes=10)
        acker.dead_letters.add([DeadLetter(1, "run", 5, "failed", "parse", "broken")])
        shown = {}
        for line in (line for block in blocks("sh") for line in block.splitlines() if not line.startswith("#")):
            done = subprocess.run(
                ["sh", "-c", line],
                env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0 and done.stdout.strip() and not done.stderr.strip(), (line, done)
            shown[line] = done.stdout
        assert acker._client.redis.dbsize() == 0  # the last lines delete the app
    (age,) = (text for line, text in shown.items() if "EVAL" in line)
    assert 0 <= int(age) < 60_000
    (settings,) = (text for line, text in shown.items() if "HGETALL" in line and "config" in line)
    assert "message_timeout_secs\n30.0" in settings
    for failures in (text for line, text in shown.items() if "XREVRANGE" in line):
        assert all(word in failures for word in ("broken", "parse", "failed"))
    (held,) = (text for line, text in shown.items() if "for s in" in line)
    assert sum(map(int, held.split())) == 100


def test_the_settings_table_is_complete() -> None:
    defaults = AckerConfig(app="x")
    for name, value in defaults.as_fields().items():
        (row,) = re.findall(rf"^\| `{name}` \| (.*?) \|", README, re.MULTILINE)
        assert row.strip("`") == (value or "none")


def test_the_place_for_measurements_is_marked() -> None:
    assert README.index("<!-- measured:begin -->") < README.index("<!-- measured:end -->")


def test_links_lead_to_files() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "lua" / "README.md", *(ROOT / "docs").glob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
