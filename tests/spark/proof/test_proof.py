"""Operators that several threads add to one emission."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from unittest.mock import Mock

import pytest

from acker_redis.errors import ServerUnavailableError
from acker_redis.spark.proof import proof as module
from acker_redis.spark.proof.proof import Proof


def test_unnamed_operators_of_several_threads_have_different_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is asked for a number of each name, and the other threads run meanwhile."""
    monkeypatch.setattr(module, "listener_of", Mock())
    together = Barrier(3, timeout=60)
    proof = Proof(Mock(), "key", 0, 0, "tag", lambda name: together.wait())
    with ThreadPoolExecutor(3) as pool:
        nodes = list(pool.map(lambda _: proof.add_operator("write", None, []), range(3)))
    assert sorted(node.name for node in nodes) == ["write", "write-2", "write-3"]


def test_an_operator_whose_name_the_ledger_refuses_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline may catch the error, and add the operator once more."""
    monkeypatch.setattr(module, "listener_of", Mock())
    register = Mock(side_effect=[ServerUnavailableError("away"), None])
    proof = Proof(Mock(), "key", 0, 0, "tag", register)
    with pytest.raises(ServerUnavailableError, match="away"):
        proof.add_operator("write", "items", [])
    assert proof.add_operator("write", "items", []).name == "items"
