"""The controller's requests to one broker, collected during an event and merged while the broker is busy.

A `BrokerBatch` is at most one LeaderAndIsr, one UpdateMetadata and one StopReplica, and a StopReplica for
replicas of former topics, sent in this order. Two batches for the same broker merge into one, because only
the last state of each partition matters. So the memory for a slow or stopped broker is bounded by the number
of partitions, not by the number of events. Only a batch that recreates a replica after its deletion cannot be
merged.

`RequestBatch` collects for all brokers, from the context, and hands over at the end of the event. Plain data;
the controller's event thread collects, the channels' thread merges and sends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.controller.context import ControllerContext, Replica
from barnabas.protocol.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    NO_TOPIC_ID,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicId,
    TopicPartition,
    by_topic,
)
from barnabas.protocol.messages import inter_broker as wire
from barnabas.protocol.schema import replace
from barnabas.zookeeper.znodes import BrokerRegistration, LeadershipState, ReplicaAssignment, StoredConfig

ControllerRequest = wire.LeaderAndIsrRequest | wire.UpdateMetadataRequest | wire.StopReplicaRequest

EPOCH_DURING_DELETE: Final = LeaderEpoch(-2)
"""As a leader epoch in StopReplica: higher than any other, because the topic itself is deleted."""

_UNKNOWN: Final = LeadershipState(
    leader=NO_BROKER,
    leader_epoch=NO_LEADER_EPOCH,
    isr=(),
    controller_epoch=ControllerEpoch(-1),
    partition_epoch=-1,
)


class TopicFacts(NamedTuple):
    """A topic's id and settings, which the requests carry."""

    topic_id: TopicId = NO_TOPIC_ID
    config: StoredConfig = StoredConfig()


@dataclass
class BrokerBatch:
    """The changes that one batch sends to a broker.

    With ``is_full`` it sends everything: the LeaderAndIsr, even without partitions, and the UpdateMetadata.
    """

    is_full: bool = False
    leader_and_isr: dict[TopicPartition, wire.LeaderAndIsrPartition] = field(default_factory=dict)
    update_metadata: dict[TopicPartition, wire.UpdateMetadataPartition] = field(default_factory=dict)
    has_metadata: bool = False
    """An UpdateMetadata without partitions is sent too: its list of brokers is needed."""
    stop_replicas: dict[TopicPartition, wire.StopReplicaPartition] = field(default_factory=dict)
    former_replicas: dict[tuple[TopicPartition, TopicId], None] = field(default_factory=dict)
    """Replicas to delete of topics that do not exist any more; the names may have other topics now."""
    topics: dict[str, TopicFacts] = field(default_factory=dict)
    metadata_brokers: list[wire.UpdateMetadataBroker] = field(default_factory=list)
    unreadable_topics: list[str] = field(default_factory=list)
    live_brokers: list[wire.LiveBroker] = field(default_factory=list)

    def merge(self, later: BrokerBatch) -> bool:
        """Merge a later batch into this one; False, with nothing changed, if the order would be lost."""
        for tp in later.leader_and_isr:
            stop = self.stop_replicas.get(tp)
            is_former = (tp, later._facts(tp.topic).topic_id) in self.former_replicas
            if is_former or (stop is not None and stop.delete_partition):
                return False
        # A batch has one id per topic name, so that requests for an earlier topic are not sent for the next.
        topics = {tp.topic for tp in self.stop_replicas} | {tp.topic for tp in self.leader_and_isr}
        if any(self._is_another(topic, later) for topic in topics):
            return False
        if later.is_full:
            self.is_full = True
            self.leader_and_isr = {}
            # A deletion that is complete by now is not in the full request, and must be marked.
            self.update_metadata = {
                tp: state
                for tp, state in self.update_metadata.items()
                if state.leader == wire.LEADER_DURING_DELETE
            }
        for tp, state in later.leader_and_isr.items():
            self.add_role(tp, state)
            self.stop_replicas.pop(tp, None)
        # Drop the states of an earlier topic of that name: the states of the new id replace them.
        another = {topic for topic in later.topics if self._is_another(topic, later)}
        if another:
            earlier_states = self.update_metadata.items()
            self.update_metadata = {tp: state for tp, state in earlier_states if tp.topic not in another}
        self.update_metadata.update(later.update_metadata)
        self.has_metadata = self.has_metadata or later.has_metadata
        for tp, stop in later.stop_replicas.items():
            self.add_stop(tp, stop)
        self.former_replicas.update(later.former_replicas)
        self.topics.update(later.topics)
        if later.has_metadata:
            self.metadata_brokers = later.metadata_brokers
            self.unreadable_topics = later.unreadable_topics
        if later.leader_and_isr or later.is_full:
            self.live_brokers = later.live_brokers
        return True

    def add_role(self, tp: TopicPartition, state: wire.LeaderAndIsrPartition) -> None:
        """A role that replaces that of a new replica is still the first that its broker gets."""
        earlier = self.leader_and_isr.get(tp)
        keeps_new = earlier is not None and earlier.is_new and not state.is_new
        self.leader_and_isr[tp] = replace(state, is_new=True) if keeps_new else state

    def add_stop(self, tp: TopicPartition, stop: wire.StopReplicaPartition) -> None:
        """A deletion that was requested before goes on."""
        earlier = self.stop_replicas.get(tp)
        is_deleted = earlier is not None and earlier.delete_partition
        self.stop_replicas[tp] = replace(stop, delete_partition=True) if is_deleted else stop

    def _is_another(self, topic: str, later: BrokerBatch) -> bool:
        """Whether a later batch has another id for a topic of this name."""
        earlier, last = self.topics.get(topic), later.topics.get(topic)
        return earlier is not None and last is not None and earlier.topic_id != last.topic_id

    def requests(
        self, controller: BrokerId, epoch: ControllerEpoch, broker_epoch: int
    ) -> list[ControllerRequest]:
        """The requests to send, in order."""
        requests: list[ControllerRequest] = []
        head = {"controller_id": controller, "controller_epoch": epoch, "broker_epoch": broker_epoch}
        if self.leader_and_isr or self.is_full:
            requests.append(
                wire.LeaderAndIsrRequest(
                    **head,
                    is_full=self.is_full,
                    topic_states=self._leader_and_isr_topics(),
                    live_brokers=self.live_brokers,
                )
            )
        if self.has_metadata:
            requests.append(
                wire.UpdateMetadataRequest(
                    **head,
                    topic_states=[
                        wire.UpdateMetadataTopic(
                            topic_name=topic,
                            topic_id=self._facts(topic).topic_id,
                            partition_states=partitions,
                        )
                        for topic, partitions in by_topic(self.update_metadata.items()).items()
                    ],
                    live_brokers=self.metadata_brokers,
                    is_full=self.is_full,
                    unreadable_topics=self.unreadable_topics,
                )
            )
        stops = [(tp, self._facts(tp.topic).topic_id, stop) for tp, stop in self.stop_replicas.items()]
        former = [(tp, topic_id, _deletion(tp.partition)) for tp, topic_id in self.former_replicas]
        # In requests of their own, because the errors in an answer have no topic ids.
        requests += [
            wire.StopReplicaRequest(**head, topic_states=_stopped(part)) for part in (stops, former) if part
        ]
        return requests

    def _leader_and_isr_topics(self) -> list[wire.LeaderAndIsrTopic]:
        topics = []
        for topic, partitions in by_topic(self.leader_and_isr.items()).items():
            topic_id, config = self._facts(topic)
            topics.append(
                wire.LeaderAndIsrTopic(
                    topic_name=topic,
                    topic_id=topic_id,
                    partition_states=partitions,
                    configs=[
                        wire.TopicConfigEntry(name=name, value=value) for name, value in config.values.items()
                    ],
                    config_zxid=config.zxid,
                )
            )
        return topics

    def _facts(self, topic: str) -> TopicFacts:
        return self.topics.get(topic, TopicFacts())


def _deletion(partition: int) -> wire.StopReplicaPartition:
    return wire.StopReplicaPartition(
        partition_index=partition, leader_epoch=EPOCH_DURING_DELETE, delete_partition=True
    )


def _stopped(
    replicas: Iterable[tuple[TopicPartition, TopicId, wire.StopReplicaPartition]],
) -> list[wire.StopReplicaTopic]:
    topics: dict[tuple[str, TopicId], list[wire.StopReplicaPartition]] = {}
    for tp, topic_id, stop in replicas:
        topics.setdefault((tp.topic, topic_id), []).append(stop)
    return [
        wire.StopReplicaTopic(topic_name=name, topic_id=topic_id, partition_states=stops)
        for (name, topic_id), stops in topics.items()
    ]


class RequestBatch:
    """Collects the requests of one event; `take` hands them over.

    The `add_…` methods read the context, so a state must be changed before it is added.
    """

    def __init__(self, context: ControllerContext, inter_broker_listener: str) -> None:
        self._context = context
        self._listener = inter_broker_listener
        self._batches: dict[BrokerId, BrokerBatch] = {}
        self._for_all_brokers: dict[TopicPartition, None] = {}

    def add_leader_and_isr(
        self, brokers: Iterable[BrokerId], tp: TopicPartition, *, is_new: bool = False
    ) -> None:
        """Add a LeaderAndIsr for these brokers, and an UpdateMetadata for all live brokers."""
        state = self._context.leadership[tp]
        assignment = self._context.assignment_of(tp) or ReplicaAssignment(())
        partition = wire.LeaderAndIsrPartition(
            **self._described(tp, state),
            is_new=is_new,
            adding_replicas=list(assignment.adding),
            removing_replicas=list(assignment.removing),
        )
        for broker in brokers:
            batch = self._batch(broker)
            if batch is None:
                continue
            batch.add_role(tp, partition)
            self._add_topic(batch, tp.topic)
        self._for_all_brokers[tp] = None

    def add_metadata_for_all(self, partitions: Iterable[TopicPartition]) -> None:
        """Add an UpdateMetadata with the partitions' states at the end of the event, for all live brokers."""
        self._for_all_brokers.update(dict.fromkeys(partitions))

    def add_metadata(
        self, brokers: Collection[BrokerId], partitions: Iterable[TopicPartition], *, is_full: bool = False
    ) -> None:
        """Add an UpdateMetadata with the partitions and the live brokers for these brokers.

        With ``is_full`` their LeaderAndIsr is full, too.
        """
        states = {tp: self._metadata_of(tp) for tp in partitions}
        for broker in brokers:
            batch = self._batch(broker)
            if batch is None:
                continue
            batch.has_metadata = True
            batch.is_full = batch.is_full or is_full
            for tp, state in states.items():
                if state is not None:
                    batch.update_metadata[tp] = state
                    self._add_topic(batch, tp.topic)

    def add_stop_replica(self, replicas: Iterable[Replica], *, delete: bool) -> None:
        for replica in replicas:
            batch = self._batch(replica.broker)
            if batch is None:
                continue
            tp = replica.tp
            state = self._context.leadership.get(tp)
            epoch = state.leader_epoch if state is not None else NO_LEADER_EPOCH
            if self._context.is_to_be_deleted(tp.topic):
                epoch = EPOCH_DURING_DELETE
            stop = wire.StopReplicaPartition(
                partition_index=tp.partition, leader_epoch=epoch, delete_partition=delete
            )
            batch.add_stop(tp, stop)
            self._add_topic(batch, tp.topic)

    def delete_former(self, replica: Replica, topic_id: TopicId) -> None:
        """Delete a replica of a topic that does not exist any more."""
        batch = self._batch(replica.broker)
        if batch is not None:
            batch.former_replicas[replica.tp, topic_id] = None

    def take(self) -> dict[BrokerId, BrokerBatch]:
        """All batches, by broker; the next event starts without batches."""
        partitions, self._for_all_brokers = self._for_all_brokers, {}
        if partitions:
            self.add_metadata(self._context.live_or_shutting_down, partitions)
        taken, self._batches = self._batches, {}
        live = self._live_brokers()
        described = self._described_brokers()
        unreadable = sorted(self._context.unreadable_topics)
        for batch in taken.values():
            batch.live_brokers = live
            batch.metadata_brokers = described
            batch.unreadable_topics = unreadable
        return taken

    def _batch(self, broker: BrokerId) -> BrokerBatch | None:
        """None for a broker that cannot be reached."""
        if broker not in self._context.registrations or broker in self._context.suspected:
            return None
        return self._batches.setdefault(broker, BrokerBatch())

    def _add_topic(self, batch: BrokerBatch, topic: str) -> None:
        if topic not in batch.topics:
            batch.topics[topic] = TopicFacts(
                self._context.topic_ids.get(topic, NO_TOPIC_ID),
                self._context.topic_configs.get(topic, StoredConfig()),
            )

    def _metadata_of(self, tp: TopicPartition) -> wire.UpdateMetadataPartition | None:
        """None for a topic that was removed by hand. A state that cannot be read is sent as unknown."""
        if self._context.assignment_of(tp) is None:
            return None
        state = self._context.leadership.get(tp, _UNKNOWN)
        if self._context.is_to_be_deleted(tp.topic):
            state = dataclasses.replace(state, leader=BrokerId(wire.LEADER_DURING_DELETE))
        usable = self._context.eligible(tp, self._context.live_or_shutting_down)
        return wire.UpdateMetadataPartition(
            **self._described(tp, state),
            offline_replicas=[replica for replica in self._context.replicas_of(tp) if replica not in usable],
        )

    def _described(self, tp: TopicPartition, state: LeadershipState) -> dict[str, Any]:
        """The fields that LeaderAndIsr and UpdateMetadata have in common."""
        return {
            "partition_index": tp.partition,
            "controller_epoch": state.controller_epoch,
            "leader": state.leader,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
            "partition_epoch": state.partition_epoch,
            "replicas": list(self._context.replicas_of(tp)),
        }

    def _live_brokers(self) -> list[wire.LiveBroker]:
        live = []
        for broker in sorted(self._context.live_or_shutting_down):
            registration = self._context.registrations[broker]
            endpoint = registration.endpoint(self._listener)
            if endpoint is not None:
                live.append(
                    wire.LiveBroker(
                        broker_id=broker,
                        host=endpoint.host,
                        port=endpoint.port,
                        broker_epoch=registration.broker_epoch,
                        endpoints=_listeners(registration),
                    )
                )
        return live

    def _described_brokers(self) -> list[wire.UpdateMetadataBroker]:
        return [
            wire.UpdateMetadataBroker(
                broker_id=broker,
                broker_epoch=registration.broker_epoch,
                endpoints=_listeners(registration),
                rack=registration.rack,
            )
            for broker in sorted(self._context.live_or_shutting_down)
            for registration in (self._context.registrations[broker],)
        ]


def _listeners(registration: BrokerRegistration) -> list[wire.BrokerListener]:
    return [
        wire.BrokerListener(
            listener=listener.name,
            host=listener.host,
            port=listener.port,
            security_protocol=listener.security_protocol,
        )
        for listener in registration.listeners
    ]
