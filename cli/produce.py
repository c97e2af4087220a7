"""`barnabas produce TOPIC`: each line of stdin or of a file becomes a record.

With ``--json`` the lines are those of `barnabas consume --json`, and the summary is JSON too; ``--format``
and ``--key-separator`` choose other lines. A partition that a JSON line names is used, so that a copy has its
records where the original has them.

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
import select
import shlex
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from barnabas.cli.action import arg, command, flag, one_of, repeated
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
from barnabas.cli.record_lines import (
    INPUT_FORMATS,
    RecordReader,
    header_of,
    input_format,
    make_reader,
    timestamp_of,
)
from barnabas.client.config import ProducerConfig
from barnabas.client.metadata import TopicInfo
from barnabas.client.producer.batch import RecordMetadata
from barnabas.client.producer.producer import Producer
from barnabas.common.texts import count, iso_time
from barnabas.protocol.errors import BarnabasError, UnknownTopicOrPartitionError

_CHUNK_BYTES: Final = 256 * 1024
_MAX_CHUNKS: Final = 8
MAX_LINE_BYTES: Final = 64 * 1024 * 1024


def _run(options: argparse.Namespace) -> int:
    input_format(options)
    bootstrap = chosen_bootstrap(options)
    if options.file == STDIN:
        return run_async(_produce(options, bootstrap, sys.stdin.buffer))
    with options.file.open("rb") as source:
        return run_async(_produce(options, bootstrap, source))


class _Tally:
    """The outcomes of the records so far; filled by the producer's callbacks on the event loop."""

    def __init__(self, *, is_json: bool) -> None:
        self.is_json = is_json
        self.sent = 0
        self.acknowledged = 0
        self.failed = 0
        self.bytes = 0
        self.is_opening = True
        """Until the topic and the producer are there; then only records are waited for."""
        self.first_error: BarnabasError | None = None
        self.output_error: OSError | None = None

    def delivered(self, metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
            if self.first_error is None:
                self.first_error = error

    def show_place(self, metadata: RecordMetadata | None, error: BarnabasError | None) -> None:
        """As `delivered`, and prints the place of the record: once stdout fails, no more."""
        self.delivered(metadata, error)
        if metadata is None or self.output_error is not None:
            return
        try:
            if self.is_json:
                print_json(metadata._asdict())
            else:
                place = f"{metadata.topic}-{metadata.partition}  {metadata.offset}"
                print(f"{place}  {iso_time(metadata.timestamp_ms)}")
            sys.stdout.flush()
        except OSError as error:
            self.output_error = error

    def progress(self) -> int | None:
        """The number of acknowledged records while an answer is waited for."""
        is_waiting = self.is_opening or self.sent > self.acknowledged + self.failed
        return self.acknowledged if is_waiting else None


async def _produce(options: argparse.Namespace, bootstrap: str, source: BinaryIO) -> int:
    tally = _Tally(is_json=options.json)
    # The failures of records are reported once, not for each batch.
    with errors_alone("barnabas.client.producer.sender"):
        async with silence_explained(options, bootstrap, "acknowledged", tally.progress, [options.topic]):
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
    read = make_reader(options, topic)
    started = time.monotonic()
    async with Producer(bootstrap_servers=bootstrap, **settings) as producer:
        tally.is_opening = False
        if options.transactional_id is None:
            await _send_lines(options, source, read, producer, tally)
            await producer.flush()
        else:
            await _send_in_transaction(options, source, read, producer, tally)
    if tally.output_error is not None:
        raise tally.output_error
    return _report(options, tally, time.monotonic() - started)


async def _existing_topic(options: argparse.Namespace, bootstrap: str, settings: dict[str, Any]) -> TopicInfo:
    """Raises an error with similar names for a topic that does not exist: a misspelt one is not created."""
    try:
        return await describe_topic(bootstrap, options.topic, settings)
    except UnknownTopicOrPartitionError as error:
        create = f"`barnabas topics create {shlex.quote(options.topic)}{cluster_words(options)}`"
        raise CommandError(f"{error} (this command creates no topic: {create})", NOT_FOUND) from error


async def _send_in_transaction(
    options: argparse.Namespace, source: BinaryIO, read: RecordReader, producer: Producer, tally: _Tally
) -> None:
    """Raises CommandError for an invalid line, after the abort."""
    try:
        async with producer.transaction():
            await _send_lines(options, source, read, producer, tally)
    except CommandError:
        raise
    except BarnabasError as error:
        # Brokers may have acknowledged records, but they count only with the commit.
        tally.acknowledged, tally.first_error = 0, error


async def _send_lines(
    options: argparse.Namespace, source: BinaryIO, read: RecordReader, producer: Producer, tally: _Tally
) -> None:
    delivered = tally.show_place if options.show_offsets else tally.delivered
    topic = options.topic
    async for lines in read_lines(source):
        try:
            for line, (value, key, partition, headers, timestamp_ms) in zip(lines, read(lines), strict=True):
                await producer.send(
                    topic,
                    value,
                    key,
                    partition=partition,
                    headers=headers or None,
                    timestamp_ms=timestamp_ms,
                    on_delivery=delivered,
                )
                tally.sent += 1
                tally.bytes += len(line)
        except BarnabasError as error:
            if options.transactional_id is not None:
                raise
            # The lines before it are still under way, and are counted.
            tally.first_error = tally.first_error or error
        except ValueError as error:
            raise await _invalid_line(options, producer, tally, error) from None
        if tally.first_error is not None:
            return


async def _invalid_line(
    options: argparse.Namespace, producer: Producer, tally: _Tally, problem: ValueError
) -> CommandError:
    """The error for the next line, with the fate of those before it."""
    fate = "nothing was written"
    if options.transactional_id is None and tally.sent:
        await producer.flush()
        fate = f"acknowledged before it: {tally.acknowledged:,} of {tally.sent:,}"
    return CommandError(f"line {tally.sent + 1}: {problem}; {fate}")


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
    chunks: asyncio.Queue[bytes | OSError | ValueError] = asyncio.Queue()
    room = threading.Semaphore(_MAX_CHUNKS)
    is_over = threading.Event()
    read: Any = source.raw.read if isinstance(source, io.BufferedReader) else source.read

    def feed() -> None:
        # Once the command has ended, the loop is closed.
        with suppress(RuntimeError):
            while room.acquire() and not is_over.is_set():
                try:
                    # Of a source that does not block, None is no end: it has nothing yet.
                    while (chunk := read(_CHUNK_BYTES)) is None:
                        # Not `select.select`, which takes no descriptor above 1,023.
                        readable = select.poll()
                        readable.register(source, select.POLLIN)
                        readable.poll()
                except (OSError, ValueError) as error:
                    # Also ValueError, of a closed source: without an end the command would wait for ever.
                    chunk = error
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
                if not isinstance(chunk, bytes) or not chunk:
                    return

    threading.Thread(target=feed, name="line-source", daemon=True).start()
    rest = b""
    try:
        while chunk := await chunks.get():
            room.release()
            if not isinstance(chunk, bytes):
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
    arg(
        "--format",
        help="of the lines; json is that of `barnabas consume --json` (default: value; with --key-separator "
        "key-value, with --json json)",
        choices=INPUT_FORMATS,
    ),
    arg(
        "--key-separator",
        "TEXT",
        "between key and value; every line needs one (default: a tab)",
        type=not_empty,
    ),
    arg("-k --key", "TEXT", "the key of records that have none", type=not_empty),
    repeated("-H --header", "NAME=VALUE", "a header of every record, after its own", type=header_of),
    flag("-Z --null-value", "write an empty value as null, which is a tombstone"),
    arg(
        "--timestamp",
        "TIME",
        "of records that have none, as 2013-01-31T12:00:00Z or in ms (default: now)",
        type=timestamp_of,
    ),
    one_of(
        arg("--partition", "P", "write to this partition alone", type=number(0)),
        flag("--ignore-partition", "place JSON records by their keys, not in the partitions that they name"),
    ),
    flag("--show-offsets", "print partition, offset and time of each record when it is acknowledged"),
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
    *cluster_options("read records as JSON lines, and print the summary as one"),
)
