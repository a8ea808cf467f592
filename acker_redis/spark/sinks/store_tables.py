"""Tables of stores that only the user's functions know. Rows wait in the store, in parts.

A part has the rows that one attempt of a Spark task has staged. The driver publishes the parts of one attempt per task, which
are those that the proof has seen.
"""

from collections.abc import MutableMapping
from pathlib import Path

from acker_redis.errors import AckerError
from acker_redis.publishing.records import Staged
from acker_redis.spark.sinks.staged_tables import Stage, StageContents, StagedRows, StagedTarget
from acker_redis.spark.worker.staged_parts import PublishParts

STORE = "store"
"""Kind of tables of stores."""


class UnknownStoreError(Exception):
    """The pipeline hasn't called this sink yet, so nothing can publish its rows."""


class StoreTables:
    """Stage rows of one log in stores of the user's."""

    one_sink_each = False
    spark_tells = False
    are_folders = False

    def __init__(self, publishers: MutableMapping[str, PublishParts]) -> None:
        """Set what publishes: sink -> function. Sinks get there as the pipeline calls them."""
        self._publishers = publishers

    def place_of(self, sink: str, path: str) -> str:  # noqa: ARG002
        """Return a name for the table of a sink, which only the user knows."""
        return f"{STORE}://{sink}"

    def begin(self, stage: Stage) -> str:
        """Make the folder for the names of parts, and return it."""
        stage.folder.mkdir(parents=True)
        return str(stage.folder)

    def contents(self, folder: Path, file_format: str) -> StageContents:  # noqa: ARG002
        """Return the names of parts, and the number of their rows as workers have counted them."""
        parts = sorted(folder.iterdir())
        return StageContents(tuple(part.name for part in parts), sum(map(_rows_of, parts)))

    def keep(self, sink: str, target: StagedTarget, place: str, staged: StagedRows) -> Staged:  # noqa: ARG002
        """Return what a record says of parts: their names and numbers of rows. The store has put them on its disk."""
        parts = {name: str(_rows_of(staged.folder / name)) for name in staged.files}
        return Staged(sink, STORE, place, str(staged.folder), (), staged.rows, {_KEY: staged.key, **parts})

    def newest_number(self, place: str) -> int:  # noqa: ARG002
        """Return 0, because only the store knows."""
        return 0

    def publish(self, number: int, staged: Staged) -> None:
        """Let the user's function put parts into its table.

        Raises:
            UnknownStoreError: the pipeline hasn't called the sink yet.
            Exception: the function raised it.
        """
        publish = self._publishers.get(staged.name)
        if publish is None:
            raise UnknownStoreError(staged.name)
        parts = {part: int(rows) for part, rows in staged.options.items() if part != _KEY}
        if sum(parts.values()) != staged.rows:
            raise AckerError(
                f"Record {number} of the publish log has {staged.rows:,} rows for the sink {staged.name!r}, and parts with "
                f"{sum(parts.values()):,}. So the record is damaged. Restore it."
            )
        if parts:
            publish(staged.options[_KEY], parts)

    def forget(self, folder: Path) -> None:
        """Do nothing. What was staged and isn't published stays in the store, which may drop it by its age."""


_KEY = "key"


def _rows_of(file: Path) -> int:
    return int(file.read_text())
