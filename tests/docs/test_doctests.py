"""What is public: the names, their calls with their parameters, and an example of each call that runs."""

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
    BadConfigError,
    Batch,
    DeadLetterFilter,
    OffsetFile,
    RetryPolicy,
    Spout,
    testing,
)
from acker_redis.client import connection
from acker_redis.ledger.shards import generation_at
from acker_redis.model.config import Settings
from acker_redis.store.dead_letters import DeadLetters
from acker_redis.store.payloads import Payloads
from acker_redis.store.run_ends import End
from acker_redis.testing import fake_acker

NAMES = {
    "Acker", "AckerConfig", "Batch", "DeadLetter", "DeadLetterFilter", "Limits", "OffsetFile", "RetryPolicy", "Spout",
    "Applied", "Outcome", "PackedOutcomes", "RootRecord", "Rotated", "Stats", "__version__",
}  # fmt: skip

CALLS: dict[Any, dict[str, str]] = {
    Acker: {
        "connect": "source config * patience_secs **settings",
        "attach": "source app",
        "close": "",
        "init": "root val task",
        "ack": "root val * stage",
        "fail": "root * reason stage",
        "reset_timeout": "root",
        "init_many": "roots vals task * token",
        "ack_many": "roots vals * token stage",
        "fail_many": "roots * token reason stage",
        "reset_timeout_many": "roots",
        "batch": "* token",
        "poll": "max_outcomes block_ms consumer * lane",
        "confirm": "outcomes",
        "poll_packed": "max_outcomes block_ms consumer * lane again",
        "confirm_packed": "packed",
        "rotate": "force drain_calls shards",
        "stats": "* oldest lane",
        "pending": "",
        "each_pending": "",
        "server_ids": "",
        "inspect": "root",
        "inspect_many": "roots",
        "payloads": "run_id",
        "holds": "generation",
        "claim_run": "run_id",
        "lease": "* lane run_id",
        "note_end": "end * lane",
        "ends": "",
        "pause": "* reason",
        "resume": "",
        "paused": "",
        "limits": "",
        "set_limits": "allowed",
        "done_until": "task",
        "say_done_until": "values gone * task",
        "replaying": "* task take only_run",
        "recover": "",
    },
    Batch: {
        "init": "root val task",
        "ack": "root val * stage",
        "fail": "root * reason stage",
        "init_many": "roots vals task",
        "ack_many": "roots vals * stage",
        "fail_many": "roots * reason stage",
    },
    OffsetFile: {
        "open": "app partition offset",
        "close": "",
        "known": "",
        "track": "message_ids partitions of_message offsets",
        "complete": "message_ids",
        "save": "",
    },
    Spout: {
        "add": "message_ids",
        "next_emission": "most",
        "excuse": "roots",
        "hold": "roots delay_secs",
        "isolate": "emission * by_outage",
        "no_retry": "roots",
        "give_up": "message_ids",
        "take_letters": "",
        "poll": "max_outcomes block_ms",
        "reconcile": "under_way",
        "run": "emit progress",
    },
    AckerConfig: {"as_fields": "", "from_fields": "app fields"},
    DeadLetters: {
        "add": "letters",
        "read": "count after",
        "scan": "after until",
        "find": "wanted",
        "get": "entry_ids",
        "survey": "wanted",
        "replay": "wanted * per_sec progress",
        "replaying": "task",
        "count": "",
        "first_ms": "",
        "now_ms": "",
        "delete": "entry_ids",
    },
    Payloads: {"put": "payloads", "get": "message_ids", "remove": "message_ids", "clear": ""},
    testing: {
        "fake_acker": "config **settings",
        "settle": "acker",
        "expire": "acker",
        "wait_until": "condition description timeout_secs",
    },
}
"""Every call of the core, all but RetryPolicy, and its parameters; those behind `*` are given by name only."""

EACH = [(holder, name) for holder, calls in CALLS.items() for name in calls]
BY_NAME_ONLY = {"token", "reason", "stage", "detail", "lane"}


def calls_of(holder: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(holder).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod)):
            call = getattr(holder, name)
            if inspect.isclass(holder) or call.__module__ == holder.__name__:
                yield name, call


def parameters(call: Callable[..., Any]) -> str:
    words: list[str] = []
    for one in inspect.signature(call).parameters.values():
        if one.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        if one.name != "self":
            words.append(f"**{one.name}" if one.kind is inspect.Parameter.VAR_KEYWORD else one.name)
    return " ".join(words)


def test_the_public_names() -> None:
    errors = {name for name in acker_redis.__all__ if name.endswith(("Error", "Warning"))}
    assert set(acker_redis.__all__) - errors == NAMES
    assert errors == {name for name in vars(acker_redis.errors) if name.endswith(("Error", "Warning"))}
    for name in errors - {"EvictionPolicyWarning"}:
        assert issubclass(getattr(acker_redis, name), AckerError)


def test_no_public_class_with_calls_is_left_out() -> None:
    public = [getattr(acker_redis, name) for name in acker_redis.__all__ if name != "__version__"]
    assert {one for one in public if [*calls_of(one)]} <= CALLS.keys() | {RetryPolicy, DeadLetterFilter}


@pytest.mark.parametrize("holder", CALLS)
def test_the_calls_and_their_parameters(holder: Any) -> None:
    assert {name: parameters(call) for name, call in calls_of(holder)} == CALLS[holder]


@pytest.mark.parametrize(("holder", "name"), EACH)
def test_what_is_easily_mistaken_for_something_else_is_given_by_name(holder: Any, name: str) -> None:
    positional, _, _ = CALLS[holder][name].partition("*")
    assert not BY_NAME_ONLY & set(positional.split())


def test_a_text_is_not_taken_for_a_token() -> None:
    """The mistake that the names are for: a reason given in second place."""
    acker: Any = fake_acker()
    with pytest.raises(TypeError, match="positional"):
        acker.fail_many([1, 2], "no such customer")


@pytest.mark.parametrize(("holder", "name"), EACH)
def test_the_example_of_a_call_runs(holder: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    server = fakeredis.FakeServer()
    monkeypatch.setattr(connection, "connect_single", lambda url, **_: fakeredis.FakeRedis(server=server))
    Acker.connect("redis://localhost", app="orders", message_timeout_secs=60).close()
    with fake_acker() as acker:
        known = {
            **{
                name: getattr(acker_redis, name)
                for name in ("Acker", "AckerConfig", "DeadLetter", "DeadLetterFilter", "Limits", "OffsetFile")
            },
            **{name: getattr(testing, name) for name in CALLS[testing]},
            "generation_at": generation_at,
            "End": End,
            "np": np,
            "acker": acker,
            "spout": Spout(acker, "run-1"),
        }
        call = getattr(holder, name)
        example = doctest.DocTestParser().get_doctest(inspect.getdoc(call) or "", known, name, None, 0)
        assert example.examples, "no example"
        report: list[str] = []
        result = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert (result.failed, "".join(report)) == (0, "")


# -- connecting with keywords


def test_keywords_are_the_settings_of_a_config() -> None:
    assert Settings.__annotations__.keys() == {field.name for field in fields(AckerConfig)}
    with Acker.connect(fakeredis.FakeRedis(), app="orders", message_timeout_secs=60, shards=2) as acker:
        assert acker.config == AckerConfig("orders", shards=2, message_timeout_secs=60)


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        (AckerConfig("orders"), {"app": "orders"}, "not both"),
        (AckerConfig("orders"), {"shards": 2}, "not both"),
        (None, {}, "no app is named"),
        (None, {"shards": 2}, "no app is named"),
        (None, {"app": "orders", "timeout": 3}, "timeout: no such setting"),
        (None, {"app": "orders", "shards": 0}, "shards=0"),
        ("orders", {}, "give an AckerConfig"),
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


def test_an_acker_is_not_pickled() -> None:
    with pytest.raises(TypeError, match=r"send acker\.url and acker\.config"):
        pickle.dumps(fake_acker())
