"""The quick walk over producers' batches finds what the full walk finds, and ends on whatever bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.log.batch_scan import iter_headers, iter_produced
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.record_batch import LENGTH_OFFSET, stamp

from .producing import produced


def segment(counts: list[tuple[int, bool]]) -> bytes:
    data, offset = bytearray(), 0
    for count, has_id in counts:
        position = len(data)
        ids = {} if has_id else {"producer_id": -1, "epoch": -1}
        data += produced(offset if has_id else -1, count, **ids)
        stamp(data, position, offset, 1)
        offset += count
    return bytes(data)


BATCHES = st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=8)


@given(BATCHES, st.integers(0, 35))
def test_it_finds_the_batches_with_an_id_that_reach_an_offset(
    counts: list[tuple[int, bool]], offset: int
) -> None:
    data = segment(counts)
    expected = [
        header
        for _, header in iter_headers(data, 0, len(data))
        if header.producer_id >= 0 and header.last_offset >= offset
    ]
    assert list(iter_produced(data, 0, len(data), offset)) == expected


def test_an_end_within_a_batch_and_an_impossible_length_are_damage() -> None:
    data = segment([(1, True), (2, False), (1, True)])
    ends = {0}
    for position, header in iter_headers(data, 0, len(data)):
        ends.add(position + header.size_bytes)
    for end in set(range(len(data))) - ends:
        with pytest.raises(ApiError) as caught:
            list(iter_produced(data, 0, end, 0))
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    for length in (-(1 << 31), -12, 0, 48, 1 << 30):
        broken = bytearray(data)
        broken[LENGTH_OFFSET : LENGTH_OFFSET + 4] = length.to_bytes(4, signed=True)
        with pytest.raises(ApiError, match=str(length)):
            list(iter_produced(broken, 0, len(broken), 0))
