"""docs/operate/sizing.md: its figures are measured again, and its example runs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acker_redis import Acker
from acker_redis.store.dead_letter import DeadLetter
from acker_redis.testing import wait_until
from acker_redis.testing.server import Server
from tests.docs.test_readme import blocks_of, run_program

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operate" / "sizing.md").read_text(encoding="utf-8")
ROOTS, FAILS, CALLS, LETTERS = 96_000, 16_000, 2_000, 2_000
TOLERANCE, OF_MEMORY = 0.2, 0.3
"""Polls and calls are as large as they happen to be. Tables double at sizes of their own, and streams grow by nodes."""


class Meter:
    """What the server says of itself, as differences."""

    def __init__(self, raw: Any, found: dict[str, float]) -> None:
        self._raw, self._found = raw, found

    def of(self, name: str, work: Callable[[], object], count: int = ROOTS) -> None:
        """Bytes per one of `count` of memory, to the server, from it, and in its append-only file."""
        before = self._read()
        work()
        for what, one in self._read().items():
            self._found[f"{name}: {what}"] = (one - before[what]) / count

    def _read(self) -> dict[str, int]:
        # Buffers of other connections count, until the server takes them back.
        self._raw.client_kill_filter(_type="normal", skipme=True)
        # A server whose disk is busy keeps what it appends in memory for up to two seconds.
        wait_until(lambda: self._raw.info("persistence")["aof_buffer_length"] == 0, "the server has written its file")
        memory, stats, files = (self._raw.info(section) for section in ("memory", "stats", "persistence"))
        return {
            "memory": memory["used_memory"] - memory["mem_aof_buffer"],  # which waits for a disk that is busy
            "sent": stats["total_net_input_bytes"],
            "received": stats["total_net_output_bytes"],
            "written": files["aof_current_size"],
        }


def measure(raw: Any, acker: Acker, roots_of: Callable[[int], Any]) -> dict[str, float]:
    """As the page's table has it, by the name of its row."""
    found: dict[str, float] = {}
    meter = Meter(raw, found)
    values, warm = np.full(ROOTS, 7), roots_of(32)
    acker.init_many(warm, warm, 0)  # the first call of a script is sent twice
    acker.ack_many(warm[:16], warm[:16])
    acker.fail_many(warm[16:])
    take_all(acker)
    roots = roots_of(ROOTS)
    meter.of("init", lambda: acker.init_many(roots, values, 0))
    meter.of("open ack", lambda: acker.ack_many(roots, values ^ 3))
    meter.of("last ack", lambda: acker.ack_many(roots, np.full(ROOTS, 3)))
    waiting = sum(raw.memory_usage(key, samples=0) for key in raw.keys("*:acked:*")) / ROOTS
    meter.of("acked outcome", lambda: take_all(acker))
    found["acked outcome: memory"] = waiting
    roots = roots_of(FAILS)
    acker.init_many(roots, roots, 0)
    meter.of("fail", lambda: acker.fail_many(roots), FAILS)
    meter.of("failed outcome", lambda: take_all(acker), FAILS)
    roots = roots_of(32)
    acker.init_many(roots, roots, 0)

    def one_by_one() -> None:
        for _ in range(CALLS):
            acker.ack(int(roots[0]), 1 << 40)

    meter.of("call", one_by_one, CALLS)
    letters = [DeadLetter(number, "run", 5, "failed", "parse", "no such customer") for number in range(LETTERS)]
    meter.of("dead letter", lambda: acker.dead_letters.add(letters), LETTERS)
    return found


def take_all(acker: Acker) -> None:
    while packed := acker.poll_batches():
        acker.confirm_batches(packed)


def table() -> dict[str, list[list[float]]]:
    """Numbers of the page's first table: row -> memory in blocks, memory alone, sent, written."""
    rows = {}
    for line in PAGE.split("## Memory headroom")[0].splitlines():
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if len(cells) == 4 and any(character.isdigit() for character in cells[0]):
            rows[name.split(":")[0].split(",")[0]] = [[float(one) for one in re.split("[;,/]", cell)] for cell in cells]
    return rows


@pytest.mark.parametrize("which", ["blocks", "alone"])
@pytest.mark.parametrize("kind", ["valkey", "redis7"])
def test_measured_bytes_match_the_sizing_table(
    start_server: Callable[..., Server],
    open_acker: Callable[..., Acker],
    plain: Callable[..., Any],
    which: str,
    kind: str,
) -> None:
    server = start_server("--appendonly", "yes", "--auto-aof-rewrite-percentage", "0", kind=kind)
    acker = open_acker(server.url, app="orders")
    drawn = np.random.default_rng(3)
    of_server, of_ids = kind == "redis7", which == "alone"
    found = measure(plain(server.url), acker, (lambda n: drawn.integers(1, 2**62, n)) if of_ids else acker.new_roots)
    names = {
        "init": "init", "open ack": "open ack", "last ack": "last ack", "fail": "fail", "failed outcome": "failed outcome",
        "call of a single update": "call", "dead letter": "dead letter",
    }  # fmt: skip
    rows = table()
    assert rows.keys() == names.keys()
    for row, name in names.items():
        memory = rows[row][of_ids]
        expected = {
            "memory": memory[of_server if len(memory) > 1 else 0],
            "sent": rows[row][2][of_ids],
            "written": rows[row][3][of_ids],
        }
        if name == "last ack":
            found["last ack: memory"] = found["acked outcome: memory"]
        if name == "failed outcome":
            assert found["failed outcome: memory"] == pytest.approx(-44, rel=OF_MEMORY)
            del expected["memory"]
        for what, figure in expected.items():
            tolerance = OF_MEMORY if what == "memory" else TOLERANCE
            assert found[f"{name}: {what}"] == pytest.approx(figure, rel=tolerance, abs=1), (row, what)
    taken = (0.6, 17)[of_ids]
    assert found["acked outcome: received"] == pytest.approx(taken, rel=TOLERANCE)
    assert found["failed outcome: received"] == pytest.approx(152, rel=TOLERANCE)


def test_sizing_example_prints_the_documented_output(tmp_path: Path) -> None:
    (program,), (shown,) = blocks_of(PAGE, "python"), blocks_of(PAGE, "text")
    assert run_program(program, "", tmp_path) == shown
