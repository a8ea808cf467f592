"""Imported records without Spark, some on a real broker: upstream messages are acked once, failed, skipped or renewed."""

import random
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from acker_redis import Acker, Anchors, BadConfigError, DeadLetter, Outcome
from acker_redis.acker import app_of
from acker_redis.model.anchors import packed_anchors, prefix
from acker_redis.spark.runs import kafka_imports
from acker_redis.spark.runs.kafka_imports import KafkaImports
from acker_redis.store.kafka_exports import KafkaExports
from acker_redis.store.lane_leases import Lease
from acker_redis.testing import fake_acker, wait_until
from tests.spark.runs.test_kafka_records import Driver
from tests.support.jobs import kafka_job
from tests.support.kafka import Broker
from tests.support.spark.cluster import JOB_SECS, kill, start_python
from tests.support.spark.warm import Warm, read_answer

pytestmark = pytest.mark.server

UPSTREAM = 1
"""Lane of the application that exports."""


class Upstream:
    """An application that exports records, each of which has an edge of each of its roots.

    Attributes:
        roots: its roots, whose messages wait for all records.
    """

    def __init__(
        self, node: Broker, count: int, acker: Acker | None = None, group: str = "", lane: int = UPSTREAM
    ) -> None:
        self.node, self.luck, self.lane = node, np.random.default_rng(count), lane
        self.acker = acker or fake_acker(lanes=2)
        self.topic, self.group = node.topic(partitions=2), group or f"group-{uuid.uuid4().hex[:8]}"
        self.roots = self.acker.new_roots(count)
        self.acker.init_many(self.roots, np.ones(count, np.int64), lane)

    def export(self, of: list[list[int]], *, poison: Callable[[int], bool] = lambda number: False) -> None:
        """Write a record for each list of roots, and introduce its edges."""
        records = []
        for number, places in enumerate(of):
            roots, edges = self.roots[places], self.luck.integers(1, 2**62, len(places))
            self.acker.ack_many(roots, edges)
            header = prefix(self.acker.config.app, self.group) + packed_anchors(roots, edges)
            value = "poison" if poison(number) else "fine"
            records.append({"value": value, "partition": number % 2, "headers": [("acker-anchors", header)]})
        self.node.produce(self.topic, records)

    def close(self) -> None:
        """Have its own part of all messages done, as once an emission is proven."""
        self.acker.ack_many(self.roots, np.ones(len(self.roots), np.int64))

    def outcomes(self) -> list[Outcome]:
        return self.acker.poll(10_000, consumer="upstream", lane=self.lane)

    def importer(self) -> Driver:
        return Driver(self.node, self.acker, 0, [self.topic], self.group, {}, imports=True)

    def is_committed(self) -> bool:
        return self.node.lag(self.group, self.topic) == 0

    def run(self, importer: Driver) -> None:
        """Step an importer until everything is committed."""
        luck = random.Random(1)

        def stepped() -> bool:
            importer.step(luck)
            return self.is_committed()

        try:
            wait_until(stepped, "everything is committed", timeout_secs=120)
        finally:
            importer.member.close()


def test_upstream_messages_end_once_whatever_crashes(node: Broker) -> None:
    """Records have one to three roots. Importers die after acks and before commits, and letters carry their reason."""
    luck = random.Random(3)
    upstream = Upstream(node, 120)
    of = [sorted(luck.sample(range(120), luck.randrange(1, 4))) for _ in range(300)]
    poison = {number for number in range(300) if luck.random() < 0.03}
    upstream.export(of, poison=poison.__contains__)
    upstream.close()
    # Records that ended upstream are skipped, not acked. A step acks fewer than 20, so each importer has some left.
    limits = [luck.randrange(1, 40) for _ in range(4)]
    importer, crashes = upstream.importer(), 0

    def stepped() -> bool:
        nonlocal importer, crashes
        importer.step(luck)
        if crashes < 4 and importer.spout.counts.acked >= limits[crashes]:
            importer.crash()
            importer, crashes = upstream.importer(), crashes + 1
        return upstream.is_committed()

    try:
        wait_until(stepped, "everything is committed", timeout_secs=120)
    finally:
        importer.member.close()
    assert crashes == 4
    failed = {root for number in poison for root in upstream.roots[of[number]].tolist()}
    ends = [(outcome.root, outcome.kind) for outcome in upstream.outcomes()]
    assert sorted(ends) == sorted((root, "fail" if root in failed else "ack") for root in upstream.roots.tolist())


@pytest.mark.chaos  # the test above plays such crashes
@pytest.mark.spark
def test_importer_killed_between_acks_and_commit_ends_each_message_once(
    node: Broker, url: str, warm: Warm, tmp_path: Path
) -> None:
    """Its restart reads the records again, whose messages have ended upstream or wait for other records."""
    module, config = "tests.support.jobs.kafka_job", kafka_job.IMPORTING
    luck = random.Random(5)
    of = [sorted(luck.sample(range(60), luck.randrange(1, 4))) for _ in range(120)]
    poison = {7, 50, 93}
    with Acker.connect(url, config) as acker:
        lease = Lease(app_of(acker).client, config.app, 0, "upstream")
        lease.acquire()
        upstream = Upstream(node, 60, acker, kafka_job.GROUP, lane=0)
        upstream.export(of, poison=poison.__contains__)
        upstream.close()
        job = start_python(tmp_path, module, url, str(tmp_path), "imported", node.address, upstream.topic, config.app)
        try:
            wait_until(lambda: job.poll() is not None, "it dies", JOB_SECS)
        finally:
            kill(job)
        assert job.returncode < 0, (tmp_path / f"{module}.log").read_text()[-3000:]
        committed = node.committed(kafka_job.GROUP, upstream.topic)
        assert {number: at.offset for number, at in committed.items()} == {0: 0, 1: 0}
        arguments = url, str(tmp_path), "never", node.address, upstream.topic, config.app
        assert read_answer(warm.run_module(module, *arguments, url=url)) == 0
        assert node.lag(kafka_job.GROUP, upstream.topic) == 0
        ends = [(outcome.root, outcome.kind) for outcome in upstream.outcomes()]
        lease.release()
    failed = {root for number in poison for root in upstream.roots[of[number]].tolist()}
    assert sorted(ends) == sorted((root, "fail" if root in failed else "ack") for root in upstream.roots.tolist())


def test_letter_fails_upstream_with_its_reason(node: Broker) -> None:
    upstream = Upstream(node, 2)
    upstream.export([[0], [1]], poison=lambda number: number == 1)
    upstream.close()
    importer = upstream.importer()
    acks = importer.end

    def end(root: int, place: tuple[int, int], is_poison: bool) -> None:  # noqa: FBT001
        if is_poison:
            upstream.acker.fail_many([root], reason="no price of 'unicorn'", component="price")
        else:
            acks(root, place, is_poison)

    importer.end = end  # type: ignore[method-assign]
    upstream.run(importer)
    found = {outcome.root: (outcome.kind, outcome.detail, outcome.last_component) for outcome in upstream.outcomes()}
    acked, failed = upstream.roots.tolist()
    assert found[failed] == ("fail", "no price of 'unicorn'", "price")
    assert found[acked][0] == "ack"


def test_records_that_nobody_waits_for_are_skipped_and_counted(node: Broker) -> None:
    upstream = Upstream(node, 4)
    upstream.export([[0], [1], [0, 1], [2], [1, 2], [3]])
    upstream.acker.fail_many(upstream.roots[:2], reason="failed meanwhile")
    plain = {"value": "plain", "partition": 0}
    node.produce(upstream.topic, [plain, {**plain, "headers": [("other", b"x")]}])
    upstream.close()
    importer = upstream.importer()
    upstream.run(importer)
    assert (importer.records.skipped, importer.spout.counts.acked) == (3, 5)
    assert len(importer.sink) == 5
    ends = {outcome.root: outcome.kind for outcome in upstream.outcomes()}
    assert ends == dict(zip(upstream.roots.tolist(), ["fail", "fail", "ack", "ack"], strict=True))
    assert upstream.acker.stats().unowned == 0, "no ack went to a root that is gone"
    shown = importer.records._progress.read()
    assert sum(int(str(values["skipped"])) for values in shown.values()) <= 3


class Record:
    """A record with one header."""

    def __init__(self, value: object, name: str = "acker-anchors") -> None:
        self._header = name, value

    def headers(self) -> list[tuple[str, object]]:
        return [self._header]


class Noted:
    """Imports of three messages without a broker. Records 0 and 1 have roots [0] and [1, 2]."""

    def __init__(self) -> None:
        self.acker = fake_acker(lanes=2, message_timeout_secs=30)
        self.roots, self.edges = self.acker.new_roots(3), np.array([5, 6, 7], np.int64)
        self.acker.init_many(self.roots, self.edges, UPSTREAM)
        self.begin = prefix(self.acker.config.app, "pricing")
        self.imports = KafkaImports(self.acker, "pricing", ["items"])
        self.parts = [slice(0, 1), slice(1, 3)]

    def records(self) -> list[tuple[int, Record]]:
        packed = [packed_anchors(self.roots[part], self.edges[part]) for part in self.parts]
        return [(number, Record(self.begin + anchors)) for number, anchors in enumerate(packed)]

    def outcomes(self) -> dict[int, str]:
        found = self.acker.poll(consumer="upstream", lane=UPSTREAM)
        return {self.roots.tolist().index(outcome.root): outcome.kind for outcome in found}


def letter(message_id: int) -> DeadLetter:
    return DeadLetter(message_id, "run", 1, "failed", "price", "no price")


def test_open_records_renew_their_upstream_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their own application doesn't, as its emission is over."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(kafka_imports, "time", SimpleNamespace(monotonic=lambda: clock.now))
    noted = Noted()
    noted.imports.note(noted.records())
    noted.imports.done(np.array([0]), {0: letter(0)})
    for _ in range(8):  # a ring of three buckets
        clock.now += 15.0
        noted.imports.renew()
        noted.acker.admin.rotate(force=True)
    assert noted.acker.pending() == 2
    noted.imports.forget(np.array([1]))
    for _ in range(4):
        clock.now += 15.0
        noted.imports.renew()
        noted.acker.admin.rotate(force=True)
    assert noted.acker.pending() == 0
    assert noted.acker.stats().timed_out == 2


def test_outcomes_go_upstream_once_even_if_they_are_told_twice() -> None:
    noted = Noted()
    assert noted.imports.note(noted.records()) == set()
    noted.imports.done(np.array([0, 1, 99]), {1: letter(1)})
    assert noted.imports.note(noted.records()) == {0, 1}, "all their messages have ended"
    again = KafkaImports(noted.acker, "pricing", ["items"])
    again._open |= {0: Anchors(noted.roots[:1], noted.edges[:1]), 1: Anchors(noted.roots[1:], noted.edges[1:])}
    again.done(np.array([0, 1]), {1: letter(1)})
    assert noted.outcomes() == {0: "ack", 1: "fail", 2: "fail"}
    assert noted.acker.stats().deduplicated == 1


def test_record_is_skipped_if_none_of_its_messages_is_pending() -> None:
    noted = Noted()
    noted.acker.fail_many(noted.roots[:2])
    assert noted.imports.note([*noted.records(), (2, Record(b"1", "other"))]) == {0}
    assert noted.imports.skipped == 1
    noted.imports.done(np.array([1]), {})
    assert noted.outcomes() == {0: "fail", 1: "fail", 2: "ack"}
    assert noted.acker.stats().late_updates == 0


def test_ledger_that_was_lost_skips_no_record() -> None:
    """The spout recovers it. A record that is skipped now would be lost if only this shard was."""
    noted = Noted()
    records = noted.records()
    app_of(noted.acker).client.pipeline([("FLUSHALL",)])
    assert noted.imports.note(records) == set()


def test_records_of_another_group_end_the_run_and_forged_ones_do_not() -> None:
    noted = Noted()
    sound = packed_anchors(noted.roots[:1], noted.edges[:1])
    other = prefix(noted.acker.config.app, "other") + sound
    exports = KafkaExports(app_of(noted.acker).client, noted.acker.config.app)

    def reasons(*values: object) -> dict[int, str]:
        assert noted.imports.note([(number, Record(value)) for number, value in enumerate(values)]) == set()
        found = noted.imports.bad_of(np.arange(len(values)))
        noted.imports.forget(np.arange(len(values)))
        return {number: text for number, text in enumerate(found or []) if text is not None}

    assert list(reasons(noted.begin + sound, b"", None, b"\2", noted.begin)) == [1, 2, 3, 4]
    assert reasons(noted.begin + sound) == {}
    exports.add("items", "pricing")
    assert "for the group 'other'" in reasons(noted.begin + sound, other)[1]
    exports._client.pipeline([("HSET", exports._key, "items", "other")])
    with pytest.raises(BadConfigError, match="is exported for the group 'other'"):
        reasons(other)
    with pytest.raises(BadConfigError, match="is exported for the group 'other'"):
        KafkaImports(noted.acker, "pricing", ["items"])
    with pytest.raises(BadConfigError, match="only one lane"):
        KafkaImports(fake_acker(lanes=1), "pricing", ["items"])


def test_topic_is_exported_for_one_group() -> None:
    acker: Acker = fake_acker()
    exports = KafkaExports(app_of(acker).client, acker.config.app)
    exports.add("items", "pricing")
    exports.add("items", "pricing")
    with pytest.raises(BadConfigError, match="exported for the group 'pricing', not for 'billing'"):
        exports.add("items", "billing")
    assert exports.groups() == {"items": "pricing"}
    exports.check(["items", "orders"], "pricing")
    exports.check(["items.eu"], "billing")
    with pytest.raises(BadConfigError, match="run_kafka: topic 'items'"):
        exports.check(["^it.*"], "billing")
