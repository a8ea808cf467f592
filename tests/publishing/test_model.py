"""Random histories of drivers that publish output once, and the design without each of its repairs."""

from pathlib import Path

import pytest

from tests.publishing.drivers import play
from tests.publishing.world import Faults

MUTANTS = (
    "no fence",
    "no look for a snapshot",
    "letter before log",
    "snapshot after removal",
    "accept without the lock",
    "no count",
    "another run's stage removed",
    "reopened by another letter",
    "reopened message taken for a done one",
    "letter removed before its message is done",
    "an accepted message made a letter",
    "letters deleted at the end",
    "other bytes after an unknown put",
    "a false from rename taken for moved",
)


@pytest.fixture(autouse=True)
def _memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost with the power of the machine here."""
    monkeypatch.setattr("os.fsync", lambda file: None)


@pytest.mark.parametrize("compacts", [False, True], ids=["tables left alone", "tables compacted"])
def test_every_history_ends_with_the_rows_of_one_attempt(tmp_path: Path, *, compacts: bool) -> None:
    for seed in range(25):
        assert not play(tmp_path / str(seed), seed, Faults(compacts=compacts)), f"seed {seed}"


@pytest.mark.chaos
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_missing_repair_shows(tmp_path: Path, mutant: str) -> None:
    assert any(play(tmp_path / str(seed), seed, Faults(mutant=mutant)) for seed in range(400))
