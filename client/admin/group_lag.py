"""The lag of groups: how far each committed offset is behind the end of its partition.

Lag is counted to the high watermark, as Kafka's tools do. It is None where it is not known: without a leader,
without a committed offset (unless the partition is empty), and for an offset beyond the end, as after a loss
of records. A sum with an unknown part is None too, because it would be too low.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from barnabas.client.admin.admin import Admin
from barnabas.client.admin.groups import GroupDescription, MemberDescription
from barnabas.client.offsets import EARLIEST, LATEST, OffsetAndMetadata
from barnabas.common.texts import count
from barnabas.protocol.ids import NO_BROKER, TopicPartition

Committed = Mapping[TopicPartition, OffsetAndMetadata | None]


class PartitionLag(NamedTuple):
    """A committed or assigned partition of a group; `member` is its owner."""

    partition: TopicPartition
    committed_offset: int | None
    log_end_offset: int | None
    lag: int | None
    member: MemberDescription | None = None


async def lags_of(
    admin: Admin,
    groups: Mapping[str, GroupDescription],
    committed: Mapping[str, Committed],
    led: Collection[TopicPartition] | None = None,
    timeout_ms: int | None = None,
) -> dict[str, list[PartitionLag]]:
    """The partitions of each group. `led`: the partitions with a leader; None asks for them."""
    partitions = {
        name: sorted({*committed[name], *(tp for member in group.members for tp in member.assignment)})
        for name, group in groups.items()
    }
    if led is None:
        led = await led_partitions(admin)
    shown = {tp for of_group in partitions.values() for tp in of_group if tp in led}
    uncommitted = {
        tp for name, of_group in partitions.items() for tp in of_group if committed[name].get(tp) is None
    }
    ends = await offsets_at(admin, shown, LATEST, timeout_ms)
    starts = await offsets_at(admin, shown & uncommitted, EARLIEST, timeout_ms)
    return {
        name: lags_in(group, partitions[name], committed[name], starts, ends)
        for name, group in groups.items()
    }


async def led_partitions(admin: Admin) -> set[TopicPartition]:
    return {
        TopicPartition(name, partition.partition)
        for name, topic in (await admin.describe_topics()).items()
        for partition in topic.partitions
        if partition.leader != NO_BROKER
    }


def lags_in(
    group: GroupDescription,
    partitions: Iterable[TopicPartition],
    committed: Committed,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> list[PartitionLag]:
    owners = {tp: member for member in group.members for tp in member.assignment}
    lags = []
    for tp in partitions:
        offset, end = committed.get(tp), ends.get(tp)
        lag = None
        if offset is not None and end is not None and offset.offset <= end:
            lag = end - offset.offset
        if offset is None and tp in starts and starts[tp] == end:
            lag = 0
        lags.append(PartitionLag(tp, None if offset is None else offset.offset, end, lag, owners.get(tp)))
    return lags


def total_lag(partitions: Sequence[PartitionLag]) -> int | None:
    """The lag of a group; None if that of a partition is unknown, because the sum would be too low."""
    lags = [partition.lag for partition in partitions]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if lags and len(known) == len(lags) else None


def lag_text(partitions: Sequence[PartitionLag]) -> str:
    """``lag 4,003``, or ``lag -`` with the reasons why the sum is unknown."""
    total = total_lag(partitions)
    if total is not None:
        return f"lag {total:,}"
    leaderless = sum(partition.log_end_offset is None for partition in partitions)
    unknown = [part for part in partitions if part.lag is None and part.log_end_offset is not None]
    uncommitted = sum(partition.committed_offset is None for partition in unknown)
    beyond = len(unknown) - uncommitted
    reasons = []
    if uncommitted:
        reasons.append(f"{count(uncommitted, 'partition')} without a committed offset")
    if beyond:
        reasons.append(f"{count(beyond, 'partition')} with a committed offset beyond its end")
    if leaderless:
        reasons.append(f"{count(leaderless, 'partition')} without a leader")
    if lags := [partition.lag for partition in partitions if partition.lag is not None]:
        reasons.append(f"{sum(lags):,} in the others")
    return f"lag - ({', '.join(reasons) or 'no committed offsets'})"


async def offsets_at(
    admin: Admin, partitions: Iterable[TopicPartition], spec: str | int, timeout_ms: int | None = None
) -> dict[TopicPartition, int]:
    """The offset of each partition: ``earliest``, ``latest``, or by time in ms (-1: no record since then)."""
    listed = await admin.list_offsets(dict.fromkeys(partitions, spec), timeout_ms=timeout_ms)
    return {tp: entry.offset for tp, entry in listed.items()}
