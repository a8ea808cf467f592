"""The live dashboard of `acker-redis top`. Needs the extra `top`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from acker_redis.cli.output import printable
from acker_redis.client.client import Client
from acker_redis.errors import AckerError
from acker_redis.ops.dashboard import OK, PAUSED, SEVERITY, AppState, app_states, dashboard


@dataclass(frozen=True)
class _Column:
    """Column of the table: the text for an app, and the sort key, the largest first."""

    title: str
    shown: Callable[[AppState], str]
    order: Callable[[AppState], Any]
    right: bool = True


def _age(ms: int | None) -> str:
    if ms is None:
        return "-"
    secs = ms / 1000
    if secs < 120:
        return f"{secs:.1f}s" if secs < 10 else f"{secs:.0f}s"
    return f"{secs / 60:.0f}m" if secs < 7200 else f"{secs / 3600:.0f}h"


def _size(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.1f}M"


def _state_text(state: AppState) -> str:
    component = next(iter(state.pending_by_component), "") if state.state == "HANGS" else ""
    return f"{state.state}: {component}" if component else state.state


COLUMNS = (
    _Column("STATE", _state_text, lambda app: -SEVERITY.index(app.state), right=False),
    _Column("PEND", lambda app: f"{app.pending}", lambda app: app.pending),
    _Column("ack/s", lambda app: f"{app.acked_per_sec:.0f}", lambda app: app.acked_per_sec),
    _Column("to/min", lambda app: f"{app.timed_out_per_min:.0f}", lambda app: app.timed_out_per_min),
    _Column("fail/min", lambda app: f"{app.failed_per_min:.0f}", lambda app: app.failed_per_min),
    _Column("OLDEST", lambda app: _age(app.oldest_ms), lambda app: app.oldest_ms or 0),
    _Column("LAG", lambda app: f"{app.waiting}", lambda app: app.waiting),
    _Column("ROTATOR", lambda app: f"{_age(app.rotated_ms_ago)}/{_age(app.tick_ms)}", lambda app: app.rotated_ms_ago or 0),
    _Column("MEM", lambda app: _size(app.memory_bytes), lambda app: app.memory_bytes or 0),
    _Column("DEAD", lambda app: "-" if app.dead_letters is None else f"{app.dead_letters}", lambda app: app.dead_letters or 0),
)  # fmt: skip
_STYLES = {OK: "green", PAUSED: "yellow"}


class OneApp(Screen[None]):
    """The dashboard of one app, as `acker-redis status --app` prints it."""

    BINDINGS: ClassVar = [Binding("escape,backspace", "app.pop_screen", "All apps")]

    def __init__(self, name: str) -> None:
        super().__init__()
        self.app_name = name

    def compose(self) -> ComposeResult:
        """Show the report and the keys."""
        yield VerticalScroll(Static("loading …", id="report"))
        yield Footer()


class Top(App[None]):
    """Table of every app of a server, updated regularly. A server that doesn't answer is asked until it does."""

    ENABLE_COMMAND_PALETTE = False
    CSS = "#head, #why { height: auto; padding: 0 1; } #report { padding: 0 1; }"
    BINDINGS: ClassVar = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("s", "sort(1)", "Sort by the next column"),
        Binding("S", "sort(-1)", "Sort by the previous column"),
    ]

    def __init__(self, client: Client, every_secs: float) -> None:
        super().__init__()
        self._client, self._every_secs = client, every_secs
        self._sorted_by = 0
        self._states: list[AppState] = []

    def compose(self) -> ComposeResult:
        """Show a line about the server, the table, the cause of the selected app's state, and the keys."""
        yield Static(id="head")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Static(id="why")
        yield Footer()

    def on_mount(self) -> None:
        """Ask now, and then at regular intervals."""
        self.query_one(DataTable).add_columns("APP", *(column.title for column in COLUMNS))
        self.ask()
        self.set_interval(self._every_secs, self.ask)

    @work(thread=True, exclusive=True)
    def ask(self) -> None:
        """Ask the server for the data of the current screen, in a thread because the answer may take long."""
        screen = self.screen
        try:
            if isinstance(screen, OneApp):
                report = "\n\n".join(dashboard(self._client, screen.app_name))
                self.call_from_thread(self._show_report, screen, report)
            else:
                self.call_from_thread(self._show, app_states(self._client))
        except AckerError as exc:
            self.call_from_thread(self._show_error, exc)

    def action_sort(self, step: int) -> None:
        """Sort by another column."""
        self._sorted_by = (self._sorted_by + step) % len(COLUMNS)
        self._show(self._states)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the dashboard of one app."""
        self.push_screen(OneApp(str(event.row_key.value)))
        self.call_after_refresh(self.ask)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the cause of the selected app's state."""
        why = {state.app: state.why for state in self._states}
        self.query_one("#why", Static).update(Text(printable(why.get(str(event.row_key.value), ""))))

    def _show(self, states: list[AppState]) -> None:
        self._states = sorted(states, key=COLUMNS[self._sorted_by].order, reverse=True)
        table = self.query_one(DataTable)
        row, sick = table.cursor_row, sum(not state.healthy for state in states)
        table.clear()
        for state in self._states:
            style = _STYLES.get(state.state, "bold red")
            cells = [Text(printable(state.app), style)]
            for column in COLUMNS:
                justify: Any = "right" if column.right else "left"
                cells.append(
                    Text(printable(column.shown(state)), style if column.title == "STATE" else "", justify=justify)
                )
            table.add_row(*cells, key=state.app)
        table.move_cursor(row=min(row, max(0, len(states) - 1)))
        by = COLUMNS[self._sorted_by].title
        self._head(f"{self._client.address}  {len(states)} apps, {sick} sick  by {by}  {time.strftime('%H:%M:%S')}")

    def _show_report(self, screen: OneApp, report: str) -> None:
        if screen.is_current:
            shown = "\n".join(printable(line) for line in report.split("\n"))
            screen.query_one("#report", Static).update(Text(shown))

    def _show_error(self, exc: AckerError) -> None:
        self._head(f"{self._client.address}  {exc}")

    def _head(self, text: str) -> None:
        self.screen_stack[0].query_one("#head", Static).update(Text(printable(text)))
