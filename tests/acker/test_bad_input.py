"""Bad ids, batches, idempotency keys and settings: a clear error, and nothing reaches the server."""

from typing import Any

import numpy as np
import pytest

from acker_redis import (
    Acker,
    AckerConfig,
    Applied,
    BadBatchError,
    BadConfigError,
    BadIdError,
    IdempotencyKeyReusedError,
    SettingsConflictError,
)

BAD_IDS = {
    "text": "7",
    "bytes": b"7",
    "float": 7.0,
    "numpy float": np.float64(7),
    "bool": True,
    "numpy bool": np.True_,
    "none": None,
    "list": [7],
    "too large": 2**64,
    "too small": -(2**63) - 1,
}


def script_calls(raw: Any) -> int:
    """How many script calls the server has seen."""
    stats = raw.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


@pytest.mark.parametrize("bad", BAD_IDS.values(), ids=BAD_IDS)
def test_bad_id_is_named_in_the_error_and_sends_nothing(url, raw, connect, bad) -> None:
    acker: Acker = connect()
    sent = script_calls(raw)
    for call in (
        lambda ids: acker.init_many(ids, [1, 1, 1], 0),
        lambda ids: acker.ack_many(ids, [1, 1, 1]),
        lambda ids: acker.fail_many(ids),
        lambda ids: acker.reset_timeout_many(ids),
        lambda ids: acker.inspect_many(ids),
    ):
        with pytest.raises(BadIdError, match=r"roots\[2\]"):
            call([5, 6, bad])
    with pytest.raises(BadIdError, match=r"vals\[0\]"):
        acker.ack_many([5, 6], [bad, 1])
    for one in (lambda: acker.init(bad, 1, 0), lambda: acker.fail(bad), lambda: acker.inspect(bad)):
        with pytest.raises(BadIdError, match="root="):
            one()
    with pytest.raises(BadIdError, match="val="):
        acker.ack(1, bad)
    assert script_calls(raw) == sent


@pytest.mark.parametrize("values", [[1.0, 2.0], [True, False]], ids=["float", "bool"])
def test_numpy_array_of_the_wrong_type_is_refused(url, connect, values) -> None:
    with pytest.raises(BadIdError, match=r"roots\[0\]"):
        connect().fail_many(np.array(values))


@pytest.mark.parametrize("spout_id", [-1, 2**32, 1.0, "1", True, None])
def test_spout_id_outside_32_bits_or_no_integer_is_refused(url, connect, spout_id) -> None:
    with pytest.raises(BadIdError, match="spout_id="):
        connect().init(1, 1, spout_id)


def test_signed_and_unsigned_ids_name_the_same_root(url, connect) -> None:
    acker: Acker = connect()
    acker.init(2**64 - 1, 2**63, 2**32 - 1)
    record = acker.inspect(-1)
    assert record is not None
    assert (record.root, record.val, record.spout_id) == (-1, -(2**63), 2**32 - 1)
    acker.ack(-1, -(2**63))
    assert [outcome.root for outcome in acker.poll()] == [-1]


def test_invalid_batch_arguments_are_refused_and_send_nothing(url, raw, connect) -> None:
    acker: Acker = connect()
    not_text: Any = b"t"
    sent = script_calls(raw)
    call: Any
    for call, words in (
        (lambda: acker.init_many([], [], 0), "roots is empty"),
        (lambda: acker.fail_many(np.empty(0, np.int64)), "roots is empty"),
        (lambda: acker.ack_many([1, 2], [1]), "roots has 2 elements, but vals has 1"),
        (lambda: acker.ack_many([[1], [2]], [1, 2]), "one-dimensional"),
        (lambda: acker.ack_many(7, [1]), "sequence of integers"),
        (lambda: acker.ack_many("12", [1, 2]), "sequence of integers"),
        (lambda: acker.ack_many([1], [1], idempotency_key=""), "idempotency_key"),
        (lambda: acker.ack_many([1], [1], idempotency_key=not_text), "idempotency_key"),
        (lambda: acker.ack_many([1], [1], idempotency_key="", component="new"), "idempotency_key"),
        (lambda: acker.ack_many([1], [1], component=""), "component"),
    ):
        with pytest.raises(BadBatchError, match=words):
            call()
    assert script_calls(raw) == sent


def test_batch_with_a_bad_id_sends_nothing(url, raw, connect) -> None:
    acker: Acker = connect()
    not_an_id: Any = "x"
    sent = script_calls(raw)
    with pytest.raises(BadIdError, match="root='x'"), acker.batch() as batch:
        batch.init(1, 1, 0)
        batch.ack(not_an_id, 1)
    assert script_calls(raw) == sent
    with acker.batch() as empty:
        pass
    assert empty.result == Applied(0, False)


@pytest.mark.parametrize(
    "arguments", [{"max_outcomes": 0}, {"block_ms": -1}, {"block_ms": 0.5}, {"consumer": ""}, {"lane": 1}]
)
def test_invalid_poll_arguments_are_refused(url, connect, arguments) -> None:
    with pytest.raises(BadConfigError, match=next(iter(arguments))):
        connect(lanes=1).poll(**arguments)


def test_idempotency_key_reused_for_other_content_is_refused(source, connect) -> None:
    acker: Acker = connect(shards=1)
    call: Any
    acker.init_many([1, 2], [5, 6], 0, idempotency_key="batch-1")
    acker.ack_many([1, 2], [1, 1], idempotency_key="batch-2")
    for call in (
        lambda: acker.ack_many([1, 2], [1, 3], idempotency_key="batch-2"),
        lambda: acker.ack_many([1, 3], [1, 1], idempotency_key="batch-2"),
        lambda: acker.init_many([1, 2], [5, 6], 1, idempotency_key="batch-1"),
    ):
        with pytest.raises(IdempotencyKeyReusedError, match="one idempotency key per batch"):
            call()
    assert [record and record.val for record in acker.inspect_many([1, 2, 3])] == [4, 7, None]
    assert acker.ack_many([2, 1], [1, 1], idempotency_key="batch-2") == Applied(
        0, True
    )  # the same content in another order


def test_client_with_other_settings_gets_the_setting_named(source, connect) -> None:
    connect(shards=2, message_timeout_secs=30, clock="first_seen")
    connect(shards=2, message_timeout_secs=30.0)
    for settings in (
        {"shards": 3},
        {"shards": 2, "num_buckets": 4},
        {"shards": 2, "message_timeout_secs": 31},
        {"shards": 2, "clock": "last_update"},
        {"shards": 2, "max_age_secs": 60},
        {"shards": 2, "lanes": 2},
    ):
        name = list(settings)[-1]
        with pytest.raises(SettingsConflictError, match=f"{name} is .* in Redis and .* here"):
            connect(**settings)
    assert connect(app="another", shards=3).config == AckerConfig(app="another", shards=3)


def test_deleted_settings_do_not_admit_conflicting_clients(source, raw, connect) -> None:
    acker: Acker = connect(shards=2, num_buckets=3)
    acker.init(1, 5, 0)
    raw.delete("acker:{test}:config")
    for settings in ({"num_buckets": 4}, {"lanes": 2}, {"clock": "last_update"}, {"message_timeout_secs": 7}):
        with pytest.raises(SettingsConflictError, match="delete all keys of the app"):
            connect(**{"shards": 2, **settings})
        raw.delete("acker:{test}:config")
    assert connect(shards=2, num_buckets=3).stats().pending == 1


def test_batch_of_a_million_roots_is_split_into_bounded_calls(start_server, open_acker, plain) -> None:
    server = start_server("--slowlog-log-slower-than", "0", "--slowlog-max-len", "100000")
    acker: Acker = open_acker(server.url, shards=8)
    raw = plain(server.url)
    acker.init(-1, 1, 0)  # the server knows the scripts from here on, so that no call is sent twice
    acker.ack(-1, 1)
    roots = np.arange(1_000_000, dtype=np.int64)
    vals = roots + 1
    call: Any
    for call in (
        lambda: acker.init_many(roots, vals, 0),
        lambda: acker.ack_many(roots, vals),
    ):
        raw.slowlog_reset()
        assert call().applied == 1_000_000
        rows = [_packed_bytes(entry["command"]) for entry in raw.slowlog_get(100_000)]
        assert sum(rows) == 20 * 1_000_000
        assert max(rows) == 20 * 500
    assert acker.stats().acked == 1_000_001


def _packed_bytes(command: bytes) -> int:
    """Bytes of a call's last argument, of which the slow log keeps 128; it lists the commands inside scripts too."""
    kept, _, more = command.rpartition(b"... (")
    return 128 + int(more.split()[0]) if kept.startswith(b"EVAL") else 0


def test_text_with_lone_surrogates_is_refused_or_replaced(url, connect) -> None:
    acker: Acker = connect()
    half = "half \ud83d"
    with pytest.raises(BadBatchError, match="idempotency_key="):
        acker.init_many([1], [1], 0, idempotency_key=half)
    with pytest.raises(BadBatchError, match="component="):
        acker.ack_many([1], [1], component=half)
    with pytest.raises(BadBatchError, match="reason="):
        acker.fail(1, reason=5)  # type: ignore[arg-type]
    acker.init(1, 1, 0)
    acker.fail(1, reason=half)
    assert [outcome.detail for outcome in acker.poll()] == ["half ?"]


def test_long_failure_reason_is_truncated(url, connect) -> None:
    acker: Acker = connect()
    acker.init(1, 1, 0)
    acker.fail(1, reason="x" * 100_000)
    assert [outcome.detail for outcome in acker.poll()] == ["x" * 1_000]


def test_batch_entered_twice_is_refused(url, connect) -> None:
    acker: Acker = connect()
    with acker.batch() as batch:
        batch.init(1, 1, 0)
    with pytest.raises(BadBatchError, match="used before"), batch:
        pass
    assert batch.result == Applied(1, False)
