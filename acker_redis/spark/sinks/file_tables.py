"""Tables that are folders of files on a local disk, whose rows wait in a stage.

From there, each file is moved by a rename. So readers see it completely or not at all.
"""

from collections.abc import Callable
from pathlib import Path

from pyarrow import orc

from acker_redis.errors import BadConfigError
from acker_redis.publishing.disk import sync, sync_tree
from acker_redis.publishing.files import LocalFiles, check_partitions, files_below, local_folder
from acker_redis.publishing.records import FILES, Staged
from acker_redis.spark.sinks.delta_tables import rows_of_parquet
from acker_redis.spark.sinks.staged_tables import Stage, StageContents, StagedRows, StagedTarget


class FileTables:
    """Stage rows of one log for folders. `publish` may be called again, in any process, at the same time."""

    are_folders = True
    one_sink_each = False
    spark_tells = True

    def __init__(
        self, log: str, folder: Path, probe: Callable[[Path], object], refresh: Callable[[str], object]
    ) -> None:
        """Prepare.

        Args:
            log: short name of the log.
            folder: folder in which Spark looks for relative paths.
            probe: function that checks whether files can be renamed from stages into a folder.
            refresh: function that lets Spark read a folder anew, where the program has cached a frame over it.
        """
        self._files, self._folder, self._probe, self._refresh = LocalFiles(log), folder, probe, refresh

    def place_of(self, sink: str, path: str) -> str:
        """Check that files can be moved into a folder, and return its whole path.

        Raises:
            BadConfigError: they can't, or readers of the folder don't see other files.
        """
        place = local_folder(path, f"{sink!r}: the table", self._folder)
        if Path(place, "_delta_log").exists():
            raise BadConfigError(
                f"{sink!r}: {place} is a Delta table, whose readers don't see other files. Write with "
                "format('delta'), or to another folder."
            )
        self._probe(place)
        return str(place)

    def begin(self, stage: Stage) -> str:
        """Return the folder of a stage, which the writer makes."""
        return str(stage.folder)

    def contents(self, folder: Path, file_format: str) -> StageContents:
        """Return the files of a stage that readers will see, with their rows. Files of texts don't tell them."""
        files, count = sorted(files_below(folder)), _COUNTING.get(file_format)
        names = tuple(str(file.relative_to(folder)) for file in files)
        return StageContents(names, None if count is None else sum(map(count, files)))

    def keep(self, sink: str, target: StagedTarget, place: str, staged: StagedRows) -> Staged:
        """Put the files of a stage on the disk, and return what a record says of them.

        Raises:
            PipelineError: the files of the table are partitioned by other columns.
        """
        folder, table = staged.folder, Path(place)
        example = next(files_below(table), None)
        if example is not None and staged.files:
            check_partitions(sink, table, example.relative_to(table), Path(staged.files[0]))
        # An empty file is only good for showing the columns of a table that has no other.
        files = staged.files if staged.rows or example is None else ()
        if files:  # on the disk before the record is, which may be all that a loss of power leaves
            sync_tree(folder, files)
            sync(folder.parent)
        return Staged(sink, FILES, place, str(folder), files, staged.rows)

    def newest_number(self, place: str) -> int:
        """Return the largest number of a record that a folder has files of; 0: none."""
        return self._files.newest_number(place)

    def publish(self, number: int, staged: Staged) -> None:
        """Move the files of one sink into its table. A file that was moved before is left where it is now.

        Raises:
            FilesNotMovedError: a file is neither in the stage nor in the table, or in both.
            OSError: the file system failed. Call it again.
        """
        self._files.publish(number, staged)
        self._refresh(staged.target)

    def forget(self, folder: Path) -> None:
        """Do nothing, as a stage is in its folder alone."""


def _rows_of_orc(file: Path) -> int:
    return int(orc.ORCFile(file).nrows)


_COUNTING: dict[str, Callable[[Path], int]] = {"parquet": rows_of_parquet, "orc": _rows_of_orc}
"""Formats whose files tell their number of rows, and how to read it."""
