"""Zigzag varints against their definition, and every way their bytes can be wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.varint import MAX_VARINT_BYTES, decode_varint, encode_varint

LONGS = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (-2, "03"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (8191, "fe7f"),
        (8192, "808001"),
        ((1 << 31) - 1, "feffffff0f"),
        (-(1 << 63), "ffffffffffffffffff01"),
    ],
)
def test_known_numbers_have_known_bytes(value: int, expected: str) -> None:
    assert encode_varint(value).hex() == expected
    assert decode_varint(bytes.fromhex(expected), 0) == (value, len(expected) // 2)


@given(LONGS, st.binary(max_size=4), st.binary(max_size=4))
def test_any_number_is_read_back_between_other_bytes_and_refused_if_cut_short(
    value: int, before: bytes, after: bytes
) -> None:
    encoded = encode_varint(value)
    data = before + encoded + after
    assert decode_varint(memoryview(data), len(before)) == (value, len(before) + len(encoded))
    for cut in range(len(encoded)):
        with pytest.raises(ApiError) as caught:
            decode_varint(before + encoded[:cut], len(before))
        assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("data", [b"\xff" * MAX_VARINT_BYTES + b"\x00", b"\xff" * 9 + b"\x02"])
def test_more_than_64_bits_are_refused(data: bytes) -> None:
    with pytest.raises(ApiError, match="64 bits"):
        decode_varint(data, 0)


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1])
def test_a_number_beyond_64_bits_is_not_encoded(value: int) -> None:
    with pytest.raises(OverflowError, match=str(value)):
        encode_varint(value)
