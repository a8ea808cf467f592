"""Which file system a path or URI names."""

import sys
from pathlib import Path

import pyarrow.fs as fs
import pytest

from acker_redis import BadConfigError
from acker_redis.spark.runtime.file_systems import file_system, scheme_of, uri_of_hadoop


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b"),
        ("/odd name%20?#", "/odd name%20?#"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b/", "/a/b"),
        ("file:/a b", "/a b"),
        ("file:///a%20b", "/a b"),
        ("s3://bucket/a=b?region=us-east-1", "bucket/a=b"),
        ("s3a://bucket/a b?region=us-east-1", "bucket/a b"),
        ("gs://bucket/a", "bucket/a"),
        ("abfss://box@account.dfs.core.windows.net/a", "box/a"),
    ],
)
def test_paths_and_uris_name_the_place_within_their_file_system(path: str, place: str) -> None:
    assert file_system(path)[1] == place


def test_relative_paths_are_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    system, place = file_system("a/../b:c")
    assert isinstance(system, fs.LocalFileSystem)
    assert place == str(tmp_path / "b:c")


@pytest.mark.parametrize("name", ["plain", "with space", "a%20b", "what?", "n#1", "année", "x=1", "[a]{b}"])
def test_paths_of_hadoop_are_taken_literally(name: str) -> None:
    for path in (f"/tmp/{name}/checkpoint", f"file:/tmp/{name}/checkpoint"):
        assert file_system(uri_of_hadoop(path))[1] == f"/tmp/{name}/checkpoint"


def test_scheme_of_a_path() -> None:
    assert [scheme_of(path) for path in ("S3A://b/x", "file:/x", "/x", "x", "a:b", "12:/x")] == [
        "s3a", "file", None, None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize("has_fsspec", [True, False])
def test_unknown_schemes_are_refused(monkeypatch: pytest.MonkeyPatch, has_fsspec: bool) -> None:
    if not has_fsspec:
        monkeypatch.setitem(sys.modules, "fsspec.core", None)
    refused = (
        r"'nope://a/b' has the scheme 'nope', for which neither pyarrow nor fsspec .*\. So its .*\. Install fsspec"
    )
    with pytest.raises(BadConfigError, match=refused):
        file_system("nope://a/b")


def test_damaged_uris_are_refused() -> None:
    with pytest.raises(
        BadConfigError, match=r"is not a URI that pyarrow can read \(.*colour.*\)\. So .*Correct the URI"
    ):
        file_system("s3://bucket/a?region=us-east-1&colour=red")
