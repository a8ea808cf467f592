"""`python -m docsite.prose`: check the pages against the rules of CONTRIBUTING.md.

The rules are those that Vale would check. Vale has no build on the package index, and `make setup` fetches nothing else.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

MAX_WORDS = 25
"""Words of a sentence. Code counts as one word."""

MAX_WHAT, MAX_SEMICOLONS, MIN_YOU = 4.0, 3.0, 8.0
"""Per 1 000 words of a page."""

JOINED = ("README.md", "docs/index.md", "docs/start", "docs/guides")
"""Pages whose sentences are joined up: a reader learns from them how one idea bears on the next."""

PARSED = "lua/"
"""Pages with tables that a test holds against the headers of scripts, in their spelling."""

MIN_MEAN, MAX_MEAN = 14.0, 17.0
"""Mean number of words of the sentences of such a page."""

SHORT_WORDS, MAX_SHORT = 8, 0.2
"""A short sentence, and the largest share of them on such a page."""

MAX_LABEL = 3
"""Words of a label at the beginning of a paragraph, such as *Ids.* It is no sentence."""

MIN_WORDS, MIN_JOINED = 150, 100
"""A shorter page has no rates, because one word more would change them, and no mean length of its sentences."""

GUIDES = ("docs/start", "docs/guides", "docs/topologies")
"""Folders whose pages address the reader."""

PAGES = ("*.md", "lua/*.md", "tests/*.md", "spark/**/*.md", "docs/**/*.md")

_STARTS = re.compile(r"(What|Of|Whoever|That|There)\b(?! (is|are) (no|a|an|one|two|three)\b)")
_WORDS = re.compile(
    r"\b(whoever|somebody|nobody|anybody|anew|need not|at hand|(is|are) to be had|for good|thus|one's own|hence|therein|"
    r"whereby)\b",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<=[.!?:])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9⟨])")
_CODE = "⟨code⟩"


@dataclass(frozen=True)
class Paragraph:
    """Text of a page between two blank lines, without its marks.

    Attributes:
        line: where it begins, from 1.
        text: with `⟨code⟩` in place of code.
    """

    line: int
    text: str


def paragraphs(markdown: str) -> Iterator[Paragraph]:
    """Yield the prose of a page: paragraphs and list items, without headings, tables and code."""
    skipped = 0
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type in ("heading_open", "table_open"):
            skipped += 1
        elif token.type in ("heading_close", "table_close"):
            skipped -= 1
        elif token.type == "inline" and not skipped:
            text = " ".join(_text_of(token).split())
            if text:
                yield Paragraph((token.map or [0])[0] + 1, text)


def cells(markdown: str) -> Iterator[Paragraph]:
    """Yield the texts of the cells of a page's tables."""
    is_cell, line = False, 0
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        if token.type == "tr_open":
            line = (token.map or [0])[0] + 1
        elif token.type in ("td_open", "td_close"):
            is_cell = token.type == "td_open"
        elif token.type == "inline" and is_cell:
            yield Paragraph(line, " ".join(_text_of(token).split()))


def _text_of(inline: Token) -> str:
    replaced = {"code_inline": _CODE, "softbreak": " ", "hardbreak": " ", "image": "", "html_inline": ""}
    return "".join(replaced.get(child.type, child.content) for child in inline.children or ())


def sentences(text: str) -> list[str]:
    """Split a paragraph into sentences.

    >>> sentences("It fails. Start a rotator: nothing times out without one.")
    ['It fails.', 'Start a rotator: nothing times out without one.']
    """
    return _SENTENCE_END.split(text)


def words_of(sentence: str) -> int:
    """Return the number of words of a sentence. Code counts as one word."""
    return len(re.findall(r"[\w⟨]+(?:['.,-]\w+)*", sentence))


def lengths(markdown: str) -> list[int]:
    """Return the number of words of each sentence of a page, without labels at the beginning of paragraphs."""
    found = []
    for paragraph in paragraphs(markdown):
        counts = [words_of(sentence) for sentence in sentences(paragraph.text)]
        found += counts[1:] if len(counts) > 1 and counts[0] <= MAX_LABEL else counts
    return [count for count in found if count]


def rhythm_faults(page: str, markdown: str) -> list[str]:
    """Check that the sentences of a page are joined up, and that no full stop hides in a table."""
    counts, found = lengths(markdown), []
    if page.startswith(JOINED) and sum(counts) >= MIN_JOINED:
        mean, short = sum(counts) / len(counts), sum(count <= SHORT_WORDS for count in counts) / len(counts)
        if not MIN_MEAN <= mean <= MAX_MEAN:
            found.append(f"{page}: {mean:.1f} words per sentence, {MIN_MEAN:g} to {MAX_MEAN:g} are wanted")
        if short > MAX_SHORT:
            found.append(
                f"{page}: {short:.0%} of the sentences have {SHORT_WORDS} words or fewer, at most {MAX_SHORT:.0%}"
            )
    if not page.startswith(PARSED):
        found += [f"{page}:{cell.line}: ';' in a table: {cell.text}" for cell in cells(markdown) if ";" in cell.text]
    return found


def faults(page: str, markdown: str) -> list[str]:
    """Check a page.

    Args:
        page: its path in the repository.
        markdown: its text.

    Returns:
        A line per fault, with the place and the text it is about.
    """
    found: list[str] = []
    words = whats = semicolons = yous = 0
    for paragraph in paragraphs(markdown):
        place = f"{page}:{paragraph.line}"
        for sentence in sentences(paragraph.text):
            length = words_of(sentence)
            words += length
            if length > MAX_WORDS:
                found.append(f"{place}: {length} words, at most {MAX_WORDS}: {sentence}")
            if _STARTS.match(sentence.lstrip("\"'(*_")):
                found.append(f"{place}: begins with {sentence.split()[0]!r}: {sentence}")
        found.extend(f"{place}: {match[0]!r} in: {paragraph.text}" for match in _WORDS.finditer(paragraph.text))
        whats += len(re.findall(r"\bwhat\b", paragraph.text, re.IGNORECASE))
        semicolons += paragraph.text.count(";")
        yous += len(re.findall(r"\byou(r|rs|rself)?\b", paragraph.text, re.IGNORECASE))
    if words < MIN_WORDS:
        return found
    for name, count, most in (("'what'", whats, MAX_WHAT), ("';'", semicolons, MAX_SEMICOLONS)):
        if count > 1 and count * 1000 / words > most:
            found.append(f"{page}: {count} times {name} in {words} words, at most {most:g} per 1 000")
    if page.startswith(GUIDES) and yous * 1000 / words < MIN_YOU:
        found.append(f"{page}: {yous} times 'you' in {words} words, at least {MIN_YOU:g} per 1 000")
    return found


def check(root: Path) -> list[str]:
    """Check all pages of a repository."""
    pages = sorted({path for pattern in PAGES for path in root.glob(pattern)})
    return [
        fault
        for page in pages
        for of in (faults, rhythm_faults)
        for fault in of(page.relative_to(root).as_posix(), page.read_text(encoding="utf-8"))
    ]


if __name__ == "__main__":
    lines = check(Path(__file__).resolve().parents[1])
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.exit(1 if lines else 0)
