"""Storm's acker on Redis: tracks each message until everything derived from it was processed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from acker_redis.errors import (
    AckerError,
    AppNotFoundError,
    AuthenticationError,
    BadAnchorsError,
    BadBatchError,
    BadConfigError,
    BadIdError,
    BadTupleError,
    ClosedError,
    ConnectionLostError,
    DamagedDataError,
    EvictionPolicyWarning,
    FencedError,
    FilesNotMovedError,
    FormatVersionError,
    IdempotencyKeyReusedError,
    InexactPipelineError,
    InvalidTopologyError,
    JobFailedError,
    LedgerLostError,
    LogLostError,
    OperatorBrokenError,
    OutageError,
    OutputNotWrittenError,
    PendingLimitError,
    PipelineError,
    RowFailedError,
    RowsRefusedError,
    ScriptFailedError,
    ServerBusyError,
    ServerNotFoundError,
    ServerOutOfMemoryError,
    ServerRefusesWritesError,
    ServerUnavailableError,
    ServerVersionError,
    SettingsConflictError,
    SparkVersionError,
    StateLimitError,
    StateLostError,
    StoppedError,
    TlsError,
    TurnOverError,
    UnprovenEmissionError,
)
from acker_redis.ledger.outcomes.outcome import Outcome, OutcomeBatch
from acker_redis.model.anchors import Anchors
from acker_redis.model.config import AckerConfig
from acker_redis.model.types import Applied, LedgerRoot, Rotated, Stats
from acker_redis.spout.offset_file import OffsetFile
from acker_redis.spout.retry import RetryPolicy
from acker_redis.store.limits import Limits
from acker_redis.version import VERSION

if TYPE_CHECKING:
    from acker_redis.acker import Acker
    from acker_redis.admin import Admin
    from acker_redis.ledger.batch import Batch
    from acker_redis.spout.emission_marks import Marks
    from acker_redis.spout.loop import run_spout
    from acker_redis.spout.spout import Spout
    from acker_redis.store.dead_letter import DeadLetter, DeadLetterFilter

__version__ = VERSION

__all__ = [
    # The acker
    "Acker",
    "AckerConfig",
    "Admin",
    "Anchors",
    "Batch",
    # The spout's side
    "DeadLetter",
    "DeadLetterFilter",
    "Limits",
    "Marks",
    "OffsetFile",
    "RetryPolicy",
    "Spout",
    "run_spout",
    # Answers
    "Applied",
    "LedgerRoot",
    "Outcome",
    "OutcomeBatch",
    "Rotated",
    "Stats",
    # Errors
    "AckerError",
    "AppNotFoundError",
    "AuthenticationError",
    "BadAnchorsError",
    "BadBatchError",
    "BadConfigError",
    "BadIdError",
    "BadTupleError",
    "ClosedError",
    "ConnectionLostError",
    "DamagedDataError",
    "EvictionPolicyWarning",
    "FencedError",
    "FilesNotMovedError",
    "FormatVersionError",
    "IdempotencyKeyReusedError",
    "InexactPipelineError",
    "InvalidTopologyError",
    "JobFailedError",
    "LedgerLostError",
    "LogLostError",
    "OperatorBrokenError",
    "OutageError",
    "OutputNotWrittenError",
    "PendingLimitError",
    "PipelineError",
    "RowFailedError",
    "RowsRefusedError",
    "ScriptFailedError",
    "ServerBusyError",
    "ServerNotFoundError",
    "ServerOutOfMemoryError",
    "ServerRefusesWritesError",
    "ServerUnavailableError",
    "ServerVersionError",
    "SettingsConflictError",
    "SparkVersionError",
    "StateLimitError",
    "StateLostError",
    "StoppedError",
    "TlsError",
    "TurnOverError",
    "UnprovenEmissionError",
    "__version__",
]  # fmt: skip

_MODULES = {
    "Acker": "acker",
    "Admin": "admin",
    "Batch": "ledger.batch",
    "DeadLetter": "store.dead_letter",
    "DeadLetterFilter": "store.dead_letter",
    "Marks": "spout.emission_marks",
    "Spout": "spout.spout",
    "run_spout": "spout.loop",
}
"""Names that need redis-py, imported at first use: Spark's Python workers that need no server start in half the time."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
