"""Plots of benchmarks: what was measured is drawn, and nothing else."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as program
from benchmarks import plots
from benchmarks.harness import Row

ROOT = Path(__file__).resolve().parents[2]
ALL = [f"measured-{plot.name}.svg" for plot in plots.PLOTS]


def row(
    benchmark: str, measure: str, value: float = 1.5, server: str = "Valkey 9.1", target: float | None = 1.0
) -> Row:
    return Row(benchmark, server, measure, value, "x", value * 0.9, value * 1.1, target)


HSET = "server CPU: {} / HSET, roots {}"
ROWS = [
    row("ledger", HSET.format("init", "32 to a block")),
    row("ledger", HSET.format("init", "alone"), target=None),
    row("ledger", HSET.format("init", "32 to a block"), server="Redis 7.0"),
    *(
        row("ledger", HSET.format("ack that leaves the tree open", f"{few} of 32 in a block"), value=8 / few)
        for few in (8, 1)
    ),
    row("memory", "bytes per pending root, alone, 1 M"),
    row("growth", "server CPU per init, 10 M pending"),
    row("growth", "server CPU per init, 8 shards"),
    row("realistic", "JSON: tracked / untracked wall"),
]


def text(path: Path) -> str:
    return " ".join(ElementTree.parse(path).getroot().itertext())  # noqa: S314


def test_every_plot_is_drawn_from_measured_rows(tmp_path: Path) -> None:
    assert [path.name for path in plots.draw(ROWS, tmp_path)] == ALL
    found = text(tmp_path / "measured-ledger.svg")
    assert "init, roots alone" in found
    assert "Valkey" in found
    assert "Redis" in found
    assert "Redis" not in text(tmp_path / "measured-memory.svg")
    assert "roots of the block" in text(tmp_path / "measured-few.svg")


def test_plot_without_measured_rows_is_not_drawn(tmp_path: Path) -> None:
    assert plots.draw([], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()
    assert [path.name for path in plots.draw(ROWS[-1:], tmp_path)] == ["measured-pipelines.svg"]


def test_the_same_rows_give_the_same_file(tmp_path: Path) -> None:
    files = [plots.draw(ROWS, tmp_path / again) for again in ("one", "two")]
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_results_are_kept_until_they_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    old = [row("ledger", "a"), row("ledger", "b"), row("memory", "c"), row("ledger", "a", server="Redis 7.0")]
    assert program.keep(old, path, 1.0) == old
    again = [row("ledger", "a", value=3.0)]
    assert program.keep(again, path, 1.0) == [old[2], old[3], again[0]]
    assert program.keep([], path, 1.0) == [old[2], old[3], again[0]]


@pytest.mark.parametrize("other", ["scale", "machine"])
def test_results_of_another_scale_or_machine_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    path = tmp_path / "results.json"
    program.keep([row("memory", "a")], path, 1.0)
    if other == "machine":
        monkeypatch.setattr(program, "machine", lambda: "another one")
    new = [row("ledger", "b")]
    assert program.keep(new, path, 0.1 if other == "scale" else 1.0) == new


def test_benchmarks_doc_shows_plots_of_the_stored_results(tmp_path: Path) -> None:
    page = (ROOT / "docs/reference/benchmarks.md").read_text()
    folder = ROOT / "docs/reference/measured"
    assert sorted(path.name for path in folder.glob("*.svg")) == sorted(ALL)
    for name in ALL:
        assert f"](measured/{name})" in page
    for path in plots.draw(program.kept(folder / "results.json"), tmp_path):
        assert text(path) == text(folder / path.name), f"{path.name}: draw it anew"
