"""The plan of a reset of a group's committed offsets: which offset each partition gets, and from which.

The plan changes nothing: `Admin.alter_group_offsets` carries it out. An operator sees it before, as the dry
run of a command or a table of the live page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.group_lag import offsets_at
from barnabas.client.offsets import EARLIEST, LATEST
from barnabas.common.suggestions import no_topic_text
from barnabas.common.texts import count, duration_ms, ms_ago
from barnabas.protocol.errors import ErrorCode, GroupIdNotFoundError, InvalidConfiguration, api_error
from barnabas.protocol.ids import TopicPartition

_MAX_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class ToOffset:
    """The same offset in each partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """From the committed offset forwards, or back if negative; only partitions that have one."""

    records: int


@dataclass(frozen=True, slots=True)
class ToOffsets:
    """An offset for each of these partitions, and for no other."""

    offsets: Mapping[TopicPartition, int]


Start = str | int | ToOffset | ShiftBy | ToOffsets
"""The group's next position: ``earliest``, ``latest``, the first record since a time in ms, or offsets."""


class PlannedOffset(NamedTuple):
    """The change of one partition, whose log has offsets from `first` to `end`.

    `requested` is another offset than `after` if the partition does not have it: then `after` is the nearest.
    """

    partition: TopicPartition
    before: int | None
    after: int
    requested: int
    first: int
    end: int


async def partition_counts(admin: Admin) -> dict[str, int]:
    """The number of partitions by topic."""
    return {name: len(topic.partitions) for name, topic in (await admin.describe_topics()).items()}


async def plan_reset(
    admin: Admin,
    group_id: str,
    start: Start,
    partitions: Iterable[TopicPartition] | None,
    counts: Mapping[str, int],
) -> list[PlannedOffset]:
    """The changes by partition; none if there is nothing to change.

    `partitions` None means those with a committed offset. `counts` has the partitions that exist.
    """
    before = {
        tp: committed.offset
        for tp, committed in (await admin.group_offsets(group_id)).items()
        if committed is not None
    }
    if partitions is None:
        partitions = before if not isinstance(start, ToOffsets) else start.offsets
    chosen = sorted(tp for tp in partitions if tp.partition < counts.get(tp.topic, 0))
    first = await offsets_at(admin, chosen, EARLIEST)
    end = await offsets_at(admin, chosen, LATEST)
    requested: Mapping[TopicPartition, int]
    match start:
        case "earliest":
            requested = first
        case "latest":
            requested = end
        case ToOffset(offset):
            requested = dict.fromkeys(chosen, offset)
        case ShiftBy(records):
            requested = {tp: offset + records for tp, offset in before.items()}
        case ToOffsets(offsets):
            requested = offsets
        case _:
            requested = await _first_since(admin, start, end)
    return [
        PlannedOffset(
            tp, before.get(tp), within(requested[tp], first[tp], end[tp]), requested[tp], first[tp], end[tp]
        )
        for tp in chosen
        if tp in requested
    ]


async def _first_since(
    admin: Admin, start: str | int, end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """The first offset at or after a time, else the end."""
    since = await offsets_at(admin, end, start)
    return {tp: offset if offset >= 0 else end[tp] for tp, offset in since.items()}


async def plan_start(
    admin: Admin, partitions: Iterable[TopicPartition], until: ToOffset | str | int
) -> dict[TopicPartition, tuple[int, int]]:
    """The start of each log, and its start once the records before an offset or a time are deleted.

    `until` may be ``latest``.
    """
    chosen = sorted(partitions)
    first = await offsets_at(admin, chosen, EARLIEST)
    end = await offsets_at(admin, chosen, LATEST)
    if isinstance(until, ToOffset):
        wanted = dict.fromkeys(chosen, until.offset)
    elif until == LATEST:
        wanted = end
    else:
        wanted = await _first_since(admin, until, end)
    return {tp: (first[tp], within(wanted[tp], first[tp], end[tp])) for tp in chosen}


def within(offset: int, first: int, end: int) -> int:
    """The nearest offset that a partition has."""
    return max(first, min(end, offset))


async def members_problem(admin: Admin, group_id: str) -> str | None:
    """Why the offsets cannot be set now: the group has members. None if it has none, or does not exist."""
    try:
        group = (await admin.describe_groups(group_id))[group_id]
    except GroupIdNotFoundError:
        return None
    if not group.members:
        return None
    return (
        f"group {group_id!r} is {group.state} with {count(len(group.members), 'member')}, which commit "
        "offsets of their own: stop them first"
    )


# -- starts, as an operator names them ---------------------------------------------------------------------


def time_ms(text: str) -> int:
    """``2025-01-31T12:00:00`` as ms since 1970; UTC without a zone. Raises InvalidConfiguration."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidConfiguration(f"{text!r}: expected a time as 2025-01-31T12:00:00.000") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    milliseconds = round(moment.timestamp() * 1000)
    if milliseconds < 0:
        raise InvalidConfiguration(f"{text!r}: expected a time since 1970")
    return milliseconds


def ago(text: str) -> int:
    """The time in ms that is a duration ago. Raises InvalidConfiguration."""
    try:
        return ms_ago(duration_ms(text))
    except ValueError as error:
        raise InvalidConfiguration(str(error)) from None


def chosen_partitions(texts: Iterable[str], counts: Mapping[str, int]) -> list[TopicPartition]:
    """``topic`` or ``topic:0,2`` as partitions; ``counts`` has the existing topics.

    Raises UNKNOWN_TOPIC_OR_PARTITION, and InvalidConfiguration for a malformed text.
    """
    partitions: dict[TopicPartition, None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if topic not in counts:
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, no_topic_text(topic, counts))
        chosen = numbers.split(",") if colon else [str(number) for number in range(counts[topic])]
        for number in chosen:
            is_number = number.isascii() and number.isdecimal() and len(number) <= _MAX_DIGITS
            if not is_number or int(number) >= counts[topic]:
                said = f"topic {text!r}: expected partitions from 0 to {counts[topic] - 1}, as {topic}:0,1"
                if is_number:
                    raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, said)
                raise InvalidConfiguration(said)
            partitions[TopicPartition(topic, int(number))] = None
    return list(partitions)
