"""Options that several commands share."""

import pytest

from acker_redis import BadConfigError
from acker_redis.cli.options import letter_filter


def test_letter_filter_with_unknown_reason_is_refused() -> None:
    with pytest.raises(BadConfigError, match=r"--reason 'oops' is unknown.*Use one of failed, timeout, lost, corrupt"):
        letter_filter(None, None, "oops", None, None, None, None)
