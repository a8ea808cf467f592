"""File systems of paths and URIs: those of pyarrow, or else of fsspec. They need no JVM."""

import functools
import os
import re
from urllib.parse import quote

import pyarrow as pa
import pyarrow.fs

from acker_redis.errors import BadConfigError

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/")
_OF_HADOOP = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of schemes, and those of pyarrow."""

_UNRESERVED = "/:=@+,;!$&'()*~"
_VALID = f"{_UNRESERVED}%?[]"
"""Characters of a path that are not encoded in a URI, and all that a URI has, besides letters, digits and `_.-`."""


def scheme_of(path: str) -> str | None:
    """Return the scheme of a URI, such as `s3`; None: `path` is a local path."""
    found = _SCHEME.match(path)
    return None if found is None else found[1].lower()


def file_system(path: str) -> tuple[pa.fs.FileSystem, str]:
    """Find the file system of a path or URI, and the path there. Only whole URIs are parsed, never file names.

    Raises:
        BadConfigError: neither pyarrow nor fsspec knows the URI.
        OSError: the file system could not be reached.
    """
    if scheme_of(path) is None:
        return pa.fs.LocalFileSystem(), os.path.abspath(path)  # noqa: PTH100
    return _of_uri(path)


def uri_of_hadoop(path: str) -> str:
    """Convert a path of Hadoop, in which no character is encoded, into a URI."""
    return path if scheme_of(path) is None else quote(path, safe=_UNRESERVED)


@functools.lru_cache(maxsize=64)  # a client of a store is costly to create: it may ask for the bucket's region
def _of_uri(uri: str) -> tuple[pa.fs.FileSystem, str]:
    scheme, rest = uri.split(":", 1)
    known = f"{_OF_HADOOP.get(scheme.lower(), scheme)}:{quote(rest, safe=_VALID)}"
    try:
        system, place = pa.fs.FileSystem.from_uri(known)
    except (pa.ArrowInvalid, ImportError) as exc:  # ImportError: pyarrow leaves the scheme to fsspec
        if "://" not in known or (isinstance(exc, pa.ArrowInvalid) and "Unrecognized" not in str(exc)):
            raise BadConfigError(
                f"{uri!r} is not a URI that pyarrow can read ({exc}). So its files can't be read or written. Correct the URI."
            ) from exc
        return _of_fsspec(uri, scheme)
    return system, place.rstrip("/") or place


def _of_fsspec(uri: str, scheme: str) -> tuple[pa.fs.FileSystem, str]:
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 an optional package

        files, place = url_to_fs(uri)
    except (ImportError, ValueError) as exc:
        raise BadConfigError(
            f"{uri!r} has the scheme {scheme!r}, for which neither pyarrow nor fsspec has a file system ({exc}). So its files "
            "can't be read or written. Install fsspec and its package for this scheme, or use another file system."
        ) from exc
    return pa.fs.PyFileSystem(pa.fs.FSSpecHandler(files)), place
