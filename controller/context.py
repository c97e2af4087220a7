"""`ControllerContext`: the active controller's knowledge of the cluster.

Plain data with queries; it decides nothing and does no I/O. Only the controller's event thread uses it. It is
dropped on resignation and read from ZooKeeper on election.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from barnabas.protocol.ids import (
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.zookeeper.znodes import BrokerRegistration, LeadershipState, ReplicaAssignment, StoredConfig


class PartitionState(Enum):
    """The controller's state of a partition; `barnabas.controller.partition_state` has the moves."""

    NON_EXISTENT = "NonExistent"
    NEW = "New"
    ONLINE = "Online"
    OFFLINE = "Offline"


class ReplicaState(Enum):
    """The controller's state of a replica; `barnabas.controller.replica_state` has the moves."""

    NON_EXISTENT = "NonExistent"
    NEW = "New"
    ONLINE = "Online"
    OFFLINE = "Offline"
    DELETION_STARTED = "DeletionStarted"
    DELETION_SUCCESSFUL = "DeletionSuccessful"
    DELETION_INELIGIBLE = "DeletionIneligible"


class Replica(NamedTuple):
    """One replica of one partition."""

    tp: TopicPartition
    broker: BrokerId

    def __str__(self) -> str:
        return f"{self.tp}@{self.broker}"


class EpochLogger(logging.LoggerAdapter[logging.Logger]):
    """Begins each line with the epoch of the controller, as Kafka's StateChangeLogger does."""

    def __init__(self, name: str, epoch: ControllerEpoch) -> None:
        super().__init__(logging.getLogger(name))
        self._epoch = epoch

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"[controller epoch {self._epoch}] {msg}", kwargs


class IllegalTransition(Exception):
    """A move that is not in the table of a state machine; nothing was changed. A bug of ours."""


@dataclass
class ControllerContext:
    """`registrations` has every registered broker, also suspected and stopping brokers."""

    registrations: dict[BrokerId, BrokerRegistration] = field(default_factory=dict)
    suspected: set[BrokerId] = field(default_factory=set)
    """Registered, but its process seems dead. Always within `registrations`."""
    shutting_down: set[BrokerId] = field(default_factory=set)
    """Registered, and about to stop. Always within `registrations`."""
    failed_replicas: set[Replica] = field(default_factory=set)
    """On live brokers, but their disk failed; they may not lead until the broker has restarted."""
    refused_deletions: dict[tuple[Replica, TopicId], None] = field(default_factory=dict)
    """Replicas of moved partitions, and of topics that are gone, that their brokers could not delete yet.

    None is assigned. The next controller does not know them; its full requests set them aside."""
    topic_ids: dict[str, TopicId] = field(default_factory=dict)
    topic_configs: dict[str, StoredConfig] = field(default_factory=dict)
    unreadable_topics: set[str] = field(default_factory=set)
    """Topics that are not loaded, as their znodes cannot be read; brokers must not take them for deleted."""
    assignments: dict[str, dict[int, ReplicaAssignment]] = field(default_factory=dict)
    leadership: dict[TopicPartition, LeadershipState] = field(default_factory=dict)
    partition_states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    replica_states: dict[Replica, ReplicaState] = field(default_factory=dict)
    topics_to_delete: set[str] = field(default_factory=set)
    topics_ineligible_for_deletion: set[str] = field(default_factory=set)
    """Deletions that wait for a replica to return. Always within `topics_to_delete`."""

    @property
    def live_brokers(self) -> set[BrokerId]:
        """The brokers that may lead: registered, not suspected and not about to stop."""
        return self.registrations.keys() - self.suspected - self.shutting_down

    @property
    def live_or_shutting_down(self) -> set[BrokerId]:
        """The brokers that can be reached."""
        return self.registrations.keys() - self.suspected

    def broker_epoch(self, broker: BrokerId) -> BrokerEpoch:
        registration = self.registrations.get(broker)
        return NO_BROKER_EPOCH if registration is None else registration.broker_epoch

    def forget_broker(self, broker: BrokerId) -> None:
        self.registrations.pop(broker, None)
        self.suspected.discard(broker)
        self.shutting_down.discard(broker)
        self.failed_replicas = {failed for failed in self.failed_replicas if failed.broker != broker}

    def eligible(self, tp: TopicPartition, brokers: set[BrokerId]) -> set[BrokerId]:
        """The given brokers whose replica of the partition is not known to have failed."""
        if not self.failed_replicas:
            return brokers
        return {broker for broker in brokers if Replica(tp, broker) not in self.failed_replicas}

    def failed_members(self, states: Mapping[TopicPartition, LeadershipState]) -> list[Replica]:
        """The members of these ISRs whose replica is known to have failed."""
        members = (Replica(tp, broker) for tp, state in states.items() for broker in state.isr)
        return [member for member in members if member in self.failed_replicas]

    def may_still_lead(self, tp: TopicPartition, isr: Collection[BrokerId]) -> bool:
        """Whether a member of an ISR is only suspected: if it lives, and alone, it acknowledges records."""
        return not self.eligible(tp, self.suspected).isdisjoint(isr)

    def bounced(self, state: LeadershipState) -> set[BrokerId]:
        """Members of an ISR that have registered again since they joined it."""
        return {
            broker
            for broker, epoch in state.broker_epochs.items()
            if broker in state.isr and self.broker_epoch(broker) not in (NO_BROKER_EPOCH, epoch)
        }

    def is_deposed(self, replica: Replica) -> bool:
        """Whether a replica leads by its state, but its broker has registered again since.

        It may have lost records, so it gets no role until an election is written. That can only fail while
        the state's node is missing, because the topic was removed by hand.
        """
        state = self.leadership.get(replica.tp)
        return state is not None and state.leader == replica.broker and replica.broker in self.bounced(state)

    def broker_epochs(
        self, state: LeadershipState, leader: BrokerId, isr: Collection[BrokerId]
    ) -> dict[BrokerId, BrokerEpoch]:
        """The broker epochs to store with the next ISR: as in `state`, but the present one of the leader."""
        epochs = {broker: state.broker_epochs.get(broker, self.broker_epoch(broker)) for broker in isr}
        if self.broker_epoch(leader) != NO_BROKER_EPOCH:
            epochs[leader] = self.broker_epoch(leader)
        return {broker: epoch for broker, epoch in epochs.items() if epoch != NO_BROKER_EPOCH}

    def replicas_of(self, tp: TopicPartition) -> tuple[BrokerId, ...]:
        """In the order of the assignment; empty for an unknown partition."""
        assignment = self.assignment_of(tp)
        return () if assignment is None else assignment.replicas

    def assignment_of(self, tp: TopicPartition) -> ReplicaAssignment | None:
        return self.assignments.get(tp.topic, {}).get(tp.partition)

    def end_reassignment(self, tp: TopicPartition, isr: Collection[BrokerId]) -> None:
        """Keep only the target of a reassignment, if that is in sync; ZooKeeper is written later."""
        assignment = self.assignments[tp.topic][tp.partition]
        if assignment.is_target_in(isr):
            self.assignments[tp.topic][tp.partition] = ReplicaAssignment(assignment.target)

    def partitions(self) -> Iterator[TopicPartition]:
        return (tp for tp, _ in self._assigned())

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, partition) for partition in self.assignments.get(topic, ())]

    def partitions_on(self, broker: BrokerId) -> list[TopicPartition]:
        return [tp for tp, assignment in self._assigned() if broker in assignment.replicas]

    def replicas_on(self, brokers: Collection[BrokerId]) -> list[Replica]:
        return [replica for replica in self.replicas() if replica.broker in brokers]

    def replicas(self) -> list[Replica]:
        return [Replica(tp, broker) for tp, assignment in self._assigned() for broker in assignment.replicas]

    def replicas_of_topic(self, topic: str) -> list[Replica]:
        return self.replicas_of_partitions(self.partitions_of(topic))

    def replicas_of_partitions(self, partitions: Iterable[TopicPartition]) -> list[Replica]:
        return [Replica(tp, broker) for tp in partitions for broker in self.replicas_of(tp)]

    def partition_state(self, tp: TopicPartition) -> PartitionState:
        return self.partition_states.get(tp, PartitionState.NON_EXISTENT)

    def replica_state(self, replica: Replica) -> ReplicaState:
        return self.replica_states.get(replica, ReplicaState.NON_EXISTENT)

    def is_to_be_deleted(self, topic: str) -> bool:
        return topic in self.topics_to_delete

    def without_deleted(self, replicas: Iterable[Replica]) -> list[Replica]:
        return [replica for replica in replicas if not self.is_to_be_deleted(replica.tp.topic)]

    def offline_partitions(self) -> list[TopicPartition]:
        """Partitions without a live leader, except those being deleted."""
        live = self.live_or_shutting_down
        return [
            tp
            for tp in self.partitions()
            if not self.is_to_be_deleted(tp.topic)
            and ((state := self.leadership.get(tp)) is None or state.leader not in live)
        ]

    def forget_topic(self, topic: str) -> None:
        for tp in self.partitions_of(topic):
            self.leadership.pop(tp, None)
            self.partition_states.pop(tp, None)
            for broker in self.replicas_of(tp):
                self.replica_states.pop(Replica(tp, broker), None)
                self.failed_replicas.discard(Replica(tp, broker))
        for table in (self.topic_ids, self.topic_configs, self.assignments):
            table.pop(topic, None)
        self.topics_to_delete.discard(topic)
        self.topics_ineligible_for_deletion.discard(topic)

    def _assigned(self) -> Iterator[tuple[TopicPartition, ReplicaAssignment]]:
        for topic, partitions in self.assignments.items():
            for partition, assignment in partitions.items():
                yield TopicPartition(topic, partition), assignment
