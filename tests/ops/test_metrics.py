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
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.client import scripts
from acker_redis.ops.acl import Role
from acker_redis.ops.metrics import BOUNDS_MS, MetricsServer
from acker_redis.store import topology_counts
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.kafka_progress import KafkaProgress
from acker_redis.store.topology_counts import Counts
from acker_redis.store.topology_state import TopologyState
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
    acker.fail(int(roots[50]), component="parse")
    app_of(acker).ledger.release(roots[51:54], "its run ended")
    acker.dead_letters.add([DeadLetter(1, "run", 5, "failed")])
    process = start_process("rotator", "--redis", real_url, "--metrics", "0")
    wait_until(lambda: "serving metrics url=http://127.0.0.1:" in process.log(), "the metrics are served")
    samples = scrape(int(re.findall(r"127\.0\.0\.1:(\d+)/metrics", process.log())[0]))
    assert samples["acker_up",] == 1, process.log()
    assert samples["acker_roots_settled_total", "orders", "acked"] == 40
    assert samples["acker_roots_settled_total", "orders", "failed"] == 1
    assert samples["acker_roots_settled_total", "orders", "released"] == 3
    assert samples["acker_failed_roots_total", "orders", "parse", "failed"] == 1
    assert samples["acker_roots_begun_total", "orders"] == 100
    assert samples["acker_late_updates_total", "orders"] == 1
    assert samples["acker_roots_pending", "orders"] == 56
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
    assert process.popen.wait(timeout=60) == 0
    assert "Traceback" not in process.log()


def test_latency_buckets_are_cumulative_over_shards(url: str, raw: Any, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders", shards=2)
    acker.init_many(np.arange(1, 9), np.zeros(8, np.int64), 0)  # done at age 0
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
    plain(server.url).hset("acker:{orders}:expired_letters", "total", 12)
    url = log_in(plain(server.url), server.url, Role.ROTATOR, None, rules=rules_for(kind))
    with MetricsServer(url, [], "127.0.0.1", 0) as metrics:
        samples = scrape(metrics.port)
    assert samples["acker_app_state", "orders", "ok"] == 1
    assert samples["acker_dead_letters", "orders"] == 1
    assert samples["acker_expired_letters_total", "orders"] == 12
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


def write_progress(acker: Acker, ages: dict[str, float], **more: Any) -> None:
    numbers = {"end": 158, "committed": 117, "done_beyond": 39, "open": 2, "oldest_open": 117, "letters_not_copied": 0}
    now_ms = acker.dead_letters.now_ms()
    progress = KafkaProgress(app_of(acker).client, acker.config.app, "billing")
    progress.write({name: {**numbers, **more, "time_ms": now_ms - age * 1000} for name, age in ages.items()})


def test_partitions_of_kafka_have_metrics(
    start_server: Callable[..., Server], open_acker: Callable[..., Acker], plain: Callable[..., Any], kind: str
) -> None:
    """As the rotator's user reads them. Unknown numbers have no metric, and drivers that ended have no age."""
    server = start_server(kind=kind)
    acker = open_acker(server.url, app="orders")
    write_progress(acker, {"a.b/11": 90.0}, earliest=7)
    write_progress(acker, {"a.b/12": 90.0}, ended=True, end=None)
    raw = plain(server.url)
    raw.hset("acker:{orders}:kafka_group:billing", "a.b/13", "{")
    url = log_in(raw, server.url, Role.ROTATOR, None, rules=rules_for(kind))
    with MetricsServer(url, [], "127.0.0.1", 0) as metrics:
        samples = scrape(metrics.port)
    found = {(key[0].removeprefix("acker_kafka_"), key[3]): value for key, value in samples.items() if "billing" in key}
    assert {key[1:3] + key[4:] for key in samples if "billing" in key} == {("orders", "billing", "a.b")}
    assert 90 <= found.pop(("progress_age_seconds", "11")) < 150
    assert found == {
        ("lag", "11"): 41, ("open_records", "11"): 2, ("done_beyond", "11"): 39, ("earliest_offset", "11"): 7,
        ("committed_offset", "11"): 117, ("end_offset", "11"): 158,
        ("open_records", "12"): 2, ("done_beyond", "12"): 39, ("committed_offset", "12"): 117,
    }  # fmt: skip


def test_metric_labels_contain_no_ids(url: str, connect: Callable[..., Acker]) -> None:
    acker = connect(app="orders")
    acker.ack(7, 1, component="parse")
    write_progress(acker, {"orders/0": 0.0})
    components = {"lines": {"acked": {"default": 1}}}
    topology_counts.write(app_of(acker).client, "orders", Counts("Words", "run-1", "ended", 0, components=components))
    with (
        MetricsServer(url, [], "127.0.0.1", 0) as server,
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as response,
    ):
        labels = set(re.findall(r'(\w+)="', response.read().decode()))
    assert labels == {
        "app", "outcome", "state", "le", "topology", "component", "stream", "group", "topic", "partition",
    }  # fmt: skip


def test_topologies_have_metrics_by_component_and_stream(
    start_server: Callable[..., Server], open_acker: Callable[..., Acker], plain: Callable[..., Any], kind: str
) -> None:
    """As the rotator's user reads them."""
    server = start_server(kind=kind)
    client = app_of(open_acker(server.url, app="orders")).client
    split: dict[str, Any] = {
        "emitted": {"default": 20, "empty": 1},
        "transferred": {"default": 40},
        "executed": {"lines:default": 7},
        "acked": {"lines:default": 6},
        "failed": {"lines:default": 1},
        "errors": 2,
    }
    components = {"lines": {"timed_out": {"default": 3}}, "split": split}
    topology_counts.write(client, "orders", Counts("Words", "run-1", "running", 31, 7, lane=0, components=components))
    topology_counts.write(client, "orders", Counts("InProcess", "run-2", "ended", 0))
    turn = TopologyState(client, "orders", "Words").turn(TopologyState(client, "orders", "Words").open({})[0], 1)
    assert turn.commit([turn.write("count%3A:1", "one", {b"key": b"value"})]) == 0
    url = log_in(plain(server.url), server.url, Role.ROTATOR, None, rules=rules_for(kind))
    with MetricsServer(url, [], "127.0.0.1", 0) as metrics:
        samples = scrape(metrics.port)
    assert samples["acker_topology_state_bytes", "orders", "count:", "1", "Words"] == 8
    found = {
        (key[0].removeprefix("acker_topology_"), *key[3:-1]): value for key, value in samples.items() if "split" in key
    }
    assert found == {
        ("emitted_total", "default"): 20,
        ("emitted_total", "empty"): 1,
        ("transferred_total", "default"): 40,
        ("executed_total", "lines:default"): 7,
        ("acked_total", "lines:default"): 6,
        ("failed_total", "lines:default"): 1,
        ("errors_total",): 2,
    }
    assert samples["acker_topology_timed_out_total", "orders", "lines", "default", "Words"] == 3
    assert samples["acker_topology_pending", "orders", "Words"] == 31
    assert samples["acker_topology_turns_total", "orders", "Words"] == 7
    states = {key[2:]: value for key, value in samples.items() if key[0] == "acker_topology_state"}
    assert {key for key, value in states.items() if value} == {("died", "Words"), ("ended", "InProcess")}
    assert len(states) == 8
    assert ("acker_topology_turns_total", "orders", "InProcess") not in samples


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
