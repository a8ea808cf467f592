"""Which process of the suite takes which file of tests.

A file on Spark keeps a core busy, and the process that takes it starts a JVM. All others wait most of their time, for servers,
ticks and time-outs. So two processes begin with those on Spark, a third with the others, and no core is idle.
"""

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

ON_SPARK = "tests/spark/"
SPARK_PROCESSES = ("gw0", "gw1")


class ByKind(LoadFileScheduling):  # type: ignore[misc]
    """Files in the order of the collection, each process those of its kind first."""

    def _assign_work_unit(self, node: "WorkerController") -> None:
        wants_spark = node.gateway.id in SPARK_PROCESSES
        mine = next((file for file in self.workqueue if file.startswith(ON_SPARK) == wants_spark), None)
        if mine is not None:
            self.workqueue.move_to_end(mine, last=False)
        super()._assign_work_unit(node)
