"""Retry policy: when a message is replayed, and when its attempts are exhausted."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from acker_redis.errors import BadConfigError
from acker_redis.model.arrays import FloatArray, Int64Array
from acker_redis.model.config import check_finite
from acker_redis.spout.in_flight import Attempts, Mask

LOST_LIMIT = 10
"""Number of lost roots after which a message becomes a dead letter: `emit` received it and never initialised it.

A root that times out before its emission has ended counts, too. From this number on, such a timeout is an attempt.
"""

_EXEMPT_SECS = 30.0
"""Longest delay after an exempt emission."""

_OUTAGE_DELAY_SECS = 0.5
"""Shortest delay after a failure by an outage. Each further one is twice as long, up to `_EXEMPT_SECS`."""

_random = np.random.default_rng()


class Verdict(NamedTuple):
    """Decision about messages whose attempts did not succeed.

    Attributes:
        retries: next attempts of messages that have one left.
        delays_secs: delay of each retry.
        exempt: mask of retries that follow an attempt that doesn't count.
        exhausted: mask of judged attempts that were the last of their message.
        failures: number of counted attempts of each judged message, including this one.
    """

    retries: Attempts
    delays_secs: FloatArray
    exempt: Mask
    exhausted: Mask
    failures: Int64Array


@dataclass(frozen=True)
class RetryPolicy:
    """Retry failed messages with exponential backoff, then dead-letter them.

    Storm's counterpart is KafkaSpoutRetryExponentialBackoff. Here a message is kept after its last attempt.

    Attributes:
        max_attempts: number of emissions of one message that may fail or time out. Exempt emissions don't count: those that
            were lost, or that an outage or an error in the Spark driver ended. See `outage_secs`.
        first_delay_secs: delay before the second emission. The defaults wait 1, 2, 4 ... 60 s, two minutes in all.
        multiplier: factor between one delay and the next.
        max_delay_secs: longest delay, before jitter.
        jitter: random share, 0 to 1, by which each delay is lengthened or shortened at most. It keeps messages that failed
            together from returning together.
        last_alone: True to emit the last attempt of each message in an emission of its own, isolated from all other
            messages. Each is a job.
        by_reason: policies for particular reasons: `timeout`, `failed`, or the first words of a fail's text, such as the
            name of an exception. The longest match applies. Attempts are counted over all reasons. A connection error that
            is named here counts as an attempt at once.
        outage_secs: time for which messages wait for the end of an outage, in seconds. A row that fails because something is
            unreachable counts no attempt, and is emitted again with growing delays of up to 30 s. Its message becomes a dead
            letter after this time and `max_attempts` such failures, and only if the same operator or sink has processed a
            row of another message since. In the emission of the first failure is enough, if fewer than 20 messages wait
            there. Otherwise a run completes all other messages and ends with an error, and a stream goes on waiting. 0: such
            errors count as any other, as they do for the spouts of topologies.
    """

    max_attempts: int = 8
    first_delay_secs: float = 1.0
    multiplier: float = 2.0
    max_delay_secs: float = 60.0
    jitter: float = 0.2
    last_alone: bool = False
    by_reason: Mapping[str, "RetryPolicy"] = field(default_factory=dict, hash=False)
    outage_secs: float = 600.0

    def __post_init__(self) -> None:
        if isinstance(self.max_attempts, bool) or not isinstance(self.max_attempts, int) or self.max_attempts < 1:
            raise BadConfigError(f"max_attempts={self.max_attempts!r} is invalid. Use an integer of 1 or more.")
        check_finite("first_delay_secs", self.first_delay_secs)
        check_finite("max_delay_secs", self.max_delay_secs)
        check_finite("multiplier", self.multiplier, 1.0)
        check_finite("outage_secs", self.outage_secs)
        if not 0 <= self.jitter <= 1:
            raise BadConfigError(f"jitter={self.jitter} is out of range. Use a share from 0 to 1.")
        for reason, policy in self.by_reason.items():
            if not reason or not isinstance(policy, RetryPolicy) or policy.by_reason:
                raise BadConfigError(
                    f"by_reason[{reason!r}] is invalid. Map a non-empty reason to a RetryPolicy without by_reason."
                )

    def policy_for(self, reason: str, detail: str | None) -> "RetryPolicy":
        """Return the policy that applies to this reason and detail.

        >>> policy = RetryPolicy(by_reason={"timeout": RetryPolicy(max_attempts=2), "OSError": RetryPolicy(max_attempts=9)})
        >>> policy.policy_for("timeout", None).max_attempts, policy.policy_for("failed", "OSError: no route").max_attempts
        (2, 9)
        """
        text = detail or ""
        fits = [known for known in self.by_reason if known == reason or (reason == "failed" and text.startswith(known))]
        named = [known for known in fits if known != reason] or fits  # a text says more than `failed`
        return self.by_reason[max(named, key=len)] if named else self

    def waits_for(self, detail: str) -> bool:
        """Return True if an outage with this text is waited for, so that it is no attempt.

        >>> RetryPolicy().waits_for("TimeoutError: no answer"), RetryPolicy(outage_secs=0).waits_for("TimeoutError: no answer")
        (True, False)
        """
        is_named = any(known != "failed" and detail.startswith(known) for known in self.by_reason)
        return not is_named and self.policy_for("failed", detail).outage_secs > 0

    def after_outage(self, attempts: Attempts, failures: Int64Array, exhausted: Mask) -> Verdict:
        """Judge attempts that failed because something was unreachable. None counts.

        Args:
            attempts: the attempts.
            failures: number of such failures of each message, including this one.
            exhausted: mask of those that were the last of their message.
        """
        retries = attempts[~exhausted]
        exempt = np.ones(len(retries), np.bool_)
        retries = retries.retries(exempt, np.zeros(len(retries), np.bool_))
        growing = _OUTAGE_DELAY_SECS * 2.0 ** np.minimum(failures[~exhausted] - 1.0, 16)
        delays = np.minimum(np.maximum(growing, self.delay_secs(failures[~exhausted])), _EXEMPT_SECS)
        return Verdict(retries, delays, exempt, exhausted, attempts.previous - attempts.exempted + failures)

    def after_failure(self, attempts: Attempts) -> Verdict:
        """Judge attempts that failed or timed out. Each counts unless exempt; non-retryable ones are exhausted."""
        failures = attempts.previous + 1 - attempts.exempted - attempts.exempt
        exhausted = (failures >= self.max_attempts) | attempts.non_retryable
        retries = attempts[~exhausted]
        exempt = retries.exempt
        retries = retries.retries(exempt, np.zeros(len(retries), np.bool_))
        if self.last_alone:
            is_last = failures[~exhausted] == self.max_attempts - 1
            retries = replace(retries, max_group=np.where(is_last, 1, retries.max_group).astype(np.int32))
        # Exempt attempts are delayed, too, so no service is called in a tight loop.
        exempt_delays = np.minimum(self.delay_secs(attempts.previous[~exhausted] + 1), _EXEMPT_SECS)
        delays = np.where(exempt, exempt_delays, self.delay_secs(failures[~exhausted]))
        return Verdict(retries, delays, exempt, exhausted, failures)

    def after_loss(self, attempts: Attempts, counted: Mask) -> Verdict:
        """Judge attempts that are missing from the ledger. None is a failure; `counted` ones count towards LOST_LIMIT."""
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
        """Return the delay of each message after its number of failures, in seconds."""
        if self.first_delay_secs == 0:
            return np.zeros(len(failures))
        with np.errstate(over="ignore"):  # the cap applies to an overflow, too
            growing = self.first_delay_secs * self.multiplier ** (failures - 1.0)
        longest: FloatArray = np.minimum(self.max_delay_secs, growing)
        return longest * (1 + self.jitter * _random.uniform(-1, 1, len(failures)))
