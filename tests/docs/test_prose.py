"""The check of the pages' prose: each rule finds its fault, leaves good sentences alone, and holds on all pages."""

from pathlib import Path

import pytest

from docsite.prose import MAX_WORDS, MIN_JOINED, check, faults, lengths, rhythm_faults

ROOT = Path(__file__).resolve().parents[2]
FILLER = "You start a rotator. It expires messages.\n\n" * 30


def test_pages_follow_the_rules() -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize(
    "text",
    [
        "What failed is parked.",
        "Start it. Of these, one is left.",
        "Whoever is on call starts it.",
        "- There are shards without a rotator.",
        "The row goes to somebody.",
        "You need not know Storm.",
        "It is kept\nfor good.",
        " ".join(["word"] * (MAX_WORDS + 1)) + ".",
    ],
)
def test_sentence_against_a_rule_is_found(text: str) -> None:
    found = faults("docs/guides/page.md", f"# Page\n\nYou read it.\n\n{text}\n")
    assert found
    assert all(fault.startswith("docs/guides/page.md:5: ") for fault in found)


@pytest.mark.parametrize(
    "text",
    [
        "# What a heading says",
        "| What | Whoever |\n|---|---|\n| a | b |",
        "```python\nwhoever = anew\n```",
        "`whoever` is code.",
        "There is no limit.",
        "Failed messages are parked. The rest is acked.",
        " ".join(["word"] * MAX_WORDS) + ". " + " ".join(["Word"] * MAX_WORDS) + ".",
        "A list:\n\n- " + "\n- ".join(["item of a list"] * MAX_WORDS),
    ],
)
def test_good_text_has_no_faults(text: str) -> None:
    assert faults("docs/guides/page.md", text) == []


@pytest.mark.parametrize(
    ("page", "text", "rule"),
    [
        ("docs/operate/page.md", FILLER + "It is what it is; it shows what it shows; it does what it does.", "'what'"),
        ("docs/operate/page.md", FILLER + "One; two; three.", "';'"),
        ("docs/guides/page.md", FILLER.replace("You start", "Start"), "'you'"),
    ],
)
def test_rates_are_per_page(page: str, text: str, rule: str) -> None:
    assert any(rule in fault for fault in faults(page, text))
    assert faults(page, FILLER) == []


JOINED = "A message is replayed after a growing delay, because the service may be back by then.\n\n" * 20


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (FILLER, "words per sentence"),
        (JOINED + "It is acked.\n\n" * 8, "8 words or fewer"),
        ("One more long sentence is here, " * 30 + "and it never ends. " + JOINED * 2, "words per sentence"),
    ],
)
def test_rhythm_of_a_page_is_checked(text: str, rule: str) -> None:
    assert rhythm_faults("docs/guides/page.md", JOINED) == []
    found = rhythm_faults("docs/guides/page.md", text)
    assert any(rule in fault for fault in found), found
    assert rhythm_faults("docs/operate/page.md", text) == []


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/start/comparison.md"])
def test_rhythm_of_pages_that_readers_begin_with_is_checked(page: str) -> None:
    of_page = (ROOT / page).read_text(encoding="utf-8")
    assert sum(lengths(of_page)) >= MIN_JOINED, "a shorter page is not checked"
    assert rhythm_faults(page, of_page) == []
    assert rhythm_faults(page, "It is acked. " * 50)


def test_labels_at_the_beginning_of_a_paragraph_are_no_sentences() -> None:
    assert lengths("- **Errors.** An error ends the run at once.\n- It is `acked`.\n") == [7, 3]


def test_semicolon_in_a_table_is_found_with_its_line() -> None:
    table = "# Page\n\n| a | b |\n|---|---|\n| one | two; three |\n| `x; y` | z |\n"
    assert rhythm_faults("docs/operate/page.md", table) == ["docs/operate/page.md:5: ';' in a table: two; three"]
    assert rhythm_faults("lua/README.md", table) == []
