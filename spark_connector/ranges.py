"""The offsets that a batch read covers, and their division into tasks: pure functions, run by the planner.

Guarantees: no range reaches beyond the end of its partition at the time of planning (the high watermark, or
the last stable offset), and the ranges of one read never overlap.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.client.isolation import ISOLATION_LEVELS
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.protocol.invariants import invariant
from barnabas.protocol.suggestions import suggestion
from barnabas.spark_connector.options import EARLIEST, LATEST, PartitionOffsets, SourceOptions

logger = logging.getLogger(__name__)

TASKS_PER_CORE: Final = 3
MIN_TASK_RECORDS: Final = 100_000
"""A task costs 10 to 20 ms, the time to read about this many records. Smaller tasks only on request."""
FULL_TASK_RECORDS: Final = 2_000_000
"""Twenty times as many, so a further task costs little compared with its reads."""


class OffsetRange(NamedTuple):
    """The records of a partition with offsets in [start_offset, end_offset), of the topic with this id."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    topic_id: TopicId = NO_TOPIC_ID


def choose_partitions(options: SourceOptions, topics: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
    """The partitions to read, given the cluster's topics and their partitions, in order.

    Raises UNKNOWN_TOPIC_OR_PARTITION for a named topic or partition that does not exist.
    """
    if options.topic_pattern is not None:
        matches = re.compile(options.topic_pattern).fullmatch
        chosen_topics = [topic for topic in topics if matches(topic)]
        if not chosen_topics:
            hint = suggestion(options.topic_pattern, topics) if topics else "; the cluster has none"
            logger.warning("no topic matches subscribePattern %r%s", options.topic_pattern, hint)
    else:
        chosen_topics = list(options.topics or {tp.topic: None for tp in options.partitions or ()})
    for topic in chosen_topics:
        if topic not in topics:
            hint = suggestion(topic, topics) if topics else "; the cluster has none"
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}{hint}")
    if options.partitions is None:
        return sorted(TopicPartition(topic, index) for topic in chosen_topics for index in topics[topic])
    for tp in options.partitions:
        if tp.partition not in topics[tp.topic]:
            raise api_error(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {tp.topic!r} has no partition {tp.partition}, only {len(topics[tp.topic])} of them",
            )
    return sorted(options.partitions)


def resolve_ranges(
    options: SourceOptions,
    partitions: Sequence[TopicPartition],
    log_start_offsets: Mapping[TopicPartition, int],
    end_offsets: Mapping[TopicPartition, int],
) -> list[OffsetRange]:
    """One range for each partition with records to read.

    Raises InvalidConfiguration if the given offsets do not name exactly these partitions or a start is beyond
    its end, and OFFSET_OUT_OF_RANGE if `failOnDataLoss` is true and a given offset is not between log start
    and end. Without it such an offset is moved to the nearer of the two, with a warning.
    """
    _check_named("startingOffsets", options.starting_offsets, partitions)
    _check_named("endingOffsets", options.ending_offsets, partitions)
    ranges: list[OffsetRange] = []
    for tp in partitions:
        low, high = log_start_offsets[tp], end_offsets[tp]
        invariant(low <= high, "%s starts at %d, beyond its end %d", tp, low, high)
        start = EARLIEST if options.starting_offsets is None else options.starting_offsets[tp]
        end = LATEST if options.ending_offsets is None else options.ending_offsets[tp]
        if start >= 0 and end >= 0 and start > end:
            raise InvalidConfiguration(
                f"startingOffsets has {start} for {tp.topic}-{tp.partition}, beyond endingOffsets with {end}"
            )
        first = low if start == EARLIEST else _within("startingOffsets", tp, start, low, high, options)
        last = high if end == LATEST else _within("endingOffsets", tp, end, low, high, options)
        if first < last:
            ranges.append(OffsetRange(tp.topic, tp.partition, first, last))
    return ranges


def _check_named(option: str, offsets: PartitionOffsets | None, partitions: Iterable[TopicPartition]) -> None:
    if offsets is None:
        return
    missing = sorted(set(partitions) - set(offsets))
    surplus = sorted(set(offsets) - set(partitions))
    for tps, fault in ((missing, "no offset for"), (surplus, "an offset for partitions that are not read:")):
        if tps:
            names = ", ".join(f"{tp.topic}-{tp.partition}" for tp in tps)
            raise InvalidConfiguration(
                f"option {option!r} has {fault} {names}; expected one for each partition that is read, "
                f"{EARLIEST} for the earliest and {LATEST} for the latest"
            )


def _within(option: str, tp: TopicPartition, offset: int, low: int, high: int, options: SourceOptions) -> int:
    if low <= offset <= high:
        return offset
    text = f"{option} has {offset} for {tp.topic}-{tp.partition}, which holds {low} to {high}"
    if options.isolation_level != ISOLATION_LEVELS[0]:
        text += " (its last stable offset)"
    if options.fail_on_data_loss:
        raise data_loss(text)
    nearest = low if offset < low else high
    logger.warning("%s; continuing at %d", text, nearest)
    return nearest


def data_loss(loss: str) -> Exception:
    return api_error(
        ErrorCode.OFFSET_OUT_OF_RANGE,
        f"{loss}. Records may have been deleted by retention, or the topic was deleted or recreated. Set the "
        "option failOnDataLoss to false to read the existing ones",
    )


def split_ranges(
    ranges: Sequence[OffsetRange], min_partitions: int | None, cores: int | None = None
) -> list[OffsetRange]:
    """Cut ranges into at least `min_partitions` tasks, as even as whole offsets allow, or leave them.

    Without a number given, about `TASKS_PER_CORE` tasks are made for each core of this machine, each
    of at least `MIN_TASK_RECORDS`. There is at least one for every `FULL_TASK_RECORDS`, also with few
    cores, because the executors, which a data source cannot query, may have many more.
    """
    total = sum(entry.end_offset - entry.start_offset for entry in ranges)
    if min_partitions is None:
        by_cores = TASKS_PER_CORE * (cores or os.cpu_count() or 1)
        task_count = min(max(by_cores, total // FULL_TASK_RECORDS), total // MIN_TASK_RECORDS)
    else:
        task_count = min(min_partitions, total)
    if task_count <= len(ranges):
        return list(ranges)
    return [part for entry in ranges for part in _cut(entry, task_count, total)]


def _cut(entry: OffsetRange, task_count: int, total: int) -> list[OffsetRange]:
    """The share of this range in the tasks that the total is cut into, rounded up."""
    size = entry.end_offset - entry.start_offset
    count = -(-size * task_count // total)
    bounds = [entry.start_offset + size * index // count for index in range(count + 1)]
    return [entry._replace(start_offset=start, end_offset=end) for start, end in itertools.pairwise(bounds)]
