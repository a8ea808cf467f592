"""The public names are those in tests/data/api.txt, so that no call changes unnoticed."""

from tests.support import api


def test_the_public_names_are_those_that_were_written() -> None:
    difference = api.difference()
    assert not difference, f"the public API changed; if you mean it, write it with `make api`:\n{difference}"
