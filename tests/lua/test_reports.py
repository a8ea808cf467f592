"""The reports, asked for with redis-cli itself: what they say of apps in every state, and what they cost."""

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import redis
from typer.testing import CliRunner

from acker_redis import Acker, AckerConfig, Limits
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.client import function_library, scripts
from acker_redis.model import keys
from acker_redis.ops.acl import Role
from acker_redis.ops.dashboard import WaitingMessages, app_states
from acker_redis.store import topology_counts
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.kafka_progress import KafkaProgress
from acker_redis.store.outages import Outage, SetAside
from acker_redis.store.run_ends import End
from acker_redis.store.topology_counts import Counts
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from benchmarks import cluster
from tests.support.rounds import expire_all
from tests.support.servers import REDIS7, VALKEY, required, wait_for_replica
from tests.support.users import log_in, rules_for

SHARDS = 8
COLUMNS = 100
NO_APP = "no app nobody here. Its first client creates it. The dashboard without a name lists all apps"
ROTATES_SECS = 10.0


def redis_cli(url: str, *arguments: str, login: tuple[str, ...] = ()) -> str:
    program = required("redis-cli", "redis-tools")
    port = url.rpartition(":")[2].partition("/")[0]
    done = subprocess.run(
        [program, "-p", port, *login, "--raw", *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.rstrip("\n")


def report(url: str, name: str, *arguments: str, login: tuple[str, ...] = ()) -> str:
    """A report as people on call ask for it: the function where the server has any, else the file that `script` prints."""
    if has_functions(url):
        shown = redis_cli(url, "FCALL_RO", f"acker_{name}", "0", *arguments, login=login)
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".lua") as file:
            file.write(CliRunner().invoke(app, ["script", name]).output)
            file.flush()
            shown = redis_cli(url, "--eval", file.name, *([","] if arguments else []), *arguments, login=login)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", shown)
    long = [line for line in shown.splitlines() if len(line) > COLUMNS and " " in line.strip()]
    assert "--json" in arguments or not long, "only a word that is longer than a line is"
    return shown


def has_functions(url: str) -> bool:
    """Load the reports of this version where they are not, if the server can."""
    with redis.Redis.from_url(url) as raw:
        if int(raw.info("server")["redis_version"].split(".")[0]) < 7:
            return False
        try:
            raw.fcall_ro("acker_reports_version", 0)
        except redis.ResponseError:
            raw.function_load(function_library.reports().text, replace=True)
    return True


def row(shown: str, app: str) -> list[str]:
    lines = (line for line in shown.splitlines()[2:] if re.fullmatch(r" +\d+[kMG]?", line[25:32]))
    (found,) = (line for line in lines if line.startswith(f"{app} "))
    return found.split()


def age_shards(raw: Any, app: str, name: str, ms: int) -> None:
    """Make it as if a time of every shard were longer ago."""
    for key in raw.scan_iter(f"acker:{{{app}:*}}:meta"):
        raw.hincrby(key, name, -ms)


def server_ms(raw: Any) -> int:
    secs, micros = raw.time()
    return int(secs * 1000 + micros // 1000)


def sampled(raw: Any, app: str, ago_ms: int, *counters: int) -> None:
    """A sample of the counters of every shard, as the rotator leaves it."""
    at = server_ms(raw) - ago_ms
    place = at // max(int(raw.hget(f"acker:{{{app}:0}}:meta", "tick_ms")), 10_000) % 60
    for shard in range(SHARDS):
        raw.hset(f"acker:{{{app}:{shard}}}:samples", place, " ".join(map(str, (at, *counters))))


def spout_asks(acker: Acker) -> None:
    acker.poll()


@pytest.fixture
def make(real_url: str) -> Iterator[Callable[..., Acker]]:
    with ExitStack() as leave:
        yield lambda app, **settings: leave.enter_context(
            Acker.connect(real_url, AckerConfig(app=app, shards=SHARDS, message_timeout_secs=ROTATES_SECS, **settings))
        )


def test_dashboard_shows_the_state_and_cause_of_each_app(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    orders, stuck, norot, deadspout = (make(app) for app in ("orders", "stuck", "norot", "deadspout"))
    for acker in (orders, stuck, norot, deadspout):
        roots = acker.new_roots(1000)
        acker.init_many(roots, roots, 0)
        acker.ack_many(roots, np.ones(1000, np.int64), component="parse")
        if acker is not deadspout:
            spout_asks(acker)
    sampled(raw, "stuck", 35_000, 0, 0, 0, 0)
    sampled(raw, "stuck", 15_000, 125, 0, 0, 50)
    for shard in range(SHARDS):
        raw.hset(f"acker:{{stuck:{shard}}}:stats", "timed_out", 100)
    age_shards(raw, "norot", "last_rotation_ms", 126_000)
    age_shards(raw, "deadspout", "created_ms", 60_000)

    shown = report(real_url, "dashboard")
    assert shown.startswith(f"acker :{real_url.split(':')[2].partition('/')[0]}  used ")
    assert [line.split()[0] for line in shown.splitlines()[2:6]] == ["norot", "deadspout", "stuck", "orders"]
    assert row(shown, "orders")[1:3] == ["ok", "1000"]
    assert row(shown, "norot")[1:4] == ["NO", "ROTATOR", "1000"]
    assert "126s!" in row(shown, "norot") or "127s!" in row(shown, "norot") or "2m!" in row(shown, "norot")
    assert row(shown, "deadspout")[1:4] == ["SPOUT", "GONE", "1000"]
    assert row(shown, "stuck")[1:4] == ["HANGS:", "parse", "200"]
    per_min = int(row(shown, "stuck")[5])
    assert 8 * 50 * 60 / 20 <= per_min <= 8 * 50 * 60 / 14
    assert re.search(r"^norot NO ROTATOR since ..:..:..Z, for 2m\d\ds: no tick since", shown, re.MULTILINE)
    assert re.search(
        r"^stuck HANGS since ..:..:..Z, for (3[5-9]|4\d)s: more roots time out than are acked", shown, re.MULTILINE
    )
    assert re.search(r"^stuck pending by last component: parse 100 % \(of \d+ sampled\), oldest ", shown, re.MULTILINE)
    assert "no spout has polled them yet" in " ".join(shown.split())
    assert "orders ok" not in shown


def test_dashboard_cuts_no_name(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    acker = make("orders-of-all-shops")
    spout_asks(acker)
    roots = acker.new_roots(1000)
    acker.init_many(roots, roots, 0)
    acker.ack_many(roots, np.ones(1000, np.int64), component="write_orders_to_the_warehouse")
    sampled(raw, "orders-of-all-shops", 35_000, 0, 0, 0, 0)
    sampled(raw, "orders-of-all-shops", 15_000, 125, 0, 0, 50)
    for shard in range(SHARDS):
        raw.hset(f"acker:{{orders-of-all-shops:{shard}}}:stats", "timed_out", 100)
    name, values = report(real_url, "dashboard").splitlines()[2:4]
    assert name == "orders-of-all-shops" and values.split()[:2] == ["HANGS", "200"]
    assert "pending by last component: write_orders_to_the_warehouse 100 %" in report(real_url, "dashboard")


def test_dashboard_of_an_app_cuts_no_name_that_is_longer_than_a_line(real_url: str, make: Callable[..., Acker]) -> None:
    component, topic = "parse_" + "o" * 94, "t" * 120
    acker = make("orders")
    roots = acker.new_roots(2)
    acker.init_many(roots, roots, 0)
    acker.fail_many(roots, component=component)
    old = {"end": 9, "committed": 2, "done_beyond": 0, "open": 1, "letters_not_copied": 0, "time_ms": 1}
    KafkaProgress(app_of(acker).client, "orders", "billing").write({f"{topic}/0": old})
    lines = report(real_url, "dashboard", "orders").splitlines()
    assert f"  {component}" in lines
    assert f"  {topic}/0:" in lines
    assert f"    {topic}/0" in lines, "among those without a driver"


def test_dashboard_rates_are_computed_from_samples(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    spout_asks(make("orders"))
    begun_ms = server_ms(raw)
    sampled(raw, "orders", 20_000, 1000, 500, 10, 20)
    for shard in range(SHARDS):
        raw.hset(
            f"acker:{{orders:{shard}}}:stats", mapping={"inits": 1500, "acked": 900, "failed": 20, "timed_out": 25}
        )
    found = json.loads(report(real_url, "dashboard", "orders", "--json"))["apps"][0]
    part = 20_000 / (20_000 + server_ms(raw) - begun_ms)  # the time goes on until the report
    for name, most in (
        ("acked_per_sec", SHARDS * 400 / 20),
        ("failed_per_min", SHARDS * 10 * 60 / 20),
        ("timed_out_per_min", SHARDS * 5 * 60 / 20),
    ):
        assert most * part * 0.99 <= found[name] <= most
    assert found["pending"] == SHARDS * (1500 - 900 - 20 - 25)
    assert found["state"] == "ok"


def test_silent_spout_is_shown_as_gone_since_its_last_poll(url: str, make_on: Callable[..., Acker]) -> None:
    acker = make_on(url, "orders")
    acker.init(1, 1, 0)
    spout_asks(acker)
    text = scripts.report("dashboard").replace("local GONE_MS = 15000", "local GONE_MS = -1")
    with redis.Redis.from_url(url) as client:
        shown = client.eval(text, 0).decode()
    assert re.search(
        r"orders SPOUT GONE since ..:..:..Z, for \d\.\ds: 0 entries of outcomes wait, 1 roots are pending", shown
    )


def test_spout_that_holds_its_lane_is_not_gone_where_idle_times_are_inexact(
    real_url: str, raw: Any, make: Callable[..., Acker]
) -> None:
    """Before Redis 7.2, a read that found nothing left the consumer as idle as before."""
    acker = make("orders")
    acker.init(1, 1, 0)
    spout_asks(acker)
    is_exact = tuple(map(int, raw.info("server")["redis_version"].split(".")[:2])) >= (7, 2)
    text = scripts.report("dashboard").replace("local GONE_MS = 15000", "local GONE_MS = 0")

    def is_gone() -> bool:
        return "orders SPOUT GONE" in raw.eval(text, 0).decode()

    lease = app_of(acker).lease(lane=0, run_id="run")
    lease.acquire()
    wait_until(lambda: is_gone() == is_exact, "the idle time, or the lease, was looked at")
    lease.release()
    wait_until(is_gone, "nobody holds the lane")


def test_unused_lane_is_not_shown_as_a_gone_spout(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    acker = make("orders", lanes=4)
    acker.init_many([1, 2, 3], [1, 1, 0], 0)
    acker.confirm(acker.poll(consumer="spout-0", lane=0))
    age_shards(raw, "orders", "created_ms", 60_000)
    assert row(report(real_url, "dashboard"), "orders")[1:3] == ["ok", "2"]
    acker.init(4, 0, 1)  # done at once, of a spout_id whose spout never was
    assert row(report(real_url, "dashboard"), "orders")[1:3] == ["SPOUT", "GONE"]


@pytest.fixture
def make_on() -> Iterator[Callable[..., Acker]]:
    with ExitStack() as leave:
        yield lambda url, app, **settings: leave.enter_context(
            Acker.connect(url, AckerConfig(app=app, shards=SHARDS, **settings))
        )


def test_app_with_missing_shards_is_shown_as_lost(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    make("orders")
    raw.delete("acker:{orders:3}:meta")
    assert "orders LOST: 1 of 8 shards have no data" in report(real_url, "dashboard")
    for shard in range(SHARDS):
        raw.delete(f"acker:{{orders:{shard}}}:meta")
    assert "orders LOST: 8 of 8 shards have no data" in report(real_url, "dashboard", "orders")


def test_apps_of_a_full_server_are_shown_as_full(
    start_server: Callable[..., Server], make_on: Callable[..., Acker]
) -> None:
    server = start_server()
    make_on(server.url, "orders")
    assert has_functions(server.url)
    with redis.Redis.from_url(server.url) as raw:
        sampled(raw, "orders", 40_000, 0, 0, 0, 0)
        raw.config_set("maxmemory", 1_000_000)
    shown = report(server.url, "dashboard")
    assert re.search(r"orders FULL since ..:..:..Z, for (4\d|5\d)s: the server rejects new roots", shown)
    assert "/977K noeviction" in shown


def test_the_dashboard_of_one_app_says_more(real_url: str, make: Callable[..., Acker]) -> None:
    acker = make("orders", lanes=2)
    roots = acker.new_roots(100)
    acker.init_many(roots, roots, 1)
    acker.ack_many(roots[:40], roots[:40])
    acker.dead_letters.add([DeadLetter(7, "run", 5, "timeout"), DeadLetter(8, "run", 5, "failed")])
    shown = report(real_url, "dashboard", "orders")
    assert "settings 8 shards (8 here), 3 buckets, a tick every 5.0s, clock first_seen, 2 lanes" in shown
    assert "so far 100 inits, 40 acked, 0 failed, 0 timed out" in shown
    assert "lane 0 0 entries of outcomes wait; polled never ago; held by nobody".replace(" ago", "") in shown
    assert "orders has 2 dead letters, the newest for these reasons: timeout 1, failed 1" in shown
    assert "letters 2, kept" not in shown
    assert report(real_url, "dashboard", "nobody").endswith(NO_APP)
    for wrong in (["a", "b"], ["--jsn"], ["two words"], ["x" * 65]):
        assert report(real_url, "dashboard", *wrong).startswith("usage: redis-cli --raw FCALL_RO acker_dashboard 0")


def test_dashboard_of_an_app_counts_failures_by_last_component(real_url: str, make: Callable[..., Acker]) -> None:
    acker = make("orders")
    roots = acker.new_roots(100)
    acker.init_many(roots, roots, 1)
    acker.fail_many(roots[:7], component="parse")
    acker.fail_many(roots[7:9])
    acker.ack_many(roots[9:12], roots[:3], component="write")
    for first in range(20, 40, 2):
        acker.fail(int(roots[first]), component=f"sink {first}")
    assert expire_all(acker) == 81
    shown = report(real_url, "dashboard", "orders")
    assert "failures (no component yet) 2 failed, 78 timed out; parse 7 failed, 0 timed out; write 0 failed" in shown
    assert "3 other components" in shown
    (row,) = json.loads(report(real_url, "dashboard", "orders", "--json"))["apps"]
    assert row["failed_by_component"][1] == {"component": "parse", "failed": 7, "timed_out": 0}
    assert len(row["failed_by_component"]) == 13


def test_dashboard_of_an_app_shows_the_retention_of_its_letters(
    real_url: str, raw: Any, make: Callable[..., Acker]
) -> None:
    acker = make("orders")
    acker.dead_letters.add([DeadLetter(7, "run", 5, "timeout")])
    acker.admin.set_limits(Limits(dead_letter_days=0.5))
    shown = report(real_url, "dashboard", "orders")
    assert "letters 1, kept for 0.5 days; 0 removed so far because of their age" in shown
    raw.hset("acker:{orders}:expired_letters", "total", 12)
    acker.admin.set_limits(Limits())
    shown = report(real_url, "dashboard", "orders")
    assert "letters 1, kept until you delete them; 12 removed so far because of their age" in shown


def test_a_dashboard_in_place_clears_the_screen_first(url: str) -> None:
    assert has_functions(url)
    shown = redis_cli(url, "-r", "2", "-i", "0.01", "FCALL_RO", "acker_dashboard", "0", "--live")
    assert shown.count("\x1b[H\x1b[2Jacker :") == 2
    assert "no apps here" in shown


NAMES = {"plain": "parse", "hostile": "a\x1b[31mb\nc\u202ed\x9be", "long": "x" * 100, "other letters": "分割"}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_component_names_with_control_characters_are_escaped(
    real_url: str, make: Callable[..., Acker], name: str
) -> None:
    acker = make("orders")
    acker.init(1, 3, 0)
    acker.ack(1, 1, component=name)
    acker.dead_letters.add([DeadLetter(7, "run", 5, "failed", last_component=name, detail=name, payload=name.encode())])
    root = f"{1:016x}"
    reports = [
        report(real_url, "dashboard", "orders"),
        report(real_url, "pending", "orders"),
        report(real_url, "dead_letters"),
    ]
    reports += [report(real_url, "root", "orders", root), report(real_url, "root", "orders", "message", "7")]
    shown = re.sub(r"[\x00-\x1f\x7f-\x9f\u200e\u202e]", "?", name)[:18]
    for text in reports:
        assert shown in text
        assert "\u202e" not in text and "\x9b" not in text


def test_pending_report_lists_the_oldest_roots_by_component(
    real_url: str, raw: Any, make: Callable[..., Acker]
) -> None:
    acker = make("orders")
    roots = acker.new_roots(640)
    acker.init_many(roots[:320], roots[:320], 3)
    secs, micros = raw.time()
    wait_until(lambda: raw.time() > (secs, micros + 5000) or raw.time()[0] > secs, "the clock goes on")
    acker.init_many(roots[320:], roots[320:], 3)
    acker.ack_many(roots[:320], np.ones(320, np.int64), component="parse")
    acker.ack_many(roots[320:480], np.ones(160, np.int64), component="write")
    acker.fail(int(roots[0]))
    shown = report(real_url, "pending", "orders", "2").splitlines()
    assert shown[0] == "orders  639 pending on 8 of 8 shards; all 639 sampled, the oldest first"
    heads = [line.split()[:2] for line in shown[2:] if not line.startswith("  ")]
    assert heads == [["parse", "319"], ["(no", "component"], ["write", "160"]]
    listed = [line.split()[1] for line in shown if line.startswith("  root ")]
    assert len(listed) == 6
    assert all(acker.inspect(int(root, 16)).spout_id == 3 for root in listed)  # type: ignore[union-attr]


def test_latency_report_shows_percentiles_by_outcome(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    acker = make("orders")
    make("quiet")
    assert report(real_url, "latency") == "no root has settled yet"
    acker.init_many(range(1, 11), range(1, 11), 0)
    acker.ack_many(range(1, 10), range(1, 10))
    acker.fail(10)
    for key in raw.keys("acker:{orders:*}:latency"):
        raw.hdel(key, *(field for field in raw.hkeys(key) if field.startswith(b"acked:")), "none")  # as old as they are
    raw.hincrby("acker:{orders:0}:latency", "acked:50", 9990)
    raw.hincrby("acker:{orders:0}:latency", "acked:5000", 10)
    raw.hincrby("acker:{orders:0}:latency", "timed_out:more", 1)
    rows = {line.split()[1]: line.split() for line in report(real_url, "latency").splitlines()[1:]}
    assert rows["acked"] == ["orders", "acked", "10000", "0.1s", "0.1s", "0.1s", "0.1s"]
    raw.hincrby("acker:{orders:1}:latency", "acked:5000", 90)
    rows = {line.split()[1]: line.split() for line in report(real_url, "latency").splitlines()[1:]}
    assert rows["acked"] == ["orders", "acked", "10090", "0.1s", "0.1s", "0.1s", "5.0s"]
    assert rows["failed"][2] == "1"
    assert rows["timed_out"][3] == ">83m20s"
    assert "  up to     5.0s     100" in report(real_url, "latency", "orders")
    (found,) = json.loads(report(real_url, "latency", "orders", "--json"))["apps"]
    assert found["outcomes"]["acked"]["total"] == 10090
    assert report(real_url, "latency", "nobody") == NO_APP
    assert report(real_url, "latency", "a", "b").startswith("usage: ")


def test_root_report_describes_a_root_by_its_id(real_url: str, make: Callable[..., Acker]) -> None:
    acker = make("orders")
    for alone in (5, 6, 7):
        acker.init(alone, 3, 2)
    acker.ack(5, 1, component="parse")
    acker.ack(6, 3, component="save")
    acker.fail(7, reason="no such customer")
    acker.ack(8, 1)
    roots = acker.new_roots(64)
    acker.init_many(roots, roots, 2)
    acker.ack_many(roots[:20], roots[:20], component="save")

    def said(root: int) -> str:
        return report(real_url, "root", "orders", f"{root & (1 << 64) - 1:016x}")

    assert "of orders: pending\n" in said(5)
    assert "spout_id 2, ack value 0000000000000002, last component parse" in said(5)
    assert "in 3 ticks; a tick comes every 5.0s" in said(5)
    for _ in range(2):
        acker.admin.rotate(force=True)
    assert "in 1 tick; a tick comes every 5.0s" in said(5)
    assert re.search(r": acked after \d", said(6))
    assert "failed: its outcome is written" in said(7)
    assert "last component (no component yet) no such customer" in said(7)
    assert "waits for its init" in said(8)
    assert "nothing is known" in said(9)
    assert re.search(r": acked after \d", said(int(roots[3])))
    assert "with others of its block" in said(int(roots[63]))
    for wrong in ([], ["orders"], ["orders", "12"], ["orders", "message"], ["orders", "message", "x"]):
        assert report(real_url, "root", *wrong).startswith("usage: ")


def test_root_report_describes_a_message_by_its_id(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    acker = make("orders")
    letters = [DeadLetter(n, "run", 5, "failed", detail="x", payload=b'{"a": 1}', replay="payload") for n in range(600)]
    acker.dead_letters.add([*letters[:1], DeadLetter(0, "other", 1, "timeout"), *letters[1:]])
    acker.dead_letters.replay()
    shown = report(real_url, "root", "orders", "message", "0")
    assert (shown.count("dead letter"), shown.count("to be replayed")) == (2, 1)
    assert 'message: {"a": 1}' in shown
    only = report(real_url, "root", "orders", "message", "0", "other")
    assert (only.count("dead letter"), "1 attempts, timeout" in only) == (1, True)
    assert "none of 601 dead letters is of it" in report(real_url, "root", "orders", "message", "-3")


def test_dead_letters_report_counts_by_reason_and_component(real_url: str, make: Callable[..., Acker]) -> None:
    acker, other = make("orders"), make("other")
    acker.dead_letters.add(
        [DeadLetter(n, "run", 5, "failed", "parse", "no item", b"x", replay="payload") for n in range(3)]
    )
    acker.dead_letters.add([DeadLetter(9, "run", 5, "timeout")])
    other.dead_letters.add([DeadLetter(1, "run", 5, "lost")])
    shown = report(real_url, "dead_letters")
    assert [line.split()[:3] for line in shown.splitlines()] == [
        ["orders", "4", "dead"], ["REASON", "LAST", "COMPONENT"], ["failed", "parse", "3"], ["timeout", "(no", "component"],
        ["other", "1", "dead"], ["REASON", "LAST", "COMPONENT"], ["lost", "(no", "component"],
    ]  # fmt: skip
    assert re.search(r"^failed +parse +3 +3 .* 2 no item$", shown, re.MULTILINE)
    assert "other" not in report(real_url, "dead_letters", "orders")


def test_dead_letters_report_counts_only_what_the_command_can_replay(real_url: str, make: Callable[..., Acker]) -> None:
    """A batch run reads its letters' messages from its source, as long as it goes on."""
    acker = make("orders", lanes=2)
    runs = {"a b": 2, "over": 3}
    acker.dead_letters.add(
        [DeadLetter(n, run, 5, "failed", run, replay="run") for run, count in runs.items() for n in range(count)]
    )
    lease = app_of(acker).lease(lane=1, run_id="a b")
    lease.acquire()
    try:
        shown = report(real_url, "dead_letters", "orders")
        assert acker.dead_letters.survey().replayable == 2
    finally:
        lease.release()
    assert re.search(r"^failed +a b +2 +2 ", shown, re.MULTILINE)
    assert re.search(r"^failed +over +3 +0 ", shown, re.MULTILINE)


def test_error_of_a_failed_run_ends_with_one_full_stop(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    acker = make("orders")
    app_of(acker).note_end(End("monday", 0, "failed", error="AckerError: The disk is full."), lane=0)
    shown = " ".join(report(real_url, "dashboard").split())
    assert "monday ended with AckerError: The disk is full. Fix the cause" in shown


def test_app_without_pending_roots_shows_no_oldest(real_url: str, make: Callable[..., Acker]) -> None:
    acker = make("orders")
    roots = acker.new_roots(200_000)
    acker.init_many(roots, roots, 0)
    acker.ack_many(roots[32:], roots[32:])
    acker.ack_many(roots[:32], roots[:32])
    shown = row(report(real_url, "dashboard"), "orders")
    assert (shown[2], shown[6]) == ("0", "-")


def test_reports_work_for_a_read_only_user(
    start_server: Callable[..., Server], make_on: Callable[..., Acker], kind: str
) -> None:
    server = start_server(kind=kind)
    acker = make_on(server.url, "orders")
    acker.init(1, 1, 0)
    spout_asks(acker)
    with redis.Redis.from_url(server.url) as raw:
        log_in(raw, server.url, Role.ONCALL, None, rules=rules_for(kind))
        before = {key: raw.dump(key) for key in raw.scan_iter()}
    login = ("--user", "acker-oncall", "--pass", "s3cret", "--no-auth-warning")
    shown = report(server.url, "dashboard", login=login)
    assert row(shown, "orders")[1:3] == ["ok", "1"]
    assert row(shown, "orders")[-2] != "-"
    others = (("pending", "orders"), ("dead_letters",), ("latency",), ("root", "orders", f"{1:016x}"), ("exporter",))
    assert {"dashboard", *(name for name, *_ in others)} == set(scripts.REPORTS)
    for name, *arguments in others:
        report(server.url, name, *arguments, login=login)
    with redis.Redis.from_url(server.url) as raw:
        assert {key: raw.dump(key) for key in raw.scan_iter()} == before


def test_dashboard_of_a_replica_shows_its_apps(
    start_server: Callable[..., Server], make_on: Callable[..., Acker]
) -> None:
    primary = start_server()
    make_on(primary.url, "orders").init(1, 1, 0)
    report(primary.url, "dashboard")
    replica = start_server("--replicaof", f"127.0.0.1 {primary.port}")
    with redis.Redis.from_url(replica.url) as raw:
        wait_until(
            lambda: raw.exists("acker:{orders:0}:meta") and raw.exists("acker:{orders}:config"), "the replica has it"
        )
        wait_until(lambda: "orders " in report(replica.url, "dashboard"), "all of it")
    with redis.Redis.from_url(primary.url) as raw:
        age_shards(raw, "orders", "created_ms", 60_000)
        wait_for_replica(raw)
    assert "SPOUT GONE" in report(primary.url, "dashboard")
    shown = report(replica.url, "dashboard")
    assert "replica, link up" in shown
    assert row(shown, "orders")[1:3] == ["ok", "1"]  # it does not learn when a spout asked


@pytest.mark.parametrize("of", [VALKEY, REDIS7], ids=lambda kind: kind.name)
def test_reports_of_a_cluster_node_cover_its_own_shards(of: Any) -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(cluster.node(of.program())) for _ in range(3)]
        cluster.join(nodes)
        with Acker.connect(nodes[0].url, AckerConfig(app="orders", shards=SHARDS)) as acker:
            roots = acker.new_roots(3200)
            acker.init_many(roots, roots, 0)
            found = [json.loads(report(node.url, "dashboard", "--json"))["apps"][0] for node in nodes]
            assert sum(one["shards_here"] for one in found) == SHARDS
            assert sum(one["pending"] for one in found) == 3200
            assert {one["shards"] for one in found} == {SHARDS}
            for node in nodes:
                for shown in (report(node.url, "dashboard"), report(node.url, "dashboard", "orders")):
                    assert shown.startswith(f"acker 127.0.0.1:{node.port}  used")
                    assert "shards of other nodes are not counted here" in shown
                report(node.url, "pending", "orders")
                report(node.url, "dead_letters", "orders")
                report(node.url, "latency", "orders")
            told = [report(node.url, "root", "orders", f"{int(roots[0]) & (1 << 64) - 1:016x}") for node in nodes]
            assert sum("of orders: pending" in one for one in told) == 1


def test_a_report_of_many_apps_asks_no_more_than_it_may(url: str, raw: Any) -> None:
    """Bounded by calls, not by time: 50 apps of 8 shards, most of what was put longest ago is settled."""
    for number in range(50):
        with Acker.connect(url, AckerConfig(app=f"app-{number}", shards=SHARDS)) as acker:
            roots = acker.new_roots(4000)
            acker.init_many(roots, roots, 0)
            acker.ack_many(roots[:3900], roots[:3900])
    raw.config_resetstat()
    shown = raw.eval(scripts.report("dashboard"), 0).decode()
    assert len(shown.splitlines()) == 52
    calls = {name: stat["calls"] for name, stat in raw.info("commandstats").items()}
    assert sum(calls.values()) < 5000
    assert not {"cmdstat_hgetall", "cmdstat_hscan", "cmdstat_hkeys"} & {
        name for name, count in calls.items() if count > 101 + 50 * SHARDS
    }


def test_start_of_full_state_is_read_from_a_sample_of_shards(
    real_url: str, raw: Any, make: Callable[..., Acker]
) -> None:
    """When a server is full all its apps are, and each would ask all its shards for ten minutes of samples."""
    for number in range(20):
        make(f"app-{number}")
        sampled(raw, f"app-{number}", 40_000, 0, 0, 0, 0)
        sampled(raw, f"app-{number}", 15_000, 0, 0, 0, 0)
    has_functions(real_url)  # a full server would take none
    try:
        raw.config_set("maxmemory", 1_000_000)
        raw.config_resetstat()
        shown = report(real_url, "dashboard")
        asked = raw.info("commandstats")["cmdstat_hgetall"]["calls"]
    finally:
        raw.config_set("maxmemory", 0)
    assert len(re.findall(r"app-\d+ FULL since ..:..:..Z, for (?:4\d|5\d)s: ", shown)) == 20
    assert asked <= 2 * 20 + 64


def test_exporter_report_returns_pairs_of_names_and_numbers(
    real_url: str, raw: Any, make: Callable[..., Acker]
) -> None:
    acker = make("orders")
    make("quiet")
    acker.init_many(range(1, 11), range(1, 11), 0)
    acker.ack_many(range(1, 5), range(1, 5))
    acker.dead_letters.add([DeadLetter(1, "run", 5, "failed")])
    raw.hset("acker:{orders}:expired_letters", "total", 12)
    flat = report(real_url, "exporter").splitlines()
    found = {name: float(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}
    assert (found["orders:pending"], found["orders:acked_total"], found["orders:dead_letters"]) == (6, 4, 1)
    assert (found["orders:expired_letters_total"], found["quiet:expired_letters_total"]) == (12, 0)
    assert (found["quiet:pending"], found["quiet:shards_lost"]) == (0, 0)
    assert 0 <= found["orders:oldest_pending_age_seconds"] < 60
    assert 0 <= found["orders:rotation_age_seconds"] < 60
    assert "quiet:oldest_pending_age_seconds" not in found
    assert [text.decode() for text in raw.eval(scripts.report("exporter"), 0)][::2] == flat[::2]


def counts_of_topologies(acker: Acker) -> None:
    client = app_of(acker).client
    split: dict[str, Any] = {"executed": {"lines:default": 7}, "emitted": {"default": 20, "empty": 1}, "errors": 2}
    lines = {"acked": {"default": 6}, "timed_out": {"default": 1}}
    components = {"split": split, "lines": lines}
    topology_counts.write(client, "orders", Counts("Words", "run-1", "running", 31, 7, lane=0, components=components))
    topology_counts.write(client, "orders", Counts("Broken \x1b[2J", "run-2", "failed", 0, error="KeyError: 'x'."))


def test_dashboard_of_an_app_shows_its_topologies(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    acker = make("orders")
    counts_of_topologies(acker)
    raw.hset("acker:{orders}:topologies", "damaged", "{")
    raw.set("acker:{orders}:lane:0", "run-1 host:1")
    shown = re.sub(r"counted [\d.]+s ago", "counted now", report(real_url, "dashboard", "orders")).splitlines()
    at = next(number for number, line in enumerate(shown) if line.startswith("topology"))
    assert shown[at:] == [
        "topology Broken ?[2J failed with KeyError: 'x': run run-2, 0 pending, counted now",
        "topology Words running: run run-1, 7 turns, 31 pending, counted now",
        "  lines: acked 6, timed out 1",
        "  split: emitted 21, executed 7",
    ]
    sizes = {"total": 3_000_000, "limit": 4_000_000, "Words:count:0": 1_000_000, "Words:count:1": 1_990_000}
    raw.hset("acker:{orders}:state_sizes", mapping=sizes | {"Words:sum\x1b:0": 10_000, "damaged": 1})
    raw.hset("acker:{orders}:state_sizes", "Words:__held%3Arate%1B:0", 20_000)
    assert re.sub(r"\s+", " ", report(real_url, "dashboard", "orders")).endswith(
        "state 2.9M of 3.8M: Words:__held:rate? 20K; Words:count 2.9M in 2 tasks, the largest 1.9M; Words:sum? 9.8K"
    )
    raw.delete("acker:{orders}:lane:0")
    assert "topology Words died: run run-1" in report(real_url, "dashboard", "orders")
    assert "Words" not in report(real_url, "dashboard")


def test_dashboard_without_a_rotator_tells_that_topologies_time_out(
    real_url: str, raw: Any, make: Callable[..., Acker]
) -> None:
    acker = make("orders")
    counts_of_topologies(acker)
    age_shards(raw, "orders", "last_rotation_ms", 126_000)
    raw.set("acker:{orders}:lane:0", "run-1 host:1")
    shown = " ".join(report(real_url, "dashboard").split())
    assert "no tick since: only topologies time out their messages. Start `acker-redis rotator`" in shown
    raw.delete("acker:{orders}:lane:0")  # its driver has died
    assert "no tick since: nothing times out." in " ".join(report(real_url, "dashboard").split())


def test_exporter_report_has_counts_of_topologies(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    counts_of_topologies(make("orders"))
    raw.hset("acker:{orders}:state_sizes", mapping={"total": 8, "Words:count:0": 8})
    flat = report(real_url, "exporter").splitlines()
    found = dict(zip(flat[::2], map(float, flat[1::2]), strict=True))
    assert found["orders:state_bytes"] == 8
    prefix = "orders:topology:Words:"
    assert {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)} == {
        "running": 0,
        "pending": 31,
        "split:default:emitted_total": 20,
        "split:empty:emitted_total": 1,
        "split:lines:default:executed_total": 7,
        "lines:default:acked_total": 6,
        "lines:default:timed_out_total": 1,
    }


def progress_of_groups(acker: Acker) -> None:
    numbers = {"end": 158, "committed": 117, "done_beyond": 39, "open": 2, "oldest_open": 117, "letters_not_copied": 0}
    cause = {"oldest_reason": "failed", "oldest_component": "fail\x1bwhere", "time_ms": acker.dead_letters.now_ms()}
    done = {**numbers, "committed": 158, "done_beyond": 0, "open": 0, "oldest_open": None, "time_ms": cause["time_ms"]}
    client = app_of(acker).client
    KafkaProgress(client, "orders", "billing").write({"t/0": {**numbers, **cause}, "t/1": done})
    KafkaProgress(client, "orders", "shipping").write({"t/0": {**done, "ended": True}})


def test_dashboard_of_an_app_shows_its_groups_of_kafka(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    acker = make("orders")
    progress_of_groups(acker)
    raw.hset("acker:{orders}:kafka_group:billing", "t/2", "{")
    raw.hset("acker:{orders}:kafka_group:billing", "letters", "{}")
    shown = re.sub(r" [\d.]+s ago", " now", report(real_url, "dashboard", "orders")).splitlines()
    at = next(number for number, line in enumerate(shown) if line.startswith("group"))
    assert shown[at:] == [
        "group billing of Kafka: lag 41 in 2 partitions, 2 open, 39 done beyond, written now",
        "  t/0: lag 41, 2 open, oldest open 117 failed in fail?where",
        "group shipping of Kafka: lag 0 in 1 partitions, 0 open, 0 done beyond, ended now",
    ]
    assert "billing" not in report(real_url, "dashboard")


def test_dashboard_of_an_app_shows_what_holds_up_the_commits_of_a_group(
    real_url: str, make: Callable[..., Acker]
) -> None:
    acker = make("orders")
    now_ms = acker.dead_letters.now_ms()
    numbers = {"end": 9, "committed": 9, "done_beyond": 0, "open": 0, "oldest_open": None, "letters_not_copied": 0}
    numbers["time_ms"] = now_ms
    old = {**numbers, "time_ms": now_ms - 3_600_000}
    KafkaProgress(app_of(acker).client, "orders", "billing").write({
        "t/0": {**numbers, "letters_not_copied": 3},
        "t/1": {**numbers, "letters_not_copied": 4, "problem": "no\x1bbroker"},
        "t/2": {**numbers, "ended": True},
        **{f"t/{number}": old for number in (3, 4, 5)},
    })  # fmt: skip
    shown = report(real_url, "dashboard", "orders").splitlines()
    at = next(number for number, line in enumerate(shown) if line.startswith("group billing"))
    assert shown[at + 1 :] == [
        "  4 without a driver, so their numbers are old: t/2, t/3, t/4, ...",
        "  7 dead letters are not copied yet, and their offsets wait",
        "  offsets are not committed, t/1: no?broker",
    ]


def test_exporter_report_has_the_lag_of_partitions(real_url: str, make: Callable[..., Acker]) -> None:
    progress_of_groups(make("orders"))
    flat = report(real_url, "exporter").splitlines()
    found = dict(zip(flat[::2], map(float, flat[1::2]), strict=True))
    prefix = "orders:kafka:"
    found = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    assert all(found.pop(f"billing:t/{number}:progress_age_seconds") < 60 for number in (0, 1))
    assert found == {
        "billing:t/0:lag": 41, "billing:t/0:open": 2, "billing:t/0:done_beyond": 39,
        "billing:t/1:lag": 0, "billing:t/1:open": 0, "billing:t/1:done_beyond": 0,
        "shipping:t/0:lag": 0, "shipping:t/0:open": 0, "shipping:t/0:done_beyond": 0,
    }  # fmt: skip


def test_reports_show_the_groups_that_were_written_last(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    """Names of earlier programs stay in the hash of groups."""
    progress_of_groups(make("orders"))
    raw.hset("acker:{orders}:kafka_groups", mapping={f"old-{number}": number for number in range(60)})
    assert "group billing" in report(real_url, "dashboard", "orders")
    raw.hset("acker:{orders}:kafka_groups", mapping={f"new-{number}": 1 << 60 for number in range(20)})
    assert "group billing" not in report(real_url, "dashboard", "orders")


def test_reports_show_a_bounded_number_of_partitions(real_url: str, make: Callable[..., Acker]) -> None:
    acker = make("orders")
    progress_of_groups(acker)
    numbers = {"end": 1, "committed": 0, "done_beyond": 0, "open": 0, "oldest_open": None, "letters_not_copied": 0}
    many = {f"t/{number}": {**numbers, "time_ms": 0} for number in range(1001)}
    KafkaProgress(app_of(acker).client, "orders", "huge").write(many)
    shown = report(real_url, "dashboard", "orders")
    assert "group billing" in shown
    assert "group huge" not in shown


def test_a_report_that_is_not_there_is_not_printed() -> None:
    shown = CliRunner().invoke(app, ["script", "stuck"])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "Report 'stuck' does not exist. Use one of dashboard, pending" in shown.stderr


def test_dashboard_of_many_buckets_and_lanes_makes_bounded_calls(url: str, raw: Any) -> None:
    with Acker.connect(url, AckerConfig(app="huge", shards=16, num_buckets=1000, lanes=64)) as acker:
        roots = acker.new_roots(1000)
        acker.init_many(roots, roots, 0)
        memory = sum(raw.memory_usage(key) or 0 for key in raw.scan_iter("acker:{huge:*"))
        raw.config_resetstat()
        found = json.loads(raw.eval(scripts.report("dashboard"), 0, "huge", "--json"))["apps"][0]
    assert found["pending"] == 1000
    assert memory / 3 < found["memory_bytes"] < memory * 3
    assert sum(stat["calls"] for stat in raw.info("commandstats").values()) < 12_000


def test_dashboard_names_outages_while_their_lane_is_held(real_url: str, raw: Any, make: Callable[..., Acker]) -> None:
    app = app_of(make("orders"))
    refused = "ConnectionRefusedError: [Errno 111] Connection refused"
    app.write_outages("run-1", [Outage("store", 30, 1000.0, 1060.0, refused), Outage("", 1, 1.0, 1.0, "gone")], lane=0)
    raw.hset(keys.outages("orders"), "1", "nonsense")
    assert "run-1" not in report(real_url, "dashboard")
    for lane in (0, 1):
        raw.set(f"acker:{{orders}}:lane:{lane}", "run-1 host:1")
    for arguments in ((), ("orders",)):
        shown = " ".join(report(real_url, "dashboard", *arguments).split())
        assert "orders run run-1 waits for store since 00:16:40Z, for " in shown
        assert f", with 30 messages: {refused}" in shown
        assert "waits for something unreachable since" in shown and ", with 1 message: gone" in shown
    (state,) = app_states(app.client)
    assert state.outages[0] == WaitingMessages("run-1", "store", 30, 1_000_000, refused)
    app.write_outages("run-1", [], lane=0)
    assert app_states(app.client)[0].outages == []


def test_dashboard_names_messages_that_a_stream_has_set_aside(
    real_url: str, raw: Any, make: Callable[..., Acker]
) -> None:
    app = app_of(make("orders"))
    app.write_outages("run-1", [], [SetAside("geocode", 3, 1000.0, "KeyError: 'city'")], lane=0)
    assert "run-1" not in report(real_url, "dashboard")
    raw.set("acker:{orders}:lane:0", "run-1 host:1")
    shown = " ".join(report(real_url, "dashboard").split())
    assert "orders run run-1 has not tried 3 messages since 00:16:40Z, for " in shown
    assert ", because geocode has processed no other: KeyError: 'city'" in shown
    (state,) = app_states(app.client)
    assert (state.outages, state.set_aside) == (
        [],
        [WaitingMessages("run-1", "geocode", 3, 1_000_000, "KeyError: 'city'")],
    )


def test_dashboard_shows_emissions_without_a_count_while_their_lane_is_held(
    real_url: str, raw: Any, make: Callable[..., Acker]
) -> None:
    app = app_of(make("orders"))
    app.note_end(End("run-1", 0, "begun", emission=3, job="acker:orders:run-1:3"), lane=0)
    app.note_end(End("run-2", 1, "begun"), lane=1)
    text = "orders run run-1: emission 3 since "
    assert text not in report(real_url, "dashboard")
    for lane in (0, 1):
        raw.set(f"acker:{{orders}}:lane:{lane}", "run host:1")
    for arguments in ((), ("orders",)):
        shown = " ".join(report(real_url, "dashboard", *arguments).split())
        assert text in shown and ", jobs acker:orders:run-1:3, messages not counted yet" in shown
        assert "run-2: emission" not in shown
    (row,) = json.loads(report(real_url, "dashboard", "--json"))["apps"]
    (begun,) = row["uncounted"]
    assert begun == {"run_id": "run-1", "emission": 3, "job": "acker:orders:run-1:3", "since_ms": begun["since_ms"]}
    app.note_end(End("run-1", 0, "begun"), lane=0)
    assert "messages not counted yet" not in report(real_url, "dashboard")
    assert "uncounted" not in json.loads(report(real_url, "dashboard", "--json"))["apps"][0]
