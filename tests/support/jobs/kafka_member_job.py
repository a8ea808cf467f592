"""A member of a group that reads records, and commits them when it is told, for tests that stop it in between.

    python -m tests.support.jobs.kafka_member_job SERVERS TOPIC GROUP

Reads 40 records, which are done at once, and waits for a line. Then it goes on as a member until the next line.
"""

import json
import sys
import threading
from typing import Any

from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.consumer import consumer_settings
from acker_redis.kafka.group_member import GroupMember

COUNT = 40


class Listener:
    """Of what happened to the member."""

    def __init__(self) -> None:
        self.withdrawn_partitions: list[int] = []

    def withdrawn(self, owned: Owned) -> None:
        self.withdrawn_partitions.append(owned.number)

    def lost(self, owned: Owned, begin: int, end: int) -> None:
        raise AssertionError((owned, begin, end))

    def recreated(self, topic: str, topic_id: str, new_id: str) -> None:
        raise AssertionError((topic, topic_id, new_id))


def main(servers: str, topic: str, group: str) -> None:
    """Until the second line."""
    settings: dict[str, Any] = {"bootstrap.servers": servers, "session.timeout.ms": 6000, "heartbeat.interval.ms": 500}
    listener = Listener()
    member = GroupMember(consumer_settings({**settings, "log_level": 0}, group), [topic], "earliest", listener, 0.0)
    read = 0

    def step() -> int:
        records = member.read(COUNT, 0.1)
        for owned, record in records:
            owned.progress.done(record.offset())
        return len(records)

    while read < COUNT:
        read += step()
    print(f"{read} read", flush=True)  # noqa: T201
    sys.stdin.readline()
    before, ended = list(listener.withdrawn_partitions), threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.readline()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    while not ended.is_set():
        member.commit()
        read += step()
    withdrawn = sorted(listener.withdrawn_partitions[len(before) :])
    member.close()
    print(json.dumps({"withdrawn": withdrawn, "read": read}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
