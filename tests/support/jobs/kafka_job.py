"""A topic through a pipeline, in a process of its own, which kills itself and its JVM at a point that it is given.

    python -m tests.support.jobs.kafka_job redis://127.0.0.1:6379/0 FOLDER POINT SERVERS TOPIC [APP]

Ends when the group's commits have reached the end of the topic. Records whose value ends in seven fail for ever, and those
with the value `poison`. With an app, the records are those that it exports.
"""

import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pyspark.sql import DataFrame

from acker_redis import Acker, AckerConfig, RetryPolicy
from acker_redis.kafka.group_member import GroupMember
from acker_redis.spark import Progress, Tracker, run_kafka
from acker_redis.spark.runs.kafka_imports import KafkaImports
from acker_redis.spark.runs.kafka_records import KafkaRecords
from tests.support.jobs.parking_job import CONFIG, die_at
from tests.support.kafka import is_committed
from tests.support.spark.cases import write_rows
from tests.support.spark.cluster import session

POINTS = ("read", "emitted", "written", "lettered", "done", "committed")
GROUP = "killed"
IMPORTING = AckerConfig(app="importing", shards=2, lanes=2, message_timeout_secs=600)


def main(url: str, folder: Path, point: str, servers: str, topic: str, app: str | None = None) -> None:
    """Until the commits are at the end, or until the point."""
    out = folder / "rows"
    out.mkdir(exist_ok=True)
    read, commit = GroupMember.read, GroupMember.commit
    written, done, imported = KafkaRecords.written, KafkaRecords.done, KafkaImports.done

    def dying_read(member: GroupMember, *args: Any) -> Any:
        found = read(member, *args)
        if found:
            die_at(point, "read")
        return found

    def dying_commit(member: GroupMember) -> None:
        commit(member)
        if any(owned.committed and owned.committed[0] > 0 for owned in member.owned):
            die_at(point, "committed")

    def dying_written(records: KafkaRecords, letters: Any) -> None:
        die_at(point, "lettered")
        written(records, letters)

    def dying_done(records: KafkaRecords, message_ids: Any) -> None:
        done(records, message_ids)
        if len(message_ids):
            die_at(point, "done")

    def dying_imported(imports: KafkaImports, message_ids: Any, letters: Any) -> None:
        imported(imports, message_ids, letters)
        if len(message_ids):
            die_at(point, "imported")

    def pipeline(tracker: Tracker, records: DataFrame) -> None:
        die_at(point, "emitted")
        kept = tracker.fail_where(records, "value LIKE '%7' OR value = 'poison'", "a seven")
        rows = kept.selectExpr("partition", "offset", "_share", "_roots")
        tracker.write_partitions(rows, partial(write_rows, out, f"{tracker.run_id}-{tracker.emission}", None))
        die_at(point, "written")

    stop = threading.Event()

    def progress(now: Progress) -> None:
        if not now.in_flight and not now.queued and is_committed(servers, GROUP, topic):
            stop.set()

    with (
        patch.multiple(GroupMember, read=dying_read, commit=dying_commit),
        patch.multiple(KafkaRecords, written=dying_written, done=dying_done),
        patch.object(KafkaImports, "done", dying_imported),
    ):
        spark = session(folder, {"spark.sql.shuffle.partitions": "2"})
        with Acker.connect(url, CONFIG if app is None else IMPORTING) as acker:
            run_kafka(
                spark, pipeline, acker=acker, kafka={"bootstrap.servers": servers, "session.timeout.ms": 6000, "log_level": 0},
                topics=[topic], group=GROUP, stop=stop, max_spout_pending=40, commit_secs=0.1,
                retry=RetryPolicy(max_attempts=2, first_delay_secs=0), progress=progress, imports=app is not None,
            )  # fmt: skip
        spark.stop()
        print(0)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:7])
