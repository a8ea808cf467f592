"""Storm's acker on Redis: knows of every source record whether everything that came out of it was processed."""

from acker_redis.acker import Acker
from acker_redis.batch import Batch
from acker_redis.config import AckerConfig
from acker_redis.dead_letters import DeadLetter
from acker_redis.errors import (
    AckerError,
    AppNotFoundError,
    AuthenticationError,
    BadBatchError,
    BadConfigError,
    BadIdError,
    ConnectionLostError,
    DamagedDataError,
    EvictionPolicyWarning,
    FailedError,
    LedgerLostError,
    NotExactError,
    OutOfMemoryError,
    ScriptFailedError,
    ServerBusyError,
    ServerNotFoundError,
    ServerRefusesWritesError,
    ServerUnavailableError,
    ServerVersionError,
    SettingsConflictError,
    TlsError,
    TokenReusedError,
)
from acker_redis.model import Applied, Outcome, PackedOutcomes, RootRecord, Rotated, Stats
from acker_redis.offsets import Offsets
from acker_redis.retry import RetryPolicy
from acker_redis.spout import Spout

__version__ = "0.1.0"

__all__ = [
    # The acker
    "Acker",
    "AckerConfig",
    "Batch",
    # The spout's side
    "DeadLetter",
    "Offsets",
    "RetryPolicy",
    "Spout",
    # What it answers
    "Applied",
    "Outcome",
    "PackedOutcomes",
    "RootRecord",
    "Rotated",
    "Stats",
    # Errors
    "AckerError",
    "AppNotFoundError",
    "AuthenticationError",
    "BadBatchError",
    "BadConfigError",
    "BadIdError",
    "ConnectionLostError",
    "DamagedDataError",
    "EvictionPolicyWarning",
    "FailedError",
    "LedgerLostError",
    "NotExactError",
    "OutOfMemoryError",
    "ScriptFailedError",
    "ServerBusyError",
    "ServerNotFoundError",
    "ServerRefusesWritesError",
    "ServerUnavailableError",
    "ServerVersionError",
    "SettingsConflictError",
    "TlsError",
    "TokenReusedError",
    "__version__",
]  # fmt: skip
