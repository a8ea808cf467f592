"""lua/lib/bytes.lua: `bit` and `struct`, and the plain-Lua stand-ins where a server lacks them, agree with Python."""

import struct
from typing import Any

import pytest

from acker_redis.client import scripts

LIBRARY = scripts.root().joinpath("lib/bytes.lua").read_text(encoding="utf-8")
BITS = [0, 1, -1, 2**31 - 1, -(2**31), 0x01234567, -0x01234568]


def run(raw: Any, body: str, *args: bytes | int) -> Any:
    return raw.eval(f"{LIBRARY}\n{body}", 0, *args)


@pytest.mark.parametrize("a", BITS)
def test_bxor_is_the_signed_xor_of_32_bits(source, raw: Any, a: int) -> None:
    body = (
        "local out = {} for i = 2, #ARGV do out[#out + 1] = bxor(tonumber(ARGV[1]), tonumber(ARGV[i])) end return out"
    )
    assert run(raw, body, a, *BITS) == [a ^ b for b in BITS]


@pytest.mark.parametrize(
    ("lua_format", "python_format", "values"),
    [
        (">BBI2I4I6", ">BBHI", (0, 1, 0, 0, 0)),
        (">BBI2I4I6", ">BBHI", (255, 2, 65_535, 2**32 - 1, 2**48 - 1)),
        (">i4i4BBI2I4I6", ">iiBBHI", (-(2**31), 2**31 - 1, 3, 1, 10, 7, 1_790_000_000_000)),
        (">I4B", ">I", (4_000_000_000, 255)),
        (">I2", ">H", (65_535,)),
    ],
)
def test_packing_is_big_endian_and_round_trips(
    source, raw: Any, lua_format: str, python_format: str, values: tuple[int, ...]
) -> None:
    head = len(python_format) - 1
    packed = struct.pack(python_format, *values[:head])
    packed += b"".join(v.to_bytes(6 if lua_format.endswith("I6") else 1, "big") for v in values[head:])
    numbers = ", ".join(map(str, values))
    assert run(raw, f"return pack_bytes('{lua_format}', {numbers})") == packed
    read = f"local v = {{unpack_bytes('{lua_format}', 'xx' .. ARGV[1], 3)}} "
    text = "for i, n in ipairs(v) do v[i] = string.format('%.0f', n) end return v"
    assert [int(v) for v in run(raw, read + text, packed)] == [*values, 3 + len(packed)]


def test_strings_of_a_fixed_width_are_copied_as_they_are(source, raw: Any) -> None:
    row = bytes(range(200, 208)) + struct.pack(">ii", -5, 7) + b"fourteen bytes"
    read = "local a, b, c, d, at = unpack_bytes('>c8i4i4c14', 'x' .. ARGV[1], 2) "
    assert run(raw, read + "return {a, b, c, d, at}", row) == [row[:8], -5, 7, row[16:], 32]
    assert run(raw, read + "return pack_bytes('>c8i4i4c14', a, b, c, d)", row) == row
