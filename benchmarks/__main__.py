"""Command line of the benchmarks: run them, print a Markdown table, store the results, and draw them."""

import importlib
import json
import os
import pkgutil
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Annotated

import typer

import benchmarks
from acker_redis.errors import ServerNotFoundError
from benchmarks import harness, plots
from benchmarks.harness import Bench, Benchmark, Row

_RESULTS = Path("build/bench")
_PUBLISHED = Path(__file__).resolve().parent.parent / "docs/reference/measured/results.json"
_WORSE = 1.05
"""A row got worse if its best repeat is this far beyond the worst repeat of the row that it is compared with."""

_PACKAGES = ("acker-redis", "redis", "hiredis", "numpy", "pyspark")


def main(
    names: Annotated[list[str] | None, typer.Argument(help="benchmarks to run; all of them by default")] = None,
    scale: Annotated[float, typer.Option(min=0.0001, help="size of the runs; 1 is what the targets are for")] = 1.0,
    server: Annotated[str | None, typer.Option(help="only on this kind of server: valkey or redis")] = None,
    results: Annotated[
        Path, typer.Option(help="folder for results.json and the plots; what is there of other benchmarks is kept")
    ] = _RESULTS,
) -> None:
    """Measure speed and memory. Ratios are taken within one run on one server.

    The end names the rows that are worse than those in the documentation.
    """
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.name != "__main__":
            importlib.import_module(f"benchmarks.{module.name}")
    known = harness.REGISTERED
    unknown = sorted(set(names or []) - set(known))
    if unknown:
        raise typer.BadParameter(f"no benchmark {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    print(f"{machine()}\n")
    rows: list[Row] = []
    for name in names or sorted(known):
        for row in rows_of(known[name], scale, server):
            print(f"{row.benchmark}, {row.server}: {row.measure}: {row.value:.2f} {row.unit}", file=sys.stderr)
            rows.append(row)
    print(table(rows))
    if scale == 1:
        published = kept(_PUBLISHED)  # read before the new rows may take its place
        found = worse(rows, published)
        print("\n".join(["", *found] if found else ["", "No row with a target got worse than in the documentation."]))
    drawn = plots.draw(keep(rows, results / "results.json", scale), results)
    print("\n".join(["", f"Results so far are in {results}", *map(str, drawn)]))


def rows_of(chosen: Benchmark, scale: float, server: str | None = None) -> Iterator[Row]:
    """Run one benchmark, on a fresh server of each kind that is installed."""
    if not chosen.per_server:
        yield from chosen.run(Bench(chosen.name, "", "", False, scale))
        return
    for kind in harness.SERVER_KINDS:
        if server not in (None, kind.name):
            continue
        try:
            process = kind.server()
        except ServerNotFoundError as exc:
            print(f"{chosen.name}: {exc}", file=sys.stderr)
            continue
        with process:
            label, is_valkey = harness.version(process.url)
            yield from chosen.run(Bench(chosen.name, label, process.url, is_valkey, scale))


def keep(rows: list[Row], path: Path, scale: float) -> list[Row]:
    """Replace the rows of the same benchmarks and servers in the file. Return all rows now in it.

    Rows of another machine, other versions or another scale aren't comparable and are dropped.
    """
    measured = {(row.benchmark, row.server) for row in rows}
    old = json.loads(path.read_text()) if path.exists() else {}
    if (old.get("machine"), old.get("scale")) == (machine(), scale):
        rows = [row for row in kept(path) if (row.benchmark, row.server) not in measured] + rows
    path.parent.mkdir(parents=True, exist_ok=True)
    results_now = {"machine": machine(), "scale": scale, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(results_now, indent=1) + "\n")
    return rows


def kept(path: Path) -> list[Row]:
    """Return the rows of a results file."""
    return [Row(**row) for row in json.loads(path.read_text())["rows"]]


def worse(rows: list[Row], published: list[Row]) -> list[str]:
    """Return a sentence for each row with a target that got worse than the published row of the same kind of server.

    The two ranges of repeats must lie apart, because machines are noisy. Rows without a target have no better and worse.
    """
    earlier = {_place(row): row for row in published}
    sentences = []
    for row in rows:
        before = earlier.get(_place(row))
        if before is None or row.target is None:
            continue
        is_worse = row.high * _WORSE < before.low if row.at_least else row.low > before.high * _WORSE
        if is_worse:
            sentences.append(
                f"Worse: {row.benchmark}, {row.server}: {row.measure}: {_figure(row.value)} {row.unit}, where the"
                f" documentation has {_figure(before.value)} {before.unit}."
            )
    return sentences


def _place(row: Row) -> tuple[str, str, str]:
    return row.benchmark, row.server.partition(" ")[0], row.measure


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| server | what | target | measured | min ... max | met | absolute |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        sign = "≥" if row.at_least else "≤"
        target = "" if row.target is None else f"{sign} {_figure(row.target)} {row.unit}"
        span = "" if row.low == row.high else f"{_figure(row.low)} ... {_figure(row.high)}"
        met = {None: "", True: "yes", False: "**no**"}[row.met]
        cells = [row.server, row.measure, target, f"{_figure(row.value)} {row.unit}", span, met, row.context]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> str:
    """Return processor, system and versions, as one line. Without them no figure has a meaning."""
    versions = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {package_version(package)}")
        except PackageNotFoundError:
            continue
    return f"{_processor()}, {os.cpu_count()} cores, {platform.system()}; {', '.join(versions)}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"


if __name__ == "__main__":
    typer.run(main)
