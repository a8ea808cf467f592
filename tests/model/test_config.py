"""AckerConfig: what is accepted, what follows from it, and how it stands in Redis."""

import dataclasses
from typing import Any

import pytest

from acker_redis import AckerConfig, BadConfigError, DamagedDataError


def test_config_with_app_only_has_documented_defaults() -> None:
    config = AckerConfig(app="orders")
    assert dataclasses.asdict(config) == {
        "app": "orders",
        "shards": 8,
        "num_buckets": 3,
        "message_timeout_secs": 30.0,
        "clock": "first_seen",
        "max_age_secs": None,
        "lanes": 1,
    }


def test_a_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        AckerConfig(app="orders").shards = 2  # type: ignore[misc]


@pytest.mark.parametrize("app", ["a", "A.b_c-9", "9", "x" * 64])
def test_app_name_of_letters_digits_and_marks_is_accepted(app: str) -> None:
    assert AckerConfig(app=app).app == app


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("app", value) for value in ("", "x" * 65, "a b", "{a}", "a:1", "-a", ".a", "ä", "a\n", "*", None, 5)),
        *(("shards", value) for value in (0, -1, 4097, 1.0, "8", None, True)),
        *(("num_buckets", value) for value in (1, 0, 1001, 2.5, True)),
        *(("lanes", value) for value in (0, 65, 1.0, True)),
        *(("clock", value) for value in ("FIRST_SEEN", "", None)),
        *(("message_timeout_secs", value) for value in (0, -1, float("nan"), float("inf"), 367 * 86400, "30", None, True)),
        *(("max_age_secs", value) for value in (0, -1, float("nan"), float("inf"), 367 * 86400, "30", True)),
    ],
)  # fmt: skip
def test_setting_out_of_range_is_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(BadConfigError, match=f"{setting}="):
        AckerConfig(**{"app": "orders", setting: value})


@pytest.mark.parametrize(
    ("timeout_secs", "num_buckets", "tick_ms"),
    [(30, 3, 15_000), (30, 2, 30_000), (1, 4, 334), (0.001, 2, 1), (0.0001, 2, 1), (10, 1000, 11)],
)
def test_ticks_of_the_ring_cover_message_timeout(timeout_secs: float, num_buckets: int, tick_ms: int) -> None:
    config = AckerConfig(app="orders", message_timeout_secs=timeout_secs, num_buckets=num_buckets)
    assert config.tick_ms == tick_ms
    assert config.tick_ms * (num_buckets - 1) >= timeout_secs * 1000


@pytest.mark.parametrize(("secs", "ms"), [(None, 0), (1, 1000), (0.0001, 1), (3600.5, 3_600_500)])
def test_max_age_is_converted_to_milliseconds(secs: float | None, ms: int) -> None:
    assert AckerConfig(app="orders", max_age_secs=secs).max_age_ms == ms


@pytest.mark.parametrize(
    "config",
    [
        AckerConfig(app="orders"),
        AckerConfig("a", 1, 2, 0.1, "last_update", 12.75, 64),
        AckerConfig("a", 4096, 1000, 86_400, "first_seen", 1e-3, 2),
    ],
)
def test_fields_in_redis_read_back_as_the_same_settings(config: AckerConfig) -> None:
    assert AckerConfig.from_fields(config.app, config.as_fields()) == config


def test_integer_and_equal_float_give_the_same_fields() -> None:
    assert AckerConfig(app="a", message_timeout_secs=30).as_fields() == AckerConfig(app="a").as_fields()


@pytest.mark.parametrize("damage", [{"shards": "x"}, {"shards": "0"}, {"message_timeout_secs": ""}, {"lanes": None}])
def test_damaged_fields_are_refused(damage: dict[str, Any]) -> None:
    fields = {**AckerConfig(app="orders").as_fields(), **damage}
    with pytest.raises(DamagedDataError, match="'orders' are damaged"):
        AckerConfig.from_fields("orders", {name: value for name, value in fields.items() if value is not None})


def test_an_unknown_clock_in_redis_is_refused() -> None:
    fields = {**AckerConfig(app="orders").as_fields(), "clock": "wall"}
    with pytest.raises(DamagedDataError, match="damaged"):
        AckerConfig.from_fields("orders", fields)
