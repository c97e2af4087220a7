"""`barnabas produce TOPIC`: each line of stdin or of a file becomes a record.

Exit code 0 means that every line was acknowledged as ``--acks`` demands. The first failed record ends the
command, which then prints the number of acknowledged lines. While nothing is acknowledged for some seconds,
the problems of the cluster are printed that may be the reason. With ``--transactional-id`` all lines are one
transaction, committed at the end of the input and aborted if anything fails: readers of committed records see
all of them or none.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import shlex
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from barnabas.cli.action import arg, command
from barnabas.cli.arguments import (
    STDIN,
    check_partition,
    chosen_bootstrap,
    client_settings,
    cluster_options,
    cluster_words,
    describe_topic,
    not_empty,
    number,
    run_async,
    settings_option,
)
from barnabas.cli.cluster_view import silence_explained
from barnabas.cli.exit_codes import NOT_FOUND, OK, CommandError, exit_code_of
from barnabas.cli.output import errors_alone, print_json
from barnabas.client.config import ProducerConfig
from barnabas.client.metadata import TopicInfo
from barnabas.client.producer.batch import RecordMetadata
from barnabas.client.producer.producer import Producer
from barnabas.common.texts import count
from barnabas.protocol.errors import BarnabasError, UnknownTopicOrPartitionError

_CHUNK_BYTES: Final = 256 * 1024
_MAX_CHUNKS: Final = 8
MAX_LINE_BYTES: Final = 64 * 1024 * 1024


def _run(options: argparse.Namespace) -> int:
    bootstrap = chosen_bootstrap(options)
    if options.file == STDIN:
        return run_async(_produce(options, bootstrap, sys.stdin.buffer))
    with options.file.open("rb") as source:
        return run_async(_produce(options, bootstrap, source))


class _Tally:
    """The outcomes of the records so far; filled by the producer's callbacks on the event loop."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.bytes = 0
        self.is_opening = True
        """Until the topic and the producer are there; then only records are waited for."""
        self.first_error: BarnabasError | None = None

    def delivered(self, metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
            if self.first_error is None:
                self.first_error = error

    def progress(self) -> int | None:
        """The number of acknowledged records while an answer is waited for."""
        is_waiting = self.is_opening or self.sent > self.acknowledged + self.failed
        return self.acknowledged if is_waiting else None


async def _produce(options: argparse.Namespace, bootstrap: str, source: BinaryIO) -> int:
    tally = _Tally()
    # The failures of records are reported once, not for each batch.
    with errors_alone("barnabas.client.producer.sender"):
        async with silence_explained(options, bootstrap, "acknowledged", tally.progress):
            return await _write(options, bootstrap, source, tally)


async def _write(options: argparse.Namespace, bootstrap: str, source: BinaryIO, tally: _Tally) -> int:
    settings: dict[str, Any] = {
        "acks": options.acks,
        "compression_type": options.compression,
        "linger_ms": 0 if source.isatty() else 5,
        **client_settings(options, ProducerConfig),
    }
    if options.transactional_id is not None:
        settings["transactional_id"] = options.transactional_id
    topic = await _existing_topic(options, bootstrap, settings)
    if options.partition is not None:
        check_partition(topic, options.partition)
    started = time.monotonic()
    async with Producer(bootstrap_servers=bootstrap, **settings) as producer:
        tally.is_opening = False
        if options.transactional_id is None:
            await _send_lines(options, source, producer, tally)
            await producer.flush()
        else:
            await _send_in_transaction(options, source, producer, tally)
    return _report(options, tally, time.monotonic() - started)


async def _existing_topic(options: argparse.Namespace, bootstrap: str, settings: dict[str, Any]) -> TopicInfo:
    """Raises an error with similar names for a topic that does not exist: a misspelt one is not created."""
    try:
        return await describe_topic(bootstrap, options.topic, settings)
    except UnknownTopicOrPartitionError as error:
        create = f"`barnabas topics create {shlex.quote(options.topic)}{cluster_words(options)}`"
        raise CommandError(f"{error} (this command creates no topic: {create})", NOT_FOUND) from error


async def _send_in_transaction(
    options: argparse.Namespace, source: BinaryIO, producer: Producer, tally: _Tally
) -> None:
    """Raises CommandError for an invalid line, after the abort."""
    try:
        async with producer.transaction():
            await _send_lines(options, source, producer, tally)
    except CommandError:
        raise
    except BarnabasError as error:
        # Brokers may have acknowledged records, but they count only with the commit.
        tally.acknowledged, tally.first_error = 0, error


async def _send_lines(
    options: argparse.Namespace, source: BinaryIO, producer: Producer, tally: _Tally
) -> None:
    separator = options.key_separator.encode() if options.key_separator is not None else None
    topic, partition, delivered = options.topic, options.partition, tally.delivered
    async for lines in read_lines(source):
        for line in lines:
            key: bytes | None = None
            value = line
            if separator is not None:
                key, separator_found, value = line.partition(separator)
                if not separator_found:
                    raise await _invalid_line(options, producer, tally)
            try:
                await producer.send(topic, value, key, partition=partition, on_delivery=delivered)
            except BarnabasError as error:
                if options.transactional_id is not None:
                    raise
                # The lines before it are still under way, and are counted.
                tally.first_error = tally.first_error or error
                return
            tally.sent += 1
            tally.bytes += len(line)
        if tally.first_error is not None:
            return


async def _invalid_line(options: argparse.Namespace, producer: Producer, tally: _Tally) -> CommandError:
    """The error for the next line, with the fate of those before it."""
    fate = "nothing was written"
    if options.transactional_id is None and tally.sent:
        await producer.flush()
        fate = f"acknowledged before it: {tally.acknowledged:,} of {tally.sent:,}"
    text = f"line {tally.sent + 1} has no key separator {options.key_separator!r}"
    return CommandError(f"{text}; {fate}")


def _report(options: argparse.Namespace, tally: _Tally, seconds: float) -> int:
    error = tally.first_error
    if options.json:
        print_json(
            {
                "topic": options.topic,
                "sent": tally.sent,
                "acknowledged": tally.acknowledged,
                "bytes": tally.bytes,
                "seconds": round(seconds, 3),
                "error": None if error is None else str(error),
            }
        )
    elif error is None:
        print(f"{count(tally.acknowledged, 'record')} written to {options.topic}", file=sys.stderr)
    if error is None:
        return OK
    print(
        f"barnabas produce: {tally.acknowledged:,} of {tally.sent:,} records acknowledged, then: {error}",
        file=sys.stderr,
    )
    return exit_code_of(error)


async def read_lines(source: BinaryIO) -> AsyncIterator[list[bytes]]:
    """The lines without their ends, as many at a time as are available; the last may lack its end.

    A thread reads, at most `_MAX_CHUNKS` ahead. Raises CommandError for a line longer than `MAX_LINE_BYTES`,
    and OSError as reading does.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_MAX_CHUNKS)
    is_over = threading.Event()
    read: Any = source.raw.read if isinstance(source, io.BufferedReader) else source.read

    def feed() -> None:
        # Once the command has ended, the source is closed (ValueError) or the loop (RuntimeError).
        with suppress(ValueError, RuntimeError):
            while room.acquire() and not is_over.is_set():
                try:
                    chunk: bytes | OSError = read(_CHUNK_BYTES)
                except OSError as error:
                    chunk = error
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
                if not chunk or isinstance(chunk, OSError):
                    return

    threading.Thread(target=feed, name="line-source", daemon=True).start()
    rest = b""
    try:
        while chunk := await chunks.get():
            room.release()
            if isinstance(chunk, OSError):
                raise chunk
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise CommandError(f"a line of the input is longer than {MAX_LINE_BYTES:,} bytes")
            if lines:
                yield [line.removesuffix(b"\r") for line in lines]
        if rest:
            yield [rest.removesuffix(b"\r")]
    finally:
        # The thread reads no more; its present read is not waited for.
        is_over.set()
        room.release()


add_arguments = command(
    _run,
    arg("topic"),
    arg("file", "FILE", "default: stdin (also -)", nargs="?", type=Path, default=STDIN),
    arg("--key-separator", "TEXT", "between key and value; every line needs one", type=not_empty),
    arg("--partition", "P", "write to this partition alone", type=number(0)),
    arg("--acks", choices=("0", "1", "all"), default="all"),
    arg(
        "--transactional-id",
        "ID",
        "write all lines in one transaction, which is committed at the end of the input",
        type=not_empty,
    ),
    arg("--compression", "CODEC", "none, gzip, snappy, lz4 or zstd", default="none"),
    settings_option(
        "producer",
        acks="--acks",
        compression_type="--compression",
        transactional_id="--transactional-id",
    ),
    *cluster_options("print a summary as one JSON object"),
)
