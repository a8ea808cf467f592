"""Settings of an app when only their key is gone: the settings of its shards hold."""

from typing import Any

import pytest

from acker_redis import Acker, SettingsConflictError

SETTINGS: dict[str, Any] = {"shards": 4, "num_buckets": 3, "lanes": 2, "message_timeout_secs": 30}
CONFIG = "acker:{test}:config"


@pytest.mark.parametrize(
    "other",
    [{"shards": 2}, {"shards": 8}, {"num_buckets": 4}, {"lanes": 1}, {"clock": "last_update"}, {"max_age_secs": 60}],
)
def test_client_with_other_settings_is_refused_without_writes(url, raw, connect, other) -> None:
    acker: Acker = connect(**SETTINGS)
    acker.init(1, 1, 0)
    raw.delete(CONFIG)
    before = {key: raw.dump(key) for key in raw.scan_iter()}
    with pytest.raises(SettingsConflictError, match="shards that were created with other settings"):
        connect(**{**SETTINGS, **other})
    assert {key: raw.dump(key) for key in raw.scan_iter()} == before


def test_client_with_the_same_settings_restores_their_key(source, raw, connect) -> None:
    acker: Acker = connect(**SETTINGS)
    settings = raw.hgetall(CONFIG)
    acker.init(1, 1, 0)
    raw.delete(CONFIG)
    again: Acker = connect(**SETTINGS)
    assert raw.hgetall(CONFIG) == settings
    assert again.ack_many([1], [1]).applied == 1
