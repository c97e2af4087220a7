"""`barnabas consume TOPIC…`: print records, from a start to the topics' present end, or continuously.

Without ``--follow`` the command ends at the end that each partition has when it starts: the high watermark,
or with ``--isolation read_committed`` the last stable offset; or before it, at ``--until``. It fails if a
topic is deleted meanwhile. Start, end and ``--partition`` hold for every topic, the number of ``--max`` for
all together. Records of one partition come in order; partitions are mixed as they arrive. With ``--group`` it
is a member of a group: it shares the topics with the others and begins at the committed offsets. While it
waits for records that are there, the problems of the cluster are printed that may be the reason. On Ctrl-C or
SIGTERM it commits the printed records and leaves.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Final, Literal, NamedTuple

from barnabas.cli.action import arg, command, flag, repeated
from barnabas.cli.arguments import (
    chosen_bootstrap,
    client_settings,
    cluster_options,
    describe_topics,
    not_empty,
    number,
    partitions_of,
    run_async,
    settings_option,
)
from barnabas.cli.cluster_view import silence_explained
from barnabas.cli.exit_codes import NOT_FOUND, OK, TERMINATED, USAGE, CommandError
from barnabas.cli.record_lines import (
    DEFAULT_KEY_SEPARATOR,
    OUTPUT_FORMATS,
    TEMPLATE_HELP,
    Formatter,
    compile_template,
    make_formatter,
    timestamp_of,
)
from barnabas.client.admin.offset_reset import within
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.consumer import Consumer
from barnabas.client.consumer.subscription import RebalanceListener, select
from barnabas.client.isolation import ISOLATION_LEVELS
from barnabas.client.metadata import TopicInfo
from barnabas.common.settings import LONG_MAX
from barnabas.protocol.ids import NO_TOPIC_ID, Offset, TopicPartition

_POLL_MS: Final = 1_000
_COMMIT_MS: Final = 1_000
_LOOK_FOR_TOPICS_MS: Final = 5_000
_MAX_POLL_RECORDS: Final = 5_000


class Moment(NamedTuple):
    timestamp_ms: int


Place = Literal["beginning", "end"] | int | Moment
"""A place in every partition: an offset, if negative before the end; or the first record of a time."""


def place(text: str) -> Place:
    """A type for argparse."""
    match text:
        case "beginning" | "end":
            return text
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) < 20 and int(digits) <= LONG_MAX:
        # The last 0 records are those after the end.
        return int(text) or ("end" if text.startswith("-") else 0)
    try:
        return Moment(timestamp_of(text.removeprefix("@")))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected beginning, end, an offset, -N for the last N of each partition, a time like "
            "2013-01-31T12:00:00Z, or @MS for a time in ms"
        ) from None


def pattern(text: str) -> re.Pattern[str]:
    """A type for argparse."""
    try:
        return re.compile(not_empty(text))
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a regular expression ({error})") from None


def _run(options: argparse.Namespace) -> int:
    if bool(options.topics) == (options.pattern is not None):
        raise CommandError("name topics, or give --pattern", USAGE)
    if options.template is not None and options.format != "value":
        raise CommandError(f"--template: expected no other format, not {options.format}", USAGE)
    if options.group is not None and (options.partition is not None or options.start is not None):
        raise CommandError("--group: the group decides the partitions and the start", USAGE)
    if options.until is not None and (options.follow or options.group is not None):
        raise CommandError("--until: expected neither --follow nor --group, which have no end", USAGE)
    return run_async(_consume(options, chosen_bootstrap(options), sys.stdout.buffer))


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

    topics: Mapping[str, TopicInfo]
    describe: Callable[[Iterable[str]], Awaitable[Mapping[str, TopicInfo]]]
    """Asks for topics; raises ApiError if one does not exist."""
    offsets: dict[TopicPartition, Offset]

    async def check_topics(self, consumer: Consumer) -> None:
        """Raise CommandError if a topic was made again, and ApiError if it was deleted."""
        for name, topic in self.topics.items():
            known = consumer.topic_id(name)
            if topic.topic_id in (NO_TOPIC_ID, known):
                continue
            if known == NO_TOPIC_ID and (await self.describe([name]))[name].topic_id == topic.topic_id:
                continue
            raise CommandError(
                f"topic {name} was deleted and made again while it was read; the records printed so far are "
                "of the former topic"
            )


async def _consume(options: argparse.Namespace, bootstrap: str, out: BinaryIO) -> int:
    progress = _Progress()
    topics = list(options.topics)
    async with silence_explained(options, bootstrap, "read", progress, topics):
        settings = {
            "auto_offset_reset": "earliest",
            "allow_auto_create_topics": False,
            "metadata_max_age_ms": _LOOK_FOR_TOPICS_MS,
            **client_settings(options, ConsumerConfig),
        }
        if options.isolation is not None:
            settings["isolation_level"] = options.isolation
        if options.skip_damaged:
            settings["skip_damaged_batches"] = True
        found = await _find_topics(options, bootstrap, settings)
        topics[:] = found
        partitions = [tp for topic in found.values() for tp in partitions_of(topic, options.partition)]
        format_record = options.template or make_formatter(options.format, options.key_separator)
        if options.group is not None:
            settings = {"group_id": options.group, "auto_commit_interval_ms": _COMMIT_MS, **settings}
        async with Consumer(bootstrap_servers=bootstrap, **settings) as consumer:
            ends = None
            if options.group is not None:
                consumer.subscribe(options.topics or None, pattern=options.pattern)
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, consumer.stop)
            elif options.follow and options.partition is None:
                listener = _Start(consumer, set(partitions), options.start)
                consumer.subscribe(options.topics or None, pattern=options.pattern, listener=listener)
            else:
                if not options.follow:
                    offsets = await _offsets_at(
                        consumer, partitions, "end" if options.until is None else options.until
                    )
                    ends = _Ends(found, partial(describe_topics, bootstrap, settings), offsets)
                consumer.assign(partitions)
                await _seek(consumer, partitions, options.start)
            await _print_records(consumer, ends, options.max, format_record, out, progress)
        return TERMINATED if consumer.is_stopped else OK


@dataclass
class _Start(RebalanceListener):
    """Begins at the chosen place of the partitions that are there; those added later begin at their start."""

    consumer: Consumer
    partitions: set[TopicPartition]
    start: Place | None

    async def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        if begun := partitions & self.partitions:
            self.partitions -= begun
            await _seek(self.consumer, list(begun), self.start)


async def _find_topics(
    options: argparse.Namespace, bootstrap: str, settings: Mapping[str, Any]
) -> Mapping[str, TopicInfo]:
    """The topics that are named or match. Raises ApiError with similar names, CommandError for no match."""
    if options.pattern is None:
        return await describe_topics(bootstrap, settings, options.topics)
    topics = await describe_topics(bootstrap, settings)
    chosen = select(None, options.pattern, None).matching(topics, exclude_internal=True)
    if not chosen:
        raise CommandError(f"--pattern {options.pattern.pattern!r}: no topic has such a name", NOT_FOUND)
    return {name: topics[name] for name in sorted(chosen)}


async def _seek(consumer: Consumer, partitions: Sequence[TopicPartition], start: Place | None) -> None:
    # Of these two, a partition without a leader is asked later, and does not hold up the others.
    if start is None or start == "beginning":
        consumer.seek_to_beginning(*partitions)
    elif start == "end":
        consumer.seek_to_end(*partitions)
    else:
        for partition, offset in (await _offsets_at(consumer, partitions, start)).items():
            consumer.seek(partition, offset)


async def _offsets_at(
    consumer: Consumer, partitions: Sequence[TopicPartition], where: Place
) -> dict[TopicPartition, Offset]:
    """A removed offset is the log start; an offset beyond the end, or a time without a record, is the end."""
    end = await consumer.end_offsets(partitions)
    if where == "end":
        return end
    if isinstance(where, Moment):
        listed = await consumer.offsets_for_times(dict.fromkeys(partitions, where.timestamp_ms))
        return {tp: end[tp] if found is None else found.offset for tp, found in listed.items()}
    first = await consumer.beginning_offsets(partitions)
    if where == "beginning":
        return first
    return {
        tp: Offset(within(where if where >= 0 else end[tp] + where, first[tp], end[tp])) for tp in partitions
    }


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
    while not consumer.is_stopped and (limit is None or progress.shown < limit):
        if ends is not None:
            at_end = [tp for tp, end in left.items() if await consumer.position(tp) >= end]
            await ends.check_topics(consumer)
            for partition in at_end:
                del left[partition]
                consumer.pause(partition)
            if not left:
                break
        room = _MAX_POLL_RECORDS if limit is None else min(_MAX_POLL_RECORDS, limit - progress.shown)
        records = await consumer.poll(_POLL_MS, room)
        if ends is not None:
            await ends.check_topics(consumer)
        for record in records:
            end = left.get(record.tp)
            # Records beyond the end are not printed.
            if ends is None or (end is not None and record.offset < end):
                out.write(format_record(record))
                progress.shown += 1
        if ends is None or time.monotonic() - last_output > 0.5:
            out.flush()
            last_output = time.monotonic()
    out.flush()


add_arguments = command(
    _run,
    arg("topics", "TOPIC", nargs="*"),
    arg("--pattern", "REGEX", "the topics whose whole name matches, without internal ones", type=pattern),
    repeated("--partition", "P", "only this partition", type=int, default=None),
    arg(
        "--from",
        "WHERE",
        "beginning (default), end, an offset, -N for the last N of each partition, a time like "
        "2013-01-31T12:00:00Z, or @MS for a time in ms",
        dest="start",
        type=place,
    ),
    arg("--until", "WHERE", "end before this place, named as for --from, at the latest now", type=place),
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
    arg("--template", "TEXT", TEMPLATE_HELP, type=compile_template),
    arg("--key-separator", "TEXT", "between key and value (default: a tab)", default=DEFAULT_KEY_SEPARATOR),
    settings_option(
        "consumer",
        group_id="--group",
        isolation_level="--isolation",
        skip_damaged_batches="--skip-damaged",
    ),
    *cluster_options(None),
)
