"""A folder on a local disk or in an object store. Its files are written completely or not at all."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as fs

from acker_redis.errors import AckerError
from acker_redis.spark.runtime.file_systems import file_system

log = logging.getLogger("acker_redis.spark")

_OBJECT_STORES = ("s3", "gcs", "abfs")
"""File systems that have no folders, and in which a file appears only once it is complete. So they need no draft."""


class Folder:
    """A folder of small files. Every method raises OSError if the file system fails."""

    def __init__(self, path: str) -> None:
        """Find the file system, without creating the folder.

        Args:
            path: path or URI, as in `file_system`.

        Raises:
            BadConfigError: the file system is unknown.
            OSError: the file system could not be reached.
        """
        with _os_errors():
            self._files, self._place = file_system(path)
        self._path = path
        self._is_local = isinstance(self._files, fs.LocalFileSystem)
        self._has_drafts = self._files.type_name not in _OBJECT_STORES

    def exists(self, name: str = "") -> bool:
        """Return True if a file, or the folder itself, exists."""
        with _os_errors():
            return bool(self._files.get_file_info(self._place_of(name)).type != fs.FileType.NotFound)

    def names(self, inner: str = "") -> list[str]:
        """List the names in it, or in a folder within it. A folder that doesn't exist has none."""
        with _os_errors():
            inside = self._files.get_file_info(fs.FileSelector(self._place_of(inner), allow_not_found=True))
        return [info.base_name for info in inside]

    def read(self, name: str) -> bytes:
        """Read a file."""
        with _os_errors(), self._files.open_input_stream(self._place_of(name), compression=None) as stream:
            return bytes(stream.read())

    def write(self, name: str, data: bytes) -> None:
        """Write a file completely or not at all, over one with its name. Create the folder if it doesn't exist.

        A process that dies may leave a draft. On file systems that can't rename over a file, it may leave only the draft.
        """
        with _os_errors():
            if not self._has_drafts:
                self._write(name, data)
                return
            self._files.create_dir(self._place, recursive=True)
            try:
                self._write(_draft(name), data)
            except Exception:
                self._remove_draft(name)
                raise
            self.rename_draft(name)

    def read_draft(self, name: str) -> bytes | None:
        """Read the draft of a file, which may be incomplete; None: there is none."""
        return self.read(_draft(name)) if self.exists(_draft(name)) else None

    def rename_draft(self, name: str) -> None:
        """Turn the draft of a file into the file."""
        with _os_errors():
            self._remove_checksum(name)
            self._files.move(self._place_of(_draft(name)), self._place_of(name))
            self._remove_checksum(_draft(name))

    def delete(self, name: str) -> None:
        """Delete a file."""
        with _os_errors():
            self._remove_checksum(name)
            self._files.delete_file(self._place_of(name))

    def _place_of(self, name: str) -> str:
        return f"{self._place}/{name}" if name else self._place

    def _write(self, name: str, data: bytes) -> None:
        with self._files.open_output_stream(self._place_of(name), compression=None) as stream:
            stream.write(data)

    def _remove_draft(self, name: str) -> None:
        """Remove a partly written file, which takes space on a full disk."""
        try:
            self._files.delete_file(self._place_of(_draft(name)))
        except Exception as exc:
            log.debug("could not remove a draft folder=%s error=%s", self._path, exc)

    def _remove_checksum(self, name: str) -> None:
        """Remove the checksum that Hadoop wrote beside a local file, because Hadoop would refuse other contents."""
        if self._is_local:
            Path(self._place, f".{name}.crc").unlink(missing_ok=True)


def _draft(name: str) -> str:
    return f".{name}.draft"


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn the errors of all file systems into OSErrors. Those of fsspec may raise their client library's."""
    try:
        yield
    except (OSError, AckerError):
        raise
    except Exception as exc:
        raise OSError(f"{type(exc).__name__}: {exc}") from exc
