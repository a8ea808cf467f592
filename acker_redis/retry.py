"""When a spout emits a failed message again."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acker_redis.errors import BadConfigError

_random = np.random.default_rng()


@dataclass(frozen=True)
class RetryPolicy:
    """When a failed message is emitted again (Storm: KafkaSpoutRetryExponentialBackoff, with a last attempt that is kept).

    Attributes:
        max_attempts: emissions of one message that may fail or time out. Those that got lost before the ledger knew of
            them are not counted.
        first_delay_secs: wait before the second emission.
        multiplier: each further wait is so many times the one before.
        max_delay_secs: longest wait.
        jitter: share of each wait that is drawn at random, 0 to 1, so that what failed together does not come back together.
    """

    max_attempts: int = 5
    first_delay_secs: float = 0.0
    multiplier: float = 2.0
    max_delay_secs: float = 10.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Check every setting."""
        if self.max_attempts < 1:
            raise BadConfigError(f"max_attempts={self.max_attempts}: use 1 or more")
        if self.first_delay_secs < 0 or self.max_delay_secs < 0 or self.multiplier < 1:
            raise BadConfigError("use delays of 0 s or more and a multiplier of 1 or more")
        if not 0 <= self.jitter <= 1:
            raise BadConfigError(f"jitter={self.jitter}: use a share of 0 to 1")

    def delay_secs(self, failures: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Wait after so many failures, for each message."""
        if self.first_delay_secs == 0:
            return np.zeros(len(failures))
        with np.errstate(over="ignore"):  # of an exponent that large the cap is what counts
            growing = self.first_delay_secs * self.multiplier ** (failures - 1.0)
        longest: npt.NDArray[np.float64] = np.minimum(self.max_delay_secs, growing)
        return longest * (1 - self.jitter * _random.random(len(failures)))
