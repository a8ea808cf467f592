"""Kafka spouts without a broker: which records are emitted and replayed, and when their offsets are done."""

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Self

import pytest

from acker_redis import Acker, RetryPolicy
from acker_redis.acker import app_of
from acker_redis.errors import AckerError, BadConfigError, InvalidTopologyError, OutageError, ServerUnavailableError
from acker_redis.kafka.assignment import Owned
from acker_redis.kafka.partition_progress import PartitionProgress
from acker_redis.store.dead_letter import DeadLetterFilter
from acker_redis.store.kafka_progress import KafkaProgress, Unsafe
from acker_redis.storm import Bolt, KafkaSpout, LocalRun, RowFailedError, Topology, Tuple
from acker_redis.storm.components.kafka_source import KafkaOptions, KafkaSource
from acker_redis.testing import fake_acker


class Record:
    """A message of the client."""

    def __init__(self, offset: int, value: bytes) -> None:
        self._offset, self._value = offset, value

    def __len__(self) -> int:
        return len(self._value)

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes:
        return self._value

    def key(self) -> None:
        return None

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (0, -1)


class Member:
    """A member that owns one partition, whose records the test writes.

    Attributes:
        rooms: numbers of records that were asked for.
        sources: sources of the spout's tasks, as listeners.
        is_closed: True once the group was left.
    """

    def __init__(self) -> None:
        self.progress = PartitionProgress(0)
        self.partition = Owned("orders", 0, "id", self.progress, 0)
        self.fresh: deque[Record] = deque()
        self.rooms: list[int] = []
        self.sources: list[KafkaSource] = []
        self.error: Exception | None = None
        self.is_closed = False
        self.topics = None
        self._end = 0

    @property
    def owned(self) -> list[Owned]:
        return [self.partition]

    def write(self, *values: str) -> Self:
        for value in values:
            self.fresh.append(Record(self._end, value.encode()))
            self._end += 1
        return self

    def read(self, count: int, wait_secs: float) -> list[tuple[Owned, Record]]:
        self.rooms.append(count)
        if self.error is not None:
            raise self.error
        found: list[tuple[Owned, Record]] = []
        while self.fresh and len(found) < count:
            record = self.fresh.popleft()
            self.progress.read(record.offset(), None)
            found.append((self.partition, record))
        return found

    def end_of(self, owned: Owned) -> int:
        return self._end

    def earliest_of(self, owned: Owned) -> int:
        return 0

    def commit(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def step(self) -> None:
        """Let the thread of the task do one round."""
        (source,) = self.sources
        source._step()


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Member:
    """A member whose rounds the test makes, in place of the thread."""
    member = Member()

    def start(source: KafkaSource) -> None:
        source._member = member  # type: ignore[assignment]
        source._thread = threading.Thread(target=member.close)
        source._thread.start()
        member.sources.append(source)

    monkeypatch.setattr(KafkaSource, "_start", start)
    return member


@pytest.fixture
def acker() -> Iterator[Acker]:
    with fake_acker(message_timeout_secs=60) as acker:
        yield acker


class Judges(Bolt):
    """Acks, fails or holds a record, as its value says."""

    auto_ack = False

    def process(self, tup: Tuple) -> None:
        if tup.values.value.startswith(b"bad"):
            raise RowFailedError("bad")
        if tup.values.value != b"held":
            self.ack(tup)


class Orders(KafkaSpout):
    kafka = {"bootstrap.servers": "nowhere:9092"}
    topics = ["orders"]
    group = "billing"
    retry = RetryPolicy(max_attempts=2, first_delay_secs=5, jitter=0)


class Billing(Topology):
    orders = Orders.spec()
    judge = Judges.spec(inputs=[orders])


def go(run: LocalRun, member: Member) -> None:
    """Settle, let the thread read and note what ended, and settle what it read."""
    run.settle()
    member.step()
    run.settle()
    member.step()


def test_offsets_are_done_once_their_records_are_acked(member: Member, acker: Acker) -> None:
    member.write("a", "held", "b")
    with Billing.local(acker=acker) as run:
        go(run, member)
        assert [row.offset for row in run.executed("judge")] == [0, 1, 2]
        assert (member.progress.until(), member.progress.runs()) == (1, [(2, 3)])
    assert member.is_closed


def test_ids_are_the_places_of_records(member: Member, acker: Acker) -> None:
    member.write("a")
    with Billing.local(acker=acker) as run:
        go(run, member)
        assert run.acked("orders") == [("orders", "id", 0, 0)]


def test_a_record_that_waits_for_its_retry_is_open_and_counts_against_the_bound(member: Member, acker: Acker) -> None:
    member.write("bad", "a", "b")
    with Billing.local({"topology.max.spout.pending": 2}, acker=acker) as run:
        go(run, member)
        assert run.pending("orders") == []
        assert member.progress.until() == 0
        assert member.rooms[0] == 2
        assert member.rooms[-1] == 1, "the failed record takes one of two places"


def test_the_oldest_open_record_is_shown_with_the_cause_of_its_last_attempt(
    member: Member, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acker_redis.storm.components.kafka_source._PUBLISH_SECS", 0.0)
    progress = KafkaProgress(app_of(acker).client, acker.config.app, "billing")
    member.write("fine", "bad", "held")
    wanted = ("earliest", "oldest_open", "oldest_reason", "oldest_component", "done_beyond", "open")
    with Billing.local(acker=acker) as run:
        go(run, member)
        member.step()
        numbers = progress.read()["orders/0"]
        assert [numbers[name] for name in wanted] == [0, 1, "failed", "judge", 0, 2]
        assert "ended" not in numbers


@pytest.mark.parametrize("fails", [False, True])
def test_only_an_orderly_end_is_shown_as_one(member: Member, acker: Acker, fails: bool) -> None:
    """Else nobody on call hears of a topology that died."""
    with suppress(ZeroDivisionError), Billing.local(acker=acker) as run:
        member.write("a")
        go(run, member)
        if fails:
            raise ZeroDivisionError
    (source,) = member.sources
    source.withdrawn(member.partition)
    numbers = KafkaProgress(app_of(acker).client, acker.config.app, "billing").read()["orders/0"]
    assert numbers.get("ended", False) is not fails


def test_a_server_that_is_away_delays_the_end_once_and_not_by_partition(
    member: Member, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acker_redis.storm.components.kafka_source._AWAY_SECS", 600.0)
    writes: list[object] = []

    def write(progress: KafkaProgress, partitions: object) -> None:
        writes.append(partitions)
        raise ServerUnavailableError("away")

    with Billing.local(acker=acker) as run:
        member.write("a")
        go(run, member)
    (source,) = member.sources
    monkeypatch.setattr(KafkaProgress, "write", write)
    for number in range(3):
        source.withdrawn(Owned("orders", number, "id", PartitionProgress(0), 0))
    assert len(writes) == 1


def test_an_offset_passes_a_dead_letter_once_it_is_safe(
    member: Member, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_copied = False
    look = KafkaProgress.look_at_letters

    def looked(progress: KafkaProgress, entry_ids: Any) -> Unsafe:
        return look(progress, entry_ids)._replace(is_copied=is_copied)

    monkeypatch.setattr(KafkaProgress, "look_at_letters", looked)
    monkeypatch.setattr("acker_redis.store.kafka_letters._SECURE_SECS", 0.0)
    member.write("bad", "a")
    with Billing.local(acker=acker) as run:
        go(run, member)
        run.advance(5)
        member.step()
        (letter,) = acker.dead_letters.read()
        assert json.loads(letter.place or "") == {
            "group": "billing", "topic": "orders", "topic_id": "id", "partition": 0, "offset": 0,
        }  # fmt: skip
        assert member.progress.until() == 0
        is_copied = True
        member.step()
        assert member.progress.until() == 2


def test_a_letter_that_isnt_safe_yet_can_be_replayed(
    member: Member, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_repaired = False
    look = KafkaProgress.look_at_letters
    monkeypatch.setattr(KafkaProgress, "look_at_letters", lambda *given: look(*given)._replace(is_copied=False))
    monkeypatch.setattr("acker_redis.store.kafka_letters._SECURE_SECS", 0.0)
    monkeypatch.setattr(
        Judges, "process", lambda judge, tup: judge.ack(tup) if is_repaired else judge.fail(tup, "down")
    )
    member.write("a")
    with Billing.local(acker=acker) as run:
        go(run, member)
        run.advance(5)
        member.step()
        assert len(list(acker.dead_letters.read())) == 1
        assert member.progress.until() == 0
        is_repaired = True
        acker.dead_letters.replay(DeadLetterFilter())
        run.advance(2)
        member.step()
        assert member.progress.until() == 1
        run.settle()
        assert not list(acker.dead_letters.read())
        member.step()
        assert not list(acker.dead_letters.read()), "the letter isn't taken for one that the server lost"


def test_withdrawn_records_are_neither_emitted_nor_replayed(member: Member, acker: Acker) -> None:
    member.write("bad", "held")
    with Billing.local({"topology.max.spout.pending": 2}, acker=acker) as run:
        go(run, member)
        (source,) = member.sources
        member.write("never")
        source.withdrawn(member.partition)
        run.advance(200)
        assert [row.value for row in run.executed("judge")] == [b"bad", b"held"]
        assert not list(acker.dead_letters.read())
        assert dict(run.failed("orders"))["orders", "id", 0, 1] == "timeout"


def test_a_record_that_was_withdrawn_after_it_was_read_isnt_emitted(member: Member, acker: Acker) -> None:
    member.write("a")
    with Billing.local(acker=acker) as run:
        run.settle()
        member.step()
        member.sources[0].withdrawn(member.partition)
        run.settle()
        assert run.executed("judge") == []


def test_an_ack_of_an_earlier_assignment_doesnt_count_for_a_later_one(member: Member, acker: Acker) -> None:
    member.write("held")
    with Billing.local(acker=acker) as run:
        go(run, member)
        (source,) = member.sources
        (old,) = run.pending("orders")
        source.withdrawn(member.partition)
        member.progress = PartitionProgress(0)  # the log was cut off: another record stands at this offset
        member.partition = Owned("orders", 0, "id", member.progress, 1)
        member.fresh.append(Record(0, b"held"))
        member.step()
        run.settle()
        source.done(old)
        member.step()
        assert member.progress.until() == 0


def test_a_lost_range_waits_for_its_letter_while_the_server_is_away(
    member: Member, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Billing.local(acker=acker) as run:
        run.settle()
        (source,) = member.sources
        member.progress.hold(0, 7)
        source.lost(member.partition, 0, 7)
        with monkeypatch.context() as away:

            def refuse(letters: Any) -> list[str]:
                raise ServerUnavailableError("away")

            away.setattr(source._letters, "_add", refuse)
            member.step()
            assert member.progress.until() == 0
        source._ask_at = 0.0
        member.step()
        (letter,) = acker.dead_letters.read()
        assert (letter.reason, json.loads(letter.place or "")["until"]) == ("lost", 7)
        assert member.progress.until() == 7


def test_topic_that_was_read_before_is_known_by_its_id(
    member: Member, acker: Acker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Billing.local(acker=acker) as run:
        run.settle()
        (source,) = member.sources
        member.step()
        assert (source._known_id("orders"), source._known_id("others")) == ("id", None)

        def away(topic: str) -> str:
            raise ServerUnavailableError("away")

        monkeypatch.setattr(source._progress, "topic_id", away)
        with pytest.raises(OutageError, match="away"):  # after which the member joins again
            source._known_id("orders")


def test_on_lost_and_on_recreated_can_end_the_run(member: Member, acker: Acker) -> None:
    class Strict(Topology):
        orders = Orders(on_lost="raise", on_recreated="raise").spec()

    with Strict.local(acker=acker) as run:
        run.settle()
        (source,) = member.sources
        with pytest.raises(AckerError, match="Records 0 to 6 of orders/0 were deleted"):
            source.lost(member.partition, 0, 7)
        with pytest.raises(AckerError, match="was deleted and created again"):
            source.recreated("orders", "id", "other")


def test_attributes_can_be_set_in_initialize(member: Member, acker: Acker) -> None:
    class Later(KafkaSpout):
        def initialize(self, conf: Any, context: Any) -> None:
            self.kafka = {"bootstrap.servers": conf["servers"]}
            self.topics, self.group = ["orders"], "later"

    class Billing(Topology):
        orders = Later.spec()
        judge = Judges.spec(inputs=[orders])

    member.write("a")
    with Billing.local({"servers": "nowhere:9092"}, acker=acker) as run:
        go(run, member)
        assert len(run.acked("orders")) == 1
        assert "later" in str(member.sources[0].place(run.acked("orders")[0]))


def test_without_ackers_offsets_are_done_with_the_emit(member: Member, acker: Acker) -> None:
    member.write("held")
    with Billing.local({"topology.acker.executors": 0}, acker=acker) as run:
        go(run, member)
        assert member.progress.until() == 1


def test_a_deactivated_spout_pauses_its_partitions(member: Member, acker: Acker) -> None:
    with Billing.local(acker=acker) as run:
        go(run, member)
        assert member.rooms[-1] > 0
        run.deactivate()
        member.step()
        assert member.rooms[-1] == 0
        run.activate()
        member.step()
        assert member.rooms[-1] > 0


def test_an_error_of_the_member_ends_the_run(member: Member, acker: Acker) -> None:
    with Billing.local(acker=acker) as run:
        run.settle()
        member.error = AckerError("The brokers refuse the member.")
        member.sources[0]._run()
        assert member.is_closed
        with pytest.raises(AckerError, match="refuse the member"):
            run.settle()


def test_a_fed_spout_needs_no_broker_and_replays(acker: Acker) -> None:
    row = ["orders", "id", 0, 0, None, None, b"bad", None]
    with Billing.local(acker=acker) as run:
        run.feed("orders", row, tup_id=7)
        run.settle()
        run.advance(5)
        assert run.failed("orders") == [(7, "bad")] * 2


@pytest.mark.parametrize(
    ("attributes", "error"),
    [
        ({"topics": None}, "topics and pattern are both given, or none"),
        ({"pattern": "^o"}, "topics and pattern are both given, or none"),
        ({"topics": "orders"}, "is no list of names"),
        ({"topics": None, "pattern": "o.*"}, "is no regular expression that begins with"),
        ({"kafka": None}, "has no \"bootstrap.servers\""),
        ({"group": ""}, "group='' is no name of a consumer group"),
        ({"commit_secs": -1}, "commit_secs=-1 is out of range"),
    ],
)  # fmt: skip
def test_settings_that_cant_work_are_refused(attributes: dict[str, Any], error: str, acker: Acker) -> None:
    class Mistaken(Topology):
        orders = type("Mistaken", (Orders,), attributes).spec()  # type: ignore[attr-defined]

    with pytest.raises(BadConfigError, match=error), Mistaken.local(acker=acker):
        pass


@pytest.mark.parametrize(
    "attributes",
    [{"start": "now"}, {"on_lost": "skip"}, {"on_recreated": "skip"}, {"max_pending_bytes": 0}],
)
def test_attributes_are_checked_with_the_topology(attributes: dict[str, Any]) -> None:
    with pytest.raises(InvalidTopologyError, match="is invalid"):

        class Mistaken(Topology):
            orders = type("Mistaken", (Orders,), attributes).spec()  # type: ignore[attr-defined]


def test_secrets_are_in_no_error_and_no_repr() -> None:
    spout = KafkaSpout(["orders"], "billing", kafka={"sasl.password": "geheim"})
    with pytest.raises(BadConfigError) as raised, spout_topology(spout).local():
        pass
    assert "geheim" not in f"{raised.value} {spout!r} {spout.spec()!r}"
    options = KafkaOptions({"sasl.password": "geheim"}, ["t"], "g", "earliest", "letter", "raise", 1.0, 1, 1)
    assert "geheim" not in repr(options)


def spout_topology(spout: KafkaSpout) -> type[Topology]:
    class One(Topology):
        orders = spout.spec()

    return One
