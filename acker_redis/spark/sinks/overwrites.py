"""Checks of a write that overwrites: does it replace exactly the rows that it should?

By message, it may replace the rows of its own messages alone. A whole output replaces all rows of earlier runs, unless its
writer says otherwise. Spark's setting `partitionOverwriteMode` decides it, as an option of the writer or for the session.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from acker_redis.errors import PipelineError
from acker_redis.spark.sinks.source_checks import is_delta, replaces_partitions

_OPTION = "partitionOverwriteMode"
_SESSION = f"spark.sql.sources.{_OPTION}"
_DYNAMIC = "dynamic"

_REPLACE_WHERE = "replacewhere"
"""Delta's option that names the rows to replace. The mode has no effect beside it."""

_TABLE_METHODS = ("overwritePartitions", "overwrite", "replace", "createOrReplace")
"""Methods of a DataFrameWriterV2 that overwrite. The mode has no effect on them."""

_MODE_OF_TABLE = re.compile(rf"\b{_OPTION}=(\w+)", re.IGNORECASE)
_PARTITIONING = "# Partition"
"""Beginning of the row that `DESCRIBE` puts before the columns or transforms by which a table is partitioned."""


_DETAILS = "# Detailed Table Information"
"""The row that `DESCRIBE` puts before the details of a table of a catalog."""


class _Table(NamedTuple):
    """Description of a table.

    Attributes:
        is_partitioned: whether it is partitioned.
        mode: mode that the table itself names; None: it names none.
        is_view: whether it is a view, whose folder may be partitioned.
    """

    is_partitioned: bool
    mode: str | None
    is_view: bool = False


@dataclass(frozen=True)
class Overwrite:
    """A call of a writer that overwrites.

    Attributes:
        session: Spark session.
        sink: name of the sink.
        method: method of the writer.
        source: format of the writer; None: the session's default.
        table: name of the table; None: it writes elsewhere.
        path: folder of the writer; None: it names none.
        is_partitioned: whether the writer names columns to partition by.
        options: options of the writer, by their names in lower case.
    """

    session: SparkSession
    sink: str
    method: str
    source: str | None
    table: str | None
    path: str | None
    is_partitioned: bool
    options: Mapping[str, str]

    def check_own_partitions(self) -> None:
        """Check that a write by message replaces single partitions. The condition of `overwrite` is the user's promise.

        Raises:
            PipelineError: it would replace the rows of other messages.
        """
        if (reason := self._reach()) is None:
            return
        remedy = (
            "overwritePartitions() of a partitioned table"
            if self.method in _TABLE_METHODS
            else f'partitionBy with option("{_OPTION}", "dynamic"), insertInto of a partitioned table while this is the '
            "session's mode"
        )
        raise PipelineError(
            f"{self.sink!r}: {self.method}() would replace the rows of other messages, too, because {reason}. Failed messages "
            f"are written again without the others. Use {remedy}, or tracker.write_dataframe, where it is your promise."
        )

    def check_whole(self) -> None:
        """Check that the user chose what a whole output replaces: the table, or the partitions that it writes.

        Raises:
            PipelineError: the mode is dynamic, and the writer doesn't name it.
        """
        inserts = self.method == "insertInto"
        named = not inserts and _OPTION.lower() in self.options
        if named or self.method in _TABLE_METHODS or self._mode() != _DYNAMIC or not self._keeps_partitions():
            return
        remedy = (
            'insertInto ignores the writer\'s option. Set the mode of session and table to "static", or use save or parquet '
            'with the option "static" or "dynamic".'
            if inserts
            else f'Set option("{_OPTION}", "static") to replace everything, or "dynamic" to replace only the partitions that '
            "it writes. insertInto ignores this option."
        )
        raise PipelineError(
            f"{self.sink!r}: {_OPTION} is 'dynamic', and the writer doesn't name it. So partitions of an earlier run would "
            f"stay where these rows have none. {remedy}"
        )

    @property
    def replaces_parts(self) -> bool:
        """True if the write replaces only partitions that it has rows for, or the rows of a condition."""
        return self._reach() is None or _REPLACE_WHERE in self.options

    def _keeps_partitions(self) -> bool:
        """Return True if the write keeps partitions that it has no rows for, in the mode `dynamic`."""
        if self.method == "insertInto":
            table = self._describe()
            return table.is_partitioned or table.is_view
        if self.method == "jdbc" or not replaces_partitions(self.session, self.format):
            return False
        if is_delta(self.session, self.format):
            return _REPLACE_WHERE not in self.options and self._writes_partitions()
        # Spark drops a table of its own, with its files unless the writer names their folder.
        return self.is_partitioned and (self.method != "saveAsTable" or self.path is not None)

    def _reach(self) -> str | None:
        """Return the reason why the write replaces more than single partitions, or None."""
        if self.method in ("insertInto", "overwritePartitions") and not self._describe().is_partitioned:
            return f"the table {self.table!r} is not partitioned"
        if self.method in ("saveAsTable", "jdbc", "replace", "createOrReplace"):
            return "it replaces the table"
        if self.method in _TABLE_METHODS:
            return None
        if self.method != "insertInto":
            if not replaces_partitions(self.session, self.format):
                return f"the source {self.format!r} replaces its target"
            if _REPLACE_WHERE in self.options:
                return "replaceWhere replaces all rows that its condition matches"
            if not self._writes_partitions():
                return "it writes without partitionBy"
        mode = self._mode()
        return None if mode == _DYNAMIC else f"{_OPTION} is {mode!r}"

    @property
    def format(self) -> str | None:
        """The source of `save` and `saveAsTable`. The other methods are named after theirs."""
        return self.source if self.method in ("save", "saveAsTable") else self.method

    def _writes_partitions(self) -> bool:
        """Return True if the writer names columns to partition by, or Delta's table at its target has some."""
        if self.is_partitioned or not is_delta(self.session, self.format):
            return self.is_partitioned
        name = self.table or (None if self.path is None else f"delta.`{self.path}`")
        return name is not None and self._describe(name).is_partitioned

    def _mode(self) -> str:
        """Return the mode in which partitions are overwritten. `insertInto` ignores the writer's option."""
        own = self._describe().mode if self.method == "insertInto" else self.options.get(_OPTION.lower())
        return (own or str(self.session.conf.get(_SESSION))).lower()

    def _describe(self, table: str | None = None) -> _Table:
        """Describe a table. One that doesn't exist isn't partitioned."""
        try:
            rows = self.session.sql(f"DESCRIBE TABLE EXTENDED {table or self.table}").collect()
        except AnalysisException:  # the writer raises it, too, if it needs the table
            return _Table(is_partitioned=False, mode=None)
        is_partitioned = any(row["col_name"].startswith(_PARTITIONING) for row in rows)
        options = next((row["data_type"] for row in rows if row["col_name"] == "Storage Properties"), "")
        mode = _MODE_OF_TABLE.search(options)
        details = {row["col_name"]: row["data_type"] for row in rows}
        is_view = _DETAILS not in details or details.get("Type") == "VIEW"  # a temporary view has none
        return _Table(is_partitioned, None if mode is None else mode[1], is_view)
