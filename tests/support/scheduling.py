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
        "storm/turns/test_cluster.py",
        "spark/applications/test_access_logs.py", "spark/applications/test_order_stream.py",
        "spark/applications/test_sentences.py",
    ),
)  # fmt: skip
"""Files whose programs run in one JVM (`tests.support.spark.warm`): one process takes those of a group."""

ON_A_BROKER = (
    (
        "spark/runs/test_kafka.py", "spark/runs/test_kafka_exports.py", "spark/sinks/test_kafka.py",
        "spark/sinks/test_kafka_record_ids.py", "spark/streaming/test_group_offsets.py", "storm/turns/test_kafka_spout.py",
    ),
    (
        "kafka/test_group_member.py", "kafka/test_group_faults.py", "kafka/test_letter_topic.py",
        "spark/runs/test_kafka_imports.py", "spark/runs/test_kafka_records.py", "storm/components/test_kafka.py",
    ),
)  # fmt: skip
"""Files that share the broker of their process, with Spark's session and without it."""

FIRST = {f"tests/{file}": f"tests/{group[0]}" for group in (*TOGETHER, *ON_A_BROKER) for file in group}
"""The first file of the group of each."""

PROGRAMS = (
    *(f"tests/{file}" for group in TOGETHER for file in group),
    "tests/stack/test_make_stack.py", "tests/spark/applications/test_direct_acks.py", "tests/docs/test_tour.py",
    "tests/spark/applications/test_over_connect.py", "tests/spark/sinks/test_targets.py", "tests/cli/test_topology.py",
)  # fmt: skip
"""Files that start programs on Spark."""

LONG = (
    *PROGRAMS, "tests/spark/test_tracker_invariants.py", "tests/spark/runs/test_poison.py", "tests/spark/sinks/test_sinks.py",
    "tests/docs/test_disaster.py", "tests/model_based/test_state_machine.py", "tests/spout/test_poison_search.py",
    "tests/packaging/test_set_up.py", "tests/spark/runs/test_kafka.py", "tests/kafka/test_group_member.py",
)  # fmt: skip
"""Files that go first, so that no process is left with one of them at the end."""

ON_SESSION = "tests/storm/turns/"
"""Its tests have the session by a fixture of the folder."""

APART = "tests/spark/sinks/test_targets.py"
"""A file whose tests of one target go together, and those of another by themselves: each has a JVM of its own."""

KINDS = ("session", "programs", "others")

WANTED = {
    "gw0": ("programs", "others"),
    "gw1": ("session", "programs", "others"),
    "gw2": ("others", "programs"),
    "gw3": ("session", "others", "programs"),
}
"""What a process takes first, and then. Two take those of the session's kind, and the two others none of them: each starts a
JVM for it, and that takes ten seconds until it is warm."""


@cache
def kind(file: str) -> str:
    """Of a file of tests."""
    if file in PROGRAMS:
        return "programs"
    in_session = file.startswith(ON_SESSION) or "mark.spark" in (java.ROOT / file).read_text(encoding="utf-8")
    return "session" if in_session else "others"


def place(file: str) -> int:
    """A file of a lower one goes before the others of its kind."""
    return LONG.index(file) if file in LONG else len(LONG)


class ByKind(LoadFileScheduling):  # type: ignore[misc]
    """Files in the order of the collection, each process those of its kinds first."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        if file == APART:
            return f"{file}::{nodeid.rpartition('[')[2].partition('-')[0]}"
        return FIRST.get(file, file)

    def _assign_work_unit(self, node: "WorkerController") -> None:
        wants: tuple[str, ...] = WANTED.get(node.gateway.id, KINDS)
        if not java.ARCHIVE.exists():  # programs start in half the time once it is there
            wants = tuple(sorted(wants, key="programs".__eq__))
        for wanted in wants:
            mine = next((scope for scope in self.workqueue if kind(scope.partition("::")[0]) == wanted), None)
            if mine is not None:
                self.workqueue.move_to_end(mine, last=False)
                super()._assign_work_unit(node)
                return
        if self.numnodes < len(WANTED):  # nobody else takes what is left
            super()._assign_work_unit(node)
        else:
            node.shutdown()
