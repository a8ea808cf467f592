"""What functions that run in Spark's workers may hold, and what no repr shows."""

import dataclasses
import importlib
import pickle
from pathlib import Path
from typing import Any

import acker_redis
from acker_redis.model.config import AckerConfig
from acker_redis.spark.sinks.exports import Origin
from acker_redis.spark.tracker import Tracker
from acker_redis.spark.worker.export import ExportStep
from acker_redis.spark.worker.keep_messages import KeepStep
from acker_redis.testing import fake_acker


def test_tracker_can_be_pickled() -> None:
    nowhere: Any = None
    tracker = Tracker("run", 3, 7, _proof=nowhere, _origin=Origin("redis://h", fake_acker()))
    there = pickle.loads(pickle.dumps(tracker))  # noqa: S301
    assert (there.run_id, there.emission, there.batch_id) == ("run", 3, 7)


def test_repr_of_dataclasses_hides_urls() -> None:
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
    url, config = "redis://user:s3cret@host", AckerConfig("test")
    for holder in (Origin(url, fake_acker()), ExportStep(url, config, "p", "s"), KeepStep(url, config, "run", 1)):
        assert "s3cret" not in repr(holder)
