"""This broker's copy of the cluster's metadata: the live brokers and the leaders of partitions.

Readers on any thread need no lock, because a change replaces an immutable snapshot. Only UpdateMetadata says
which topics and partitions exist: a LeaderAndIsr, which comes first, names only its receiver's partitions.
Leaders come from both, and from ZooKeeper; of two the one of the newer leader epoch is right.

The cache also holds suspicions. A peer that reset a connection and then refused a new one is most likely
dead; until the controller reports it, no answer names it as a leader. A client that gets LEADER_NOT_AVAILABLE
retries within 100 ms, but one that connects to a dead broker may wait half a minute. A wrong suspicion costs
one retry; it ends when the peer answers again or the controller names it as leader in a newer epoch.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.protocol import schema
from barnabas.protocol.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerEpoch,
    BrokerId,
    Endpoint,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages import inter_broker as wire
from barnabas.protocol.partition_entries import entries
from barnabas.zookeeper.znodes import LeadershipState

_MAX_ANSWERS: Final = 16
"""An answer may take megabytes."""
_NOTHING: Final[Mapping[int, wire.UpdateMetadataPartition]] = MappingProxyType({})
_DEPARTED_MS: Final = 5_000
"""For so long a broker that is gone is remembered: a client of a busy cluster may ask as late."""


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic; the partitions by index."""

    topic_id: TopicId
    partitions: Mapping[int, wire.UpdateMetadataPartition]


class DepartedBroker(NamedTuple):
    """A broker as it was registered last, and when this broker heard that it is gone, by `monotonic_ms`."""

    broker: wire.UpdateMetadataBroker
    since_ms: float


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """An immutable snapshot of the cluster."""

    controller_id: BrokerId = NO_BROKER
    brokers: Mapping[BrokerId, wire.UpdateMetadataBroker] = field(default_factory=dict)
    departed: Mapping[BrokerId, DepartedBroker] = field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    topic_names: Mapping[TopicId, str] = field(default_factory=dict)
    unreadable_topics: frozenset[str] = frozenset()
    """Topics whose nodes the controller cannot read. Those that it could read before stay as they were."""
    updates: int = 0
    """The number of UpdateMetadata requests, up to this one, after which this broker had all metadata.

    A new controller's first requests may name only what it has changed, and its predecessor may have died
    before its last ones arrived. So a controller's requests count from its first full one on.
    """

    def partitions_of(self, topic: str) -> Mapping[int, wire.UpdateMetadataPartition]:
        metadata = self.topics.get(topic)
        return metadata.partitions if metadata is not None else _NOTHING

    def endpoint(self, broker_id: BrokerId, listener: str) -> Endpoint | None:
        """The address of a live broker's listener."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else endpoint_of(broker, listener)

    def lately_departed(self, now_ms: float) -> list[DepartedBroker]:
        """The brokers that were alive a moment ago."""
        return [each for each in self.departed.values() if now_ms - each.since_ms < _DEPARTED_MS]

    def has(self, partition: TopicPartition) -> bool:
        return partition.partition in self.partitions_of(partition.topic)

    def may_exist(self, partition: TopicPartition) -> bool:
        """Whether a partition exists, or may exist although it is not known here."""
        return partition.topic in self.unreadable_topics or self.has(partition)

    def broker_epoch(self, broker_id: BrokerId) -> BrokerEpoch | None:
        """The broker epoch of a live broker, or None."""
        broker = self.brokers.get(broker_id)
        return BrokerEpoch(broker.broker_epoch) if broker is not None else None


def endpoint_of(broker: wire.UpdateMetadataBroker, listener: str) -> Endpoint | None:
    """The address of a broker's listener, if it has that one."""
    for candidate in broker.endpoints:
        if candidate.listener == listener:
            return Endpoint(candidate.host, candidate.port)
    return None


class MetadataAnswers:
    """Metadata answers with many partitions, valid until the metadata changes. Any thread.

    When a leader dies, a thousand clients send the same request, and an answer with 2,000 partitions takes
    milliseconds to build. It is built once for the same topics, listener, version and flags; two threads at
    the same time may both build it. ``version`` is `MetadataCache.version`, read before it was built.
    """

    def __init__(self) -> None:
        self._kept: tuple[int, dict[Hashable, Any]] = (-1, {})

    def find(self, version: int, question: Hashable) -> Any:
        """The answer to this question at this version, or None."""
        kept_version, answers = self._kept
        return answers.get(question) if kept_version == version else None

    def keep(self, version: int, question: Hashable, answer: Any) -> None:
        kept_version, answers = self._kept
        if kept_version != version or len(answers) >= _MAX_ANSWERS:
            self._kept = (version, {question: answer})
        else:
            answers[question] = answer


class MetadataCache:
    """The current metadata, and the suspicions. Only this class changes the public attributes."""

    def __init__(self) -> None:
        self.answers = MetadataAnswers()
        self.current = ClusterMetadata()
        self.suspects: frozenset[BrokerId] = frozenset()
        """Brokers that are probably dead, though the controller has not reported them."""
        self.version = 0
        """Rises after each change of the metadata or the suspicions.

        Data built between two equal readings is consistent, and valid until the version rises.
        """
        self.death_noticed_ms = -math.inf
        """When this broker last noticed that a broker was gone, by `monotonic_ms`."""
        self._lock = threading.Lock()
        # The controller epoch of the last full update, if all updates since were applied.
        self._complete_epoch: int | None = None
        self._moving: tuple[int, frozenset[str]] = (-1, frozenset())
        # The broker epoch of each peer at its last answer.
        self._reached: dict[BrokerId, BrokerEpoch] = {}
        self._listeners: list[Callable[[Iterable[str]], None]] = []
        self._deletion_listeners: list[Callable[[Mapping[str, TopicId]], None]] = []

    def on_update(self, listener: Callable[[Iterable[str]], None]) -> None:
        """Call this listener with the names of the topics that an update contains."""
        self._listeners.append(listener)

    def on_deletion(self, listener: Callable[[Mapping[str, TopicId]], None]) -> None:
        """Call this listener with deleted topics, after the update is visible.

        A topic is deleted if the controller marks it so, or if its name has another id now. A topic that a
        full update merely omits may have been removed from ZooKeeper by hand.
        """
        self._deletion_listeners.append(listener)

    def update(self, request: wire.UpdateMetadataRequest) -> None:
        """Apply an UpdateMetadata of the current controller."""
        with self._lock:
            before = self.current
            # If this update fails, the metadata lacks it until the next full one.
            complete_epoch, self._complete_epoch = self._complete_epoch, None
            changed = _TopicChanges(before, request)
            is_complete = request.is_full or complete_epoch == request.controller_epoch
            brokers = {BrokerId(broker.broker_id): broker for broker in request.live_brokers}
            now_ms = monotonic_ms()
            self.current = ClusterMetadata(
                controller_id=BrokerId(request.controller_id),
                brokers=brokers,
                departed=_departed(before, brokers, now_ms),
                topics=changed.topics,
                topic_names={topic.topic_id: name for name, topic in changed.topics.items()}
                if changed.has_new_names
                else before.topic_names,
                unreadable_topics=changed.unreadable_topics,
                updates=before.updates + is_complete,
            )
            self._forget_suspicions(before, changed.trusted)
            self.version += 1
            if before.brokers.keys() - brokers.keys():
                self.death_noticed_ms = now_ms
            self._complete_epoch = request.controller_epoch if is_complete else None
        for listener in self._listeners:
            listener(changed.touched)
        if changed.deleted:
            for on_deleted in self._deletion_listeners:
                on_deleted(changed.deleted)

    def learn(self, request: wire.LeaderAndIsrRequest) -> None:
        """Take the leaders of a LeaderAndIsr, which comes before the UpdateMetadata of the same change.

        A client that a deposed leader refuses requests metadata at once; if these named the old leader, it
        would retry only much later. Older epochs and unknown topics change nothing.
        """
        topics = self.current.topics
        self._take_leaders(
            {
                partition: state
                for topic in request.topic_states
                if topic.topic_name in topics and topics[topic.topic_name].topic_id == topic.topic_id
                for partition, state in entries((topic,))
            }
        )

    def learn_leader(self, partition: TopicPartition, state: LeadershipState) -> None:
        """Take a newer leader that this broker has read in ZooKeeper."""
        self._take_leaders({partition: state})

    def _take_leaders(
        self, states: Mapping[TopicPartition, wire.LeaderAndIsrPartition | LeadershipState]
    ) -> None:
        newer: dict[str, dict[int, wire.UpdateMetadataPartition]] = {}
        with self._lock:
            topics = dict(self.current.topics)
            for (name, index), state in states.items():
                earlier = self.current.partitions_of(name).get(index)
                if earlier is not None and earlier.leader_epoch < state.leader_epoch:
                    newer.setdefault(name, {})[index] = _with_leader(earlier, state)
            for name, partitions in newer.items():
                topics[name] = replace(topics[name], partitions={**topics[name].partitions, **partitions})
                self.suspects -= {BrokerId(partition.leader) for partition in partitions.values()}
            self.current = replace(self.current, topics=topics)
            self.version += 1
        if newer:
            for listener in self._listeners:
                listener(newer)

    def suspect(self, broker_id: BrokerId) -> None:
        """A peer has reset a connection and refused another one."""
        with self._lock:
            self.death_noticed_ms = monotonic_ms()
            if broker_id not in self.suspects:
                # Not again with each attempt to connect: kept answers, of thousands of partitions, would
                # become invalid a hundred times a second.
                self.suspects |= {broker_id}
                self.version += 1

    def was_reached(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Whether a peer has answered this broker while registered with this epoch."""
        return self._reached.get(broker_id) == broker_epoch

    def trust(self, broker_id: BrokerId) -> None:
        """A peer has answered."""
        broker_epoch = self.current.broker_epoch(broker_id)
        if broker_epoch is not None:
            self._reached[broker_id] = broker_epoch
        self.end_suspicion(broker_id)

    def end_suspicion(self, broker_id: BrokerId) -> None:
        """Nothing speaks against a peer any more, though it may not have answered."""
        if broker_id in self.suspects:
            with self._lock:
                self.suspects -= {broker_id}
                self.version += 1
                topics = list(self.current.topics)
            # Requests may wait for its partitions to have a leader.
            for listener in self._listeners:
                listener(topics)

    def leader_of(self, partition: wire.UpdateMetadataPartition) -> tuple[BrokerId, LeaderEpoch]:
        """The leader for answers: -1 while it is dead or suspected."""
        leader = BrokerId(partition.leader)
        if leader not in self.current.brokers or leader in self.suspects:
            leader = NO_BROKER
        return leader, LeaderEpoch(partition.leader_epoch)

    def moving_topics(self) -> frozenset[str]:
        """The topics with a partition whose leader is dead or suspect and not yet replaced.

        Requests do not wait for a partition that the controller reports as leaderless: that may last.
        """
        version, current = self.version, self.current
        computed_version, moving = self._moving
        if computed_version != version:
            alive = current.brokers.keys() - self.suspects
            moving = frozenset(
                name
                for name, topic in current.topics.items()
                if any(
                    partition.leader >= 0 and BrokerId(partition.leader) not in alive
                    for partition in topic.partitions.values()
                )
            )
            if self.version == version:
                self._moving = (version, moving)
        return moving

    def _forget_suspicions(self, before: ClusterMetadata, trusted: set[int]) -> None:
        """Trust the suspects that the controller removed, saw register again, or elected."""
        current = self.current
        self.suspects = frozenset(
            broker_id
            for broker_id in self.suspects
            if broker_id in current.brokers
            and broker_id not in trusted
            and current.broker_epoch(broker_id) == before.broker_epoch(broker_id)
        )


class _TopicChanges:
    """What an UpdateMetadata makes of the topics: ``deleted`` ones are marked so, or have another id now.

    ``trusted`` are the brokers that it names as new leaders, ``touched`` the topics to look at again.
    """

    def __init__(self, before: ClusterMetadata, request: wire.UpdateMetadataRequest) -> None:
        self._before = before
        self._request = request
        self.unreadable_topics = frozenset(request.unreadable_topics or ())
        self.trusted: set[int] = set()
        self.deleted: dict[str, TopicId] = {}
        self.topics = dict(before.topics)
        self.touched: dict[str, None] = {}
        # Most updates only move leaders; then the names by id, of which there may be many, are kept.
        self.has_new_names = request.is_full
        if request.is_full:
            self.touched |= dict.fromkeys(before.topics)
            kept = before.topics.keys() & self.unreadable_topics
            self.topics = {name: before.topics[name] for name in kept}
        for state in request.topic_states:
            self._take(state)
        self.touched |= dict.fromkeys(self.unreadable_topics ^ before.unreadable_topics)

    def _take(self, state: wire.UpdateMetadataTopic) -> None:
        name, topic_id = state.topic_name, TopicId(state.topic_id)
        self.touched[name] = None
        known = self._before.topics.get(name)
        if known is not None and known.topic_id != topic_id:
            self.deleted[name] = known.topic_id
            # The same name with another id is another topic; nothing of the earlier one is kept.
            known = None
        partitions = {} if known is None else dict(known.partitions)
        for partition in state.partition_states:
            index = partition.partition_index
            earlier = partitions.get(index)
            if partition.leader == wire.LEADER_DURING_DELETE:
                self.deleted[name] = topic_id
                partitions.pop(index, None)
            elif earlier is None or partition.leader_epoch != NO_LEADER_EPOCH:
                partitions[index] = partition
                if earlier is None or partition.leader_epoch > earlier.leader_epoch:
                    self.trusted.add(partition.leader)
        if partitions:
            self.topics[name] = TopicMetadata(topic_id, partitions)
        else:
            self.topics.pop(name, None)
        self.has_new_names = self.has_new_names or known is None or not partitions


def _departed(
    before: ClusterMetadata, brokers: Mapping[BrokerId, wire.UpdateMetadataBroker], now_ms: float
) -> dict[BrokerId, DepartedBroker]:
    """The brokers that went lately, and those that are gone since the last update."""
    departed = {BrokerId(each.broker.broker_id): each for each in before.lately_departed(now_ms)}
    gone = before.brokers.keys() - brokers.keys()
    return departed | {broker_id: DepartedBroker(before.brokers[broker_id], now_ms) for broker_id in gone}


def _with_leader(
    earlier: wire.UpdateMetadataPartition, state: wire.LeaderAndIsrPartition | LeadershipState
) -> wire.UpdateMetadataPartition:
    return schema.replace(
        earlier,
        controller_epoch=state.controller_epoch,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        partition_epoch=state.partition_epoch,
        replicas=state.replicas if isinstance(state, wire.LeaderAndIsrPartition) else earlier.replicas,
    )
