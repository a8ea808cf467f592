"""Which process of the suite takes which file of tests.

Files that start Spark programs want more than a core, those that share the process's Spark session most of one, and all
others wait most of their time, for servers, ticks and time-outs. So each process begins with a kind of its own: at any
time there is something of each, and no core is idle.
"""

from functools import cache
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

from tests.support import java

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

TOGETHER = (
    (
        "docs/test_docs.py", "docs/test_readme.py", "spark/applications/test_examples.py",
        "spark/applications/test_word_count.py", "benchmarks/test_spark_benchmarks.py",
    ),
    (
        "spark/streaming/test_stream_kills.py", "spark/applications/test_applications.py", "spark/runtime/test_cluster.py",
        "spark/applications/test_access_logs.py", "spark/applications/test_order_stream.py",
    ),
)  # fmt: skip
"""Files whose programs run in one JVM (`tests.support.spark.warm`): one process takes those of a group."""

FIRST = {f"tests/{file}": f"tests/{group[0]}" for group in TOGETHER for file in group}
"""The first file of the group of each."""

PROGRAMS = (
    *FIRST, "tests/stack/test_make_stack.py", "tests/spark/applications/test_direct_acks.py", "tests/docs/test_tour.py",
)  # fmt: skip
"""Files that start programs on Spark."""

LONG = (
    *PROGRAMS, "tests/spark/test_tracker_invariants.py", "tests/spark/runs/test_poison.py", "tests/spark/sinks/test_sinks.py",
    "tests/docs/test_disaster.py", "tests/model_based/test_state_machine.py", "tests/spout/test_poison_search.py",
    "tests/packaging/test_set_up.py",
)  # fmt: skip
"""Files that go first, so that no process is left with one of them at the end."""

WANTED = {
    "gw0": ("programs", "session"),
    "gw1": ("session", "programs"),
    "gw2": ("programs", "others"),
    "gw3": ("others", "programs"),
}
"""What a process takes first, and then. One of the session's kind is last in as few as can be, as each starts a JVM for it."""


@cache
def kind(file: str) -> str:
    """Of a file of tests."""
    if file in PROGRAMS:
        return "programs"
    return "session" if "mark.spark" in (java.ROOT / file).read_text(encoding="utf-8") else "others"


def place(file: str) -> int:
    """A file of a lower one goes before the others of its kind."""
    return LONG.index(file) if file in LONG else len(LONG)


class ByKind(LoadFileScheduling):  # type: ignore[misc]
    """Files in the order of the collection, each process those of its kinds first."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return FIRST.get(file, file)

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
