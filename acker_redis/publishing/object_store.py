"""A folder in an object store, in which one request creates an object only if there is none of its name."""

import re
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from acker_redis.errors import BadConfigError
from acker_redis.extras import install_hint

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_T = TypeVar("_T")

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
"""Schemes of URIs of object stores."""


_REFUSED = re.compile(r"status code: 40[013]\b")
"""How the errors of requests read that no later try changes: bad ones, and those of unknown or poor credentials."""


def is_in_object_store(location: str) -> bool:
    """Return True if a location is the URI of a folder in an object store."""
    scheme, colon, _ = location.partition("://")
    return bool(colon) and scheme in SCHEMES


class ObjectLogFolder:
    """A folder in an object store. Its credentials are those of the process, in the variables that the store's tools read.

    The store has to create objects only once. S3, Google's and Azure's do.
    """

    def __init__(self, uri: str) -> None:
        """Set the URI. Nothing is read.

        Raises:
            BadConfigError: the package `obstore` is missing, or the URI names no store.
        """
        self.uri = uri.rstrip("/")
        _ = self._store

    @cached_property
    def _store(self) -> "ObjectStore":
        try:
            from obstore.store import from_url
        except ModuleNotFoundError as exc:
            raise BadConfigError(
                f"The publish log {self.uri} is in an object store, and the package obstore isn't installed. "
                f"{install_hint('object-stores')}"
            ) from exc
        try:
            return from_url(self.uri)
        except Exception as exc:  # its classes aren't those of the requests
            raise BadConfigError(
                f"The publish log {self.uri} can't be found: {_line_of(exc)}. Pass a URI such as s3://bucket/logs/orders."
            ) from exc

    def names(self) -> list[str]:
        """List the files."""
        names = [_name_of(one["path"]) for one in self._listed()["objects"]]
        return [name for name in names if not name.startswith(".")]

    def folders(self) -> list[str]:
        """List the folders."""
        return [_name_of(folder) for folder in self._listed()["common_prefixes"]]

    def _listed(self) -> Any:
        import obstore

        return self._done(lambda: obstore.list_with_delimiter(self._store))

    def read(self, name: str) -> bytes | None:
        """Read a file."""
        import obstore

        try:
            return self._done(lambda: obstore.get(self._store, name).bytes().to_bytes())
        except FileNotFoundError:
            return None

    def create(self, name: str, data: bytes | Iterable[bytes]) -> bool:
        """Create a file. The store has it when this returns."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            # In one request, because that is what the store does once.
            contents = data if isinstance(data, bytes) else b"".join(data)
            self._done(lambda: obstore.put(self._store, name, contents, mode="create", use_multipart=False))
        except AlreadyExistsError:
            return False
        return True

    def remove(self, name: str) -> None:
        """Remove a file."""
        import obstore

        try:
            self._done(lambda: obstore.delete(self._store, name))
        except FileNotFoundError:
            return

    def remove_drafts(self, name: str) -> None:
        """Do nothing, as objects have no drafts."""

    def check(self) -> None:
        """Check that the store creates an object only once, by two requests for one name.

        Raises:
            BadConfigError: it doesn't.
            OSError: it can't be reached, or refuses this process.
        """
        name = f".acker-probe-{uuid.uuid4().hex}"
        try:
            self.create(name, b"")
            is_replaced = self.create(name, b"")
        finally:
            with suppress(OSError):
                self.remove(name)
        if is_replaced:
            raise BadConfigError(
                f"The object store of the publish log {self.uri} replaces an object that it was asked to create only if there "
                "is none. So two drivers could decide about the same messages. Use a store with conditional writes, or a disk."
            )

    def _done(self, request: Callable[[], _T]) -> _T:
        """Do a request. Errors become those of a file system.

        Raises:
            AlreadyExistsError: the object is there.
            OSError: the request failed.
        """
        from obstore import exceptions

        try:
            return request()
        except exceptions.AlreadyExistsError:
            raise
        except OSError as exc:
            raise type(exc)(f"{self.uri}: {_line_of(exc)}") from exc
        except exceptions.NotSupportedError as exc:
            raise BadConfigError(
                f"The object store of the publish log {self.uri} lacks what the log needs: {_line_of(exc)}. So two drivers "
                "could decide about the same messages. Use a store with conditional writes, or a disk."
            ) from exc
        except exceptions.BaseError as exc:
            if _REFUSED.search(str(exc)):
                raise PermissionError(f"{self.uri}: {_line_of(exc)}") from exc
            raise ConnectionError(f"{self.uri}: {_line_of(exc)}") from exc


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


def _line_of(error: BaseException) -> str:
    """Return the first line of an error. What follows is for those who debug the client."""
    return str(error).partition("\n")[0].rstrip(".")
