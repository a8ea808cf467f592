"""The live dashboard, driven by keys as a terminal would."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from acker_redis import Acker
from acker_redis.cli.top import COLUMNS, Top
from acker_redis.client.client import Client
from acker_redis.testing.server import Server


def drive(url: str, look: Callable[[Top, Pilot[None]], Awaitable[None]], size: tuple[int, int] = (120, 30)) -> None:
    async def main() -> None:
        client = Client(url, outage_timeout_secs=0)
        top = Top(client, 3600)
        async with top.run_test(size=size) as pilot:
            await settled(top, pilot)
            await look(top, pilot)
        client.close()

    asyncio.run(main())


async def settled(top: Top, pilot: Pilot[None]) -> None:
    await pilot.pause()
    await top.workers.wait_for_complete()
    await pilot.pause()


def rows(top: Top) -> list[list[str]]:
    table: Any = top.screen_stack[0].query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def text_of(top: Top, name: str) -> str:
    return str(top.screen.query_one(name, Static).content)


def fill(connect: Callable[..., Acker], raw: Any) -> None:
    for name, roots in (("few", 10), ("many", 1000), ("lost", 0)):
        acker = connect(app=name)
        if roots:
            ids = acker.new_roots(roots)
            acker.init_many(ids, ids, 0)
            acker.ack_many(ids, np.ones(roots, np.int64), component="pa\x1b[31mrse")
    raw.delete("acker:{lost:0}:meta")


def test_sick_apps_come_first_until_sorted_by_another_column(url: str, raw: Any, connect: Callable[..., Acker]) -> None:
    fill(connect, raw)

    async def look(top: Top, pilot: Pilot[None]) -> None:
        assert [row[:2] for row in rows(top)] == [["lost", "LOST"], ["few", "ok"], ["many", "ok"]]
        assert "3 apps, 1 sick  by STATE" in text_of(top, "#head")
        assert "1 of 8 shards have no data" in text_of(top, "#why")
        await pilot.press("s")
        assert [row[0] for row in rows(top)] == ["many", "few", "lost"]
        assert "by PEND" in text_of(top, "#head")
        await pilot.press("S")
        assert rows(top)[0][0] == "lost"
        for _ in COLUMNS:
            await pilot.press("s")
        assert rows(top)[0][0] == "lost"

    drive(url, look)


def test_enter_opens_an_app_and_escape_returns_to_the_list(url: str, raw: Any, connect: Callable[..., Acker]) -> None:
    fill(connect, raw)

    async def look(top: Top, pilot: Pilot[None]) -> None:
        await pilot.press("s", "enter")
        await settled(top, pilot)
        assert len(top.screen_stack) == 2
        report = text_of(top, "#report")
        assert "many pending by last component: pa?[31mrse 100 %" in report
        assert "so far 1000 inits, 0 acked" in report
        await pilot.press("escape")
        assert len(top.screen_stack) == 1
        assert top.is_running
        await pilot.press("ctrl+c")
        assert not top.is_running

    drive(url, look)


def test_unreachable_server_is_shown_and_queried_again(
    start_server: Callable[..., Server], open_acker: Callable[..., Acker]
) -> None:
    server = start_server("--appendonly", "yes")
    open_acker(server.url, app="orders")

    async def look(top: Top, pilot: Pilot[None]) -> None:
        assert [row[0] for row in rows(top)] == ["orders"]
        server.kill()
        top.ask()
        await settled(top, pilot)
        assert "1 apps" not in text_of(top, "#head")
        assert [row[0] for row in rows(top)] == ["orders"]
        server.start()
        top.ask()
        await settled(top, pilot)
        assert "1 apps, 0 sick" in text_of(top, "#head")

    drive(server.url, look)


def test_empty_server_in_a_narrow_terminal_shows_zero_apps(url: str) -> None:
    async def look(top: Top, pilot: Pilot[None]) -> None:
        assert rows(top) == []
        await pilot.press("s", "enter", "escape", "down")
        assert "0 apps, 0 sick" in text_of(top, "#head")

    drive(url, look, size=(40, 10))
