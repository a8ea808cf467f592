"""Tests that `make chaos` or `make matrix` has, because others stand for them."""

from pathlib import Path

import pytest

from tests.support import elsewhere, repeats

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("test", repeats.REPEATS)
def test_a_repeated_test_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


BEGINNINGS = (
    *elsewhere.NAMES,
    *(f"tests/{file}::test_{one}" for file, tests in elsewhere.STAY.items() for one in tests),
)


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_test_that_is_elsewhere_exists(beginning: str) -> None:
    path, _, name = beginning.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert f"def {name.partition('[')[0]}" in text
    assert not name.endswith("[") and ("[" not in name or "parametrize" in text or "params=" in text)


def test_elsewhere_is_a_choice_of_tests_by_the_beginning_of_their_names() -> None:
    file, (first, *_) = next((file, tests) for file, tests in elsewhere.STAY.items() if tests)
    assert not elsewhere.is_elsewhere(f"tests/{file}::test_{first}_and_more")
    assert elsewhere.is_elsewhere(f"tests/{file}::test_of_another_name")
    assert elsewhere.is_elsewhere(f"{elsewhere.NAMES[0]}_and_more")
    assert not elsewhere.is_elsewhere("tests/lua/test_expire.py::test_of_any_name")


def test_further_parameters_of_tests_on_spark_are_elsewhere() -> None:
    names = ["tests/spark/test_a.py::test_b[1]", "tests/spark/test_a.py::test_b[2]", "tests/spark/test_a.py::test_c"]
    each = [f"tests/{elsewhere.EVERY_CASE[-1]}::test_d[{number}]" for number in (1, 2)]
    assert list(elsewhere.further_cases([*names, *each])) == [names[1]]


def test_other_servers_than_valkey_are_elsewhere_but_for_scripts_and_replies() -> None:
    name = "tests/ops/test_a.py::test_b"
    assert [elsewhere.is_on_another_server(name, [7, one]) for one in ("valkey", "redis7", "fake")] == [
        False,
        True,
        True,
    ]
    assert not elsewhere.is_on_another_server(f"tests/{elsewhere.EVERY_KIND[0]}test_c.py::test_d", ["redis7"])


@pytest.mark.parametrize("beginning", [*elsewhere.EVERY_CASE, *elsewhere.EVERY_KIND])
def test_files_whose_every_case_or_kind_runs_exist(beginning: str) -> None:
    file, _, test = beginning.partition("::")
    path = ROOT / "tests" / file
    assert path.exists()
    assert not test or f"\ndef {test}" in path.read_text()
