"""Lines of a file or of stdin, for an event loop.

A thread of its own reads, since a terminal or pipe may block for ever; at most a few chunks wait between it
and the loop. The thread is a daemon: a command that ends does not wait for a terminal that says nothing.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from typing import Any, BinaryIO, Final

from barnabas.cli.exit_codes import CommandError

_CHUNK_BYTES: Final = 256 * 1024
_MAX_CHUNKS: Final = 8
MAX_LINE_BYTES: Final = 64 * 1024 * 1024


async def read_lines(source: BinaryIO) -> AsyncIterator[list[bytes]]:
    """The lines without their ends, as many at a time as have come; the last may lack its end.

    Raises CommandError for a line longer than `MAX_LINE_BYTES`, and OSError as reading does.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_MAX_CHUNKS)
    threading.Thread(target=_read, args=(source, loop, chunks), name="line-source", daemon=True).start()
    rest = b""
    while True:
        chunk = await chunks.get()
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


def _read(source: BinaryIO, loop: asyncio.AbstractEventLoop, chunks: asyncio.Queue[Any]) -> None:
    read: Any = source.read1 if isinstance(source, io.BufferedReader) else source.read
    while True:
        try:
            found: bytes | OSError = read(_CHUNK_BYTES)
        except OSError as error:
            found = error
        try:
            asyncio.run_coroutine_threadsafe(chunks.put(found), loop).result()
        except (RuntimeError, asyncio.CancelledError):
            return  # the command has ended, and its loop with it
        if not found or isinstance(found, OSError):
            return
