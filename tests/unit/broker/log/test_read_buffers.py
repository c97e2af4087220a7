"""Memory for reads: leased, returned with its last view, and bounded."""

from __future__ import annotations

from barnabas.broker.log.batch_scan import LARGE_BYTES, SMALL_BYTES, ReadBuffers

SIZES = {SMALL_BYTES: 2, LARGE_BYTES: 2}


def test_a_lease_ends_with_its_last_view() -> None:
    buffers = ReadBuffers(SIZES)
    lease = buffers.lease(100)
    assert (len(lease), lease.format, lease.readonly) == (100, "B", False)
    lease[:5] = b"bytes"
    part = lease[:5].toreadonly()
    del lease
    assert buffers.free[SMALL_BYTES] == 1
    assert bytes(part) == b"bytes"
    del part
    assert buffers.free[SMALL_BYTES] == 2


def test_a_block_is_used_again() -> None:
    buffers = ReadBuffers(SIZES)
    lease = buffers.lease(10)
    lease[:] = b"0123456789"
    del lease
    assert bytes(buffers.lease(10)) == b"0123456789"


def test_each_size_takes_the_block_that_fits() -> None:
    buffers = ReadBuffers(SIZES)
    leases = [buffers.lease(size) for size in (1, SMALL_BYTES, SMALL_BYTES + 1, LARGE_BYTES)]
    assert [len(lease) for lease in leases] == [1, SMALL_BYTES, SMALL_BYTES + 1, LARGE_BYTES]
    assert buffers.free == {SMALL_BYTES: 0, LARGE_BYTES: 0}


def test_a_read_above_the_largest_block_gets_less_and_a_batch_all() -> None:
    buffers = ReadBuffers(SIZES)
    assert len(buffers.lease(10 * LARGE_BYTES)) == LARGE_BYTES
    assert len(buffers.exactly(10 * LARGE_BYTES)) == 10 * LARGE_BYTES


def test_if_all_blocks_are_leased_each_reader_gets_a_small_one() -> None:
    buffers = ReadBuffers(SIZES)
    held = [buffers.lease(LARGE_BYTES) for _ in range(2)]
    more = [buffers.lease(LARGE_BYTES) for _ in range(100)]
    assert {len(lease) for lease in more} == {SMALL_BYTES}
    assert len(buffers.exactly(LARGE_BYTES)) == LARGE_BYTES
    del held[0]
    assert len(buffers.lease(LARGE_BYTES)) == LARGE_BYTES
