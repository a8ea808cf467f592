"""Run ids, claimed once each.

Roots and idempotency keys are derived from a run id. Updates of a second run with the same id would look like repeats of the
first. Its inits and acks would change nothing, and its messages would time out.
"""

import math
import secrets

from acker_redis.client.client import Client
from acker_redis.errors import BadConfigError
from acker_redis.model import keys
from acker_redis.model.config import AckerConfig

KEEP_SECS = 7 * 24 * 3600
"""Minimum time that a claim is kept. Longer for long message timeouts or maximum ages."""


def claim(client: Client, config: AckerConfig, run_id: str) -> None:
    """Claim a run id for this run.

    Raises:
        BadConfigError: `run_id` is not a valid name, or an earlier run has claimed it.
    """
    if not keys.is_name(run_id):
        raise BadConfigError(f"run_id={run_id!r} is not a run id. Use a text of 1 to 100 characters.")
    key, claim_id = keys.run(config.app, run_id), secrets.token_hex(8).encode()
    keep_secs = max(KEEP_SECS, math.ceil(4 * config.message_timeout_secs + (config.max_age_secs or 0)))
    # GET decides, not SET: after a lost reply the client sends both again.
    _, owner = client.pipeline([("SET", key, claim_id, "NX", "EX", keep_secs), ("GET", key)])
    if owner != claim_id:
        raise BadConfigError(
            f"run_id={run_id!r} was used by an earlier run of app {config.app!r}. Updates of this run would count as repeats "
            "and change nothing. Use a new run_id, or omit it."
        )
