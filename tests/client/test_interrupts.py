"""A signal handler that raises at any moment of a request: the exception arrives, and no reply goes to somebody else."""

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from acker_redis.client import batch
from acker_redis.client.client import Client
from acker_redis.store.lane_leases import Lease


class Interrupt(BaseException):
    """What a signal handler raises."""


class Interrupter:
    """Raises once, at the start of a Python call of this thread. `at` counts them."""

    def __init__(self, at: int) -> None:
        self.at, self.has_raised, self.place = at, False, ""

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if event == "call" and not self.has_raised:
            self.at -= 1
            if self.at < 0:
                self.has_raised, self.place = True, frame.f_code.co_qualname
                raise Interrupt


def interrupted(request: Callable[[], object]) -> Iterator[bool]:
    """Run a request again and again, interrupted at a later call each time. Yields True if it was, until it isn't."""
    for at in range(10_000):
        interrupter = Interrupter(at)
        sys.setprofile(interrupter)
        try:
            request()
            arrived = False
        except Interrupt:
            arrived = True
        finally:
            sys.setprofile(None)
        assert arrived == interrupter.has_raised, f"interrupted in {interrupter.place}, and the exception is lost"
        if not interrupter.has_raised:
            return
        yield True


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    """Garbage of other tests has finalizers, too, in which exceptions are lost."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    client = Client(url)
    yield client
    client.close()


def test_interrupted_request_leaves_no_reply_to_the_next_one(client: Client) -> None:
    client.pipeline([("SET", "name", "value")])
    count = 0
    for count, _ in enumerate(interrupted(lambda: client.pipeline([("GET", "name"), ("INCR", "n")])), 1):
        assert client.pipeline([("ECHO", str(count))]) == [str(count).encode()]
    assert count > 20


def test_interrupted_question_leaves_no_reply_to_the_next_request(client: Client) -> None:
    count = 0
    for count, _ in enumerate(interrupted(lambda: client.ask(lambda server: server.execute_command("TIME"))), 1):
        assert client.pipeline([("ECHO", str(count))]) == [str(count).encode()]
    assert count > 20


def test_interrupted_start_of_a_lease_can_be_released(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted_start(thread: object) -> None:
        raise Interrupt

    lease = Lease(client, "orders", 0, "run")
    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", interrupted_start)
        with pytest.raises(Interrupt):
            lease.acquire()
    lease.release()
    other = Lease(client, "orders", 0, "other")
    assert other.acquire_if_free()
    other.release()


def test_numbers_reach_the_packer_as_text(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """hiredis crashes if a handler raises while it writes a number."""
    types = set[type]()
    connection = client.redis.connection_pool.get_connection()
    client.redis.connection_pool.release(connection)
    pack = type(connection).pack_commands

    def noted(self: Any, commands: list[tuple[object, ...]]) -> Any:
        types.update(type(argument) for command in commands for argument in command)
        return pack(self, commands)

    monkeypatch.setattr(type(connection), "pack_commands", noted)
    replies = batch.send(client.redis, [("SET", b"n", 7), ("INCRBYFLOAT", "n", 0.5), ("GETRANGE", "n", 0, -1)])
    assert replies[2] == b"7.5"
    assert types == {str, bytes}
