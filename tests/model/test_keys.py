"""Key names: spelled once, one hash tag per shard, no app within another."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot

from acker_redis.model import keys
from acker_redis.model.keys import ShardKeys

ROOT = Path(__file__).resolve().parents[2]


def spelled(shard_keys: ShardKeys) -> list[str]:
    names: list[str] = []
    for attribute in ("ledger", "meta", "stats", "samples", "latency", "bucket", "dedup", "acked", "failed"):
        value: Any = getattr(shard_keys, attribute)
        names += [value] if isinstance(value, str) else value
    return names


def test_keys_of_shard_have_expected_names() -> None:
    assert spelled(ShardKeys("orders", 3, num_buckets=2, lanes=2)) == [
        "acker:{orders:3}:ledger",
        "acker:{orders:3}:meta",
        "acker:{orders:3}:stats",
        "acker:{orders:3}:samples",
        "acker:{orders:3}:latency",
        "acker:{orders:3}:bucket:0",
        "acker:{orders:3}:bucket:1",
        "acker:{orders:3}:bucket:2",
        "acker:{orders:3}:dedup:0",
        "acker:{orders:3}:dedup:1",
        "acker:{orders:3}:dedup:2",
        "acker:{orders:3}:acked:0",
        "acker:{orders:3}:acked:1",
        "acker:{orders:3}:failed:0",
        "acker:{orders:3}:failed:1",
    ]


def test_nothing_else_spells_keys_but_reports() -> None:
    python = {path.relative_to(ROOT) for path in (ROOT / "acker_redis").rglob("*.py") if "acker:{{" in path.read_text()}
    lua = {path.parent.name for path in (ROOT / "lua").rglob("*.lua") if "'acker:{" in path.read_text()}
    assert python == {Path("acker_redis/model/keys.py")}
    assert lua == {"reports", "lib"}, "of which scripts are not: they get KEYS"


def test_keys_of_app_have_expected_names() -> None:
    assert (keys.config("orders"), keys.components("orders")) == ("acker:{orders}:config", "acker:{orders}:components")


def test_all_keys_of_a_shard_are_in_one_cluster_slot() -> None:
    names = spelled(ShardKeys("orders", 3, num_buckets=5, lanes=4))
    assert len(set(names)) == len(names) == 5 + 6 + 6 + 4 + 4
    assert len({key_slot(name.encode()) for name in names}) == 1


def test_shards_and_apps_share_no_key() -> None:
    names = [name for app in ("a", "a.b", "a1") for s in (0, 1, 10) for name in spelled(ShardKeys(app, s, 2, 1))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("other", ["orders2", "order", "orders.x", "x.orders"])
def test_key_patterns_of_app_cover_no_other_app(other: str) -> None:
    def covered(name: str) -> bool:
        return name.startswith(("acker:{orders:", "acker:{orders}:"))

    assert all(map(covered, [*spelled(ShardKeys("orders", 0, 2, 1)), keys.config("orders"), keys.components("orders")]))
    assert not any(map(covered, [*spelled(ShardKeys(other, 0, 2, 1)), keys.config(other), keys.components(other)]))


@pytest.mark.parametrize(
    ("key", "app"),
    [
        ("acker:{orders}:config", "orders"),
        ("acker:{a.b-c_9}:config", "a.b-c_9"),
        ("acker:{orders:0}:config", None),
        ("acker:{orders}:components", None),
        ("acker:{}:config", None),
        ("xacker:{orders}:config", None),
        ("acker:{orders}:config:x", None),
    ],
)
def test_app_name_is_read_from_config_key_only(key: str, app: str | None) -> None:
    assert keys.app_of_config(key) == app


def test_scan_pattern_matches_config_keys_only() -> None:
    pattern = re.escape(keys.CONFIG_PATTERN).replace(r"\*", ".*")
    assert re.fullmatch(pattern, keys.config("orders"))
    assert not re.fullmatch(pattern, keys.components("orders"))


def test_key_names_of_huge_app_are_not_kept_in_memory() -> None:
    shards = [ShardKeys("huge", shard, num_buckets=1_000, lanes=64) for shard in range(64)]
    tracemalloc.start()
    try:
        assert sum(len(spelled(one)) for one in shards) == 64 * (5 + 2 * 1_001 + 2 * 64)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 64 * 10_000  # one shard has 200 000 bytes of them
