"""Rows that are stored: what a plan reads, or a writer replaces."""

import re
from dataclasses import dataclass, field
from functools import cached_property

from acker_redis.spark.sinks.database_tables import DatabaseTable
from acker_redis.spark.sinks.folders import folders_above, is_in, resolved

_OF_FILE = re.compile(r"\.[A-Za-z]\w*$")
"""End of a file's name."""


@dataclass(frozen=True)
class Stored:
    """Stored rows that a plan reads, or a writer replaces.

    Attributes:
        table: name of the table; None: it is only a folder, or a table of another database.
        folders: folders and files of the rows.
        database_table: what JDBC reads or writes; None: it is something else.
        has_versions: whether a read can name a version of it.
        in_parts: whether a writer replaces only the partitions that it has rows for.
        is_deep: whether files in all folders below are read.
        is_listed_once: whether the files were listed when the frame was made, and not for each job.
    """

    table: str | None = None
    folders: frozenset[str] = frozenset()
    database_table: DatabaseTable | None = None
    has_versions: bool = False
    in_parts: bool = field(default=False, compare=False)
    is_deep: bool = field(default=False, compare=False)
    is_listed_once: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return repr(self.table or str(self.database_table or min(self.folders)))

    def named(self, other: "Stored") -> str:
        """Return a name that shows what it has in common with the other."""
        if self.table is not None:
            return str(self)
        common = [mine for mine in sorted(self.folders) if Stored(folders=frozenset([mine])).overlaps(other)]
        return repr(common[0]) if common else str(self)

    @property
    def is_query(self) -> bool:
        """True if it is a query that only a database understands."""
        return self.database_table is not None and self.database_table.is_query

    @cached_property
    def places(self) -> frozenset[str]:
        """Folders by the names that they were given, and by those without links."""
        return self.folders | frozenset(map(resolved, self.folders))

    def overlaps(self, other: "Stored") -> bool:
        """Return True if both may be the same table, or one has a folder of the other, in it, or above it."""
        if self.table is not None and self.table == other.table:
            return True
        ours, theirs = self.database_table, other.database_table
        if ours is not None and theirs is not None and ours.may_be(theirs):
            return True
        is_below = not self.places_and_above.isdisjoint(other.places)
        return is_below or not other.places_and_above.isdisjoint(self.places)

    @cached_property
    def places_and_above(self) -> frozenset[str]:
        """The places, and all folders that they are in."""
        return frozenset(above for place in self.places for above in (place, *folders_above(place)))

    def is_replaced_with(self, other: "Stored") -> bool:
        """Return True if a writer that replaces one surely replaces the other, or a part of it."""
        ours, theirs = self.database_table, other.database_table
        return self.overlaps(other) and (ours is None or theirs is None or ours.is_surely(theirs))

    def is_changed_by(self, target: "Stored", *, overwrites: bool) -> bool:
        """Return True if a write may change what is read here. Of folders in a folder, Spark reads only partitions."""
        if not self.overlaps(target):
            return False
        if self.is_deep or (self.table is not None and self.table == target.table):
            return True
        ours, theirs = self.database_table, target.database_table
        if ours is not None and theirs is not None:
            return ours.is_surely(theirs)
        pairs = [(mine, theirs) for mine in self.places for theirs in target.places]
        return any(
            _is_partition_of(theirs, mine) or _is_partition_of(mine, theirs) or (overwrites and is_in(mine, theirs))
            for mine, theirs in pairs
        )


def _is_partition_of(place: str, folder: str) -> bool:
    """Return True if a place is a folder, or has rows of a partition in it."""
    if place == folder:
        return True
    below = place[len(folder) :].lstrip("/").partition("/")[0] if is_in(place, folder) else ""
    return "=" in below and _OF_FILE.search(below) is None
