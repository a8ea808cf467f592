"""Storm topologies: spouts, bolts, groupings, and a runner in this process. Nothing here imports Spark."""

from acker_redis.errors import BadTupleError, InvalidTopologyError, RowFailedError
from acker_redis.spout.retry import RetryPolicy
from acker_redis.storm.builder import BoltDeclarer, TopologyBuilder
from acker_redis.storm.components.batch_spout import BatchSpout
from acker_redis.storm.components.batching import BatchingBolt, TicklessBatchingBolt
from acker_redis.storm.components.bolt import Bolt
from acker_redis.storm.components.dataframe import DataFrameSpout
from acker_redis.storm.components.foreign import JavaBolt, JavaSpout, ShellBolt, ShellSpout
from acker_redis.storm.components.kafka import KafkaSpout
from acker_redis.storm.components.spout import FeederSpout, ReliableSpout, Spout
from acker_redis.storm.components.stateful import StatefulBolt
from acker_redis.storm.components.windowed import WindowedBolt
from acker_redis.storm.core.context import TopologyContext
from acker_redis.storm.core.event_log import Event
from acker_redis.storm.core.hooks import BoltInfo, EmitInfo, SpoutAckInfo, SpoutFailInfo, TaskHook
from acker_redis.storm.core.metrics import ComponentMetrics
from acker_redis.storm.core.observer import FailedTree
from acker_redis.storm.core.tuples import Tuple
from acker_redis.storm.core.windows import TupleWindow
from acker_redis.storm.definition.groupings import Grouping
from acker_redis.storm.definition.specs import Spec
from acker_redis.storm.definition.streams import Stream, StreamId
from acker_redis.storm.local.run import LocalRun
from acker_redis.storm.local.service import RunResult
from acker_redis.storm.topology import Topology

__all__ = [
    # Definition
    "Grouping",
    "Spec",
    "Stream",
    "StreamId",
    "Topology",
    "TopologyBuilder",
    "BoltDeclarer",
    # Components
    "BatchSpout",
    "BatchingBolt",
    "Bolt",
    "DataFrameSpout",
    "FeederSpout",
    "KafkaSpout",
    "ReliableSpout",
    "RetryPolicy",
    "Spout",
    "StatefulBolt",
    "TicklessBatchingBolt",
    "TopologyContext",
    "Tuple",
    "TupleWindow",
    "WindowedBolt",
    "JavaBolt",
    "JavaSpout",
    "ShellBolt",
    "ShellSpout",
    # Running and seeing
    "ComponentMetrics",
    "Event",
    "FailedTree",
    "LocalRun",
    "RunResult",
    "BoltInfo",
    "EmitInfo",
    "SpoutAckInfo",
    "SpoutFailInfo",
    "TaskHook",
    # Errors
    "BadTupleError",
    "InvalidTopologyError",
    "RowFailedError",
]  # fmt: skip
