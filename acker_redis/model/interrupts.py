"""Ctrl-C, where an error stands in front of it.

What cleans up behind an interrupt may fail itself: PySpark cancels all jobs, and waits for the one that was under way, whose
error then is what is raised.
"""

from collections.abc import Iterator
from contextlib import contextmanager


def interrupt_behind(error: BaseException | None) -> BaseException | None:
    """What interrupted the program while it was doing what ended with this error; None: nothing did."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            return error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise what interrupted the program, not what became of that."""
    try:
        yield
    except Exception as exc:
        found = interrupt_behind(exc)
        if found is None:
            raise
        raise found.with_traceback(None) from None
