"""What a kind of tables has to do, so that rows can wait in a stage for them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from acker_redis.model.arrays import Int64Array
from acker_redis.publishing.records import Staged


class StagedTarget(NamedTuple):
    """Where staged rows belong.

    Attributes:
        path: path of the table, as the pipeline gave it.
        kind: kind of the table.
        format: format of its files.
        options: options of the writer that are needed when the rows get there.
    """

    path: str
    kind: str
    format: str
    options: Mapping[str, str]


class StageContents(NamedTuple):
    """What is in a stage.

    Attributes:
        files: paths of the files that readers will see, below the stage. Stages that are no folders have other names here.
        rows: number of rows in them; None: they don't tell.
    """

    files: tuple[str, ...]
    rows: int | None


class StagedRows(NamedTuple):
    """Rows of a sink in a stage.

    Attributes:
        folder: the stage.
        files: as in `StageContents`.
        rows: number of rows.
        key: text that no other stage has.
    """

    folder: Path
    files: tuple[str, ...]
    rows: int
    key: str


class StagedTables(Protocol):
    """Tables of one kind, for the rows of one log."""

    are_folders: bool
    """Whether a table is a folder."""

    one_sink_each: bool
    """Whether a table takes the rows of one sink alone."""

    spark_tells: bool
    """Whether Spark tells how many rows and files a write into a stage has made."""

    def place_of(self, sink: str, path: str) -> str:
        """Check that rows can be staged for a table, and return its whole path or URI.

        Raises:
            BadConfigError: they can't.
        """

    def begin(self, stage: "Stage") -> str:
        """Prepare a stage for the writer of a table, and return where Spark writes: a folder, or the name of a table."""

    def contents(self, folder: Path, file_format: str) -> StageContents:
        """Return what was written into the stage with a folder."""

    def keep(self, sink: str, target: StagedTarget, place: str, staged: StagedRows) -> Staged:
        """Put the files of a stage on the disk, and return what a record says of them.

        Raises:
            PipelineError: the table can't take them.
        """

    def newest_number(self, place: str) -> int:
        """Return the largest number of a record that a table has rows of; 0: none."""

    def publish(self, number: int, staged: Staged) -> None:
        """Put the rows of a record's sink into its table, unless that has them. It may be called again, in any process.

        Raises:
            FilesNotMovedError: staged files are gone, or stand where they shouldn't.
            Exception: the store failed.
        """

    def forget(self, folder: Path) -> None:
        """Drop what the stage with a folder has left elsewhere, because nobody reads it any more. Errors are logged."""


class Stage(NamedTuple):
    """A place where rows wait for a table.

    Attributes:
        folder: folder that doesn't exist yet. Its parent does.
        place: whole path or URI of the table.
        tables: what knows the table.
        key: text that no other stage has. Those of later runs, emissions and stages of a log are greater.
    """

    folder: Path
    place: str
    tables: StagedTables
    key: str


class StagingSink(Protocol):
    """A sink whose rows are in a stage."""

    @property
    def name(self) -> str:
        """Name of the sink."""

    @property
    def target(self) -> StagedTarget:
        """Where the rows belong."""

    @property
    def all_rows(self) -> StagedRows:
        """The rows of all messages."""

    @property
    def is_cached(self) -> bool:
        """True if the rows are cached, and not computed again."""

    def stage(self, stage: Stage, failed: Int64Array) -> StagedRows:
        """Write the rows of all messages but those with these roots into a stage."""


NewStage: TypeAlias = Callable[[str, StagedTarget], Stage]
"""Function that checks a table, and returns a stage for it. The arguments are the sink's name and the table."""
