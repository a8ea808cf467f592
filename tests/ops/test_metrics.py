"""Metrics as Prometheus scrapes them from a rotator."""

import math
import re
import socket
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from acker_redis import Acker, AckerConfig
from acker_redis.cli import app
from acker_redis.client import scripts
from acker_redis.ops.acl import Role
from acker_redis.ops.metrics import BOUNDS_MS, MetricsServer
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from tests.support.users import log_in, rules_for


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """(name, labels in the order of their names) -> value."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        text = response.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_rotator_exports_the_figures_of_the_dashboard(
    real_url: str, connect: Callable[..., Acker], start_process: Callable[..., Any]
) -> None:
    acker = connect(app="orders", message_timeout_secs=60)
    roots = acker.new_roots(100)
    acker.init_many(roots, roots, 0)
    acker.ack_many(roots[:40], roots[:40])
    acker.ack(int(roots[35]), 1)
    acker.fail(int(roots[50]))
    acker.dead_letters.add([DeadLetter(1, "run", 5, "failed")])
    process = start_process("rotator", "--redis", real_url, "--metrics", "0")
    wait_until(lambda: "serving metrics url=http://127.0.0.1:" in process.log(), "the metrics are served")
    samples = scrape(int(re.findall(r"127\.0\.0\.1:(\d+)/metrics", process.log())[0]))
    assert samples["acker_up",] == 1, process.log()
    assert samples["acker_roots_settled_total", "orders", "acked"] == 40
    assert samples["acker_roots_settled_total", "orders", "failed"] == 1
    assert samples["acker_roots_begun_total", "orders"] == 100
    assert samples["acker_late_updates_total", "orders"] == 1
    assert samples["acker_roots_pending", "orders"] == 59
    assert samples["acker_dead_letters", "orders"] == 1
    assert samples["acker_outcomes_waiting", "orders"] > 0
    assert samples["acker_tick_seconds", "orders"] == 30
    assert 0 <= samples["acker_oldest_pending_age_seconds", "orders"] < 60
    assert 0 <= samples["acker_rotation_age_seconds", "orders"] < 60
    assert samples["acker_app_state", "orders", "ok"] == 1
    assert samples["acker_app_state", "orders", "HANGS"] == 0
    assert samples["acker_memory_bytes", "orders"] > 1000
    buckets = {name[2:]: value for name, value in samples.items() if name[0] == "acker_complete_latency_seconds_bucket"}
    assert len({le for le, _ in buckets}) == len(BOUNDS_MS)
    process.popen.terminate()
    assert process.popen.wait(timeout=20) == 0
    assert "Traceback" not in process.log()


def test_latency_buckets_are_cumulative_over_shards(url: str, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders", shards=2)
    acker.init_many(np.arange(1, 9), np.arange(1, 9), 0)
    acker.ack_many(np.arange(1, 9), np.arange(1, 9))
    raw.hincrby("acker:{orders:1}:latency", "acked:2000", 5)
    raw.hincrby("acker:{orders:0}:latency", "acked:more", 2)
    with MetricsServer(url, [], "127.0.0.1", 0) as server:
        samples = scrape(server.port)
    name = "acker_complete_latency_seconds_bucket"  # neither _sum nor _count: nobody knows the sum
    acked = {float(key[2]): value for key, value in samples.items() if key[0] == name and key[3] == "acked"}
    assert list(acked) == [bound / 1000 for bound in BOUNDS_MS]
    assert (acked[0.05], acked[1.0], acked[2.0], acked[5000.0], acked[math.inf]) == (8, 8, 13, 13, 15)


def test_rotator_user_can_export_metrics(
    start_server: Callable[..., Server], open_acker: Callable[..., Acker], plain: Callable[..., Any], kind: str
) -> None:
    server = start_server(kind=kind)
    open_acker(server.url, app="orders").dead_letters.add([DeadLetter(1, "run", 5, "failed")])
    url = log_in(plain(server.url), server.url, Role.ROTATOR, None, rules=rules_for(kind))
    with MetricsServer(url, [], "127.0.0.1", 0) as metrics:
        samples = scrape(metrics.port)
    assert samples["acker_app_state", "orders", "ok"] == 1
    assert samples["acker_dead_letters", "orders"] == 1
    assert samples["acker_memory_bytes", "orders"] > 1000


def test_metrics_cover_only_the_named_apps(url: str, connect: Callable[..., Acker]) -> None:
    for name in ("orders", "payments"):
        connect(app=name)
    with MetricsServer(url, ["payments"], "127.0.0.1", 0) as server:
        samples = scrape(server.port)
    assert {key[1] for key in samples if len(key) > 1} == {"payments"}


def test_up_metric_is_0_until_the_server_returns(
    start_server: Callable[..., Server], open_acker: Callable[..., Acker], caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server("--appendonly", "yes")
    open_acker(server.url, app="orders")
    with MetricsServer(server.url, [], "127.0.0.1", 0) as metrics:
        assert scrape(metrics.port)["acker_up",] == 1
        server.kill()
        for _ in range(2):
            assert scrape(metrics.port) == {("acker_up",): 0}
        server.start()
        assert scrape(metrics.port)["acker_roots_pending", "orders"] == 0
    assert [record.getMessage()[:19] for record in caplog.records if record.levelname == "WARNING"] == [
        "metrics unavailable"
    ]


def test_metric_labels_contain_no_ids(url: str, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders")
    acker.ack(7, 1, component="parse")
    with (
        MetricsServer(url, [], "127.0.0.1", 0) as server,
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as response,
    ):
        labels = set(re.findall(r'(\w+)="', response.read().decode()))
    assert labels == {"app", "outcome", "state", "le"}


def test_metrics_port_in_use_or_with_check_is_wrong_usage(url: str) -> None:
    run = CliRunner().invoke
    assert run(app, ["rotator", "--check", "--metrics", "0", "--redis", url]).exit_code == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(app, ["rotator", "--all", "--metrics", port, "--redis", url])
    assert (done.exit_code, "Use another port" in done.output) == (2, True)


def test_latency_bounds_match_the_scripts() -> None:
    text = scripts.load("ack").source
    bounds = re.findall(r"if age <= (\d+) then return '(\d+)' end", text)
    assert (*(int(bound) for bound, name in bounds if bound == name), math.inf) == BOUNDS_MS


def test_oldest_pending_age_of_an_idle_app_is_0(url: str) -> None:
    with Acker.connect(url, AckerConfig(app="orders")), MetricsServer(url, [], "127.0.0.1", 0) as server:
        assert scrape(server.port)["acker_oldest_pending_age_seconds", "orders"] == 0
