"""When a spout emits a message again, and when its attempts are exhausted."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from acker_redis.errors import BadConfigError
from acker_redis.model.arrays import FloatArray, Int64Array
from acker_redis.model.config import check_finite
from acker_redis.spout.in_flight import Attempts, Mask

LOST_LIMIT = 10
"""A message whose root got lost so often becomes a dead letter: it was given to `emit` and never initialised."""

_EXEMPT_SECS = 30.0
"""The longest wait after an exempt emission."""

_random = np.random.default_rng()


class Verdict(NamedTuple):
    """How messages go on after attempts that did not succeed.

    Attributes:
        retries: the next attempts of messages that have another.
        delays_secs: how long each of these waits.
        exempt: which of these follow an attempt that doesn't count.
        exhausted: which of the given attempts were their message's last.
        failures: for each of the given attempts, how many attempts of its message counted, itself among them.
    """

    retries: Attempts
    delays_secs: FloatArray
    exempt: Mask
    exhausted: Mask
    failures: Int64Array


@dataclass(frozen=True)
class RetryPolicy:
    """When a failed message is emitted again (Storm: KafkaSpoutRetryExponentialBackoff, with a last attempt that is kept).

    Attributes:
        max_attempts: emissions of one message that may fail or time out. Emissions that are exempt don't count:
            those that got lost, or that an outage or an error in the Spark driver ended.
        first_delay_secs: wait before the second emission. The defaults wait 1, 2, 4 ... 60 s, two minutes in all, so that a
            store that is away for a minute costs no message.
        multiplier: each further wait is so many times the one before.
        max_delay_secs: longest wait, before jitter.
        jitter: each wait is longer or shorter by a random share of up to this, 0 to 1, so that what failed together does not
            come back together.
        last_alone: whether the last attempt of a message goes out in an emission of its own, so that nothing else is in its
            way, and it is in the way of nothing else. Each is a job.
        by_reason: another policy for attempts that ended for a reason: `timeout`, `failed`, or a fail whose text begins with
            these words, such as the name of an exception. The longest that fits counts; attempts are those of all reasons.
    """

    max_attempts: int = 8
    first_delay_secs: float = 1.0
    multiplier: float = 2.0
    max_delay_secs: float = 60.0
    jitter: float = 0.2
    last_alone: bool = False
    by_reason: Mapping[str, "RetryPolicy"] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise BadConfigError(f"max_attempts={self.max_attempts!r}: use an integer of 1 or more")
        check_finite("first_delay_secs", self.first_delay_secs)
        check_finite("max_delay_secs", self.max_delay_secs)
        check_finite("multiplier", self.multiplier, 1.0)
        if not 0 <= self.jitter <= 1:
            raise BadConfigError(f"jitter={self.jitter}: use a share of 0 to 1")
        for reason, policy in self.by_reason.items():
            if not reason or not isinstance(policy, RetryPolicy) or policy.by_reason:
                raise BadConfigError(
                    f"by_reason[{reason!r}]: give a reason and a RetryPolicy without reasons of its own"
                )

    def policy_for(self, reason: str, detail: str | None) -> "RetryPolicy":
        """Return the policy after an attempt that ended so.

        >>> policy = RetryPolicy(by_reason={"timeout": RetryPolicy(max_attempts=2), "OSError": RetryPolicy(max_attempts=9)})
        >>> policy.policy_for("timeout", None).max_attempts, policy.policy_for("failed", "OSError: no route").max_attempts
        (2, 9)
        """
        text = detail or ""
        fits = [known for known in self.by_reason if known == reason or (reason == "failed" and text.startswith(known))]
        named = [known for known in fits if known != reason] or fits  # a text says more than `failed`
        return self.by_reason[max(named, key=len)] if named else self

    def after_failure(self, attempts: Attempts) -> Verdict:
        """Judge attempts that failed or timed out: each counts, unless it is exempt; non-retryable ones are exhausted."""
        failures = attempts.previous + 1 - attempts.exempted - attempts.exempt
        exhausted = (failures >= self.max_attempts) | attempts.non_retryable
        retries = attempts[~exhausted]
        exempt = retries.exempt
        retries = retries.retries(exempt, np.zeros(len(retries), np.bool_))
        if self.last_alone:
            is_last = failures[~exhausted] == self.max_attempts - 1
            retries = replace(retries, max_group=np.where(is_last, 1, retries.max_group).astype(np.int32))
        # Exempt attempts wait, too, so that nothing is asked again and again without a pause.
        exempt_delays = np.minimum(self.delay_secs(attempts.previous[~exhausted] + 1), _EXEMPT_SECS)
        delays = np.where(exempt, exempt_delays, self.delay_secs(failures[~exhausted]))
        return Verdict(retries, delays, exempt, exhausted, failures)

    def after_loss(self, attempts: Attempts, counted: Mask) -> Verdict:
        """Judge attempts that the ledger doesn't know: none is a failure, and those that are `counted` count to LOST_LIMIT."""
        exhausted = (attempts.losses + 1 >= LOST_LIMIT) & counted
        retries = attempts[~exhausted]
        retries = retries.retries(np.ones(len(retries), np.bool_), counted[~exhausted])
        return Verdict(
            retries,
            np.zeros(len(retries)),
            np.ones(len(retries), np.bool_),
            exhausted,
            attempts.previous - attempts.exempted,
        )

    def delay_secs(self, failures: Int64Array) -> FloatArray:
        """Return how long each message waits after so many failures."""
        if self.first_delay_secs == 0:
            return np.zeros(len(failures))
        with np.errstate(over="ignore"):  # of an exponent that large the cap is what counts
            growing = self.first_delay_secs * self.multiplier ** (failures - 1.0)
        longest: FloatArray = np.minimum(self.max_delay_secs, growing)
        return longest * (1 + self.jitter * _random.uniform(-1, 1, len(failures)))
