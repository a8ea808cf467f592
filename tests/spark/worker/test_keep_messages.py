"""Messages that are kept for replays."""

from typing import Any

import pyarrow as pa
import pytest

from acker_redis import PipelineError
from acker_redis.acker import app_of
from acker_redis.spark.worker import keep_messages
from acker_redis.spark.worker.keep_messages import KeepStep
from acker_redis.spark.worker.row_codec import Rows
from acker_redis.testing import fake_acker

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


@pytest.fixture
def acker(monkeypatch: pytest.MonkeyPatch) -> Any:
    with fake_acker() as fake:
        monkeypatch.setattr(keep_messages, "acker_of_worker", lambda url, config: fake)
        yield fake


def batch(ids: Any, *rows: tuple[int, str] | None) -> pa.RecordBatch:
    structs = pa.array([row and dict(zip(SCHEMA.names, row, strict=True)) for row in rows], pa.struct(list(SCHEMA)))
    return pa.RecordBatch.from_arrays([ids, structs], names=["a.b", "_acker_payload"])


def test_payloads_are_stored_by_message_id_and_read_back(acker: Any) -> None:
    step = KeepStep("redis://user:s3cret@host", acker.config, "run", 100)
    given = [
        batch(pa.array([1, None, 3], pa.int32()), (1, "one"), (2, "no id"), (3, "x" * 200)),
        batch(pa.array([4, -5], pa.int64()), None, (5, "ü")),
    ]
    for _ in range(2):  # a task that runs again keeps the same
        (counted,) = step(iter(given))
        assert counted.to_pylist() == [{"rows": 2}]
    kept = app_of(acker).payloads("run").get([1, 2, 3, 4, -5])
    assert [one is not None for one in kept] == [True, False, False, False, True]
    (again,) = Rows(SCHEMA)(iter([pa.record_batch({"kept": pa.array([kept[0], kept[4]])})]))
    assert again.to_pylist() == [{"id": 1, "text": "one"}, {"id": 5, "text": "ü"}]
    assert "s3cret" not in repr(step)


def test_partition_without_rows_stores_no_payloads(acker: Any) -> None:
    assert [one.to_pylist() for one in KeepStep("", acker.config, "run", 100)(iter([]))] == [[{"rows": 0}]]


def test_message_ids_of_other_types_are_refused(acker: Any) -> None:
    with pytest.raises(PipelineError, match="message ids are string, not bigint"):
        list(KeepStep("", acker.config, "run", 100)(iter([batch(pa.array(["1"]), (1, "one"))])))
