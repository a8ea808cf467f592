"""Commands to several nodes of a cluster at once. A failed node causes errors for its own commands only.

redis-py fails a whole pipeline if it can't connect to one of the nodes. Its own redirection sends each refused command
separately, with all its retries. With a lost node that takes minutes for one window of calls.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import AskError, MovedError

from acker_redis.client.batch import Batch
from acker_redis.client.connection import DRIVER_ERRORS
from acker_redis.client.scripts import Argument, Command
from acker_redis.outages import Backoff

_REST_BASE_SECS, _REST_CAP_SECS = 0.5, 10.0


class LeftAloneError(redis.ConnectionError):
    """A node did not answer a moment ago, and the command was not sent to it."""


class Nodes:
    """Primaries of a cluster.

    Attributes:
        down: name -> error of each node that did not answer its last commands.
    """

    def __init__(self, cluster: RedisCluster, key_of: Callable[[Command], Argument], *, rests: bool) -> None:
        """Wrap a cluster client.

        Args:
            cluster: redis-py client that maps slots to nodes.
            key_of: function that returns the key of a command, which decides its node.
            rests: True to skip a node that did not answer for up to 10 s, for callers who can't wait. Meanwhile commands
                to it fail at once.
        """
        self.down: dict[str, Exception] = {}
        self._cluster = cluster
        self._key_of = key_of
        self._rests = rests
        self._stale = False
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._backoff = Backoff(base=_REST_BASE_SECS, cap=_REST_CAP_SECS)

    @property
    def names(self) -> list[str]:
        """Names of the primaries known now."""
        return sorted(node.name for node in self._primaries())

    def renew(self) -> None:
        """Refresh the slot map. A client that can't wait does this before its next commands instead."""
        if not self._rests:
            self._ask_again()

    def send(self, commands: Sequence[Command], names: Sequence[str] | None = None) -> list[Any]:
        """Send each command to the node of its key, or to the named node. Replies keep the order; errors are among them."""
        if self._stale and self._rests:
            self._ask_again()
        replies: list[Any] = [None] * len(commands)
        places: dict[str, list[int]] = {}
        nodes: dict[str, ClusterNode] = {node.name: node for node in self._primaries()} if names is not None else {}
        for place, command in enumerate(commands):
            try:
                node = self._node_of(command) if names is None else nodes[names[place]]
            except (*DRIVER_ERRORS, KeyError) as exc:
                replies[place] = (
                    exc if isinstance(exc, DRIVER_ERRORS) else redis.ConnectionError(f"the cluster has no node {exc}")
                )
                self._stale = True
                continue
            nodes[node.name] = node
            places.setdefault(node.name, []).append(place)
        batches = {
            name: Batch(self._cluster.get_redis_connection(nodes[name]), [commands[place] for place in of_node])
            for name, of_node in places.items()
        }
        try:
            for name, batch in batches.items():  # all of them work at the same time
                batch.error = self._resting(name)
                if batch.error is None:
                    batch.write()
            for name, batch in batches.items():
                for place, reply in zip(places[name], batch.read(), strict=True):
                    replies[place] = reply
        finally:
            for batch in batches.values():
                batch.release()
        for name, batch in batches.items():
            self._note(name, batch.error)
        self._stale = self._stale or any(isinstance(reply, MovedError) for reply in replies)
        return [
            self._follow(command) if _is_ask(reply) else reply for command, reply in zip(commands, replies, strict=True)
        ]

    def _primaries(self) -> list[ClusterNode]:
        primaries: list[ClusterNode] = self._cluster.get_primaries()  # type: ignore[no-untyped-call]
        return primaries

    def _node_of(self, command: Command) -> ClusterNode:
        node: ClusterNode = self._cluster.get_node_from_key(self._key_of(command))  # type: ignore[no-untyped-call]
        return node

    def _resting(self, name: str) -> LeftAloneError | None:
        if not self._rests or time.monotonic() >= self._not_before.get(name, 0.0):
            return None
        return LeftAloneError(str(self.down.get(name, name)))

    def _note(self, name: str, error: Exception | None) -> None:
        if isinstance(error, LeftAloneError):
            return
        if error is None:
            self.down.pop(name, None)
            self._failures.pop(name, None)
            return
        self._stale = True
        self.down[name] = error
        self._failures[name] = self._failures.get(name, 0) + 1
        self._not_before[name] = time.monotonic() + self._backoff.compute(self._failures[name])

    def _ask_again(self) -> None:
        self._stale = False
        with suppress(*DRIVER_ERRORS):  # asked again at the next attempt
            self._cluster.nodes_manager.initialize()
        primaries = set(self.names)
        for name in [name for name in list(self.down) if name not in primaries]:  # it was replaced
            self.down.pop(name, None)

    def _follow(self, command: Command) -> Any:
        try:
            return self._cluster.execute_command(*command)  # type: ignore[no-untyped-call]
        except DRIVER_ERRORS as exc:
            return exc


def _is_ask(reply: object) -> bool:
    return isinstance(reply, AskError) and not isinstance(reply, MovedError)
