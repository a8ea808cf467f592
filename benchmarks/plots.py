"""Plots of result rows as SVG: one picture per question, for the page of benchmarks. Missing rows are left out."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.harness import Row

_STYLE = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text: it can be read aloud, and searched
    "svg.hashsalt": "acker_redis",  # the same rows, the same file
}
_COLOURS = {"Valkey": "#2b6cb0", "Redis": "#c05621"}
_WIDTH_INCHES = 5  # 480 pixels: a phone shows it
_LABEL_COLUMNS = 36
_MARKS = "os^vD"


@dataclass(frozen=True)
class Bars:
    """Bar chart: one bar per row and server, from the lowest to the highest repeat, with a black line at the target.

    Attributes:
        name: name of the file.
        title: message of the chart.
        axis: label of the bars' length.
        rows: benchmark and measure, as `benchmark: measure`. Its groups make the label.
        even: value at which both sides, such as tracked and untracked, would be equal.
    """

    name: str
    title: str
    axis: str
    rows: str
    even: float | None = None

    def figure(self, rows: Sequence[Row]) -> Figure | None:
        """Return the figure, or None if there are no rows for it."""
        matching = list(_matching(self.rows, rows))
        if not matching:
            return None
        labels = list(dict.fromkeys(", ".join(groups) for groups, _ in matching))
        servers = sorted({_server(row) for _, row in matching}, reverse=True)
        texts = [textwrap.fill(label, _LABEL_COLUMNS) for label in labels]
        inches_each = max(0.2 * len(servers), 0.15 * (1 + max(text.count("\n") + 1 for text in texts)))
        figure = Figure(figsize=(_WIDTH_INCHES, 0.8 + inches_each * len(labels)), layout="constrained")
        axes = figure.subplots()
        thick = 0.8 / len(servers)
        for groups, row in matching:
            at = labels.index(", ".join(groups)) + (servers.index(_server(row)) - (len(servers) - 1) / 2) * thick
            axes.barh(at, row.value, thick * 0.9, color=_COLOURS[_server(row)])
            axes.plot([row.low, row.high], [at, at], color="#1f2933", linewidth=0.8)
            axes.annotate(f"{row.value:.2f}", (max(row.value, row.high), at), (4, 0),
                          textcoords="offset points", va="center", fontsize=6.5)  # fmt: skip
            if row.target is not None:
                axes.plot([row.target] * 2, [at - thick / 2, at + thick / 2], color="black", linewidth=2)
        if self.even is not None:
            axes.axvline(self.even, color="#9aa5b1", linewidth=0.8, zorder=0)
        axes.set_yticks(range(len(labels)), texts)
        axes.invert_yaxis()
        axes.margins(x=0.08)
        axes.set_xlim(left=0)
        axes.set_xlabel(self.axis)
        _title(figure, self.title)
        figure.legend(handles=[Line2D([], [], color=_COLOURS[name], linewidth=6, label=name) for name in servers],
                      loc="outside lower right", ncols=len(servers), frameon=False)  # fmt: skip
        return figure


@dataclass(frozen=True)
class Lines:
    """Line chart: one line per kind of row, and one panel per server.

    Attributes:
        name: name of the file.
        title: message of the chart.
        across: label of the horizontal axis, which is logarithmic.
        up: label of the vertical axis.
        rows: benchmark and measure, as `benchmark: measure`, with the groups `line` and `x`.
        even: value at which both sides would be equal.
    """

    name: str
    title: str
    across: str
    up: str
    rows: str
    even: float | None = None

    def figure(self, rows: Sequence[Row]) -> Figure | None:
        """Return the figure, or None if there are no rows for it."""
        lines: dict[tuple[str, str], list[tuple[int, Row]]] = {}
        for (line, at), row in _matching(self.rows, rows):
            lines.setdefault((_server(row), line), []).append((int(at), row))
        if not lines:
            return None
        servers = sorted({server for server, _ in lines}, reverse=True)
        figure = Figure(figsize=(_WIDTH_INCHES, 2.6), layout="constrained")
        panels: Sequence[Axes] = figure.subplots(1, len(servers), sharey=True, squeeze=False)[0]
        for axes, server in zip(panels, servers, strict=True):
            ticks = sorted({x for (server_of, _), points in lines.items() if server_of == server for x, _ in points})
            shades = _shades(sum(server_of == server for server_of, _ in lines))
            for number, (line, points) in enumerate((k[1], v) for k, v in lines.items() if k[0] == server):
                points.sort(key=lambda point: point[0])
                xs, ys = [x for x, _ in points], [row.value for _, row in points]
                axes.plot(xs, ys, color=shades[number], marker=_MARKS[number], label=line)
                for x, row in points:
                    if row.target is not None:
                        axes.plot(x, row.target, color="black", marker="_", markersize=14, markeredgewidth=2)
            if self.even is not None:
                axes.axhline(self.even, color="#9aa5b1", linewidth=0.8, zorder=0)
            axes.set_xscale("log")
            axes.minorticks_off()
            axes.set_xticks(ticks, [f"{tick}" for tick in ticks])
            axes.set_xlabel(self.across)
            axes.set_title(server, color=_COLOURS[server])
        panels[0].set_ylim(bottom=0)
        panels[0].set_ylabel(self.up)
        if len({line for _, line in lines}) > 1:
            panels[-1].legend(frameon=False)
        _title(figure, self.title)
        return figure


PLOTS: Sequence[Bars | Lines] = (
    Bars("ledger", "Server CPU of an update, against an HSET of the same server", "times an HSET",
         r"ledger: server CPU: (.+) / HSET, (roots 32 to a block|roots alone)", even=1),
    Lines("few", "An open ack of some of the 32 roots of a block, against an HSET",
          "roots of the block that a call touches", "server CPU, times an HSET",
          r"ledger: server CPU: ack that (?P<line>leaves the tree open) / HSET, roots (?P<x>\d+) .*",
          even=1),
    Bars("memory", "Memory per pending root, everything included", "bytes", r"memory: bytes per pending root, (.+)"),
    Lines("pending", "Server CPU of an update, by what is pending", "million pending roots", "µs per root",
          r"growth: server CPU per (?P<line>.+), (?P<x>\d+) M pending"),
    Lines("shards", "Server CPU of an update, by the number of shards", "shards, with 1 million pending roots",
          "µs per root", r"growth: server CPU per (?P<line>.+), (?P<x>\d+) shards"),
    Bars("pipelines", "Wall time of a tracked pipeline, against the same untracked", "times the untracked one",
         r"(?:realistic|fan_out|word_count|sinks|micro_batches): (.+): tracked / untracked(?: wall)?", even=1),
)  # fmt: skip
"""All plots, in the order of the page."""


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write each plot that has rows to `folder/measured-NAME.svg`. Return the files written."""
    written = []
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        for plot in PLOTS:
            if figure := plot.figure(rows):
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"measured-{plot.name}.svg"
                figure.savefig(path, format="svg", metadata={"Date": None, "Title": plot.title})
                written.append(path)
    return written


def _matching(pattern: str, rows: Iterable[Row]) -> Iterator[tuple[tuple[str, ...], Row]]:
    for row in rows:
        if match := re.fullmatch(pattern, f"{row.benchmark}: {row.measure}"):
            yield match.groups(), row


def _server(row: Row) -> str:
    return row.server.partition(" ")[0]


def _shades(count: int) -> list[tuple[float, float, float, float]]:
    colours = matplotlib.colormaps["viridis"]
    return [colours(0.1 + 0.7 * number / max(count - 1, 1)) for number in range(count)]


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(text, x=0.01, ha="left", fontsize=9, fontweight="bold")
