"""What goes wrong on purpose inside tasks, once per partition."""

import os
import signal
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyspark import TaskContext

Kind = Literal["raise", "kill", "lose-shuffle-files"]
KINDS: tuple[Kind, ...] = ("raise", "kill", "lose-shuffle-files")


class OnPurposeError(Exception):
    """A task that fails."""


@dataclass(frozen=True)
class Fault:
    """Strikes at a row in the middle of a partition, the first time that this partition gets there."""

    kind: Kind
    number: int

    def strike(self, path: str | None, marks: str, local: str) -> None:
        """Do it, if this row is one to do it at.

        Args:
            path: of the row.
            marks: folder that remembers where it has struck.
            local: folder of Spark's shuffle files.
        """
        context = TaskContext.get()
        if context is None or zlib.crc32(f"{self.number}:{path}".encode()) % 4:
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
