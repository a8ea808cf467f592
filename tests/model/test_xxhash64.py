"""Spark's hash, against what PySpark 4.3 gives for F.xxhash64 of bigints and texts."""

import numpy as np
import pytest

from acker_redis.model.ids import to_int64
from acker_redis.model.xxhash64 import hash_longs, hash_salt

LOWEST, HIGHEST = -(2**63), 2**63 - 1
OF_SPARK = [
    # a, b, xxhash64(a), xxhash64(a, b), xxhash64(-77L, a, b)
    (0, 0, -5252525462095825812, -9199931545335556226, 8287260271854259418),
    (1, -1, -7001672635703045582, -1659187159892528922, -8408869435783295521),
    (42, 7, -6876166290308861218, 5510165639429219792, -2843069220921870138),
    (-1, HIGHEST, 3858142552250413010, 1238670073111083287, -4656177651204309944),
    (LOWEST, 5, -8619748838626508300, 1589462524786391347, -5472972649811755889),
    (HIGHEST, LOWEST, -3246596055638297850, -76207252441191965, -3121374211841706916),
    (123456789012345, 987654321, 755925937788029102, -8104805143078481964, 7737388104399678468),
]


@pytest.mark.parametrize(("a", "b", "of_a", "of_both", "of_three"), OF_SPARK)
def test_numbers_are_hashed_as_in_spark(a: int, b: int, of_a: int, of_both: int, of_three: int) -> None:
    assert [to_int64(int(hash_longs(*values))) for values in ((a,), (a, b), (-77, a, b))] == [of_a, of_both, of_three]


def test_arrays_are_hashed_as_in_spark_and_mix_with_numbers() -> None:
    a, b, of_a, of_both, of_three = (np.array(column, np.int64) for column in zip(*OF_SPARK, strict=True))
    for values, expected in (((a,), of_a), ((a, b), of_both), ((-77, a, b), of_three)):
        hashed = hash_longs(*(one.view(np.uint64) if isinstance(one, np.ndarray) else one for one in values))
        assert isinstance(hashed, np.ndarray)
        assert hashed.view(np.int64).tolist() == expected.tolist()


def test_hash_of_signed_and_unsigned_number_is_equal() -> None:
    assert hash_longs(-1, 5) == hash_longs(2**64 - 1, 5)


@pytest.mark.parametrize(
    ("salt", "of_salt", "of_both"),
    [  # xxhash64(salt), xxhash64(salt, -5L)
        ("abcdefgh", 2470326616177429180, -5113788726245175067),
        ("0123456789abcdef", 152989496093262263, 3667121527964257980),
        ("0123456789abcdefghijklmn", -4970167797021804048, -2647855605793005635),
    ],
)
def test_salts_are_hashed_as_in_spark_and_seed_numbers(salt: str, of_salt: int, of_both: int) -> None:
    assert to_int64(int(hash_salt(salt))) == of_salt
    assert to_int64(int(hash_longs(-5, seed=hash_salt(salt)))) == of_both


@pytest.mark.parametrize("salt", ["", "1234567", "0123456789abcdefghijklmnopqrstuv", "schön..."])
def test_salts_of_unsupported_length_or_characters_are_refused(salt: str) -> None:
    with pytest.raises(ValueError, match=r"characters|ascii"):
        hash_salt(salt)
