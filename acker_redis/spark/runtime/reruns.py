"""Detect whether Spark may have run a task twice.

If it has not, a wrong sum is the pipeline's fault.
"""

from pyspark.sql import SparkSession

from acker_redis.spark.runtime.jvm import java_exceptions
from acker_redis.spark.runtime.sessions import is_connect

_BUS_MS = 60_000
"""How long to wait for Spark's listener bus. After that, it is unknown which tasks ran."""


def any_fault(spark: SparkSession, tag: str) -> bool:
    """Return True if a task of the jobs with this tag failed or may have run twice.

    Also True if a stage ran again, if Spark may run copies of slow tasks, or if it can't tell. Over Spark Connect, it never
    can.
    """
    if is_connect(spark):
        return True
    context = spark.sparkContext
    if context.getConf().get("spark.speculation", "false") == "true":
        return True
    context_jvm = context._jsc.sc()  # noqa: SLF001
    try:
        context_jvm.listenerBus().waitUntilEmpty(_BUS_MS)  # the status comes by it, and may lag
    except java_exceptions():
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
