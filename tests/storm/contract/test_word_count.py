"""The word count with streamparse's names: a spout, a split with a named stream, and counts in state."""

from collections import Counter

import pytest

from acker_redis.testing import fake_acker
from tests.storm.parts import WordCount

LINES = ["the cat and the dog\n", "\n", "the end\n", "  \n", "and the cat\n"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_fed", [False, True])
def test_word_count_in_every_order(is_fed: bool, seed: int) -> None:
    with WordCount.local({} if is_fed else {"lines": LINES}, seed=seed) as run:
        if is_fed:
            for number, line in enumerate(LINES):
                run.feed("lines", [line], tup_id=number)
        run.settle()
        assert sorted(run.acked("lines")) == [0, 1, 2, 3, 4]
        assert (run.failed("lines"), run.pending("lines")) == ([], [])
        assert sorted(row.line for row in run.emitted("split", "empty")) == ["\n", "  \n"]
        counts: dict[str, int] = {}
        for word, n in run.emitted("count"):
            assert n == counts.get(word, 0) + 1, "one task has all of a word"
            counts[word] = n
        assert counts == Counter(" ".join(LINES).split())


def test_word_count_as_a_service() -> None:
    class Here(WordCount):
        config = {**WordCount.config, "lines": LINES}

    with fake_acker() as acker:
        result = Here.run_local(acker)
    assert (result.acked, result.failed, result.unfinished) == (5, 0, 0)
    assert result.metrics["count"].executed["split:default"] == len(" ".join(LINES).split())
