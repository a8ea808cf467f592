"""A log in an object store: that of moto, and one that breaks its promises."""

import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
import pytest

from acker_redis.errors import BadConfigError, FencedError
from acker_redis.ops.publish_logs import LogUpkeep
from acker_redis.outages import is_outage
from acker_redis.publishing.locations import folder_at, location_below, whole_location
from acker_redis.publishing.object_store import ObjectLogFolder
from acker_redis.publishing.publish_log import PublishLog
from acker_redis.testing.server import free_port
from tests.publishing.test_publish_log import OWNER, accepted, dead, is_done
from tests.support.object_store import object_store
from tests.support.s3 import BUCKET, s3, settings


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3() as variables:
        yield variables


@pytest.fixture
def uri(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that doesn't exist."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def log_at(uri: str, run: str | None = None) -> PublishLog:
    log = PublishLog(folder_at(uri), snapshot_every=4)
    if run is None:
        log.read()
    else:
        log.begin(run, OWNER, "orders")
    return log


def test_object_is_created_once(uri: str) -> None:
    folder = ObjectLogFolder(uri)
    folder.check()
    assert (folder.names(), folder.folders(), folder.read("a")) == ([], [], None)
    assert (folder.create("a", b"1"), folder.create("a", b"2"), folder.read("a")) == (True, False, b"1")
    ObjectLogFolder(location_below(uri, "monday")).create("b", b"3")
    assert (folder.names(), folder.folders()) == (["a"], ["monday"])
    for _ in range(2):
        folder.remove("a")
    assert folder.names() == []


def test_one_of_many_writers_decides(uri: str) -> None:
    folder = ObjectLogFolder(uri)
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda number: folder.create("a", str(number).encode()), range(32)))
    assert created.count(True) == 1
    assert folder.read("a") == str(created.index(True)).encode()


def test_older_run_is_fenced_and_the_log_is_read_again(uri: str) -> None:
    older = log_at(uri, "older")
    older.accept(accepted(1))
    newer = log_at(uri, "newer")
    with pytest.raises(FencedError, match="newer run"):
        older.accept(accepted(2))
    for number in range(3, 9):
        newer.accept(accepted(number))
        newer.publish(lambda *_: None)
        newer.compact()
    assert any(name.endswith(".snap") for name in ObjectLogFolder(uri).names())
    assert is_done(log_at(uri), 1, 2, 3, 8) == [True, False, True, True]


def test_request_that_collides_with_its_own_first_try_has_decided(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store had created the object, and the reply was lost, so the client tried again."""
    log, put = log_at(uri, "run"), obstore.put

    def twice(*args: Any, **options: Any) -> object:
        put(*args, **options)
        return put(*args, **options)

    monkeypatch.setattr(obstore, "put", twice)
    assert log.accept(accepted(1)) == 2
    ObjectLogFolder(uri).check()


def test_store_that_replaces_objects_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store() as store:
        for name, value in settings(store.port).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(
            BadConfigError, match="replaces an object that it was asked to create only if there is none"
        ):
            ObjectLogFolder("s3://bucket/orders").check()
        store.is_down = True
        with pytest.raises(PermissionError, match="s3://bucket/orders: "):
            ObjectLogFolder("s3://bucket/orders").names()


def test_store_that_is_away_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings(free_port()).items():
        monkeypatch.setenv(name, value)
    folder = ObjectLogFolder("s3://bucket/orders")
    requests: list[Callable[[], object]] = [folder.names, lambda: folder.create("a", b"")]
    for request in requests:
        with pytest.raises(ConnectionError) as away:
            request()
        assert is_outage(away.value)


def test_bucket_that_is_missing_is_named(uri: str) -> None:
    with pytest.raises(OSError, match="s3://nowhere/orders"):
        ObjectLogFolder(uri.replace(BUCKET, "nowhere").rpartition("/")[0] + "/orders").check()


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(BadConfigError, match=r"obstore isn't installed.*acker-redis\[object-stores\]"):
        folder_at("s3://logs/orders")


@pytest.mark.parametrize(
    "uri", ["s3://logs/orders/", "gs://logs/orders", "abfss://logs@company.dfs.core.windows.net/orders"]
)
def test_uris_of_stores_are_locations(uri: str) -> None:
    assert location_below(whole_location(uri), "monday") == f"{uri.rstrip('/')}/monday"
    assert isinstance(folder_at(whole_location(uri)), ObjectLogFolder)


@pytest.mark.parametrize("uri", ["hdfs://logs/orders", "ftp://logs/orders"])
def test_other_uris_are_refused(uri: str) -> None:
    with pytest.raises(BadConfigError, match="isn't on a local disk"):
        whole_location(uri)


def test_commands_work_there(uri: str) -> None:
    log = log_at(location_below(uri, "monday"), "run")
    log.accept(accepted(1))
    log.bury(dead(2))
    with pytest.raises(BadConfigError, match=f"Logs in that folder are {uri}/monday"):
        LogUpkeep(uri)
    upkeep = LogUpkeep(location_below(uri, "monday"))
    assert (upkeep.waiting(), upkeep.reopen()) == ([], 1)
    assert is_done(log_at(location_below(uri, "monday")), 1, 2) == [True, False]
