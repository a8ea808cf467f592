"""Form of a stream's status in Redis."""

import json

from acker_redis.spark import StreamStatus
from acker_redis.spark.streaming.stream_status import from_json, to_json
from acker_redis.spout.state import SpoutCounts

STATUS = StreamStatus(
    batch_id=3, batches=2, counts=SpoutCounts(emitted=9, acked=4), in_flight=1,
    parked={("failed", "fail_where"): 2, ("", None): 1}, oldest_secs=1.5, completed_offsets={"p": 7}, is_full=True,
    commit_problem="no broker", error="LookupError: no store",
)  # fmt: skip


def test_status_survives_its_json() -> None:
    for status in (STATUS, StreamStatus()):
        assert from_json(to_json(status)) == status


def test_fields_of_another_version_are_left_out() -> None:
    values = json.loads(to_json(STATUS))
    values["of_later"] = values["counts"]["of_later"] = 1
    del values["is_full"], values["counts"]["acked"]
    status = from_json(json.dumps(values))
    assert (status.batch_id, status.is_full, status.counts) == (3, False, SpoutCounts(emitted=9))
