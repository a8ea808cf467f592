"""The process in which many tests run their programs, one after another."""

import pytest

from tests.support.spark.warm import Warm

pytestmark = pytest.mark.spark


def test_program_that_an_earlier_one_has_imported_runs_as_the_main_module(warm: Warm) -> None:
    warm.run("import json.tool", url="")
    status, printed, errors = warm.run_module("json.tool", "--help", url="")
    assert (status, errors) == (0, "")
    assert "usage" in printed
