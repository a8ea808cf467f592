"""Settings by Storm's names."""

import pytest

from acker_redis.errors import InvalidTopologyError
from acker_redis.storm.definition import settings


def test_names_of_the_user_pass() -> None:
    assert settings.check({"lines.path": "x", "topologys": 1}, "x") == {"lines.path": "x", "topologys": 1}


def test_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidTopologyError, match=r"Did you mean 'topology\.max\.spout\.pending'"):
        settings.check({"topology.max.spout.pendng": 5}, "x")


@pytest.mark.parametrize(
    "name", ["topology.", "topology.my.own.very.special.knob.of.mine.in.hours", "topology." + "z" * 99]
)
def test_unknown_name_that_is_similar_to_none_is_refused_with_the_nearest_one_all_the_same(name: str) -> None:
    with pytest.raises(InvalidTopologyError, match=r"is unknown\. Did you mean 'topology\."):
        settings.check({name: 5}, "x")


@pytest.mark.parametrize("name", settings.known_names())
def test_known_name_is_accepted_or_its_value_is_checked(name: str) -> None:
    try:
        settings.check({name: object()}, "x")
    except InvalidTopologyError as exc:
        assert "is invalid" in str(exc)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (settings.MESSAGE_TIMEOUT_SECS, 0),
        (settings.MESSAGE_TIMEOUT_SECS, None),
        (settings.MESSAGE_TIMEOUT_SECS, "30"),
        (settings.MAX_SPOUT_PENDING, -1),
        (settings.MAX_SPOUT_PENDING, True),
        (settings.TICK_SECS, float("inf")),
        (settings.DEBUG, "yes"),
    ],
)
def test_bad_value_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidTopologyError, match="is invalid"):
        settings.check({name: value}, "x")


def test_setting_without_effect_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    name = "topology.spout.wait.strategy"
    settings._logged.discard(name)
    with caplog.at_level("INFO", "acker_redis.storm"):
        settings.check({name: "x"}, "x")
        settings.check({name: "x"}, "x")
    assert [record.getMessage() for record in caplog.records] == [f"setting without effect name={name}"]
