"""The sink that stages rows in a store of the user's, by two functions."""

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, StructField, StructType

from acker_redis.errors import PipelineError
from acker_redis.spark import checks
from acker_redis.spark.operators.map_in_arrow import map_in_arrow
from acker_redis.spark.proof.proof import Proof
from acker_redis.spark.sinks.outputs import Outputs
from acker_redis.spark.sinks.sink import Sink
from acker_redis.spark.sinks.staged_tables import Stage, StagedTarget
from acker_redis.spark.sinks.staging import StagedFrame
from acker_redis.spark.sinks.store_tables import STORE
from acker_redis.spark.worker.staged_parts import PART, ROWS, PublishParts, StagePart, StagePartsStep

_OF_PARTS = StructType([StructField(PART, StringType()), StructField(ROWS, LongType())])


def write_staged(
    proof: Proof, outputs: Outputs, tracked: DataFrame, stage: StagePart, publish: PublishParts, name: str
) -> None:
    """Implement `Tracker.write_staged`."""
    checks.check_function(stage, "write_staged", "a function of record batches and the name of a part", count=2)
    checks.check_function(publish, "write_staged", "a function of a key and parts", count=2)
    if outputs.output != "once" and not outputs.only_checked:
        raise PipelineError(
            "write_staged needs once=, whose log decides which parts are published. Pass once=Once(...) to the run or "
            "stream, or use tracker.write_partitions."
        )
    sink = Sink.add(proof, outputs, "write_staged", name, tracked)
    if outputs.new_stage is None:  # only checked
        sink.with_kept_rows().finish()
        return
    outputs.publishers[name] = publish

    def write_parts(rows: DataFrame, to: Stage) -> None:
        to.tables.begin(to)
        parts = map_in_arrow(rows, lambda columns: StagePartsStep(name, stage, to.key, columns), _OF_PARTS)
        for part in parts.toArrow().to_pylist():
            (to.folder / part[PART]).write_text(str(part[ROWS]))

    target = StagedTarget(name, STORE, STORE, {})
    staged = StagedFrame.of(sink, write_parts, target, outputs.new_stage(name, target))
    outputs.staging.append(staged)
