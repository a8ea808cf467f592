"""Callbacks of the program: called again where they raise, as the work on their messages is done already."""

import logging
import time
from collections.abc import Callable
from typing import Any

from acker_redis.errors import AckerError
from acker_redis.model.interrupts import interrupt_behind

log = logging.getLogger("acker_redis.spout")

PAUSES_SECS = (0.1, 1.0)
"""Pauses before further calls of a callback that raised."""


def with_retries(call: Callable[[Any], object], name: str) -> Callable[[Any], None]:
    """Wrap a callback: where it raises, it is called again with the same messages.

    Raises:
        AckerError: it raised each time; the program was not notified of these messages.
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
                failure = f"{name} raised {type(exc).__name__}: {exc}"
                if pause_secs is None:
                    raise AckerError(
                        f"{failure}, {len(PAUSES_SECS) + 1} times in a row, for the same {len(messages)} messages. Their work "
                        "is done, but not noted, so it is done again when the program is started again. Fix the function first"
                    ) from exc
                log.warning("%s; it is called again with the same %d messages", failure, len(messages))
                time.sleep(pause_secs)

    return repeat
