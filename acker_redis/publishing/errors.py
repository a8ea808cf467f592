"""Errors of publishing. They move to `acker_redis.errors` once a run can raise them."""

from acker_redis.errors import AckerError


class FencedError(AckerError):
    """A newer run decides which rows belong into the tables, so this one ends.

    What this run had decided before counts, and is published. It acked nothing that wasn't decided.
    """


class LogLostError(AckerError):
    """A table has rows that its publish log doesn't know, because the log was lost or set back.

    Nothing was written: the same messages would get their rows twice.
    """


class FilesNotMovedError(AckerError):
    """Staged files can't be put into their table, for no reason that waiting could change.

    Nothing was acked that depends on them.
    """
