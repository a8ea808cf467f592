"""Tell whether Spark ran a task twice: then a wrong sum may come from that, and otherwise it is the pipeline's."""

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_BUS_MS = 10_000
"""So long is waited for Spark's listener bus; then it is not known what ran."""


def any_fault(spark: SparkSession, tag: str) -> bool:
    """Return True if a task of the jobs with this tag failed, a stage ran again, or copies of slow tasks may have run."""
    context = spark.sparkContext
    if context.getConf().get("spark.speculation", "false") == "true":
        return True
    context_jvm = context._jsc.sc()  # noqa: SLF001
    try:
        context_jvm.listenerBus().waitUntilEmpty(_BUS_MS)  # the status comes by it, and may lag
    except Py4JJavaError:
        return True
    tracker = context_jvm.statusTracker()
    for job in tracker.getJobIdsForTag(tag):
        job_info = tracker.getJobInfo(job)
        if job_info.isEmpty():
            return True  # too many jobs since: Spark has forgotten it
        for stage in job_info.get().stageIds():
            stage_info = tracker.getStageInfo(stage)
            if stage_info.isDefined() and (stage_info.get().numFailedTasks() or stage_info.get().currentAttemptId()):
                return True
    return False
