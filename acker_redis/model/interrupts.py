"""Find the interrupt (Ctrl-C) behind an error.

Code that cleans up after an interrupt may fail itself. PySpark cancels all jobs and waits for the running one, then raises
that job's error.
"""

from collections.abc import Iterator
from contextlib import contextmanager


def interrupt_behind(error: BaseException | None) -> BaseException | None:
    """Find the interrupt before an error. Returns None if there is none."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            return error
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise the interrupt instead of an error that followed it."""
    try:
        yield
    except Exception as exc:
        interrupt = interrupt_behind(exc)
        if interrupt is None:
            raise
        raise interrupt.with_traceback(None) from None
