"""Frames under any chunking, with hostile lengths, and the memory that they hold."""

import mmap
import struct
import threading
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.frames import BufferPool, Frame, FrameReceiver
from tests.support.soak import searched
from tests.support.waiting import DEADLINE_S

# Around every threshold of the receiver: pooled, received in place, the shared memory, mapped.
SIZES = st.one_of(
    st.integers(1, 40),
    st.sampled_from([16_383, 16_384, 16_385, 32_768, 65_531, 65_532, 65_536, 131_071, 131_072, 300_000]),
)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def payload_of(size: int, seed: int) -> bytes:
    return bytes((seed + i * 7) % 251 for i in range(min(size, 251))) * (size // 251 + 1)


def feed(receiver: FrameReceiver, data: bytes, at_most: int | None = None) -> list[Frame]:
    """Give the receiver the bytes as a transport would, never more than ``at_most`` in one go."""
    frames: list[Frame] = []
    rest = memoryview(data)
    while rest:
        into = receiver.get_buffer(-1)
        assert len(into) > 0
        count = min(len(into), len(rest), at_most or len(rest))
        into[:count] = rest[:count]
        frames += receiver.buffer_updated(count)
        rest = rest[count:]
    return frames


def contents(frames: Iterable[Frame]) -> list[bytes]:
    return [bytes(frame.view) for frame in frames]


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool()


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 70_000), min_size=1, max_size=8),
    release=st.booleans(),
)
@example(sizes=[1, 600, 20_000], cuts=[1], release=False)
@settings(max_examples=searched(120, usual=40), deadline=None)
def test_any_chunking_gives_the_same_frames(sizes: list[int], cuts: list[int], release: bool) -> None:
    payloads = [payload_of(size, i)[:size] for i, size in enumerate(sizes)]
    stream = b"".join(map(framed, payloads))
    receiver, fed = FrameReceiver(BufferPool()), 0
    got: list[bytes] = []
    while fed < len(stream):
        chunk = stream[fed : fed + cuts[len(got) % len(cuts)]]
        fed += len(chunk)
        frames = feed(receiver, chunk)
        got += contents(frames)
        if release:
            for frame in frames:
                frame.release()
    assert got == payloads
    assert receiver.buffered_bytes == 0


@pytest.mark.parametrize("trailing", [b"\0", b"\0\0\1", b"\0\0\0\5", b"\0\0\0\5ab"])
def test_trailing_bytes_wait_for_the_rest_of_their_frame(trailing: bytes) -> None:
    receiver = FrameReceiver(BufferPool())
    assert contents(feed(receiver, framed(b"first") + trailing)) == [b"first"]
    assert receiver.buffered_bytes == (len(trailing) if len(trailing) < 4 else len(trailing) - 4)
    rest = (framed(b"abcde") if len(trailing) > 3 else framed(b"x" * 256))[len(trailing) :]
    assert contents(feed(receiver, rest)) == [b"abcde" if len(trailing) > 3 else b"x" * 256]


def test_receivers_that_take_turns_on_one_thread_do_not_mix_their_bytes(pool: BufferPool) -> None:
    receivers = [FrameReceiver(pool) for _ in range(3)]
    payloads = [bytes([65 + i]) * (30_000 + i) for i in range(3)]
    got: list[list[bytes]] = [[], [], []]
    streams = [framed(p) * 2 for p in payloads]
    for position in range(0, len(streams[2]), 997):
        for i, receiver in enumerate(receivers):
            got[i] += contents(feed(receiver, streams[i][position : position + 997]))
    assert got == [[p, p] for p in payloads]


@pytest.mark.parametrize("length", [0, -1, -(2**31), 1001, 2**31 - 1])
@pytest.mark.parametrize("before", [b"", framed(b"good")])
def test_a_length_out_of_range_is_refused_before_anything_is_buffered(length: int, before: bytes) -> None:
    receiver = FrameReceiver(BufferPool(), max_frame_bytes=1000)
    with pytest.raises(MalformedFrame, match=rf"frame length {length} is not within 1\.\.1000"):
        feed(receiver, before + struct.pack(">i", length) + b"x")
    assert receiver.buffered_bytes == 0


def test_the_longest_frame_allowed_is_taken() -> None:
    receiver = FrameReceiver(BufferPool(), max_frame_bytes=1000)
    assert contents(feed(receiver, framed(b"x" * 1000))) == [b"x" * 1000]


def test_a_large_frame_is_received_in_place() -> None:
    receiver = FrameReceiver(BufferPool())
    size = 1_000_000
    feed(receiver, struct.pack(">i", size) + b"x")
    into = receiver.get_buffer(-1)
    assert len(into) == size - 1
    into[:] = b"y" * (size - 1)
    [frame] = receiver.buffer_updated(size - 1)
    assert bytes(frame.view) == b"x" + b"y" * (size - 1)
    into[0:1] = b"z"
    assert frame.view[1] == ord("z")


def test_frames_are_writable_and_of_single_bytes() -> None:
    for size in (10, 20_000, 200_000):
        [frame] = feed(FrameReceiver(BufferPool()), framed(b"x" * size))
        frame.view[0] = 1
        assert (frame.view.readonly, frame.view.format, len(frame.view)) == (False, "B", size)


def test_a_released_buffer_is_used_again(pool: BufferPool) -> None:
    receiver = FrameReceiver(pool)
    [first] = feed(receiver, framed(b"a" * 200_000))
    view = first.view
    first.release()
    assert pool.free_bytes == 262_144
    [second] = feed(receiver, framed(b"b" * 250_000))
    assert pool.free_bytes == 0
    assert bytes(view[:3]) == b"bbb"
    assert bytes(second.view) == b"b" * 250_000


def test_a_frame_that_is_not_released_keeps_its_bytes() -> None:
    receiver = FrameReceiver(BufferPool())
    [kept] = feed(receiver, framed(b"a" * 50_000))
    feed(receiver, framed(b"b" * 50_000))
    assert bytes(kept.view) == b"a" * 50_000


def test_a_double_release_gives_the_buffer_back_once(pool: BufferPool) -> None:
    [frame] = feed(FrameReceiver(pool), framed(b"a" * 50_000))
    frame.release()
    frame.release()
    assert pool.acquire(50_000) is not pool.acquire(50_000)


def test_the_pool_keeps_no_more_than_its_bound() -> None:
    pool = BufferPool(max_bytes_per_class=64 * 1024, largest_bytes=128 * 1024)
    for size in (16 * 1024, 64 * 1024, 128 * 1024, 256 * 1024):
        buffers = [pool.acquire(size) for _ in range(10)]
        for buffer in buffers:
            pool.release(buffer)
    # Four, one and one buffer of the three classes; the pool keeps no buffer above the largest class.
    assert pool.free_bytes == (4 * 16 + 64 + 128) * 1024


@pytest.mark.parametrize("size", [1, 16_384, 16_385, 100_000, 40 * 1024 * 1024])
def test_an_acquired_buffer_is_large_enough(size: int) -> None:
    assert len(BufferPool().acquire(size)) >= size


def test_a_frame_that_is_announced_but_not_sent_occupies_no_memory() -> None:
    receivers = [FrameReceiver(BufferPool()) for _ in range(20)]
    tracemalloc.start()
    try:
        for receiver in receivers:
            feed(receiver, struct.pack(">i", 100_000_000) + b"x")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert isinstance(BufferPool().acquire(100_000_000), mmap.mmap)


def test_idle_receivers_hold_no_buffers(pool: BufferPool) -> None:
    feed(FrameReceiver(pool), framed(b"warm up"))
    tracemalloc.start()
    try:
        receivers = [FrameReceiver(pool) for _ in range(1000)]
        for receiver in receivers:
            feed(receiver, framed(b"x" * 1000) * 50)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1000 * 500


def test_threads_receive_into_memory_of_their_own(pool: BufferPool) -> None:
    got: dict[int, list[bytes]] = {}

    def run(number: int) -> None:
        stream = framed(bytes([number]) * 5000) * 200
        got[number] = contents(feed(FrameReceiver(pool), stream, at_most=777))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert got == {n: [bytes([n]) * 5000] * 200 for n in range(4)}
