"""Lines from any source, however its bytes come."""

from __future__ import annotations

import io
import os

import pytest

from barnabas.cli.exit_codes import CommandError
from barnabas.cli.produce import MAX_LINE_BYTES, read_lines


class _Dribble(io.RawIOBase):
    """Returns its bytes in pieces of one size, as a pipe may."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = io.BytesIO(data)
        self._size = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        piece = self._data.read(self._size)
        memoryview(buffer)[: len(piece)] = piece
        return len(piece)


async def _all_lines(data: bytes, size: int) -> list[bytes]:
    source = io.BufferedReader(_Dribble(data, size), buffer_size=max(size, 1))
    return [line async for lines in read_lines(source) for line in lines]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\ntwo", [b"one", b"two"]),
        (b"\n\nx\n", [b"", b"", b"x"]),
        (b"dos\r\nunix\n", [b"dos", b"unix"]),
        (b"keeps \r inside\n", [b"keeps \r inside"]),
        (bytes(range(1, 10)) + b"\n", [bytes(range(1, 10))]),
    ],
)
async def test_lines_are_the_same_under_any_chunking(data: bytes, lines: list[bytes], size: int) -> None:
    # \n is byte 10, \r byte 13: range(1, 10) has neither.
    assert await _all_lines(data, size) == lines


async def test_a_line_without_end_is_refused() -> None:
    class Endless(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return b"x" * 4 * 1024 * 1024

        read = read1

    with pytest.raises(CommandError, match=f"longer than {MAX_LINE_BYTES:,} bytes"):
        await anext(read_lines(Endless()))


async def test_lines_come_before_the_source_ends() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as source, os.fdopen(writer, "wb", buffering=0) as sink:
        lines = read_lines(source)
        sink.write(b"first\nsec")
        assert await anext(lines) == [b"first"]
        sink.write(b"ond\n")
        assert await anext(lines) == [b"second"]
        sink.close()
        with pytest.raises(StopAsyncIteration):
            await anext(lines)
