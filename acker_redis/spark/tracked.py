"""Tracked DataFrames: spout, bolt and sink over Spark's own operators.

A tracked DataFrame is an ordinary one with a column of anchors (see `anchors`). Acks go out from the Python workers, once
per partition, under tokens that a task retry, a stage retry and a speculative copy share, so none of them counts twice.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from acker_redis.config import AckerConfig
from acker_redis.errors import BadBatchError
from acker_redis.spark import lineage
from acker_redis.spark.operators import BoltStep, Chain, Execute, FanOutStep, Origin, SinkStep, SpoutStep, Write
from acker_redis.spout import Emission, Spout


class Written(NamedTuple):
    """What a sink did, over all partitions of one run of it."""

    rows: int
    updates: int


_chains: WeakKeyDictionary[DataFrame, tuple[DataFrame, Chain]] = WeakKeyDictionary()
"""What a tracked DataFrame was made of: where it began, and the steps since. The next step joins them in one worker."""


@dataclass(frozen=True)
class Tracker:
    """Makes DataFrames tracked by one acker.

    Attributes:
        url: Redis, as the executors reach it.
        config: the app.
        run_id: unique per run of the program (`Spout.run_id`); part of every root and token.
        emission: number of the emission the DataFrame is made of (`Spout.next_emission`); part of every token. A batch
            that is computed again must have the number it had, another batch must have another.
    """

    url: str
    config: AckerConfig
    run_id: str
    emission: int

    @classmethod
    def of(cls, url: str, spout: Spout, emission: Emission) -> Self:
        """The tracker of one emission of a spout; `url` is the server as the executors reach it."""
        return cls(url, spout.acker.config, spout.run_id, emission.number)

    def spout(
        self, messages: DataFrame, message_id: str, attempt: str, name: str = "spout", task: int = 0
    ) -> DataFrame:
        """Make every row a tracked root, initialised by the executors.

        Args:
            messages: one row per message. Must give the same rows in the same partitions when a task runs again, as
                files do; after an unordered shuffle of something random they would not.
            message_id: bigint column; a row where it is null stays untracked.
            attempt: bigint column: 0 for a first emission.
            name: of the spout, unique among the operators of the emission.
            task: the spout task that will be told the outcomes.
        """
        if lineage.is_tracked(messages):
            raise BadBatchError(f"spout {name!r}: the DataFrame is tracked already; drop its anchors to begin anew")
        return self._with_step(messages, SpoutStep(name, task, message_id, attempt), messages.schema)

    def fan_out(self, tracked: DataFrame, *branches: str, name: str = "fan-out") -> list[DataFrame]:
        """The same rows once per branch, each with edges of its own, for DataFrames that go several ways.

        A tracked DataFrame has one consumer: its edges are acked once. A root completes when all branches have acked; a
        branch that is never run leaves its roots to time out.

        Args:
            tracked: a tracked DataFrame.
            branches: names, two or more.
            name: unique among the operators of the emission.
        """
        if len(branches) < 2 or len(set(branches)) != len(branches):
            raise BadBatchError(f"fan_out {name!r}: give two or more different branch names, got {branches!r}")
        source, chain = self._consume(tracked, name)
        output = lineage.without_anchors(tracked.schema)
        return [
            self._make(source, chain.then(FanOutStep(name, branches, branch)), output, f"{name}/{branch}")
            for branch in branches
        ]

    def bolt(self, tracked: DataFrame, execute: Execute, schema: str | StructType, name: str) -> DataFrame:
        """Turn rows into derived rows, vectorised: `execute` gets record batches and says which row each came from.

        The input rows are acked with their children folded in. `execute` should be deterministic: where it isn't, a task
        that runs again can leave trees that time out and are replayed; none completes falsely.

        Args:
            tracked: a tracked DataFrame.
            execute: called with each record batch, without the anchors; runs in the Python workers.
            schema: of its output rows, without anchors; DDL or StructType.
            name: of the bolt, unique among the operators of the emission; shows as `last_stage`.
        """
        output = StructType.fromDDL(schema) if isinstance(schema, str) else schema
        if not isinstance(output, StructType):
            raise BadBatchError(f"bolt {name!r}: schema {schema!r} is not a list of columns")
        return self._with_step(tracked, BoltStep(name, execute), output)

    def sink(self, tracked: DataFrame, write: Write, name: str) -> Written:
        """Write every partition, and ack its rows after `write` returned. Runs the job.

        Args:
            tracked: a tracked DataFrame.
            write: called with the record batches of one partition, without anchors, and the partition's number; has to
                consume them all, and to be idempotent: a partition may be written again. If it raises, nothing of the
                partition is acked and the task fails.
            name: of the sink, unique among the operators of the emission; shows as `last_stage`.
        """
        source, chain = self._consume(tracked, name)
        done = source.mapInArrow(chain.then(SinkStep(name, write)), "rows bigint, updates bigint").toArrow()
        return Written(sum(done["rows"].to_pylist()), sum(done["updates"].to_pylist()))

    def _with_step(self, frame: DataFrame, step: SpoutStep | BoltStep, output: StructType) -> DataFrame:
        if isinstance(step, SpoutStep):
            source, chain = frame, Chain(self._origin, ())
        else:
            source, chain = self._consume(frame, step.name)
        return self._make(source, chain.then(step), output, step.name)

    def _make(self, source: DataFrame, chain: Chain, output: StructType, producer: str) -> DataFrame:
        made = source.mapInArrow(chain, lineage.with_anchors(output, f"{self.run_id}:{self.emission}:{producer}"))
        _chains[made] = (source, chain)
        return made

    def _consume(self, frame: DataFrame, name: str) -> tuple[DataFrame, Chain]:
        """Where the steps of `frame` begin, and the steps so far; refuses what could not be exact."""
        producer = lineage.check(frame, name)
        lineage.claim(f"{self.run_id}:{self.emission}", producer, name)
        known = _chains.get(frame)
        if known is None or known[1].origin != self._origin or frame.is_cached:
            return frame, Chain(self._origin, ())
        return known

    @property
    def _origin(self) -> Origin:
        return Origin(self.url, self.config, self.run_id, self.emission)
