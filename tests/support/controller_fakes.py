"""A cluster in memory, for the controller's rules without threads, sockets or a ZooKeeper."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from barnabas.controller.events import Event
from barnabas.controller.request_batch import BrokerBatch
from barnabas.controller.term import ControllerSettings, ControllerTerm
from barnabas.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages.inter_broker import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from barnabas.zookeeper.controller_writer import StateUpdates
from barnabas.zookeeper.errors import ControllerMoved
from barnabas.zookeeper.znodes import (
    AdvertisedListener,
    BrokerRegistration,
    LeadershipState,
    MalformedZnode,
    ReplicaAssignment,
    StoredConfig,
    TopicAssignment,
)


def assigned(*replicas: int) -> ReplicaAssignment:
    return ReplicaAssignment(tuple(map(BrokerId, replicas)))


class FakeZooKeeper:
    """The znodes of a cluster; reads as `ClusterStore` does. Watches are taken and never set off."""

    def __init__(self) -> None:
        self.registrations: dict[BrokerId, BrokerRegistration] = {}
        self.assignments: dict[str, TopicAssignment | MalformedZnode] = {}
        self.configs: dict[str, StoredConfig] = {}
        self.states: dict[TopicPartition, LeadershipState] = {}
        self.deletions: list[str] = []
        self.notifications: dict[str, list[TopicPartition]] = {}
        self.failures: dict[str, BrokerId | None] = {}
        self.epoch = ControllerEpoch(0)
        self._last_czxid = 100
        self._last_zxid = 1000
        self._topic_watches: dict[str, Callable[[str], None]] = {}

    def register(self, *brokers: int) -> None:
        for broker in brokers:
            self._last_czxid += 1
            self.registrations[BrokerId(broker)] = BrokerRegistration(
                broker_id=BrokerId(broker),
                listeners=(AdvertisedListener("PLAINTEXT", "localhost", 9000 + broker),),
                timestamp_ms=0,
                broker_epoch=BrokerEpoch(self._last_czxid),
            )

    def unregister(self, *brokers: int) -> None:
        for broker in brokers:
            del self.registrations[BrokerId(broker)]

    def add_topic(self, name: str, replicas: Mapping[int, Iterable[int]], **config: str) -> None:
        self.assignments[name] = TopicAssignment(
            topic_id=TopicId(uuid.uuid4()),
            partitions={index: assigned(*brokers) for index, brokers in replicas.items()},
        )
        self.configure(name, **config)

    def configure(self, name: str, **config: str) -> None:
        self._last_zxid += 1
        values = {key.replace("_", "."): value for key, value in config.items()}
        self.configs[name] = StoredConfig(
            values, self._last_zxid, self.configs.get(name, StoredConfig()).version + 1
        )

    def grow(self, name: str, replicas: Mapping[int, Iterable[int]]) -> None:
        """More partitions, and the watch on the topic's node set off."""
        former = self.assignments[name]
        assert isinstance(former, TopicAssignment)
        more = {index: assigned(*brokers) for index, brokers in replicas.items()}
        self.assignments[name] = replace(
            former, partitions={**former.partitions, **more}, version=former.version + 1
        )
        self.touch(name)

    def touch(self, name: str) -> None:
        watch = self._topic_watches.pop(name, None)
        if watch is not None:
            watch(name)

    def shrink_isr(self, tp: TopicPartition, *isr: int) -> None:
        """As the leader does by itself."""
        state = self.states[tp]
        self.states[tp] = replace(
            state, isr=tuple(map(BrokerId, isr)), partition_epoch=state.partition_epoch + 1
        )

    def brokers(self, watch: object = None) -> dict[BrokerId, BrokerRegistration]:
        return dict(self.registrations)

    def topics(self, watch: object = None) -> list[str]:
        return list(self.assignments)

    def topic_assignments(
        self, topics: Iterable[str], watch: Callable[[str], None] | None = None
    ) -> dict[str, TopicAssignment | MalformedZnode]:
        found = {name: self.assignments[name] for name in topics if name in self.assignments}
        if watch is not None:
            self._topic_watches.update(dict.fromkeys(found, watch))
        return found

    def topic_configs(self, topics: Iterable[str]) -> dict[str, StoredConfig]:
        return {name: self.configs.get(name, StoredConfig()) for name in topics}

    def partition_states(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LeadershipState]:
        return {tp: self.states[tp] for tp in partitions if tp in self.states}

    def deletion_requests(self, watch: object = None) -> list[str]:
        return list(self.deletions)

    def isr_changes(self, watch: object = None) -> dict[str, list[TopicPartition]]:
        return dict(self.notifications)

    def log_dir_failures(self, watch: object = None) -> dict[str, BrokerId | None]:
        return dict(self.failures)

    def become_controller(self) -> FakeWriter:
        self.epoch = ControllerEpoch(self.epoch + 1)
        return FakeWriter(self, self.epoch)


class FakeWriter:
    """Writes as `ControllerWriter` does, fenced by the epoch."""

    def __init__(self, zookeeper: FakeZooKeeper, epoch: ControllerEpoch) -> None:
        self.epoch = epoch
        self.writes = 0
        self._zookeeper = zookeeper

    def _check(self) -> FakeZooKeeper:
        if self._zookeeper.epoch != self.epoch:
            raise ControllerMoved(f"epoch {self.epoch} was superseded")
        self.writes += 1
        return self._zookeeper

    def check(self) -> None:
        if self._zookeeper.epoch != self.epoch:
            raise ControllerMoved(f"epoch {self.epoch} was superseded")

    def create_partition_states(self, states: Mapping[TopicPartition, LeadershipState]) -> StateUpdates:
        store = self._check().states
        conflicts = {tp: store[tp] for tp in states if tp in store}
        written = {tp: state for tp, state in states.items() if tp not in store}
        store.update(written)
        return StateUpdates(written, conflicts)

    def update_partition_states(self, states: Mapping[TopicPartition, LeadershipState]) -> StateUpdates:
        store = self._check().states
        updates = StateUpdates({}, {})
        for tp, state in states.items():
            found = store.get(tp)
            if found is None:
                continue
            if found.partition_epoch != state.partition_epoch:
                updates.conflicts[tp] = found
                continue
            store[tp] = updates.written[tp] = replace(state, partition_epoch=state.partition_epoch + 1)
        return updates

    def set_topic_assignment(self, name: str, topic: TopicAssignment) -> bool:
        zookeeper = self._check()
        found = zookeeper.assignments.get(name)
        if not isinstance(found, TopicAssignment) or found.version != topic.version:
            return False
        zookeeper.assignments[name] = replace(topic, version=topic.version + 1)
        zookeeper.touch(name)
        return True

    def create_topic(self, name: str, topic: TopicAssignment, config: Mapping[str, str]) -> bool:
        zookeeper = self._check()
        if name in zookeeper.assignments:
            return False
        zookeeper.assignments[name] = topic
        zookeeper.configs[name] = StoredConfig(dict(config), 1, 0)
        return True

    def request_deletion(self, topic: str) -> bool:
        zookeeper = self._check()
        if topic in zookeeper.deletions:
            return False
        zookeeper.deletions.append(topic)
        return True

    def delete_topic(self, topic: str) -> None:
        zookeeper = self._check()
        zookeeper.assignments.pop(topic, None)
        zookeeper.configs.pop(topic, None)
        for tp in [tp for tp in zookeeper.states if tp.topic == topic]:
            del zookeeper.states[tp]
        self.clear_deletion_requests([topic])

    def clear_deletion_requests(self, topics: Iterable[str]) -> None:
        zookeeper = self._check()
        zookeeper.deletions = [name for name in zookeeper.deletions if name not in set(topics)]

    def delete_isr_changes(self, sequences: Iterable[str]) -> None:
        zookeeper = self._check()
        for sequence in list(sequences):
            zookeeper.notifications.pop(sequence, None)

    def delete_log_dir_failures(self, sequences: Iterable[str]) -> None:
        zookeeper = self._check()
        for sequence in list(sequences):
            zookeeper.failures.pop(sequence, None)


class FakeChannels:
    """Records what each broker is told; `told` gives it as requests and forgets it."""

    def __init__(self, epoch: ControllerEpoch) -> None:
        self.epoch = epoch
        self.connected: dict[BrokerId, tuple[BrokerEpoch, Endpoint]] = {}
        self.suspected: set[BrokerId] = set()
        self.batches: list[tuple[BrokerId, BrokerBatch]] = []
        self.is_stopped = False

    def add_broker(
        self, broker: BrokerId, broker_epoch: BrokerEpoch, endpoint: Endpoint, *, is_suspected: bool
    ) -> None:
        self.connected[broker] = (broker_epoch, endpoint)
        self.suspected = self.suspected | {broker} if is_suspected else self.suspected - {broker}

    def remove_broker(self, broker: BrokerId) -> None:
        self.connected.pop(broker, None)

    def send(self, broker: BrokerId, batch: BrokerBatch) -> None:
        assert broker in self.connected, f"broker {broker} is told something though it is not connected"
        self.batches.append((broker, batch))

    def when_answered(self, done: Callable[[], None]) -> None:
        done()

    def stop(self) -> None:
        self.is_stopped = True

    def requests(self, broker: int) -> list[Any]:
        return [
            request
            for to, batch in self.batches
            if to == broker
            for request in batch.requests(BrokerId(0), self.epoch, self.connected[to][0])
        ]

    def leadership(self, broker: int) -> dict[TopicPartition, Any]:
        """The last LeaderAndIsr of each partition that the broker was told."""
        return {
            TopicPartition(topic.topic_name, state.partition_index): state
            for request in self.requests(broker)
            if isinstance(request, LeaderAndIsrRequest)
            for topic in request.topic_states
            for state in topic.partition_states
        }

    def metadata(self, broker: int) -> dict[TopicPartition, Any]:
        """The last UpdateMetadata of each partition that the broker was told."""
        return {
            TopicPartition(topic.topic_name, state.partition_index): state
            for request in self.requests(broker)
            if isinstance(request, UpdateMetadataRequest)
            for topic in request.topic_states
            for state in topic.partition_states
        }

    def full_requests(self, broker: int) -> list[LeaderAndIsrRequest]:
        return [r for r in self.requests(broker) if isinstance(r, LeaderAndIsrRequest) and r.is_full]

    def stops(self, broker: int) -> list[StopReplicaRequest]:
        return [request for request in self.requests(broker) if isinstance(request, StopReplicaRequest)]

    def forget(self) -> None:
        self.batches.clear()


class Cluster:
    """A term over a `FakeZooKeeper`, started anew by `elect`."""

    def __init__(self, *brokers: int, **settings: Any) -> None:
        self.zookeeper = FakeZooKeeper()
        self.zookeeper.register(*brokers)
        self.settings = ControllerSettings(inter_broker_listener_name="PLAINTEXT", **settings)
        self.put: list[Event] = []

    def elect(self) -> ControllerTerm:
        self.writer = self.zookeeper.become_controller()
        self.channels = FakeChannels(self.writer.epoch)
        self.term = ControllerTerm(self.zookeeper, self.writer, self.channels, self.settings, self.put.append)
        self.term.start()
        return self.term

    def epoch_of(self, broker: int) -> BrokerEpoch:
        return self.zookeeper.registrations[BrokerId(broker)].broker_epoch


def state(
    leader: int, isr: Iterable[int], *, epoch: int = 0, version: int = 0, controller_epoch: int = 1
) -> LeadershipState:
    return LeadershipState(
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=tuple(map(BrokerId, isr)),
        controller_epoch=ControllerEpoch(controller_epoch),
        partition_epoch=version,
    )
