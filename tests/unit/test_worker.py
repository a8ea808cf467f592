"""What a Python worker sends for a partition, without Spark."""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import acker_redis
from acker_redis import AckerConfig, NotExactError
from acker_redis.spark import Tracker, worker
from acker_redis.spark.operators import Origin
from acker_redis.spark.worker import Handed, Updates
from acker_redis.testing import fake_acker, settle


def test_nothing_that_holds_a_url_shows_it() -> None:
    """It may have a password, and a traceback or a log shows the repr."""
    folder = Path(acker_redis.__file__).parent
    names = [".".join(path.relative_to(folder.parent).with_suffix("").parts) for path in folder.rglob("*.py")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    holders = [kind for module in modules for kind in vars(module).values() if dataclasses.is_dataclass(kind)]
    shown = {
        f"{kind}: {field.name}"
        for kind in holders
        for field in dataclasses.fields(kind)
        if "url" in field.name and field.repr
    }
    assert not shown
    url = "redis://user:s3cret@host"
    origin = Origin(url, AckerConfig("test"), "run", 0)
    for holder in (
        Updates(url, AckerConfig("test"), "bolt", "token"),
        origin,
        Tracker(url, AckerConfig("test"), "run", 0),
    ):
        assert "s3cret" not in repr(holder)


@pytest.mark.parametrize("settles", [False, True])
def test_a_tree_that_settles_while_it_is_to_be_failed(monkeypatch: pytest.MonkeyPatch, settles: bool) -> None:
    """A task gives other rows when it runs again, and a sink acks the first rows just then."""
    acker = fake_acker()
    monkeypatch.setattr(worker, "acker_of_worker", lambda url, config: acker)
    roots = np.array([1, 2], np.uint64)
    edges = np.array([5, 6], np.uint64)

    def run_task(children: list[int]) -> None:
        updates = Updates("", acker.config, "bolt", "run:0:bolt:0")
        updates.ack(roots, edges ^ np.array(children, np.uint64))
        handed = Handed()
        handed.add(roots)
        worker.send([updates], handed)

    acker.init_many(roots, edges, 0)
    run_task([9, 10])
    look = acker.inspect_many

    def look_too_early(wanted: Any) -> Any:
        found = look(wanted)
        monkeypatch.setattr(acker, "inspect_many", look)
        acker.ack(1, 9)
        return found

    if settles:
        monkeypatch.setattr(acker, "inspect_many", look_too_early)
        with pytest.raises(NotExactError, match="1 of 2 roots had settled"):
            run_task([11, 12])
        assert settle(acker) == {1: "ack", 2: "failed"}
    else:
        run_task([11, 12])
        assert settle(acker) == {1: "failed", 2: "failed"}
        run_task([13, 14])  # they are to be replayed already
        assert settle(acker) == {}
