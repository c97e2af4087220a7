"""`barnabas consume TOPIC`: print records, from a start to the topic's present end, or continuously.

Without ``--follow`` the command ends at the end that each partition has when it starts: the high watermark,
or with ``--isolation read_committed`` the last stable offset; it fails if the topic is deleted meanwhile.
Records of one partition come in order; partitions are mixed as they arrive. With ``--group`` it is a member
of a group: it shares the topic with the others and begins at the committed offsets. While it waits for
records that are there, the problems of the cluster are printed that may be the reason. On Ctrl-C or SIGTERM
it commits the printed records and leaves.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, BinaryIO, Final

from barnabas.cli.action import arg, command, flag, repeated
from barnabas.cli.arguments import (
    check_partition,
    chosen_bootstrap,
    client_settings,
    cluster_options,
    describe_topic,
    not_empty,
    number,
    run_async,
    settings_option,
)
from barnabas.cli.cluster_view import silence_explained
from barnabas.cli.exit_codes import OK, TERMINATED, USAGE, CommandError
from barnabas.cli.record_lines import DEFAULT_KEY_SEPARATOR, OUTPUT_FORMATS, Formatter, make_formatter
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.isolation import ISOLATION_LEVELS
from barnabas.client.metadata import TopicInfo
from barnabas.common.settings import LONG_MAX
from barnabas.protocol.ids import NO_TOPIC_ID, Offset, TopicPartition

_POLL_MS: Final = 1_000
_COMMIT_MS: Final = 1_000
_MAX_POLL_RECORDS: Final = 5_000


def _run(options: argparse.Namespace) -> int:
    if options.group is not None and (options.partition is not None or options.start is not None):
        raise CommandError("--group: the group decides the partitions and the start", USAGE)
    start = parse_start(options.start if options.start is not None else "beginning")
    try:
        return run_async(_consume(options, start, chosen_bootstrap(options), sys.stdout.buffer))
    except asyncio.CancelledError:
        return TERMINATED


def parse_start(where: str) -> str | int | datetime:
    """``beginning``, ``end``, an offset, or a time; raises CommandError (usage) for anything else."""
    if where in ("beginning", "end"):
        return where
    if where.isascii() and where.isdecimal():
        return int(where)
    try:
        start = datetime.fromisoformat(where)
    except ValueError:
        raise CommandError(
            f"--from {where!r}: expected beginning, end, an offset, or a time like 2013-01-31T12:00:00Z",
            USAGE,
        ) from None
    return start if start.tzinfo is not None else start.replace(tzinfo=UTC)


class _Progress:
    """The records printed so far. Following waits for records that may never come: no silence to explain."""

    def __init__(self) -> None:
        self.shown = 0
        self.is_following = False

    def __call__(self) -> int | None:
        return None if self.is_following else self.shown


@dataclass
class _Ends:
    """The offsets at which reading ends. They mean nothing in another topic with the name of this one."""

    topic: TopicInfo
    describe: Callable[[], Awaitable[TopicInfo]]
    """Asks for the topic; raises ApiError if there is none."""
    offsets: dict[TopicPartition, Offset]

    async def check_topic(self, consumer: Consumer) -> None:
        """Raise CommandError if the topic was made again, and ApiError if it was deleted."""
        name, topic_id = self.topic.name, self.topic.topic_id
        if topic_id == NO_TOPIC_ID or consumer.topic_id(name) == topic_id:
            return
        if consumer.topic_id(name) == NO_TOPIC_ID and (await self.describe()).topic_id == topic_id:
            return
        raise CommandError(
            f"topic {name} was deleted and made again while it was read; the records printed so far are of "
            "the former topic"
        )


async def _consume(
    options: argparse.Namespace, start: str | int | datetime, bootstrap: str, out: BinaryIO
) -> int:
    progress = _Progress()
    async with silence_explained(options, bootstrap, "read", progress):
        settings = {
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
            **client_settings(options, ConsumerConfig),
        }
        if options.isolation is not None:
            settings["isolation_level"] = options.isolation
        if options.skip_damaged:
            settings["skip_damaged_batches"] = True
        describe = partial(describe_topic, bootstrap, options.topic, settings)
        topic = await describe()
        chosen = range(len(topic.partitions)) if options.partition is None else sorted(set(options.partition))
        for partition in chosen:
            check_partition(topic, partition)
        partitions = [TopicPartition(options.topic, partition) for partition in chosen]
        format_record = make_formatter(options.format, options.key_separator)
        if options.group is not None:
            settings = {"group_id": options.group, "auto_commit_interval_ms": _COMMIT_MS, **settings}
        async with Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
            ends = None
            if options.group is not None:
                consumer.subscribe([options.topic])
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, _end, asyncio.current_task())
            else:
                if not options.follow:
                    ends = _Ends(topic, describe, await consumer.end_offsets(partitions))
                consumer.assign(partitions)
                await _seek(consumer, partitions, start)
            await _print_records(consumer, ends, options.max, format_record, out, progress)
        return OK


def _end(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()


async def _seek(
    consumer: Consumer, partitions: Sequence[TopicPartition], start: str | int | datetime
) -> None:
    if isinstance(start, int):
        first = await consumer.beginning_offsets(partitions)
        end = await consumer.end_offsets(partitions)
        for partition in partitions:
            # A removed offset becomes the log start; an offset beyond the end becomes the end.
            consumer.seek(partition, min(max(start, first[partition]), end[partition]))
    elif isinstance(start, datetime):
        timestamp_ms = max(0, int(start.timestamp() * 1000))
        offsets = await consumer.offsets_for_times(dict.fromkeys(partitions, timestamp_ms))
        for partition in partitions:
            listed = offsets[partition]
            if listed is None:
                consumer.seek_to_end(partition)
            else:
                consumer.seek(partition, listed.offset)
    elif start == "end":
        consumer.seek_to_end(*partitions)
    else:
        consumer.seek_to_beginning(*partitions)


async def _print_records(
    consumer: Consumer,
    ends: _Ends | None,
    limit: int | None,
    format_record: Formatter,
    out: BinaryIO,
    progress: _Progress,
) -> None:
    """Print `limit` records at most, until every partition is at its end; without ends, until Ctrl-C."""
    progress.is_following = ends is None
    left = {} if ends is None else ends.offsets
    last_output = time.monotonic()
    while limit is None or progress.shown < limit:
        if ends is not None:
            at_end = [tp for tp, end in left.items() if await consumer.position(tp) >= end]
            await ends.check_topic(consumer)
            for partition in at_end:
                del left[partition]
                consumer.pause(partition)
            if not left:
                break
        room = _MAX_POLL_RECORDS if limit is None else min(_MAX_POLL_RECORDS, limit - progress.shown)
        records = await consumer.poll(_POLL_MS, room)
        if ends is not None:
            await ends.check_topic(consumer)
        for record in records:
            end = left.get(TopicPartition(record.topic, record.partition))
            # Records written after the start are not printed.
            if ends is None or (end is not None and record.offset < end):
                out.write(format_record(record))
                progress.shown += 1
        if ends is None or time.monotonic() - last_output > 0.5:
            out.flush()
            last_output = time.monotonic()
    out.flush()


add_arguments = command(
    _run,
    arg("topic"),
    repeated("--partition", "P", "only this partition", type=int, default=None),
    arg(
        "--from",
        "WHERE",
        "beginning (default), end, an offset, or a time like 2013-01-31T12:00:00Z",
        dest="start",
    ),
    arg("--group", "GROUP", "join this consumer group and read until Ctrl-C", type=not_empty),
    arg(
        "--isolation",
        help="read_committed leaves out aborted and open transactions (default: read_uncommitted)",
        choices=ISOLATION_LEVELS,
    ),
    arg("--max", "N", "stop after N records", type=number(0, LONG_MAX)),
    flag("--skip-damaged", "go on after a batch that cannot be decoded, and name it"),
    flag("--follow", "wait for more records at the end, until Ctrl-C"),
    arg("--format", help="default: value", choices=OUTPUT_FORMATS, default="value"),
    lambda parser: parser.add_argument(
        "--json", action="store_const", const="json", dest="format", help="as --format json"
    ),
    arg("--key-separator", "TEXT", "between key and value (default: a tab)", default=DEFAULT_KEY_SEPARATOR),
    settings_option(
        "consumer",
        group_id="--group",
        isolation_level="--isolation",
        skip_damaged_batches="--skip-damaged",
    ),
    *cluster_options(None),
)
