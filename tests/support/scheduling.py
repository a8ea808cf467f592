"""Which process of the suite takes which file of tests.

Files that start Spark programs want more than a core, those that share the process's Spark session most of one, and all others
wait most of their time, for servers, ticks and time-outs. So each process begins with a kind of its own: at any time there is
something of each, and no core is idle.
"""

from pathlib import PurePath
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

from tests.support import java

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

PROGRAMS = (
    "word_count", "stream_kills", "stack", "docs", "readme", "benchmarks", "applications", "cluster", "access_logs",
    "order_stream", "examples", "direct_acks", "tour",
)  # fmt: skip
"""Files of tests/spark that start programs."""

LONG = (*PROGRAMS, "must_hold", "poison", "sinks", "disaster", "state_machine", "isolation", "set_up")
"""Files that go first, so that no process is left with one of them at the end."""

WANTED = {
    "gw0": ("programs", "session"),
    "gw1": ("session", "programs"),
    "gw2": ("programs", "others"),
    "gw3": ("others", "programs"),
}
"""What a process takes first, and then. One of the session's kind is last in as few as can be, as each starts a JVM for it."""


def kind(file: str) -> str:
    """Of a file of tests."""
    path = PurePath(file)
    if path.parent.name != "spark":
        return "others"
    return "programs" if path.stem.removeprefix("test_") in PROGRAMS else "session"


def place(file: str) -> int:
    """A file of a lower one goes before the others of its kind."""
    name = PurePath(file).stem.removeprefix("test_")
    return LONG.index(name) if name in LONG else len(LONG)


TOGETHER = {
    f"tests/spark/test_{name}.py": f"tests/spark/test_{group[0]}.py"
    for group in (
        ("docs", "readme", "examples", "word_count", "benchmarks"),
        ("stream_kills", "applications", "cluster", "access_logs", "order_stream"),
    )
    for name in group
}
"""Files whose programs run in one JVM (`tests.support.spark.warm`): those of a group are taken by one process."""


class ByKind(LoadFileScheduling):  # type: ignore[misc]
    """Files in the order of the collection, each process those of its kinds first."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return TOGETHER.get(file, file)

    def _assign_work_unit(self, node: "WorkerController") -> None:
        wants: tuple[str, ...] = WANTED.get(node.gateway.id, ())
        if not java.ARCHIVE.exists():  # programs start in half the time once it is there
            wants = tuple("others" if wanted == "programs" else wanted for wanted in wants)
        for wanted in wants:
            mine = next((file for file in self.workqueue if kind(file) == wanted), None)
            if mine is not None:
                self.workqueue.move_to_end(mine, last=False)
                break
        super()._assign_work_unit(node)
