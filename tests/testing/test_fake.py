"""acker_redis.testing: the tools for users' unit tests."""

import builtins
from types import SimpleNamespace
from typing import Any

import pytest

from acker_redis import AckerConfig, AckerError
from acker_redis.ledger.outcomes.consumer import Consumer
from acker_redis.testing import expire, fake, fake_acker, settle, wait_until


def test_documented_example_settles_an_acked_root() -> None:
    acker = fake_acker()
    acker.init(root=1, val=5, spout_id=0)
    acker.ack(1, 5)
    assert settle(acker) == {1: "ack"}
    assert settle(acker) == {}


def test_fake_ackers_share_no_data() -> None:
    one, other = fake_acker(), fake_acker()
    one.init(1, 5, 0)
    assert other.inspect(1) is None
    assert other.stats().inits == 0


def test_fake_acker_uses_given_config() -> None:
    config = AckerConfig(app="mine", num_buckets=2, clock="last_update")
    assert fake_acker(config).config is config


def test_expire_turns_pending_roots_into_timeouts() -> None:
    acker = fake_acker()
    acker.init(1, 5, 0)
    acker.init(2, 5, 0)
    acker.init(3, 5, 0)
    acker.ack(2, 5)
    acker.fail(3)
    assert expire(acker) == {1: "timeout", 2: "ack", 3: "failed"}
    assert acker.stats().pending == 0


def test_wait_until_returns_when_the_condition_holds() -> None:
    calls = iter([False, False, True])
    wait_until(lambda: next(calls), "three calls")
    assert next(calls, None) is None


def test_wait_until_fails_with_its_description() -> None:
    with pytest.raises(TimeoutError, match="the moon"):
        wait_until(lambda: False, "the moon", timeout_secs=0)


def test_wait_until_looks_once_more_if_its_process_stood_still_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def condition() -> bool:
        was_asked = clock[0] > 0
        clock[0] += 3600
        return was_asked

    monkeypatch.setattr(fake, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda secs: None))
    wait_until(condition, "another look")


def test_blocking_poll_of_fake_acker_asks_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As fakeredis does not wait where it is asked to."""
    asked: list[str] = []
    wait = Consumer._wait_for_new

    def counted(self: Consumer, block_ms: int) -> None:
        asked.append("")
        wait(self, block_ms)

    monkeypatch.setattr(Consumer, "_wait_for_new", counted)
    assert fake_acker().poll(block_ms=100) == []
    assert 1 <= len(asked) <= 10


@pytest.mark.parametrize("missing", ["fakeredis", "lupa"])
def test_fake_acker_without_fakeredis_names_pip_install_command(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def blocked(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == missing:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", blocked)
    with pytest.raises(AckerError, match=r"pip install '/path/to/acker-redis\[testing\]'"):
        fake_acker()
