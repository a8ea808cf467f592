"""The command line: health checks, counters, one root, apps."""

import json
import re
from typing import Any

import pytest
from typer.testing import CliRunner

import acker_redis
from acker_redis import Acker
from acker_redis.acker import app_of
from acker_redis.cli import app
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.store.kafka_progress import KafkaProgress
from acker_redis.testing import wait_until


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_rotator_check_of_rotated_apps_passes(url, connect) -> None:
    connect(app="orders").init(1, 1, 0)
    connect(app="payments")
    result = run("rotator", "--redis", url, "--check", "--all")
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first.startswith("orders: last tick ")
    assert "(tick every 15.0 s), 1 pending, 0 outcome entries waiting" in first
    assert second.startswith("payments: ")


def test_rotator_check_of_an_unrotated_app_fails(url, raw, connect) -> None:
    connect(app="orders")
    acker: Acker = connect(app="payments", shards=1, num_buckets=2, message_timeout_secs=0.1)
    wait_until(lambda: acker.stats().last_rotation_ms > 2_200, "the app's last tick is long ago")
    result = run("rotator", "--redis", url, "--check", "--app", "payments", "--app", "orders")
    assert result.exit_code == 1
    bad, good = result.output.splitlines()
    assert bad.startswith("payments: NOT ROTATING: last tick ")
    assert bad.endswith("Start a rotator for this app.")
    assert "NOT ROTATING" not in good


def test_rotator_check_of_a_missing_app_creates_nothing(url, raw) -> None:
    result = run("rotator", "--redis", url, "--check", "--app", "nobody")
    assert result.exit_code == 1
    assert "nobody: App 'nobody' does not exist on" in result.output
    assert raw.dbsize() == 0


def test_rotator_check_of_a_server_without_apps_passes(url) -> None:
    result = run("rotator", "--redis", url, "--check", "--all")
    assert (result.exit_code, result.output) == (0, "no apps on this server\n")


def test_stats_of_an_app_are_printed_as_text_and_json(url, connect) -> None:
    acker: Acker = connect(app="orders")
    acker.init_many([1, 2], [5, 0], 0)
    result = run("stats", "--app", "orders", "--redis", url, "--json")
    assert result.exit_code == 0
    values = json.loads(result.output)
    assert (values["pending"], values["acked"], values["inits"]) == (1, 1, 2)
    assert list(values) == ["app", *acker.stats()._fields]
    lines = run("stats", "--app", "orders", "--redis", url).output.splitlines()
    assert [line.split() for line in lines[:2]] == [["app", "orders"], ["pending", "1"]]


def test_stats_of_all_apps_are_printed_despite_a_lost_app(url, raw, connect) -> None:
    connect(app="payments").init(1, 1, 0)
    connect(app="orders")
    result = run("stats", "--all", "--redis", url, "--json")
    assert [(row["app"], row["pending"]) for row in map(json.loads, result.output.splitlines())] == [
        ("orders", 0),
        ("payments", 1),
    ]
    blocks = run("stats", "--all", "--redis", url).output.split("\n\n")
    assert [block.split()[:2] for block in blocks] == [["app", "orders"], ["app", "payments"]]
    raw.delete("acker:{orders:3}:meta")
    partly = run("stats", "--all", "--redis", url, "--json")
    assert partly.exit_code == 1
    assert "error: " in partly.stderr and "App 'orders' has lost its data" in partly.stderr
    assert [json.loads(line)["app"] for line in partly.stdout.splitlines()] == ["payments"]


def test_stats_of_a_server_without_apps_are_empty(url) -> None:
    result = run("stats", "--all", "--redis", url, "--json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no apps on this server\n")


def test_stats_with_app_and_all_is_wrong_usage(url) -> None:
    assert run("stats", "--all", "--app", "orders", "--redis", url).exit_code == 2
    assert CliRunner(env={"ACKER_APP": "nobody"}).invoke(app, ["stats", "--redis", url]).exit_code == 1
    assert CliRunner(env={"ACKER_APP": "nobody"}).invoke(app, ["stats", "--all", "--redis", url]).exit_code == 0


def test_version_option_prints_the_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"acker-redis {acker_redis.__version__}\n")


def test_inspect_accepts_every_spelling_of_a_root_id(url, connect) -> None:
    acker: Acker = connect(app="orders")
    acker.init_many([-2, 7], [5, 6], 3)
    common = ("--app", "orders", "--redis", url)
    for spelling in (["--", "-2"], ["fffffffffffffffe"], ["18446744073709551614"]):
        result = run("inspect", *common, "--json", *spelling)
        assert result.exit_code == 0, spelling
        values = json.loads(result.output)
        assert (values["root"], values["val"], values["spout_id"]) == (-2, 5, 3)
    result = run("inspect", "7", *common)
    assert result.output.splitlines()[0].split() == ["root", "7"]
    gone = run("inspect", "8", *common)
    assert gone.exit_code == 1
    assert "Root 8 is not in the ledger. It was never seen here, or it settled or expired." in gone.output


def test_inspect_accepts_a_root_id_in_hex_with_0x(url, raw, connect) -> None:
    """Sixteen hex digits that could be decimal are distinguished by 0x."""
    acker: Acker = connect(app="orders", shards=1)
    root = 0x1234567812345678
    acker.init(root, 1, 0)
    result = run("inspect", f"0x{root:016x}", "--app", "orders", "--redis", url, "--json")
    assert json.loads(result.output)["root"] == root


def test_apps_command_lists_apps_sorted(url, connect) -> None:
    assert run("apps", "--redis", url).output == ""
    connect(app="payments")
    connect(app="orders")
    result = run("apps", "--redis", url)
    assert (result.exit_code, result.output) == (0, "orders\npayments\n")
    result = run("apps", "--redis", url, "--json")
    assert [json.loads(line) for line in result.output.splitlines()] == [{"app": "orders"}, {"app": "payments"}]


def test_dead_letters_command_prints_and_deletes_letters(url, connect) -> None:
    acker: Acker = connect(app="orders")
    acker.dead_letters.add([DeadLetter(n, "run", 3, "failed", "parse", "bad", b"line %d" % n) for n in range(3)])
    first = run("dead-letters", "--redis", url, "--app", "orders", "--count", "2", "--json", "--delete")
    assert first.exit_code == 0
    shown = [json.loads(line) for line in first.stdout.splitlines()]
    assert [(row["message_id"], row["payload"], row["last_component"]) for row in shown] == [
        (0, "line 0", "parse"),
        (1, "line 1", "parse"),
    ]
    assert "2 printed and deleted, 1 in the stream" in first.stderr
    second = run("dead-letters", "--redis", url, "--app", "orders")
    assert "message_id      2" in second.stdout
    assert acker.dead_letters.count() == 1


PROGRESS = {
    "end": 158, "committed": 117, "done_beyond": 39, "open": 2, "oldest_open": 117, "letters_not_copied": 1,
}  # fmt: skip


def without_ages(output: str) -> str:
    return re.sub(r"\d+ s ago", "N s ago", output)


def test_lag_of_a_group_is_printed_as_text_and_json(url, connect) -> None:
    acker: Acker = connect(app="orders")
    progress = KafkaProgress(app_of(acker).client, "orders", "billing")
    now_ms = acker.dead_letters.now_ms()
    unknown = {**PROGRESS, "end": None, "committed": None, "oldest_open": None, "letters_not_copied": 0}
    cause = {"earliest": 5, "oldest_reason": "failed", "oldest_component": "parse"}
    progress.write({"t/10": {**unknown, "time_ms": now_ms}, "t/9": {**PROGRESS, **cause, "time_ms": now_ms - 3000}})
    progress.look_at_letters([])
    result = run("lag", "--app", "orders", "--group", "billing", "--redis", url)
    assert result.exit_code == 0
    first, letters, last = without_ages(result.output).splitlines()
    assert first == (
        "t/9  lag 41  open 2  done beyond 39  earliest 5  committed 117  end 158  oldest open 117 (failed in parse)  N s ago"
    )
    assert letters == "  1 dead letters are not copied yet. Their offsets wait."
    assert last == "t/10  lag -  open 2  done beyond 39  earliest -  committed -  end -  oldest open -  N s ago"
    rows = [
        json.loads(line)
        for line in run("lag", "--app", "orders", "--group", "billing", "--redis", url, "--json").output.splitlines()
    ]
    assert [(row["partition"], row["lag"]) for row in rows] == [("t/9", 41), ("t/10", None)]


def test_lag_of_an_unknown_group_names_those_that_are_known(url, connect) -> None:
    acker: Acker = connect(app="orders")
    result = run("lag", "--app", "orders", "--group", "other", "--redis", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "Group 'other' of app 'orders' has written nothing for a week. Check the name of the app, or start the program of the "
        "group.\n"
    )
    now_ms = acker.dead_letters.now_ms()
    for group in ("pricing", "billing", "over"):
        progress = KafkaProgress(app_of(acker).client, "orders", group)
        progress.write({"t/0": {**PROGRESS, "time_ms": now_ms}})
    progress.remove(["t/0"], {})
    result = run("lag", "--app", "orders", "--group", "other", "--redis", url)
    assert result.exit_code == 1
    assert "Those that have are 'billing', 'pricing'. Name one of them, or start the program" in result.stderr


def test_damaged_progress_is_shown_as_such(url, connect) -> None:
    acker: Acker = connect(app="orders")
    progress = KafkaProgress(app_of(acker).client, "orders", "billing")
    progress.write({"t/0": {**PROGRESS, "letters_not_copied": 0}})
    app_of(acker).client.redis.hset("acker:{orders}:kafka_group:billing", mapping={"t/1": "{", "what": "[]"})
    result = run("lag", "--app", "orders", "--group", "billing", "--redis", url)
    assert result.exit_code == 1
    assert result.stdout.startswith("t/0  lag 41 ")
    assert result.stderr.splitlines()[:2] == ["t/1  damaged", "what  damaged"]


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({}, "N s ago, stale"),
        (
            {"ended": True, "problem": "no broker answers"},
            "N s ago, ended\n  Offsets are not committed: no broker answers.",
        ),
    ],
)
def test_lag_that_no_driver_writes_any_more_is_unhealthy(url, connect, more, shown) -> None:
    acker: Acker = connect(app="orders")
    now_ms = acker.dead_letters.now_ms()
    KafkaProgress(app_of(acker).client, "orders", "billing").write({
        "t/0": {**PROGRESS, "time_ms": now_ms},
        "t/1": {**PROGRESS, **more, "letters_not_copied": 0, "time_ms": now_ms - 3_700_000},
    })  # fmt: skip
    result = run("lag", "--app", "orders", "--group", "billing", "--redis", url)
    assert result.exit_code == 1
    assert without_ages(result.stdout).splitlines()[0].endswith("N s ago")
    assert shown in without_ages(result.stdout)
    assert "1 of 2 partitions have no driver now" in result.stderr
    rows = run("lag", "--app", "orders", "--group", "billing", "--redis", url, "--json").stdout.splitlines()
    assert [json.loads(row)["is_stale"] for row in rows] == [False, True]
