"""Lines of a file or of stdin, for an event loop.

A thread of its own reads, since a terminal or pipe may block for ever; at most a few chunks wait between it
and the loop. The thread is a daemon, so a command that ends does not wait for input from a terminal.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, BinaryIO, Final

from barnabas.cli.exit_codes import CommandError

_CHUNK_BYTES: Final = 256 * 1024
_MAX_CHUNKS: Final = 8
MAX_LINE_BYTES: Final = 64 * 1024 * 1024


async def read_lines(source: BinaryIO) -> AsyncIterator[list[bytes]]:
    """The lines without their ends, as many at a time as are available; the last may lack its end.

    Raises CommandError for a line longer than `MAX_LINE_BYTES`, and OSError as reading does.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    reader = _Reader(source, lambda chunk: loop.call_soon_threadsafe(chunks.put_nowait, chunk))
    rest = b""
    try:
        while True:
            chunk = await chunks.get()
            reader.taken()
            if isinstance(chunk, OSError):
                raise chunk
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise CommandError(f"a line of the input is longer than {MAX_LINE_BYTES:,} bytes")
            if lines:
                yield [line.removesuffix(b"\r") for line in lines]
        if rest:
            yield [rest.removesuffix(b"\r")]
    finally:
        reader.stop()


class _Reader:
    """The thread that reads, and hands over at most `_MAX_CHUNKS` before one is taken."""

    def __init__(self, source: BinaryIO, hand_over: Callable[[bytes | OSError], object]) -> None:
        self._read: Any = source.read1 if isinstance(source, io.BufferedReader) else source.read
        self._hand_over = hand_over
        self._room = threading.Semaphore(_MAX_CHUNKS)
        self._stopped = False
        threading.Thread(target=self._run, name="line-source", daemon=True).start()

    def taken(self) -> None:
        """One chunk was taken, so there is room for another."""
        self._room.release()

    def stop(self) -> None:
        """Read no more; does not wait for the present read."""
        self._stopped = True
        self._room.release()

    def _run(self) -> None:
        while True:
            self._room.acquire()
            if self._stopped:
                return
            try:
                found: bytes | OSError = self._read(_CHUNK_BYTES)
            except OSError as error:
                found = error
            except ValueError:
                return  # closed under the read: the command has ended
            try:
                self._hand_over(found)
            except RuntimeError:
                return  # the loop is closed: the command has ended
            if not found or isinstance(found, OSError):
                return
