"""Walks over a segment file agree with windows of any size, and always end; their memory is bounded."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barnabas.broker.log import batch_scan
from barnabas.broker.log.batch_scan import (
    LARGE_BYTES,
    SMALL_BYTES,
    BatchWalk,
    ReadBuffers,
    Window,
    find_batch,
    iter_headers,
    iter_produced,
)
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.record_batch import LENGTH_OFFSET, check_batch, iter_batches
from barnabas.protocol.records import Marker, MarkerType
from tests.support.batches import stamp
from tests.support.logs import marker, produced


def segment(counts: list[tuple[int, bool]]) -> bytes:
    """Batches of these counts, with a producer id or without; 0 is for a marker."""
    data, offset = bytearray(), 0
    for count, has_id in counts:
        position = len(data)
        ids = {} if has_id else {"producer_id": -1, "epoch": -1}
        if count:
            data += produced(offset if has_id else -1, count, **ids)
        else:
            data += marker(MarkerType.COMMIT, coordinator_epoch=offset, **ids)
            count = 1
        stamp(data, position, offset, 1)
        offset += count
    return bytes(data)


@contextmanager
def in_file(data: bytes) -> Iterator[SegmentFile]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.log"
        path.write_bytes(data)
        yield SegmentFile(path, len(data))


@pytest.fixture(params=[64, 100, 1 << 18])
def window_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that hold little more than a header, and one that holds everything."""
    monkeypatch.setattr(batch_scan, "_WINDOW_BYTES", request.param)
    monkeypatch.setattr(batch_scan, "_STEP_BYTES", min(request.param, 64))


BATCHES = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=8)


@pytest.fixture
def buffers() -> ReadBuffers:
    return ReadBuffers(SIZES)


@pytest.mark.usefixtures("window_bytes")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES, st.integers(0, 35))
def test_walks_find_the_same_batches_with_any_window(counts: list[tuple[int, bool]], offset: int) -> None:
    data = segment(counts)
    expected = list(iter_batches(data))
    with in_file(data) as file:
        assert list(iter_headers(file, 0, len(data))) == expected
        assert list(iter_produced(file, 0, len(data), offset)) == [
            (header, Marker(MarkerType.COMMIT, header.base_offset) if header.is_control else None)
            for _, header in expected
            if header.producer_id >= 0 and header.last_offset >= offset
        ]
    found = next(
        ((at, head.base_offset) for at, head in expected if head.last_offset >= offset), (len(data), -1)
    )
    assert find_batch(data, 0, len(data), offset) == found


@pytest.mark.usefixtures("window_bytes")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(BATCHES, st.data())
def test_every_batch_is_checked_with_any_window(counts: list[tuple[int, bool]], draw: st.DataObject) -> None:
    data = bytearray(segment(counts))
    expected = list(iter_batches(data))
    with in_file(data) as file:
        window = Window(file, len(data))
        for position, header in draw.draw(st.permutations(expected)):
            assert window.check_batch(position) == header
        walk = BatchWalk(file, 0)
        assert list(walk) == [header for _, header in expected]
        assert (walk.fault, walk.position) == (None, len(data))
        assert walk.has_producers == any(header.producer_id >= 0 for _, header in expected)
    if not expected:
        return
    at = draw.draw(st.integers(0, len(data) - 1))
    data[at] ^= 1 << draw.draw(st.integers(0, 7))
    sound = [(position, header) for position, header in expected if position + header.size_bytes <= at]
    position = sum(header.size_bytes for _, header in sound)
    # No CRC covers a base offset and a leader epoch.
    if not 0 <= at - position < LENGTH_OFFSET and not 12 <= at - position < 16:
        with in_file(data) as file:
            walk = BatchWalk(file, 0)
            assert list(walk) == [header for _, header in sound]
            with pytest.raises(ApiError) as caught:
                check_batch(data, position)
            assert walk.fault is not None
            assert (walk.position, walk.fault.code) == (position, caught.value.code)


def test_an_end_within_a_batch_and_an_impossible_length_are_damage() -> None:
    data = segment([(1, True), (2, False), (1, True)])
    ends = {0} | {position + header.size_bytes for position, header in iter_batches(data)}
    for end in set(range(len(data))) - ends:
        with in_file(data) as file, pytest.raises(ApiError) as caught:
            list(iter_produced(file, 0, end, 0))
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    for length in (-(1 << 31), -12, 0, 48, 1 << 30):
        broken = bytearray(data)
        broken[LENGTH_OFFSET : LENGTH_OFFSET + 4] = length.to_bytes(4, signed=True)
        for walk in (iter_headers, lambda file, at, end: iter_produced(file, at, end, 0)):
            with in_file(broken) as file, pytest.raises(ApiError, match=str(length)):
                list(walk(file, 0, len(broken)))


SIZES = {SMALL_BYTES: 2, LARGE_BYTES: 2}


def free_blocks(buffers: ReadBuffers) -> dict[int, int]:
    return {size: blocks._unallocated + len(blocks._free) for size, blocks in buffers._blocks.items()}


def test_a_lease_ends_with_its_last_view(buffers: ReadBuffers) -> None:
    lease = buffers.lease(100)
    assert (len(lease), lease.format, lease.readonly) == (100, "B", False)
    lease[:5] = b"bytes"
    part = lease[:5].toreadonly()
    del lease
    assert free_blocks(buffers)[SMALL_BYTES] == 1
    assert bytes(part) == b"bytes"
    del part
    assert free_blocks(buffers)[SMALL_BYTES] == 2


def test_each_size_takes_the_block_that_fits(buffers: ReadBuffers) -> None:
    leases = [buffers.lease(size) for size in (1, SMALL_BYTES, SMALL_BYTES + 1, LARGE_BYTES)]
    assert [len(lease) for lease in leases] == [1, SMALL_BYTES, SMALL_BYTES + 1, LARGE_BYTES]
    assert free_blocks(buffers) == {SMALL_BYTES: 0, LARGE_BYTES: 0}


def test_a_read_above_the_largest_block_gets_less_and_a_batch_all(buffers: ReadBuffers) -> None:
    assert len(buffers.lease(10 * LARGE_BYTES)) == LARGE_BYTES
    assert len(buffers.exactly(10 * LARGE_BYTES)) == 10 * LARGE_BYTES


def test_if_all_blocks_are_leased_each_reader_gets_a_small_one(buffers: ReadBuffers) -> None:
    held = [buffers.lease(LARGE_BYTES) for _ in range(2)]
    more = [buffers.lease(LARGE_BYTES) for _ in range(100)]
    assert {len(lease) for lease in more} == {SMALL_BYTES}
    assert len(buffers.exactly(LARGE_BYTES)) == LARGE_BYTES
    del held[0]
    assert len(buffers.lease(LARGE_BYTES)) == LARGE_BYTES


def test_what_is_leased_outside_the_pool_is_counted_until_its_last_view_is_freed() -> None:
    buffers = ReadBuffers({SMALL_BYTES: 1}, most_unpooled_bytes=100_000)
    pooled = buffers.lease(10)
    assert (buffers.unpooled_bytes, buffers.is_short) == (0, False)
    small, whole = buffers.lease(30_000), buffers.exactly(70_000)
    assert (buffers.unpooled_bytes, buffers.is_short) == (100_000, True)
    part = whole[:5].toreadonly()
    del small, whole
    assert (buffers.unpooled_bytes, buffers.is_short) == (70_000, False)
    more = buffers.exactly(30_000)
    assert buffers.is_short
    del part
    assert not buffers.is_short, "the count is taken again"
    assert (len(pooled), len(more)) == (10, 30_000)
