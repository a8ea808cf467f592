"""Files that are written completely or not at all, on every kind of file system that a stream may park on."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from acker_redis.spark.streaming.parking.folder import Folder
from tests.support.object_store import ObjectStore, object_store


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


KINDS = ("path", "relative", "file:", "file://", "pyarrow's in memory", "s3", "fsspec in memory", "fsspec local")


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder within another, neither of which exists."""
    inner = f"a/{uuid.uuid4().hex}"
    monkeypatch.chdir(tmp_path)
    match request.param:
        case "path":
            return str(tmp_path / inner)
        case "relative":
            return inner
        case "file:":
            return f"file:{tmp_path / inner}"
        case "file://":
            return (tmp_path / "with space" / inner).as_uri()
        case "pyarrow's in memory":
            return f"mock:///{inner}"
        case "s3":
            store: ObjectStore = request.getfixturevalue("store")
            return store.uri(inner)
        case "fsspec in memory":
            return f"memory://{inner}"
        case _:
            return f"local://{tmp_path / inner}"


def test_files_are_written_over_others_read_listed_and_deleted(path: str) -> None:
    folder = Folder(path)
    assert (folder.exists(), folder.exists("one"), folder.names(), folder.names("inner")) == (False, False, [], [])
    folder.write("one", b"first")
    folder.write("one", b"second, longer")
    folder.write("two.gz", b"\0" * 100_000)  # no file is taken for a compressed one
    assert Folder(path).exists() and folder.exists("one")
    assert sorted(folder.names()) == ["one", "two.gz"]
    assert (folder.read("one"), folder.read("two.gz")) == (b"second, longer", b"\0" * 100_000)
    assert folder.read_draft("one") is None
    folder.delete("one")
    assert folder.names() == ["two.gz"]
    with pytest.raises(OSError, match="one"):
        folder.read("one")


def test_a_draft_becomes_its_file(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    (tmp_path / ".one.draft").write_bytes(b"complete")
    assert folder.read_draft("one") == b"complete"
    folder.rename_draft("one")
    assert (folder.read("one"), folder.read_draft("one")) == (b"complete", None)


def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.write("one", b"old")
    (tmp_path / ".one.draft").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        folder.write("one", b"new")
    assert (folder.read("one"), folder.names()) == (b"old", ["one"])


def test_an_object_store_that_is_down_keeps_its_objects(store: ObjectStore) -> None:
    folder = Folder(store.uri("parked"))
    folder.write("one", b"old")
    store.is_down = True
    for call in (
        folder.exists, folder.names, lambda: folder.read("one"), lambda: folder.write("one", b"new"),
        lambda: folder.delete("one"),
    ):  # fmt: skip
        with pytest.raises(OSError, match=r"ACCESS_DENIED|HTTP status 403"):
            call()
    store.is_down = False
    assert store.objects == {"parked/one": b"old"}


@pytest.mark.parametrize("size", [10, 40_000_000], ids=["one part", "several parts"])
def test_an_upload_that_breaks_leaves_the_old_object(store: ObjectStore, size: int) -> None:
    """The upload begins, and then the store goes down."""
    folder = Folder(store.uri("parked"))
    folder.write("one", b"old")
    store.takes_parts = False
    with pytest.raises(OSError, match="ACCESS_DENIED during UploadPart"):
        folder.write("one", b"\0" * size)
    assert store.objects == {"parked/one": b"old"}
    store.takes_parts = True
    folder.write("one", b"\0" * size)
    assert len(store.objects["parked/one"]) == size


def test_hadoops_checksum_of_a_file_goes_with_it(tmp_path: Path) -> None:
    """Former versions wrote them. Hadoop would refuse a file whose checksum is another one's."""
    folder = Folder(str(tmp_path))
    for name in ("one", "two"):
        folder.write(name, b"x")
        (tmp_path / f".{name}.crc").touch()
    folder.write("one", b"y")
    folder.delete("two")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_errors_of_a_client_library_are_os_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem
    folder = Folder("memory://parked")

    def fails(*_: object, **__: object) -> None:
        raise LookupError("no such host")

    monkeypatch.setattr(memory, "ls", fails)
    monkeypatch.setattr(memory, "find", fails)
    monkeypatch.setattr(memory, "info", fails)
    with pytest.raises(OSError, match="LookupError: no such host"):
        folder.names()
