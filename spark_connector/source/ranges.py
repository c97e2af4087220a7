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
from functools import partial
from typing import Final, NamedTuple

from barnabas.client.isolation import ISOLATION_LEVELS
from barnabas.common.suggestions import suggestion
from barnabas.protocol.errors import ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.protocol.invariants import invariant
from barnabas.spark_connector.option_kinds import EARLIEST, LATEST, PartitionNumbers
from barnabas.spark_connector.options import Bound, SourceOptions

logger = logging.getLogger(__name__)

TASKS_PER_CORE: Final = 3
MIN_TASK_RECORDS: Final = 100_000
"""A task costs 10 to 20 ms, the time to read about this many records. Smaller tasks only on request."""
SMALL_TASK_RECORDS: Final = 100
"""A task of their own costs so few records more than it gains, unless the work on each takes milliseconds."""
FULL_TASK_RECORDS: Final = 2_000_000
"""Twenty times as many, so a further task costs little compared with its reads."""


class OffsetRange(NamedTuple):
    """The records of a partition with offsets in [start_offset, end_offset), of the topic with this id."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    topic_id: TopicId = NO_TOPIC_ID


REGISTER_TOPIC: Final = "__barnabas_spark_sinks"
"""Has the decisions of the exactly-once sinks. No pattern selects it."""


def choose_partitions(
    options: SourceOptions, topics: Mapping[str, Sequence[int]], *, warns: bool = True
) -> list[TopicPartition]:
    """The partitions to read, given the cluster's topics and their partitions, in order.

    With `warns`, a pattern that no topic matches is logged. Raises UNKNOWN_TOPIC_OR_PARTITION for a named
    topic or partition that does not exist.
    """
    if options.topic_pattern is not None:
        matches = re.compile(options.topic_pattern).fullmatch
        chosen_topics = [topic for topic in topics if matches(topic) and topic != REGISTER_TOPIC]
        if not chosen_topics and warns:
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


def timestamps_to_look_up(bound: Bound, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The timestamp of each partition whose first record a bound asks for; none if the bound has offsets.

    Raises InvalidConfiguration if the bound names partitions, but not exactly these.
    """
    numbers = _by_partition(bound, partitions)
    return numbers if bound.is_timestamp else {}


def bound_offsets(
    bound: Bound,
    partitions: Iterable[TopicPartition],
    offsets_at: Mapping[TopicPartition, int | None],
    *,
    unmatched: int | None,
) -> dict[TopicPartition, int]:
    """The offset of a bound for each partition, `EARLIEST` and `LATEST` included.

    `offsets_at` has what the cluster answered for `timestamps_to_look_up`. `unmatched` is the offset where no
    record is as recent; None makes that InvalidConfiguration. Raises as `timestamps_to_look_up`.
    """
    numbers = _by_partition(bound, partitions)
    if not bound.is_timestamp:
        return numbers
    offsets: dict[TopicPartition, int] = {}
    for tp, timestamp in numbers.items():
        offset = offsets_at[tp]
        if offset is None:
            offset = unmatched
        if offset is None:
            raise InvalidConfiguration(
                f"{bound.option} has {timestamp} for {tp}, which has no record of this time or later; set "
                "startingOffsetsByTimestampStrategy to latest to begin at its end"
            )
        offsets[tp] = offset
    return offsets


def _by_partition(bound: Bound, partitions: Iterable[TopicPartition]) -> PartitionNumbers:
    at = bound.at
    if isinstance(at, int):
        return dict.fromkeys(partitions, at)
    missing = sorted(set(partitions) - set(at))
    surplus = sorted(set(at) - set(partitions))
    kind = "a timestamp" if bound.is_timestamp else "an offset"
    for tps, fault in (
        (missing, f"lacks {kind} for"),
        (surplus, f"has {kind} for partitions that are not read:"),
    ):
        if tps:
            words = "" if bound.is_timestamp else f", {EARLIEST} for the earliest and {LATEST} for the latest"
            raise InvalidConfiguration(
                f"option {bound.option!r} {fault} {', '.join(map(str, tps))}; expected one for each "
                f"partition that is read{words}"
            )
    return at


def resolve_ranges(
    options: SourceOptions,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    log_start_offsets: Mapping[TopicPartition, int],
    end_offsets: Mapping[TopicPartition, int],
) -> list[OffsetRange]:
    """One range for each partition with records to read, from the offsets of the bounds.

    Raises InvalidConfiguration if a start is beyond its end, and OFFSET_OUT_OF_RANGE if `failOnDataLoss` is
    true and an offset is not between log start and end. Without it such an offset is moved to the nearer of
    the two, with a warning.
    """
    ranges: list[OffsetRange] = []
    for tp, start in starts.items():
        low, high, end = log_start_offsets[tp], end_offsets[tp], ends[tp]
        invariant(low <= high, "%s starts at %d, beyond its end %d", tp, low, high)
        if start >= 0 and end >= 0 and start > end:
            raise InvalidConfiguration(
                f"{options.start.option} is offset {start} of {tp}, beyond {options.end.option}, offset {end}"
            )
        special = {EARLIEST: low, LATEST: high}
        within = partial(offset_within, low=low, high=high, options=options)
        first = special[start] if start < 0 else within(options.start.option, tp, start)
        last = special[end] if end < 0 else within(options.end.option, tp, end)
        if first < last:
            ranges.append(OffsetRange(tp.topic, tp.partition, first, last))
    return ranges


def offset_within(
    option: str, tp: TopicPartition, offset: int, low: int, high: int, options: SourceOptions
) -> int:
    """An offset that a user gave, moved into the log if it may be. Raises as `resolve_ranges`."""
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
    ranges: Sequence[OffsetRange],
    min_partitions: int | None,
    max_records: int | None = None,
    cores: int | None = None,
) -> list[OffsetRange]:
    """Cut ranges into tasks of at most `max_records` offsets and into about `min_partitions` tasks, as Spark.

    With both, the cut by `max_records` comes first. The second cut leaves small ranges whole and shares the
    remaining tasks among the others by size, so there may be a few more or fewer.

    Without either, about `TASKS_PER_CORE` tasks are made for each core of this machine, each of at least
    `MIN_TASK_RECORDS`. There is at least one for every `FULL_TASK_RECORDS`, also with few cores, because the
    executors, which a data source cannot query, may have many more.
    """
    if min_partitions is None and max_records is None:
        total = _total(ranges)
        by_cores = TASKS_PER_CORE * (cores or os.cpu_count() or 1)
        task_count = min(max(by_cores, total // FULL_TASK_RECORDS), total // MIN_TASK_RECORDS)
        if task_count <= len(ranges):
            return list(ranges)
        return [part for entry in ranges for part in _cut(entry, -(-_size(entry) * task_count // total))]
    parts = list(ranges)
    if max_records is not None:
        parts = [part for entry in parts for part in _cut(entry, -(-_size(entry) // max_records))]
    if min_partitions is not None and min_partitions > len(parts):
        total = _total(parts)
        small = {entry for entry in parts if _share(entry, total, min_partitions) == 1}
        total_of_large = total - _total(small)
        large_partitions = min_partitions - len(small)
        return [
            part
            for entry in parts
            for part in _cut(entry, 1 if entry in small else _share(entry, total_of_large, large_partitions))
        ]
    return parts


def gather_small(parts: Iterable[OffsetRange]) -> list[tuple[OffsetRange, ...]]:
    """The parts in their order, neighbours in one task while it has at most `SMALL_TASK_RECORDS` offsets.

    A task costs Spark about 20 ms. One for each partition would delay the micro-batches of a slow topic.
    """
    tasks: list[list[OffsetRange]] = []
    room = 0
    for part in parts:
        room -= _size(part)
        if tasks and room >= 0:
            tasks[-1].append(part)
        else:
            tasks.append([part])
            room = SMALL_TASK_RECORDS - _size(part)
    return [tuple(task) for task in tasks]


def _size(entry: OffsetRange) -> int:
    return entry.end_offset - entry.start_offset


def _total(ranges: Iterable[OffsetRange]) -> int:
    return sum(map(_size, ranges))


def _share(entry: OffsetRange, total: int, task_count: int) -> int:
    """This range's number of the tasks, by its size, rounded half up."""
    return max((2 * _size(entry) * task_count + total) // (2 * total), 1)


def _cut(entry: OffsetRange, count: int) -> list[OffsetRange]:
    """Parts as even as whole offsets allow; none is empty."""
    size = _size(entry)
    count = min(count, size)
    bounds = [entry.start_offset + size * index // count for index in range(count + 1)]
    return [entry._replace(start_offset=start, end_offset=end) for start, end in itertools.pairwise(bounds)]
