"""Where publish logs are: in a folder of a disk, or of an object store."""

from pathlib import Path

from acker_redis.publishing.files import local_folder
from acker_redis.publishing.log_folder import LocalLogFolder, LogFolder
from acker_redis.publishing.object_store import ObjectLogFolder, is_in_object_store


def whole_location(location: str) -> str:
    """Return a location as an absolute path, or as the URI of an object store.

    Raises:
        BadConfigError: it is neither.
    """
    if is_in_object_store(location):
        return location.rstrip("/")
    return str(local_folder(location, "The publish log"))


def location_below(location: str, name: str) -> str:
    """Return the location of a folder below another one. Without a name, it is that one."""
    if is_in_object_store(location):
        return f"{location}/{name}" if name else location
    return str(Path(location, name))


def folder_at(location: str) -> LogFolder:
    """Return the folder at a whole location.

    Raises:
        BadConfigError: a package for object stores is missing.
    """
    return ObjectLogFolder(location) if is_in_object_store(location) else LocalLogFolder(location)
