"""Retries for callbacks that raise, because the work on their messages is done already."""

import logging
import time
from collections.abc import Callable
from typing import Any

from acker_redis.errors import AckerError
from acker_redis.model.interrupts import interrupt_behind

log = logging.getLogger("acker_redis.spout")

PAUSES_SECS = (0.1, 1.0)
"""Pauses before a callback that raised is called again."""


def with_retries(call: Callable[[Any], object], name: str) -> Callable[[Any], None]:
    """Wrap a callback so that it is called again with the same messages if it raises.

    Raises:
        AckerError: the callback raised each time, so the program was not notified of these messages.
    """

    def repeat(messages: Any) -> None:
        for pause_secs in (*PAUSES_SECS, None):
            try:
                call(messages)
                return
            except AckerError:
                raise
            except Exception as exc:
                if interrupt_behind(exc) is not None:
                    raise
                failure = f"{type(exc).__name__}: {exc}"
                if pause_secs is None:
                    raise AckerError(
                        f"{name} raised {failure} ({len(PAUSES_SECS) + 1} times in a row for the same {len(messages)} "
                        "messages). Their work is done but not recorded, so the next start of the program repeats it. Fix "
                        "the function first."
                    ) from exc
                log.warning(
                    "callback raised, and is called again with the same messages callback=%s messages=%d error=%s",
                    name, len(messages), failure,
                )  # fmt: skip
                time.sleep(pause_secs)

    return repeat
