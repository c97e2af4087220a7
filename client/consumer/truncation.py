"""Checks after a change of leaders whether the new leader's log still holds the records that were read.

An unclean election may replace the history that consumers have read by a shorter one. Once the new one has
grown, offsets alone do not show that. So before the first fetch from a new leader the consumer asks for the
end of its last record's epoch (KIP-320). The rule is a pure function; `epoch_ends` sends the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from barnabas.client.cluster import Cluster
from barnabas.client.consumer.fetched import PartitionState
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.protocol.messages.leader_epoch import (
    LeaderEpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

_CONSUMER: Final = -1
_UNDEFINED: Final = -1


class Verdict(Enum):
    """The validity of a partition's position on the new leader."""

    HOLDS = "holds"
    FETCHED_AHEAD = "only records fetched ahead are gone"
    TRUNCATED = "records that were taken are gone"
    NO_COMMON_HISTORY = "the leader knows no such epoch, nor an earlier one"


class Checked(NamedTuple):
    """A partition as it was when the question was sent."""

    state: PartitionState
    generation: int
    fetch_offset: int
    fetch_epoch: int
    leader_epoch: LeaderEpoch


def judge(fetch_offset: int, taken_offset: int, answer: LeaderEpochEndOffset) -> Verdict:
    """The verdict of an answer without an error on a position; taken_offset ≤ fetch_offset."""
    if answer.end_offset == _UNDEFINED or answer.leader_epoch == _UNDEFINED:
        return Verdict.NO_COMMON_HISTORY
    if answer.end_offset >= fetch_offset:
        return Verdict.HOLDS
    return Verdict.FETCHED_AHEAD if answer.end_offset >= taken_offset else Verdict.TRUNCATED


async def epoch_ends(
    cluster: Cluster, node_id: BrokerId, checked: Iterable[Checked]
) -> dict[TopicPartition, LeaderEpochEndOffset]:
    """Ask a leader where the epochs of these positions end. Raises as `Cluster.request`."""
    topics: dict[str, list[OffsetForLeaderPartition]] = {}
    for one in checked:
        asked = OffsetForLeaderPartition(
            partition=one.state.tp.partition,
            current_leader_epoch=one.leader_epoch,
            leader_epoch=one.fetch_epoch,
        )
        topics.setdefault(one.state.tp.topic, []).append(asked)
    request = OffsetForLeaderEpochRequest(
        replica_id=_CONSUMER,
        topics=[OffsetForLeaderTopic(topic=topic, partitions=asked) for topic, asked in topics.items()],
    )
    response = await cluster.request(node_id, request)
    return {
        TopicPartition(topic.topic, answer.partition): answer
        for topic in response.topics
        for answer in topic.partitions
    }
