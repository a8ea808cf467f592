"""The throwaway server: the port that it has is nobody else's, even while it doesn't run."""

import socket
from collections.abc import Callable

import pytest

from acker_redis.testing.server import Server, free_port
from tests.support.servers import VALKEY


def can_bind(port: int) -> bool:
    """Whether a program that asked the system for a port could have got this one."""
    with socket.socket() as other:
        try:
            other.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_free_port_is_kept_for_a_server_that_is_given_it() -> None:
    port = free_port()
    assert not can_bind(port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    with Server(VALKEY.program(), port=port) as server:
        assert server.answers()


def test_server_keeps_its_port_while_it_does_not_run(start_server: Callable[..., Server]) -> None:
    server = start_server()
    server.kill()
    assert not can_bind(server.port)
    assert not server.answers()
    server.start()
    assert server.answers()
