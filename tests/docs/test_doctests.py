"""The public calls: each has an example that runs. Their names and parameters are in tests/data/api.txt."""

import doctest
import inspect
import pickle
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import fakeredis
import numpy as np
import pytest

import acker_redis
from acker_redis import (
    Acker,
    AckerConfig,
    AckerError,
    Admin,
    Anchors,
    BadConfigError,
    Batch,
    DeadLetterFilter,
    Marks,
    OffsetFile,
    RetryPolicy,
    Spout,
)
from acker_redis.acker import app_of
from acker_redis.client import connection
from acker_redis.model.config import Settings
from acker_redis.store.dead_letters import DeadLetters
from acker_redis.store.payloads import Payloads
from acker_redis.testing import fake, fake_acker

HOLDERS: tuple[Any, ...] = (
    Acker,
    Admin,
    Anchors,
    Batch,
    Marks,
    OffsetFile,
    Spout,
    AckerConfig,
    DeadLetters,
    Payloads,
    fake,
)
"""Every class and module of the core with public calls, all but RetryPolicy and DeadLetterFilter."""


def calls_of(holder: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(holder).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod)):
            call = getattr(holder, name)
            if inspect.isclass(holder) or call.__module__ == holder.__name__:
                yield name, call


EACH = [(holder, name) for holder in HOLDERS for name, _ in calls_of(holder)]
BY_NAME_ONLY = {"idempotency_key", "reason", "component", "detail", "lane"}


def test_every_error_is_public() -> None:
    errors = {name for name in acker_redis.__all__ if name.endswith(("Error", "Warning"))}
    assert errors == {name for name in vars(acker_redis.errors) if name.endswith(("Error", "Warning"))}
    for name in errors - {"EvictionPolicyWarning"}:
        assert issubclass(getattr(acker_redis, name), AckerError)


def test_public_classes_with_methods_are_all_listed() -> None:
    public = [getattr(acker_redis, name) for name in acker_redis.__all__ if name != "__version__"]
    assert {cls for cls in public if [*calls_of(cls)]} <= {*HOLDERS, RetryPolicy, DeadLetterFilter}


@pytest.mark.parametrize(("holder", "name"), EACH)
def test_ambiguous_parameters_are_keyword_only(holder: Any, name: str) -> None:
    parameters = inspect.signature(getattr(holder, name)).parameters.values()
    assert not BY_NAME_ONLY & {one.name for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY}


def test_reason_given_by_position_raises_type_error() -> None:
    """The mistake that the names are for: a reason given in second place."""
    acker: Any = fake_acker()
    with pytest.raises(TypeError, match="positional"):
        acker.fail_many([1, 2], "no such customer")


@pytest.mark.parametrize(("holder", "name"), EACH)
def test_docstring_example_of_public_call_runs(
    holder: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    server = fakeredis.FakeServer()
    monkeypatch.setattr(connection, "connect_single", lambda url, **_: fakeredis.FakeRedis(server=server))
    Acker.connect("redis://localhost", app="orders", message_timeout_secs=60).close()
    with fake_acker() as acker:
        known = {
            **{
                name: getattr(acker_redis, name)
                for name in (
                    "Acker",
                    "AckerError",
                    "AckerConfig",
                    "Anchors",
                    "DeadLetter",
                    "DeadLetterFilter",
                    "Limits",
                    "OffsetFile",
                    "run_spout",
                )
            },
            **dict(calls_of(fake)),
            "np": np,
            "acker": acker,
            "app": app_of(acker),
            "spout": Spout(acker, "run-1"),
        }
        call = getattr(holder, name)
        example = doctest.DocTestParser().get_doctest(inspect.getdoc(call) or "", known, name, None, 0)
        assert example.examples, "no example"
        report: list[str] = []
        result = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert (result.failed, "".join(report)) == (0, "")


# -- connecting with keywords


def test_connect_keywords_are_the_config_settings() -> None:
    assert Settings.__annotations__.keys() == {field.name for field in fields(AckerConfig)}
    with Acker.connect(fakeredis.FakeRedis(), app="orders", message_timeout_secs=60, shards=2) as acker:
        assert acker.config == AckerConfig("orders", shards=2, message_timeout_secs=60)


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        (AckerConfig("orders"), {"app": "orders"}, "not both"),
        (AckerConfig("orders"), {"shards": 2}, "not both"),
        (None, {}, "name of the app is missing"),
        (None, {"shards": 2}, "name of the app is missing"),
        (None, {"app": "orders", "timeout": 3}, "Unknown setting timeout"),
        (None, {"app": "orders", "shards": 0}, "shards=0"),
        ("orders", {}, "Pass an AckerConfig"),
    ],
)
def test_settings_given_twice_wrongly_or_not_at_all_are_refused(config: Any, settings: Any, words: str) -> None:
    server = fakeredis.FakeRedis()
    with pytest.raises(BadConfigError, match=words):
        Acker.connect(server, config, **settings)
    assert server.keys("*") == []


def test_an_acker_keeps_its_url_and_does_not_show_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "connect_single", lambda url, **_: fakeredis.FakeRedis())
    url = "redis://worker:s3cret@host:6379/0"
    with Acker.connect(url, app="orders") as acker:
        assert acker.url == url
        assert repr(acker) == "<Acker of app 'orders' at redis://***@host:6379/0>"
    assert fake_acker().url is None


def test_pickling_an_acker_raises_type_error() -> None:
    with pytest.raises(TypeError, match=r"Send acker\.url and acker\.config"):
        pickle.dumps(fake_acker())
