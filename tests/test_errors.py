"""The error tree: one root, every class public, messages that say what to do."""

import inspect

import fakeredis
import pytest
import redis

import acker_redis
import acker_redis.testing
from acker_redis import errors
from acker_redis.acker import app_of
from acker_redis.client.client import Client

CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_public_documented_and_an_acker_error(cls: type[BaseException]) -> None:
    assert getattr(acker_redis, cls.__name__) is cls
    assert cls.__name__ in acker_redis.__all__
    assert cls.__doc__
    if issubclass(cls, Warning):
        assert issubclass(cls, UserWarning)
    else:
        assert issubclass(cls, errors.AckerError)
        assert cls is errors.AckerError or cls.__name__.endswith("Error")


@pytest.mark.parametrize("cls", [errors.BadConfigError, errors.BadIdError, errors.BadBatchError, errors.PipelineError])
def test_bad_input_errors_are_value_errors(cls: type[BaseException]) -> None:
    assert issubclass(cls, ValueError)


def test_out_of_memory_is_a_refusal_of_writes() -> None:
    assert issubclass(errors.ServerOutOfMemoryError, errors.ServerRefusesWritesError)


@pytest.mark.parametrize(
    ("raised", "expected", "advice"),
    [
        (redis.ResponseError("ACKERLOST the shard"), errors.LedgerLostError, "reopen"),
        (redis.ResponseError("NOGROUP No such key"), errors.LedgerLostError, "reopen"),
        (redis.AuthenticationError("WRONGPASS invalid"), errors.AuthenticationError, "Check the user name"),
        (redis.exceptions.NoPermissionError("NOPERM no"), errors.AuthenticationError, "Allow the command"),
        (redis.exceptions.OutOfMemoryError("command not allowed"), errors.ServerOutOfMemoryError, "Raise maxmemory"),
        (
            redis.ResponseError("OOM command not allowed when used memory"),
            errors.ServerOutOfMemoryError,
            "Raise maxmemory",
        ),
        (redis.exceptions.ReadOnlyError("READONLY replica"), errors.ServerRefusesWritesError, "primary"),
        (redis.ResponseError("MISCONF Redis is configured"), errors.ServerRefusesWritesError, "repair"),
        (redis.ConnectionError("refused"), errors.ConnectionLostError, "Check that the server runs"),
        (redis.TimeoutError("slow"), errors.ConnectionLostError, "Check that the server runs"),
        (OSError("no route"), errors.ConnectionLostError, "Check that the server runs"),
        (
            redis.ResponseError("DB index is out of range"),
            errors.BadConfigError,
            "Omit the number at the end of the URL",
        ),
        (redis.exceptions.ClusterDownError("Hash slot not served"), errors.ConnectionLostError, "--cluster check"),
        (
            redis.exceptions.RedisClusterException("All slots are not covered after query. 1 of 16384 covered..."),
            errors.ConnectionLostError,
            "--cluster check",
        ),
        (redis.InvalidResponse('Protocol error, got "H"'), errors.ScriptFailedError, "Check the URL's host and port"),
        (redis.ResponseError("ERR user_script:1"), errors.ScriptFailedError, "user_script"),
        (errors.BadIdError("as it is"), errors.BadIdError, "as it is"),
    ],
)
def test_redis_py_error_is_mapped_to_library_error(raised: Exception, expected: type[Exception], advice: str) -> None:
    translated = Client(fakeredis.FakeRedis()).translate(raised)
    assert type(translated) is expected
    assert advice in str(translated)


def test_mapped_error_keeps_redis_py_error_as_cause() -> None:
    client = Client(fakeredis.FakeRedis())
    cause = redis.ConnectionError("refused")
    with pytest.raises(errors.ConnectionLostError) as caught, client.translated():
        raise cause
    assert caught.value.__cause__ is cause


def test_connection_error_mentions_partial_apply_only_for_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing was ever sent, the text says where to look instead."""
    with pytest.raises(errors.ConnectionLostError) as caught:
        Client("redis://127.0.0.1:1/0", outage_timeout_secs=0)
    assert "Nothing was sent." in str(caught.value)
    assert "the URL's host, port and scheme" in str(caught.value)
    acker = acker_redis.testing.fake_acker()
    client = app_of(acker).client

    monkeypatch.setattr(client, "_outage_timeout_secs", 0)
    monkeypatch.setattr(client, "_later_patience_secs", 0)
    monkeypatch.setattr(client, "_send_to_one", lambda commands: [redis.ConnectionError("went away") for _ in commands])
    with pytest.raises(
        errors.ConnectionLostError, match=r"applied in part\. Send it again with the same idempotency key"
    ):
        acker.init(1, 1, 0)
    with pytest.raises(errors.ConnectionLostError) as caught:
        client.pipeline([("GET", "key")])
    assert "applied in part" not in str(caught.value)
