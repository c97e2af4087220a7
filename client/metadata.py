"""A client's metadata: brokers, topics, leaders. Plain data and rules, no I/O, no clock.

Guarantees: an older answer, by leader epoch, never replaces a newer one (brokers learn of an election one
after another), nor does a topic that was deleted that of the same name. A refuted leader is not named again
until another answer has come.

It belongs to the event loop of its `Cluster`.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import Final, NamedTuple

from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    BrokerId,
    Endpoint,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages.metadata import MetadataResponse, MetadataTopic

_LATE_ANSWERS: Final = 30
"""The number of answers that may name an older leader than the expected epoch."""
_REPLACED_TOPICS: Final = 100
"""The number of former topics whose late answers are recognized."""

LEADERSHIP_ERRORS: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Codes after which another broker may lead: the next attempt waits for metadata, not for a back-off."""


class Leader(NamedTuple):
    node_id: BrokerId
    epoch: LeaderEpoch


class Node(NamedTuple):
    """A live broker as its listener is advertised."""

    node_id: BrokerId
    endpoint: Endpoint
    rack: str | None = None


class PartitionInfo(NamedTuple):
    """One partition; without a leader ``leader`` is -1, and ``error_code`` is the reason."""

    topic: str
    partition: int
    leader: BrokerId
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...]
    error_code: int = 0


class TopicInfo(NamedTuple):
    """One topic and its partitions, in order of their numbers."""

    name: str
    topic_id: TopicId
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


def topic_info(topic: MetadataTopic) -> TopicInfo:
    name = topic.name or ""
    partitions = tuple(
        PartitionInfo(
            name,
            partition.partition_index,
            BrokerId(partition.leader_id),
            LeaderEpoch(partition.leader_epoch),
            tuple(map(BrokerId, partition.replica_nodes)),
            tuple(map(BrokerId, partition.isr_nodes)),
            tuple(map(BrokerId, partition.offline_replicas)),
            partition.error_code,
        )
        for partition in sorted(topic.partitions, key=attrgetter("partition_index"))
    )
    return TopicInfo(name, TopicId(topic.topic_id), topic.is_internal, partitions)


def nodes_of(response: MetadataResponse) -> dict[BrokerId, Node]:
    return {
        BrokerId(broker.node_id): Node(
            BrokerId(broker.node_id), Endpoint(broker.host, broker.port), broker.rack
        )
        for broker in response.brokers
    }


class MetadataCache:
    """The newest metadata of the requested topics."""

    def __init__(self) -> None:
        self.nodes: dict[BrokerId, Node] = {}
        self.controller_id: BrokerId = NO_BROKER
        self.cluster_id: str | None = None
        self.topics: dict[str, TopicInfo] = {}
        self.topic_errors: dict[str, int] = {}
        """The error codes of requested topics that are not in ``topics``."""
        self._names: dict[TopicId, str] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        # The last refuted leader of a partition, to distinguish a new error from a repeated one.
        self._refuted: dict[TopicPartition, Leader] = {}
        # Expected epochs that no answer has named yet, with how many more answers may lack them.
        self._expected: dict[TopicPartition, tuple[LeaderEpoch, int]] = {}
        self._replaced: deque[TopicId] = deque(maxlen=_REPLACED_TOPICS)
        self.is_stale = False
        """Whether the last answer was older than the cache, or named a refuted leader or a former topic."""

    def leader_for(self, tp: TopicPartition) -> Leader | None:
        """The leader of the partition; None if unknown, and then a refresh helps."""
        return self._leaders.get(tp)

    def leader_epoch(self, tp: TopicPartition) -> int:
        """The epoch of the known leader, -1 without one."""
        leader = self._leaders.get(tp)
        return NO_LEADER_EPOCH if leader is None else leader.epoch

    def no_such_partition(self, tp: TopicPartition) -> ApiError | None:
        """The error for a partition that its topic does not have; None if it has it, or is not known."""
        info = self.topics.get(tp.topic)
        if info is None or any(partition.partition == tp.partition for partition in info.partitions):
            return None
        text = f"topic {tp.topic!r} has {len(info.partitions)} partitions, there is no {tp.partition}"
        return api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)

    def topic_id(self, topic: str) -> TopicId:
        """The id of a topic, by which newer fetches name it; all zeros if unknown."""
        info = self.topics.get(topic)
        return info.topic_id if info is not None else NO_TOPIC_ID

    def topic_name(self, topic_id: TopicId) -> str:
        """The name of a topic; empty if the id is unknown."""
        return self._names.get(topic_id, "")

    def replaced(self, topic_id: TopicId) -> None:
        """Ignore later answers about this topic: another one has its name now."""
        self._replaced.append(topic_id)

    def invalidate(self, tp: TopicPartition) -> bool:
        """Forget the leader of a partition; True if it was not refuted before."""
        leader = self._leaders.pop(tp, None)
        if leader is None:
            return False
        is_news = self._refuted.get(tp) != leader
        self._refuted[tp] = leader
        return is_news

    def invalidate_node(self, node_id: BrokerId) -> bool:
        """Forget all partitions that this node leads; True if one of the leaders was not refuted before."""
        led = [tp for tp, leader in self._leaders.items() if leader.node_id == node_id]
        return sum(self.invalidate(tp) for tp in led) > 0

    def expect_epoch(self, tp: TopicPartition, epoch: LeaderEpoch) -> bool:
        """Reject older leaders for a number of answers; False if that number has come already.

        The bound is for epochs of another log, as of a deleted topic with the same name.
        """
        expected, rejections_left = self._expected.get(tp, (epoch, _LATE_ANSWERS))
        if epoch > expected:
            expected, rejections_left = epoch, _LATE_ANSWERS
        self._expected[tp] = expected, rejections_left
        if rejections_left <= 0:
            return False
        self._leaders.pop(tp, None)
        return True

    def update(self, response: MetadataResponse) -> None:
        """Apply an answer; topics that it does not mention stay unchanged."""
        self.is_stale = False
        self.nodes = nodes_of(response)
        self.controller_id = BrokerId(response.controller_id)
        self.cluster_id = response.cluster_id
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE) and topic.partitions:
                self._take(topic_info(topic))
            else:
                self.forget(name)
                self.topic_errors[name] = topic.error_code or int(ErrorCode.LEADER_NOT_AVAILABLE)

    def _take(self, topic: TopicInfo) -> None:
        if topic.topic_id in self._replaced:
            self.is_stale = True
            return
        cached = self.topics.get(topic.name)
        if cached is not None and cached.topic_id != topic.topic_id:
            self.forget(topic.name)
            cached = None
        self.topic_errors.pop(topic.name, None)
        before = {info.partition: info for info in cached.partitions} if cached is not None else {}
        partitions = []
        for info in topic.partitions:
            old = before.get(info.partition)
            if old is not None and old.leader_epoch > info.leader_epoch >= 0:
                info = old
                self.is_stale = True
            else:
                self._set_leader(info)
            partitions.append(info)
        self._names[topic.topic_id] = topic.name
        self.topics[topic.name] = TopicInfo(topic.name, topic.topic_id, topic.is_internal, tuple(partitions))

    def _set_leader(self, info: PartitionInfo) -> None:
        tp = TopicPartition(info.topic, info.partition)
        expected, rejections_left = self._expected.get(tp, (info.leader_epoch, 0))
        if info.leader_epoch >= expected:
            self._expected.pop(tp, None)
        elif rejections_left > 0:
            self._expected[tp] = expected, rejections_left - 1
            if rejections_left > 1:
                self._leaders.pop(tp, None)
                self.is_stale = True
                return
        if info.leader >= 0 and info.leader in self.nodes:
            self._leaders[tp] = Leader(info.leader, info.leader_epoch)
            self.is_stale = self.is_stale or self._refuted.get(tp) == self._leaders[tp]
        else:
            self._leaders.pop(tp, None)

    def forget(self, topic: str) -> None:
        self.topic_errors.pop(topic, None)
        cached = self.topics.pop(topic, None)
        if cached is not None:
            self._names.pop(cached.topic_id, None)
        for info in cached.partitions if cached is not None else ():
            tp = TopicPartition(topic, info.partition)
            self._leaders.pop(tp, None)
            self._refuted.pop(tp, None)
            self._expected.pop(tp, None)
