"""Generator of access logs of an imaginary web server, with seeded faults and the truth about them.

Lines have the combined log format. Some can't be parsed, in realistic ways: a truncated line, an invalid status or date,
foreign bytes. Some are well formed but belong to a section whose row in the reference table is broken, so no retry helps
them either (poison). Some lines are repeated exactly, as happens with requests within one second. The truth is recorded
while the lines are generated, so it depends on no parser.
"""

import csv
import json
import random
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
MINUTE = "%Y-%m-%d %H:%M"
OTHER = "other"
POISON_PREFIX = "/legacy"

REFERENCE = [
    {"prefix": "/", "section": "home", "team": "web", "budget_bytes": "60000"},
    {"prefix": "/products", "section": "catalogue", "team": "shop", "budget_bytes": "40000"},
    {"prefix": "/search", "section": "catalogue", "team": "shop", "budget_bytes": "40000"},
    {"prefix": "/cart", "section": "checkout", "team": "payments", "budget_bytes": "20000"},
    {"prefix": "/api", "section": "api", "team": "platform", "budget_bytes": "8000"},
    {"prefix": "/static", "section": "static", "team": "web", "budget_bytes": "70000"},
    {"prefix": POISON_PREFIX, "section": "legacy", "team": "", "budget_bytes": "n/a"},
]
"""First part of the path -> its owner, and the byte budget of a response. The last row is broken."""

_PATHS = (
    "/", "/products/{n}", "/products/{n}?ref=mail", "/search?q=tea+{n}", "/cart", "/cart/add/{n}", "/api/v1/orders/{n}",
    "/api/v1/stock", "/static/app.{n}.js", "/static/logo.svg", "/blog/{n}", "/favicon.ico", "/wp-login.php",
)  # fmt: skip
_AGENTS = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:136.0) Gecko/20100101 Firefox/136.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_3 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Mobile/15E148",
    "Mozilla/5.0 (compatible; bingbot/2.0; +http://www.bing.com/bingbot.htm)",
    "curl/8.11.1",
    "-",
)
_REFERERS = ("-", "-", "https://shop.example/", "https://shop.example/search?q=tea", "https://www.bing.com/")
_STATUSES = (200,) * 16 + (204, 301, 304, 404, 404, 500, 502, 503)
_KINDS = ("cut", "status", "date", "junk")


@dataclass(frozen=True)
class Place:
    """A line that the pipeline can't process.

    Attributes:
        file: name of its file.
        row: number in the file, from 0.
        line: text of the line. Each byte is a character (Latin-1), so junk is kept unchanged.
        kind: kind of fault.
    """

    file: str
    row: int
    line: str
    kind: str


@dataclass
class Truth:
    """Expected result of a pipeline over the logs.

    Attributes:
        seed: seed of the logs.
        lines: total number of lines.
        files: file name -> number of lines.
        per_minute: sums over the good lines, by minute and section.
        malformed: lines that can't be parsed.
        poison: lines that can be parsed but fail later.
    """

    seed: int
    lines: int
    files: dict[str, int] = field(default_factory=dict)
    per_minute: list[dict[str, Any]] = field(default_factory=list)
    malformed: list[Place] = field(default_factory=list)
    poison: list[Place] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Truth":
        """Read the file that `generate` wrote."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        for name in ("malformed", "poison"):
            fields[name] = [Place(**place) for place in fields[name]]
        return cls(**fields)

    def good(self) -> set[tuple[str, int]]:
        """Return file and row of every good line."""
        every = {(name, row) for name, lines in self.files.items() for row in range(lines)}
        return every - {(place.file, place.row) for place in (*self.malformed, *self.poison)}


@dataclass(frozen=True)
class Made:
    """A generated line and the truth about it."""

    line: bytes
    time: datetime
    prefix: str
    status: int
    sent: int


def generate(
    out: Path, lines: int = 20_000, seed: int = 1, files: int = 8, malformed: float = 0.02, poison: float = 0.01
) -> Truth:
    """Write `logs/`, `reference.csv` and `truth.json` into a folder.

    The same seed writes the same bytes. A file is written under a hidden name and renamed: Spark reads a file once, so it
    must be complete when it appears.
    """
    chance = random.Random(seed)
    truth = Truth(seed, lines)
    counts: Counter[tuple[str, str, str]] = Counter()
    step = timedelta(hours=1) / max(lines, 1)
    (out / "logs").mkdir(parents=True, exist_ok=True)
    previous: Made | None = None
    for number in range(files):
        name = f"access-{number:04d}.log"
        texts = []
        for row in range(lines * (number + 1) // files - lines * number // files):
            at = BEGIN + step * (lines * number // files + row)
            drawn = chance.random()
            if drawn < malformed:
                kind = chance.choice(_KINDS)
                texts.append(_broken(chance, kind, _request(chance, at)))
                truth.malformed.append(Place(name, row, texts[-1].decode("latin-1"), kind))
            elif drawn < malformed + poison:
                texts.append(_request(chance, at, f"{POISON_PREFIX}/page{chance.randrange(9)}.asp").line)
                truth.poison.append(Place(name, row, texts[-1].decode("latin-1"), "poison"))
            else:
                twice = previous is not None and chance.random() < 0.02
                made = previous if twice and previous is not None else _request(chance, at)
                texts.append(made.line)
                _count(counts, made)
                previous = made
        truth.files[name] = len(texts)
        _write_whole(out / "logs" / name, b"".join(text + b"\n" for text in texts))
    pairs = sorted({(minute, section) for minute, section, _ in counts})
    truth.per_minute = [
        {"minute": minute, "section": section}
        | {name: counts[minute, section, name] for name in ("hits", "bytes", "errors", "over_budget")}
        for minute, section in pairs
    ]
    with (out / "reference.csv").open("w", encoding="utf-8", newline="") as table:
        writer = csv.DictWriter(table, list(REFERENCE[0]))
        writer.writeheader()
        writer.writerows(REFERENCE)
    _write_whole(out / "truth.json", json.dumps(asdict(truth), indent=1).encode())
    return truth


def _request(chance: random.Random, at: datetime, path: str | None = None) -> Made:
    target = path or chance.choice(_PATHS).format(n=chance.randrange(1, 400))
    first = target.partition("?")[0].split("/")[1]
    method = "POST" if "/add/" in target else chance.choice(("GET", "GET", "GET", "HEAD"))
    status = chance.choice(_STATUSES)
    sent = 0 if method == "HEAD" or status in (204, 304) else chance.randrange(200, 90_000)
    line = (
        f"203.0.113.{chance.randrange(256)} - - [{at:%d/%b/%Y:%H:%M:%S +0000}] "
        f'"{method} {target} HTTP/1.1" {status} {sent or "-"} "{chance.choice(_REFERERS)}" "{chance.choice(_AGENTS)}"'
    )
    return Made(line.encode(), at, f"/{first}", status, sent)


def _broken(chance: random.Random, kind: str, made: Made) -> bytes:
    line = made.line
    if kind == "cut":  # a full disk, or a log rotated while being written
        return line[: chance.randrange(1, len(line))]
    if kind == "status":
        return line.replace(b'" %d ' % made.status, b'" %s ' % chance.choice((b"2OO", b"-", b"999", b"20")), 1)
    if kind == "date":
        stamp = line[line.index(b"[") : line.index(b"]") + 1]
        return line.replace(stamp, chance.choice((b"[31/Feb/2026:08:00:00 +0000]", b"[-]", b"[1772438400.123]")), 1)
    # TLS sent to a plain port, or a file block that was never written. A newline would split it into two lines.
    junk = b"\x16\x03\x01" + bytes(chance.randrange(256) for _ in range(chance.randrange(5, 60))) + b"\x00\xff"
    return junk.replace(b"\n", b"\x0b")


def _count(counts: Counter[tuple[str, str, str]], made: Made) -> None:
    entry = next((row for row in REFERENCE if row["prefix"] == made.prefix), None)
    key = (f"{made.time:{MINUTE}}", entry["section"] if entry else OTHER)
    counts[*key, "hits"] += 1
    counts[*key, "bytes"] += made.sent
    counts[*key, "errors"] += made.status >= 500
    counts[*key, "over_budget"] += entry is not None and made.sent > int(entry["budget_bytes"])


def _write_whole(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}")
    draft.write_bytes(content)
    draft.rename(path)


def main(
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for logs/, reference.csv and truth.json.")],
    lines: Annotated[int, typer.Option(min=1, help="Number of lines.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Seed; the same seed writes the same bytes.")] = 1,
    files: Annotated[int, typer.Option(min=1, help="Number of files.")] = 8,
    malformed: Annotated[float, typer.Option(min=0, max=0.5, help="Share of lines that can't be parsed.")] = 0.02,
    poison: Annotated[float, typer.Option(min=0, max=0.5, help="Share of lines that fail after the parser.")] = 0.01,
) -> None:
    """Write access logs with seeded faults, their reference table, and the truth about both."""
    if (out / "logs").exists():
        raise typer.BadParameter(
            f"{out} already has logs, which the new truth would not cover. Pass another folder.", param_hint="--out"
        )
    truth = generate(out, lines, seed, files, malformed, poison)
    typer.echo(f"{truth.lines} lines in {files} files: {len(truth.malformed)} malformed, {len(truth.poison)} poison")


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program()
