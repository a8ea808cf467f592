"""Which runs begin before their message ids are read."""

from pyspark.sql import DataFrame

from acker_redis.spark.proof.range_partitioning import counts_twice
from acker_redis.spark.runs.options import MessageIds, ReplayFrom, RunSettings
from acker_redis.spark.runtime.sessions import is_connect


def may_learn_ids(messages: DataFrame, settings: RunSettings, ids: MessageIds, replay: ReplayFrom) -> bool:
    """Return True if the first emission may begin before its message ids are known.

    Nothing may choose its messages by id, or refuse them after they were written. Ids derived from places are hashes, and
    never a range. Spark Connect doesn't show the plan that ran, and before 4.3 Spark may count a source twice.
    """
    session = messages.sparkSession
    return (
        ids.id_column is not None
        and ids.offset_file is None
        and replay == ReplayFrom.source()
        and settings.max_spout_pending is None
        and not is_connect(session)
        and not counts_twice(session)
        and settings.acker.admin.limits().max_pending is None
    )
