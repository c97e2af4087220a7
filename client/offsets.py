"""Offsets as users name them, and their lookup by position, time or epoch on the leaders of partitions.

Shared by consumer, admin and range reader; on their cluster's event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar

from barnabas.client.arguments import check_mapping
from barnabas.client.ask import ask_leaders, results_of
from barnabas.client.cluster import Cluster
from barnabas.client.consumer_record import AnyRecord, ConsumerRecord
from barnabas.client.isolation import IsolationLevel
from barnabas.common.settings import LONG_MAX
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import NO_LEADER_EPOCH, BrokerId, LeaderEpoch, Offset, TopicPartition
from barnabas.protocol.messages import log_offsets as wire
from barnabas.protocol.messages.groups import NO_GENERATION, NO_MEMBER
from barnabas.protocol.partition_entries import entries, in_topics
from barnabas.protocol.topic_names import validate_topic_name

T = TypeVar("T")

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

OffsetSpec = str | int
"""``earliest``, ``latest``, or a timestamp in ms."""


class OffsetAndMetadata(NamedTuple):
    """A committed offset, the next to read. ``leader_epoch`` is the epoch of the record before it, or -1."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


class GroupMetadata(NamedTuple):
    """A consumer's membership, with which a transaction's offsets are fenced (KIP-447).

    Without a generation and a member id, no rebalance fences them.
    """

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = NO_MEMBER
    group_instance_id: str | None = None


Partition = TopicPartition | tuple[str, int]
OffsetToCommit = int | OffsetAndMetadata | tuple[int, str]
# Two mappings, because the keys of a Mapping are invariant to type checkers.
OffsetsToCommit = Mapping[TopicPartition, OffsetToCommit] | Mapping[tuple[str, int], OffsetToCommit]
OffsetsOrRecords = OffsetsToCommit | AnyRecord | Iterable[AnyRecord]
"""Offsets, each the next to read, or the records that are processed."""
OffsetSpecs = Mapping[TopicPartition, OffsetSpec] | Mapping[tuple[str, int], OffsetSpec]
Timestamps = Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]


def partitions_in(partitions: Iterable[Partition] | Partition) -> list[TopicPartition]:
    """The partitions that a user names. Raises as `partition_of`."""
    given: Any = partitions
    if isinstance(given, TopicPartition):
        raise TypeError(f"partitions={given!r}: expected several, such as [('orders', 0)]")
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise _no_partition(given)
    return [partition_of(partition) for partition in given]


def is_partition(given: Partition | Iterable[Partition]) -> TypeGuard[Partition]:
    """Whether a user names one partition, not several."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)


def partition_of(partition: Partition) -> TopicPartition:
    """Raises TypeError, and INVALID_TOPIC_EXCEPTION for a name that no topic can have."""
    try:
        topic, number = partition
    except (TypeError, ValueError):
        raise _no_partition(partition) from None
    if not isinstance(topic, str) or type(number) is not int:
        raise _no_partition(partition)
    validate_topic_name(topic)
    return TopicPartition(topic, number)


def _no_partition(given: object) -> TypeError:
    return TypeError(f"partition {given!r}: expected a topic and a number, such as ('orders', 0)")


def check_offset(offset: object, where: str = "") -> None:
    """Raises ValueError for what is not an offset of a log; `where` says which one it is."""
    if type(offset) is not int or not 0 <= offset <= LONG_MAX:
        raise ValueError(f"offset {offset!r}{where}: expected 0 or more, below 2**63")


def checked_offsets(offsets: OffsetsToCommit) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets that a user wants to commit. Raises TypeError and ValueError naming an invalid one."""
    check_mapping("offsets", offsets, "partitions to offsets, such as {('orders', 0): 5}")
    checked: dict[TopicPartition, OffsetAndMetadata] = {}
    for partition, to_commit in offsets.items():
        tp = partition_of(partition)
        try:
            offset = OffsetAndMetadata(*(to_commit if isinstance(to_commit, tuple) else (to_commit,)))
        except TypeError:
            raise ValueError(
                f"offset {to_commit!r} of {tp}: expected the offset, its metadata, and the leader epoch"
            ) from None
        check_offset(offset.offset, f" of {tp}")
        checked[tp] = offset
    return checked


def offsets_after(given: OffsetsOrRecords) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets that a user wants to commit: in each partition the one after its last record.

    Raises TypeError and ValueError as `checked_offsets`.
    """
    if isinstance(given, Mapping):
        return checked_offsets(given)
    records: Any = [given] if isinstance(given, ConsumerRecord) else given
    if isinstance(records, str | bytes) or not isinstance(records, Iterable):
        raise _not_to_commit(given)
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    for record in records:
        if not isinstance(record, ConsumerRecord):
            raise _not_to_commit(given)
        before = offsets.get(record.tp)
        if before is None or before.offset < record.next_offset:
            offsets[record.tp] = OffsetAndMetadata(record.next_offset)
    return offsets


def _not_to_commit(given: object) -> TypeError:
    return TypeError(
        f"offsets={given!r}: expected a mapping of partitions to offsets, such as {{('orders', 0): 5}}, "
        "or one or several ConsumerRecord"
    )


def checked_specs(name: str, specs: Mapping[Any, T]) -> dict[TopicPartition, T]:
    """The time or position that a user asks for, by partition. Raises TypeError."""
    check_mapping(name, specs, "partitions to times or positions, such as {('orders', 0): 'latest'}")
    return {partition_of(tp): spec for tp, spec in specs.items()}


class ListedOffset(NamedTuple):
    """``offset`` is -1 if no record is as recent as the requested timestamp."""

    offset: Offset
    timestamp_ms: int
    leader_epoch: LeaderEpoch


def wire_timestamp(spec: OffsetSpec) -> int:
    """The timestamp on the wire for a spec. Raises ValueError for any other value."""
    if spec == EARLIEST:
        return wire.EARLIEST_TIMESTAMP
    if spec == LATEST:
        return wire.LATEST_TIMESTAMP
    if type(spec) is int and spec >= 0:
        return spec
    raise ValueError(f"offset {spec!r}: expected earliest, latest or a timestamp in ms, 0 or more")


async def list_offsets(
    cluster: Cluster,
    specs: Mapping[TopicPartition, OffsetSpec],
    timeout_ms: int,
    isolation_level: IsolationLevel,
) -> dict[TopicPartition, ListedOffset]:
    """The offset of each partition, at most the end for this isolation level.

    Raises permanent errors, and the last one after the timeout.
    """
    timestamps = {tp: wire_timestamp(spec) for tp, spec in specs.items()}
    return await ask_leaders(
        cluster,
        timestamps.keys(),
        timeout_ms,
        lambda node_id, tps, limit_ms: ask_for_offsets(
            cluster, node_id, {tp: timestamps[tp] for tp in tps}, limit_ms, isolation_level
        ),
    )


async def ask_for_offsets(
    cluster: Cluster,
    node_id: BrokerId,
    timestamps: Mapping[TopicPartition, int],
    timeout_ms: int,
    isolation_level: IsolationLevel,
) -> dict[TopicPartition, ListedOffset | BarnabasError]:
    """Ask one broker once for the offsets of these timestamps; returns an offset or error per partition."""
    asked = {
        tp: wire.ListOffsetsPartition(
            partition_index=tp.partition,
            current_leader_epoch=cluster.cache.leader_epoch(tp),
            timestamp=timestamp,
        )
        for tp, timestamp in timestamps.items()
    }
    request = wire.ListOffsetsRequest(
        isolation_level=isolation_level.value,
        topics=in_topics(wire.ListOffsetsTopic, asked.items()),
    )
    try:
        response = await cluster.request(node_id, request, timeout_ms=timeout_ms)
    except BarnabasError as error:
        return dict.fromkeys(timestamps, error)
    return results_of(
        cluster,
        timestamps,
        dict(entries(response.topics)),
        lambda tp: f"the offsets of {tp} could not be listed",
        lambda _, answer: ListedOffset(
            Offset(answer.offset), answer.timestamp, LeaderEpoch(answer.leader_epoch)
        ),
    )
