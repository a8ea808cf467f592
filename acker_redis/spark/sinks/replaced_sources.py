"""Find out whether sinks write to what they, others or the messages are read from.

A whole output over its source is right only if nothing breaks. Once a sink has written, the next attempt reads the rows of
this run in place of those before it, and counts them again. An emission by message is repeated, too. So the plans of the
sinks are compared with the targets of the writers, before rows are kept.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property

from pyspark.sql import DataFrame

from acker_redis.errors import PipelineError
from acker_redis.spark.sinks.folders import UNREADABLE
from acker_redis.spark.sinks.stored import Stored
from acker_redis.spark.sinks.stored_reads import stored_reads

log = logging.getLogger("acker_redis.spark")

_MOST_SINKS = 1_000
"""Sinks of a run that are compared. A stream might give those of each batch other names."""


@dataclass
class ReplacedSources:
    """What the sinks of a whole output read, and what their writers replace."""

    _read: list[tuple[str, Stored]] = field(default_factory=list)
    _replaced: list[tuple[str, Stored]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # sinks may run in several threads

    def add_read(self, reader: str, rows: DataFrame) -> None:
        """Add the rows that a sink or an operator computes.

        Raises:
            PipelineError: they are read from a target.
        """
        found = [(reader, read) for read in stored_reads(rows)]
        with self._lock:
            self._check(found, self._replaced)
            self._read += found

    def add_replaced(self, sink: str, targets: Iterable[Stored]) -> None:
        """Add the targets of a writer.

        Raises:
            PipelineError: a sink reads one of them, or another sink replaces it.
        """
        replaced = [(sink, target) for target in targets]
        with self._lock:
            self._check(self._read, replaced)
            for _, target in replaced:
                for other, theirs in self._replaced:
                    if other != sink and not (target.in_parts and theirs.in_parts) and target.is_replaced_with(theirs):
                        raise PipelineError(
                            f"{sink!r}: the output replaces {target.named(theirs)}, and so does that of {other!r}: "
                            f"{theirs.named(target)}. Only the rows of one would stay. Use separate folders or tables, unite "
                            "the rows before one sink, or replace partitions of their own: partitionBy with "
                            'option("partitionOverwriteMode", "dynamic").'
                        )
            self._replaced += replaced

    def clear(self) -> None:
        """Forget everything."""
        self._read.clear()
        self._replaced.clear()

    def _check(self, reads: list[tuple[str, Stored]], replaced: list[tuple[str, Stored]]) -> None:
        for reader, read in reads:
            for sink, target in replaced:
                if read.overlaps(target):
                    raise _error(reader, read, sink, target)


class WrittenTables:
    """What the sinks of a run read, and where they write, if they write by message or once.

    Each emission reads everything again. So a sink must not change what the messages or other sinks are read from. Sinks are
    compared within an emission, and those that an earlier one has compared aren't again: it costs dozens of calls of Java.
    """

    def __init__(self, messages: DataFrame | None = None) -> None:
        """Set the messages, if the run reads them again for each emission."""
        self._messages = messages
        self._compared: set[str] = set()
        self._lock = threading.Lock()

    def of_emission(self) -> "EmissionTables":
        """Return the tables of another emission."""
        return EmissionTables(self._compared, self._of_messages)

    def add_compared(self, tables: "EmissionTables") -> None:
        """Note that the sinks of an emission were compared."""
        if len(self._compared) < _MOST_SINKS:
            self._compared |= tables.sinks

    @cached_property
    def _reads_of_messages(self) -> list[Stored]:
        return [] if self._messages is None else _known_reads(self._messages)

    def _of_messages(self) -> list[Stored]:
        with self._lock:
            return self._reads_of_messages


class EmissionTables:
    """What the sinks of one emission read, and where they write.

    Attributes:
        sinks: names of the sinks.
    """

    def __init__(self, compared: Set[str], of_messages: Callable[[], list[Stored]]) -> None:
        """Set the names of sinks that were compared before, and a function that returns what the messages are read from."""
        self.sinks: set[str] = set()
        self._compared, self._of_messages = frozenset(compared), of_messages
        self._read: dict[str, list[Stored]] = {}
        self._written: dict[str, tuple[list[Stored], bool]] = {}
        self._lock = threading.Lock()  # sinks may run in several threads

    def add_read(self, reader: str, rows: DataFrame) -> None:
        """Add the rows of a sink.

        Raises:
            PipelineError: another sink writes to what they are read from.
        """
        self.sinks.add(reader)
        if reader in self._compared:
            return
        found = _known_reads(rows)
        with self._lock:
            self._read[reader] = found
            for sink, (targets, overwrites) in self._written.items():
                _check_apart(reader, found, sink, targets, overwrites=overwrites)

    def add_written(self, sink: str, targets: Callable[[], list[Stored]], *, overwrites: bool, is_once: bool) -> None:
        """Add where a sink writes, before it does.

        Args:
            sink: name of the sink.
            targets: function that returns its targets.
            overwrites: whether it replaces partitions.
            is_once: whether nothing is written before all sinks have their rows.

        Raises:
            PipelineError: messages or other sinks are read from there, or the sink overwrites what it reads.
        """
        if sink in self._compared:
            return
        found = _known_targets(targets)
        for read, target in _changed(self._of_messages(), found, overwrites=overwrites):
            if read.is_listed_once and not overwrites:
                continue
            raise PipelineError(
                f"{sink!r}: the messages are read from {read.named(target)}, to which this sink writes. Each emission reads "
                "them again, so later ones would lack messages, or find other rows under their ids. Call localCheckpoint() or "
                "checkpoint() on the messages before the run, or write to another target."
            )
        with self._lock:
            own = self._read.get(sink, []) if overwrites else []
            for read, target in _changed(own, found, overwrites=True):
                raise PipelineError(
                    f"{sink!r}: its rows are read from {read.named(target)}, which it overwrites. An emission that is "
                    "repeated would read what it wrote, and count it twice. Append the rows, or read a copy that was made "
                    "before the run."
                )
            if is_once:
                return
            self._written[sink] = found, overwrites
            for reader, reads in self._read.items():
                _check_apart(reader, reads, sink, found, overwrites=overwrites)


def _known_reads(rows: DataFrame) -> list[Stored]:
    """Return what a frame reads, as far as Spark tells it."""
    try:
        return list(stored_reads(rows))
    except UNREADABLE:
        log.debug("sources of rows not compared with the targets of sinks", exc_info=True)
        return []


def _known_targets(targets: Callable[[], list[Stored]]) -> list[Stored]:
    """Return where a writer writes. If that isn't known, the writer tells what is wrong."""
    try:
        return targets()
    except UNREADABLE:
        log.debug("targets of a sink not compared with what is read", exc_info=True)
        return []


def _changed(
    reads: Iterable[Stored], targets: Iterable[Stored], *, overwrites: bool
) -> Iterator[tuple[Stored, Stored]]:
    """Yield what is read and changed for sure. Databases know more names of a table, and queries of several."""
    for read in reads:
        for target in targets:
            if read.is_changed_by(target, overwrites=overwrites):
                yield read, target


def _check_apart(
    reader: str, reads: Iterable[Stored], sink: str, targets: Iterable[Stored], *, overwrites: bool
) -> None:
    if reader == sink:  # it may leave out what it has written before
        return
    for read, target in _changed(reads, targets, overwrites=overwrites):
        raise PipelineError(
            f"{reader!r}: its rows are read from {read.named(target)}, to which {sink!r} writes in the same run. So a message "
            f"may be acked although {reader!r} lacks its row, because {sink!r} has it. Nothing was acked now, but one of them "
            "may have written its rows. Read only what this sink itself writes, or use run_tracked(..., once=...), for which "
            "this is right."
        )


def _error(reader: str, read: Stored, sink: str, target: Stored) -> PipelineError:
    if read.is_query and not target.is_query:
        return PipelineError(
            f"{sink!r}: the output replaces {target}, and the rows of {reader!r} are read from the same database by a query: "
            f"{read}. It can't be told which tables it reads, and if this one is among them, the next attempt counts the rows "
            "of this run again. Read tables by their names, copy the query's rows into another table before the first start, "
            "or write to another database or with tracker.write_dataframe."
        )
    version = (
        ', or read a fixed version of the table with option("versionAsOf", ...), which for Iceberg is the id of a snapshot'
        if read.has_versions
        else ""
    )
    return PipelineError(
        f"{sink!r}: the output replaces {target.named(read)}, and the rows of {reader!r} are read from {read.named(target)}. "
        "If a sink fails or the run ends between two sinks, the next attempt reads the rows that this run wrote, and counts "
        "them again. Write to another "
        f"target{version}."
    )
