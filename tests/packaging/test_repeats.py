"""Tests that `make chaos` has, because their neighbours stand for them."""

from pathlib import Path

import pytest

from tests.support import repeats

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("test", repeats.REPEATS)
def test_a_repeated_test_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")
