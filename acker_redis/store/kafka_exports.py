"""Topics that an app exports records to, and the consumer group that each is meant for."""

import re
from collections.abc import Iterable

from acker_redis.client.client import Client
from acker_redis.client.replies import as_texts
from acker_redis.errors import BadConfigError
from acker_redis.model import keys


class KafkaExports:
    """Write and read the groups of an app's exported topics. One group may ack the records of a topic."""

    def __init__(self, client: Client, app: str) -> None:
        self._client, self._app = client, app
        self._key = keys.kafka_exports(app)

    def add(self, topic: str, group: str) -> None:
        """Note that records of a topic are exported for a group.

        Raises:
            BadConfigError: they are exported for another group.
        """
        _, stored = self._client.pipeline([("HSETNX", self._key, topic, group), ("HGET", self._key, topic)])
        if stored != group.encode():
            raise BadConfigError(
                f"export_kafka: topic {topic!r} is exported for the group {_text(stored)!r}, not for {group!r}. If two groups "
                f"acked its records, messages would complete too early. Use another topic, or remove the entry with "
                f'redis-cli HDEL "{self._key}" "{topic}".'
            )

    def groups(self) -> dict[str, str]:
        """Read the group of each topic."""
        (reply,) = self._client.pipeline([("HGETALL", self._key)])
        return as_texts(reply)

    def check(self, names: Iterable[str], group: str) -> None:
        """Check that a group may ack the records of topics.

        Args:
            names: names of topics, or patterns that begin with `^`.
            group: the group.

        Raises:
            BadConfigError: a topic is exported for another group.
        """
        for topic, other in self.groups().items():
            if other != group and any(_names(name, topic) for name in names):
                raise BadConfigError(
                    f"run_kafka: topic {topic!r} is exported for the group {other!r}, but this run is in group {group!r}. Its "
                    "acks would complete messages that the other group hasn't processed. Use that group, or leave out "
                    "imports=True."
                )


def _names(name: str, topic: str) -> bool:
    return re.match(name, topic) is not None if name.startswith("^") else name == topic


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")
