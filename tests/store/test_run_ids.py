"""A run id is claimed by one run."""

from typing import Any

import pytest

from acker_redis import Acker, AckerConfig, BadConfigError
from acker_redis.acker import app_of


def test_run_id_claimed_twice_in_an_app_is_refused(connect: Any, source: Any) -> None:
    app_of(connect(app="one")).claim_run("monday")
    with pytest.raises(BadConfigError, match=r"'monday' was used by an earlier run of app 'one'\. .* Use a new run_id"):
        app_of(connect(app="one")).claim_run("monday")
    app_of(connect(app="one")).claim_run("tuesday")
    app_of(connect(app="other")).claim_run("monday")


@pytest.mark.parametrize("run_id", ["", "x" * 101, "half \ud800 a pair", 5, None])
def test_invalid_run_id_is_refused(connect: Any, url: str, run_id: Any) -> None:
    with pytest.raises(BadConfigError, match="1 to 100 characters"):
        app_of(connect()).claim_run(run_id)


@pytest.mark.parametrize(
    ("settings", "secs"),
    [({}, 7 * 86400), ({"message_timeout_secs": 3 * 86400.0, "max_age_secs": 86400.0}, 13 * 86400)],
)
def test_run_id_claim_lasts_a_week_or_more_for_long_timeouts(
    connect: Any, raw: Any, url: str, settings: dict[str, Any], secs: int
) -> None:
    app_of(connect(**settings)).claim_run("monday")
    assert secs - 60 < raw.ttl("acker:{test}:run:monday") <= secs


def test_run_id_claim_with_a_lost_reply_succeeds(monkeypatch: pytest.MonkeyPatch, connect: Any, url: str) -> None:
    acker: Acker = connect()
    send = app_of(acker).client._send_to_one

    def twice(commands: Any) -> Any:
        send(commands)
        return send(commands)

    monkeypatch.setattr(app_of(acker).client, "_send_to_one", twice)
    app_of(acker).claim_run("monday")
    assert acker.config == AckerConfig(app="test")
