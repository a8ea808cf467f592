"""The tour runs, and shows what it showed when it was written down."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
TOUR = ROOT / "spark" / "tour.ipynb"


def outputs(notebook: Any) -> list[list[Any]]:
    """Of each cell. A slow machine takes long enough for the warning that no rotator runs."""
    return [
        [shown for one in cell.outputs if "no rotator running" not in (shown := one.get("text") or one["data"])]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.spark
def test_tour_notebook_reproduces_its_saved_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    written = nbformat.read(TOUR, as_version=4)  # type: ignore[no-untyped-call]
    run = nbformat.read(TOUR, as_version=4)  # type: ignore[no-untyped-call]
    for cell in run.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    # A slow kernel sends what a cell prints in several parts.
    NotebookClient(
        run, timeout=300, kernel_name="python3", coalesce_streams=True, resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    assert outputs(run) == outputs(written)
    assert sum("image/svg+xml" in str(one) for one in outputs(written)) == 8
