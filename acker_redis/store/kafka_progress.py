"""Progress of a consumer group of Kafka in Redis, and letters that must be safe before an offset passes them.

The drivers of the group write it once a second, so that people on call need no access to Kafka. Kept for a week.
"""

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from acker_redis.client import server_info
from acker_redis.client.client import Client
from acker_redis.client.replies import as_dict
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.client import confluent
from acker_redis.kafka.topics import Topics
from acker_redis.model import keys

log = logging.getLogger("acker_redis.kafka")

_KEPT_SECS = 7 * 24 * 3600
_WAIT_MS = 500

STALE_SECS = 60.0
"""Age from which on the progress of a partition says nothing about now. Drivers write it once a second."""

_LOOK_SECS, _SILENT_SECS = 10.0, 10.0
"""Interval between looks for topics that are gone, and age of the progress that makes one suspect."""

_LETTERS = "letters"
"""Field that is written to wait for its copy. No partition has this name."""


class Unsafe(NamedTuple):
    """What a look at letters found.

    Attributes:
        is_copied: True if all letters that are there are copied, or the server keeps no copies.
        missing: entry ids of letters that the server has lost.
    """

    is_copied: bool
    missing: list[str]


class KafkaPartition(NamedTuple):
    """Progress of a partition, as its driver wrote it last.

    Attributes:
        group: consumer group.
        topic: name of the topic.
        number: number of the partition.
        lag: distance from the commit to the end; None if one of them isn't known.
        earliest: its first offset; None if it isn't known.
        end: offset behind its last record; None if it isn't known.
        committed: committed offset; None if it isn't known.
        done_beyond: number of offsets that are done behind an open one.
        open: number of records that were read and aren't done.
        oldest_open: offset of the first of them; None if there is none.
        oldest_reason: why its last attempt failed; None if it had none, or it isn't known.
        oldest_component: last component of that attempt; None as before.
        letters_not_copied: number of dead letters that offsets wait for.
        skipped: number of imported records that no message waited for.
        problem: why the last commit failed; None if it didn't.
        has_ended: True if the driver ended in an orderly way.
        age_secs: time since this was written, in seconds.
    """

    group: str
    topic: str
    number: int
    lag: int | None
    earliest: int | None
    end: int | None
    committed: int | None
    done_beyond: int
    open: int
    oldest_open: int | None
    oldest_reason: str | None
    oldest_component: str | None
    letters_not_copied: int
    skipped: int
    problem: str | None
    has_ended: bool
    age_secs: float

    @property
    def is_stale(self) -> bool:
        """Return True if no driver looks after the partition now."""
        return self.has_ended or self.age_secs > STALE_SECS


def decoded(group: str, name: str, text: str | bytes, now_ms: float) -> KafkaPartition | None:
    """Read the progress of a partition from its JSON. None: it is damaged."""
    try:
        topic, number = _by_number(name)
        values = json.loads(text)
        end, committed = values["end"], values["committed"]
        return KafkaPartition(
            group, topic, number, None if end is None or committed is None else int(end - committed),
            values.get("earliest"), end, committed, int(values["done_beyond"]), int(values["open"]), values["oldest_open"],
            values.get("oldest_reason"), values.get("oldest_component"), int(values["letters_not_copied"]),
            int(values.get("skipped", 0)), values.get("problem"), bool(values.get("ended")),
            max(0.0, now_ms - values["time_ms"]) / 1000,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class KafkaProgress:
    """Write and read the progress of one group.

    Attributes:
        app: name of the app.
    """

    def __init__(self, client: Client, app: str, group: str) -> None:
        self._client, self.app, self._group = client, app, group
        self._key, self._deleted_key = keys.kafka_group(app, group), keys.kafka_topics(app, group)
        self._has_replicas = False
        self._damaged: set[str] = set()

    def now_ms(self) -> int:
        """Read the server's clock. Ages are never computed with a driver's clock, which may differ."""
        (now_ms,) = self._client.ask(server_info.clocks_ms, [self._key])
        return now_ms

    def write(self, partitions: Mapping[str, Mapping[str, object]]) -> None:
        """Store the progress of partitions, in place of the last one.

        Args:
            partitions: `topic/partition` -> its numbers. The server's time is added.
        """
        if partitions:
            groups, now_ms = keys.kafka_groups(self.app), self.now_ms()
            shown = {name: json.dumps({"time_ms": now_ms, **values}) for name, values in partitions.items()}
            pairs = [text for pair in shown.items() for text in pair]
            self._client.pipeline([
                ("HSET", self._key, *pairs), ("EXPIRE", self._key, _KEPT_SECS),
                ("HSET", groups, self._group, now_ms), ("EXPIRE", groups, _KEPT_SECS),
            ])  # fmt: skip

    def remove(self, names: Sequence[str], deleted: Mapping[str, str]) -> None:
        """Remove the progress of partitions that no longer exist.

        Args:
            names: `topic/partition` of each.
            deleted: topic -> its id, of those that were deleted. They are kept for `topic_id`.
        """
        if not names:
            return
        kept = [
            ("HSET", self._deleted_key, *(text for pair in deleted.items() for text in pair)),
            ("EXPIRE", self._deleted_key, _KEPT_SECS),
        ]
        self._client.pipeline([*(kept if deleted else []), ("HDEL", self._key, *names)])

    def texts(self) -> dict[str, bytes]:
        """Read the progress of all partitions: `topic/partition` -> its JSON, for `decoded`. It may be damaged."""
        (reply,) = self._client.pipeline([("HGETALL", self._key)])
        fields = {name.decode(errors="replace"): text for name, text in as_dict(reply).items()}
        return {name: fields[name] for name in sorted(fields, key=_in_order) if name != _LETTERS}

    def read(self) -> dict[str, dict[str, object]]:
        """Read the progress of all partitions: `topic/partition` -> its numbers.

        Damaged ones are logged and left out, as if nothing was known of these partitions. Their driver writes them again.
        """
        texts = self.texts()
        found = {name: values for name, text in texts.items() if (values := _numbers_in(name, text)) is not None}
        damaged = texts.keys() - found.keys()
        for name in damaged - self._damaged:
            log.error(
                "progress of a partition is damaged, so it is unknown app=%s group=%r partition=%r text=%.80r", self.app,
                self._group, name, texts[name],
            )  # fmt: skip
        self._damaged = set(damaged)
        return found

    def topic_id(self, topic: str) -> str | None:
        """Return the id under which the group read a topic last. None if it isn't known any more.

        Kafka deletes a group's commits with their topic, so after that only this tells one topic of a name from another.
        """
        of_topic = [numbers for name, numbers in self.read().items() if name.rpartition("/")[0] == topic]
        if of_topic:
            return str(max(of_topic, key=lambda numbers: int(str(numbers["time_ms"])))["topic_id"])
        (deleted,) = self._client.pipeline([("HGET", self._deleted_key, topic)])
        return None if deleted is None else str(deleted.decode())

    def look_at_letters(self, entry_ids: Sequence[str]) -> Unsafe:
        """Find out whether letters would survive the loss of their server, as far as it keeps copies.

        The letters are read over the connection that then writes and waits. So they were there before that write, and a
        copy of it is a copy of them, whoever wrote them.

        Raises:
            AckerError: the server is unavailable, or refuses WAIT.
        """
        letters = keys.dead_letters(self.app)
        commands = [("XRANGE", letters, entry_id, entry_id) for entry_id in entry_ids]
        mark = ("HSET", self._key, _LETTERS, json.dumps({"time_ms": round(time.time() * 1000)}))
        replies, is_copied, self._has_replicas = self._client.ask(
            server_info.send_copied, letters, [*commands, mark], _WAIT_MS, needs_replica=self._has_replicas
        )
        missing = [entry_id for entry_id, found in zip(entry_ids, replies, strict=False) if not found]
        return Unsafe(is_copied, missing)


def groups(client: Client, app: str) -> list[str]:
    """List the groups of an app whose drivers wrote their progress within the last week."""
    (reply,) = client.pipeline([("HGETALL", keys.kafka_groups(app))])
    names = sorted(name.decode() for name in as_dict(reply))
    lengths = client.pipeline([("HLEN", keys.kafka_group(app, name)) for name in names]) if names else []
    return [name for name, length in zip(names, lengths, strict=True) if length]


def numbers_of(
    owned: Owned,
    earliest: int | None,
    end: int | None,
    unsafe: int,
    oldest: tuple[str, str | None] | None,
    *,
    spout_id: int,
    run_id: str,
) -> dict[str, object]:
    """Return the numbers of a partition, for `KafkaProgress.write`.

    Args:
        owned: the partition.
        earliest: its first offset; None if it isn't known.
        end: offset behind its last record; None if it isn't known.
        unsafe: number of dead letters that its offsets wait for.
        oldest: reason and last component of the last attempt of its oldest open record; None if it had none.
        spout_id: number of the spout.
        run_id: id of the run.
    """
    opened = owned.progress.open
    reason, component = oldest if opened and oldest is not None else ("", None)
    return {
        "topic_id": owned.topic_id,
        "earliest": earliest,
        "end": end,
        "committed": None if owned.committed is None else owned.committed[0],
        "done_beyond": sum(end - begin for begin, end in owned.progress.runs()),
        "open": len(opened),
        "oldest_open": opened[0] if opened else None,
        "oldest_reason": reason or None,
        "oldest_component": component,
        "letters_not_copied": unsafe,
        "spout_id": spout_id,
        "run_id": run_id,
    }


class GoneTopics:
    """Removal of the progress of topics and partitions that no longer exist, or that the group no longer reads.

    A partition that exists counts as no longer read once nobody has written its progress for a week. One thread uses the
    object.
    """

    def __init__(self, progress: KafkaProgress, topics: Topics) -> None:
        self._progress, self._topics = progress, topics
        self._suspects: dict[str, str] = {}  # name -> id of its topic
        self._asked: dict[str, Any] = {}
        self._look_at = time.monotonic() + _LOOK_SECS

    def look(self) -> None:
        """Look at intervals for partitions that nobody writes any more, and ask the brokers for their topics.

        It doesn't wait for the brokers.

        Raises:
            AckerError: the server is unavailable.
        """
        now = time.monotonic()
        if self._asked and all(future.done() for future in self._asked.values()):
            asked, self._asked = self._asked, {}
            try:
                found = self._topics.answers(asked)
            except confluent().KafkaException:
                return
            there = {name: topic.partitions for name, topic in found.items()}
            places = {name: _by_number(name) for name in self._suspects}
            gone = {name: topic for name, (topic, number) in places.items() if number >= there.get(topic, 0)}
            deleted = {topic: self._suspects[name] for name, topic in gone.items() if topic not in there}
            self._progress.remove(list(gone), deleted)
        elif not self._asked and now >= self._look_at:
            self._look_at = now + _LOOK_SECS
            progress, now_ms = self._progress.read(), self._progress.now_ms()
            ages = {name: (now_ms - int(str(values["time_ms"]))) / 1000 for name, values in progress.items()}
            self._progress.remove([name for name, age_secs in ages.items() if age_secs > _KEPT_SECS], {})
            self._suspects = {
                name: str(progress[name]["topic_id"])
                for name, age_secs in ages.items()
                if _SILENT_SECS < age_secs <= _KEPT_SECS
            }
            topics = {_by_number(name)[0] for name in self._suspects}
            self._asked = self._topics.ask(topics) if topics else {}


def _numbers_in(name: str, text: bytes) -> dict[str, object] | None:
    """Read the numbers of a partition as far as drivers need them. None: they are damaged."""
    try:
        _by_number(name)
        values: dict[str, object] = json.loads(text)
        int(str(values["time_ms"])), str(values["topic_id"])
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return values


def _by_number(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("/")
    return topic, int(number)


def _in_order(name: str) -> tuple[str, int]:
    try:
        return _by_number(name)
    except ValueError:
        return name, -1  # damaged
