"""What goes wrong on purpose inside tasks: once per partition, or for some emissions."""

import os
import signal
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyspark import TaskContext

Kind = Literal["raise", "kill", "lose-shuffle-files"]
KINDS: tuple[Kind, ...] = ("raise", "kill", "lose-shuffle-files")

MOST_LOSSES = 2
"""Most emissions that lose shuffle files. A run ends once three in a row can't be proven, and each has other partitions."""


class OnPurposeError(Exception):
    """A task that fails."""


@dataclass(frozen=True)
class Fault:
    """Strikes at a row in the middle of a partition, the first time that this partition gets there."""

    kind: Kind
    number: int

    def strike(self, emission: int, path: str | None, marks: str, local: str) -> None:
        """Do it, if this row is one to do it at.

        Args:
            emission: number of the emission.
            path: of the row.
            marks: folder that remembers where it has struck.
            local: folder of Spark's shuffle files.
        """
        context = TaskContext.get()
        if context is None or zlib.crc32(f"{self.number}:{path}".encode()) % 4:
            return
        if self.kind == "lose-shuffle-files" and not self._may_lose(emission, Path(marks)):
            return
        try:
            (Path(marks) / f"{self.kind}-{self.number}-{context.partitionId()}").touch(exist_ok=False)
        except FileExistsError:
            return
        if self.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "lose-shuffle-files":
            for file in Path(local).rglob("shuffle_*"):
                file.unlink(missing_ok=True)
        raise OnPurposeError(f"{self.kind} at {path}")

    @staticmethod
    def _may_lose(emission: int, marks: Path) -> bool:
        """Whether this emission is one of the first that get here."""
        for place in range(MOST_LOSSES):
            mark = marks / f"losing-{place}"
            try:
                with mark.open("x") as file:
                    file.write(str(emission))
                return True
            except FileExistsError:
                if mark.read_text() == str(emission):
                    return True
        return False


@dataclass(frozen=True)
class Away:
    """A store that can't be reached in the first emissions of a run.

    Attributes:
        emissions: number of these emissions, more than a message has attempts.
        one_of: one of so many rows needs the store.
    """

    emissions: int
    one_of: int

    def ask(self, emission: int, path: str | None) -> None:
        """Ask the store for a row.

        Raises:
            ConnectionRefusedError: it is away.
        """
        if self.fails(emission, path):
            raise ConnectionRefusedError("the store is away")

    def fails(self, emission: int, path: str | None) -> bool:
        """Return True if a row needs the store while it is away."""
        return emission < self.emissions and zlib.crc32(f"store:{path}".encode()) % self.one_of == 0
