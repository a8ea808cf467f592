"""Whether Spark ran something twice: then a sum that does not fit may be Spark's doing, and otherwise it is the pipeline's."""

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_BUS_MS = 10_000
"""So long is waited for what Spark's listener bus has to tell; then nobody knows."""


def any_fault(spark: SparkSession, tag: str) -> bool:
    """Whether a task of the jobs with this tag failed, a stage ran again, or copies of slow tasks may have run."""
    context = spark.sparkContext
    if context.getConf().get("spark.speculation", "false") == "true":
        return True
    context_jvm = context._jsc.sc()  # noqa: SLF001
    try:
        context_jvm.listenerBus().waitUntilEmpty(_BUS_MS)  # which tells the status, and may lag
    except Py4JJavaError:
        return True
    tracker = context_jvm.statusTracker()
    for job in tracker.getJobIdsForTag(tag):
        found = tracker.getJobInfo(job)
        if found.isEmpty():
            return True  # too many jobs since: nobody knows any more
        for stage in found.get().stageIds():
            told = tracker.getStageInfo(stage)
            if told.isDefined() and (told.get().numFailedTasks() or told.get().currentAttemptId()):
                return True
    return False
