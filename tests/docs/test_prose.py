"""The check of the pages' prose: each rule finds its fault, leaves good sentences alone, and holds on all pages."""

from pathlib import Path

import pytest

from docsite.prose import MAX_WORDS, check, faults

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
