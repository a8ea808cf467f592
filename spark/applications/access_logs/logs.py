"""Access logs of a web server that never was, with faults put in by seed, and the truth about them.

Lines have the combined log format. Some can't be parsed, in ways that happen: a line cut off, a status or a date that is
none, bytes of something else. Some are well formed and about a section whose row in the reference table is broken: no
retry helps them either (poison). Some stand twice, letter for letter, as requests within one second do. The truth is noted
while the lines are made, so it depends on no parser.
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
"""First part of the path -> who owns it, and how many bytes an answer should have at most. The last row is broken."""

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
    """A line that will not come through.

    Attributes:
        file: name of its file.
        row: its number in the file, from 0.
        line: its text; each byte is a character (Latin-1), so that junk is kept as it was.
        kind: what is wrong with it.
    """

    file: str
    row: int
    line: str
    kind: str


@dataclass
class Truth:
    """What a pipeline over the logs has to find.

    Attributes:
        lines: all of them.
        files: name -> number of lines.
        per_minute: of the good lines, by minute and section.
        malformed: lines that can't be parsed.
        poison: lines that can be, and fail later on.
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
        """Give file and row of every line that comes through."""
        every = {(name, row) for name, lines in self.files.items() for row in range(lines)}
        return every - {(place.file, place.row) for place in (*self.malformed, *self.poison)}


@dataclass(frozen=True)
class Made:
    """A line and what is true of it."""

    line: bytes
    time: datetime
    prefix: str
    status: int
    sent: int


def generate(
    out: Path, lines: int = 20_000, seed: int = 1, files: int = 8, malformed: float = 0.02, poison: float = 0.01
) -> Truth:
    """Write `logs/`, `reference.csv` and `truth.json` into a folder; the same seed gives the same bytes.

    A file is written under a hidden name and renamed: Spark takes a file once, so it has to appear whole.
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
    if kind == "cut":  # a full disk, or a log that was rotated while it was written
        return line[: chance.randrange(1, len(line))]
    if kind == "status":
        return line.replace(b'" %d ' % made.status, b'" %s ' % chance.choice((b"2OO", b"-", b"999", b"20")), 1)
    if kind == "date":
        stamp = line[line.index(b"[") : line.index(b"]") + 1]
        return line.replace(stamp, chance.choice((b"[31/Feb/2026:08:00:00 +0000]", b"[-]", b"[1772438400.123]")), 1)
    # TLS spoken to a plain port, or a block of a file that was never written. A newline would make two lines of it.
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
    lines: Annotated[int, typer.Option(min=1, help="Lines in all.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 1,
    files: Annotated[int, typer.Option(min=1, help="Files they are spread over.")] = 8,
    malformed: Annotated[float, typer.Option(min=0, max=0.5, help="Share of lines that can't be parsed.")] = 0.02,
    poison: Annotated[float, typer.Option(min=0, max=0.5, help="Share of lines that fail behind the parser.")] = 0.01,
) -> None:
    """Write access logs with seeded faults, the reference table that goes with them, and the truth about both."""
    if (out / "logs").exists():
        raise typer.BadParameter(f"{out} has logs already, which are not in the new truth", param_hint="--out")
    truth = generate(out, lines, seed, files, malformed, poison)
    typer.echo(f"{truth.lines} lines in {files} files: {len(truth.malformed)} malformed, {len(truth.poison)} poison")


if __name__ == "__main__":
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command()(main)
    program()
