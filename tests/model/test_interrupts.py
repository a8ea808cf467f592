"""Ctrl-C is raised as that, whatever fails on the way out."""

import pytest

from acker_redis.model.interrupts import interrupt_behind, interruptible


def fail_on_the_way_out(kind: type[BaseException]) -> None:
    try:
        raise kind("what came first")
    finally:
        raise OSError("the job was cancelled")  # noqa: B012


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupt_is_raised_in_place_of_later_errors(kind: type[BaseException]) -> None:
    with pytest.raises(kind, match="what came first") as caught, interruptible():
        try:
            fail_on_the_way_out(kind)
        except OSError as exc:
            raise ValueError("told by somebody else") from exc
    assert caught.value.__suppress_context__


def test_errors_without_interrupt_are_raised_unchanged() -> None:
    with pytest.raises(OSError, match="cancelled"), interruptible():
        fail_on_the_way_out(ValueError)
    circle = OSError("one")
    circle.__context__ = ValueError("two")
    circle.__context__.__context__ = circle
    assert interrupt_behind(circle) is None
