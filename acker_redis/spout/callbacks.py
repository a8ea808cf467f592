"""Calls of what a user gave to be told of what is done: once more where it raises, as its messages' work is done already."""

import logging
import time
from collections.abc import Callable
from typing import Any

from acker_redis.errors import AckerError
from acker_redis.model.interrupts import interrupt_behind

log = logging.getLogger("acker_redis.spout")

PAUSES_SECS = (0.1, 1.0)
"""It is called again so often, after so long."""


def insisting(call: Callable[[Any], object], name: str) -> Callable[[Any], None]:
    """The same; where it raises, it is called again with the same messages.

    Raises:
        AckerError: it raised each time; the messages are still to be told of.
    """

    def insist(messages: Any) -> None:
        for pause_secs in (*PAUSES_SECS, None):
            try:
                call(messages)
                return
            except AckerError:
                raise
            except Exception as exc:
                if interrupt_behind(exc) is not None:
                    raise
                said = f"{name} raised {type(exc).__name__}: {exc}"
                if pause_secs is None:
                    raise AckerError(
                        f"{said}, {len(PAUSES_SECS) + 1} times in a row, for the same {len(messages)} messages. Their work is "
                        "done, but not noted, so it is done again when the program is started again. Mend the function first"
                    ) from exc
                log.warning("%s; it is called again with the same %d messages", said, len(messages))
                time.sleep(pause_secs)

    return insist
