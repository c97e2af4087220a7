"""What stands in the simulated ZooKeeper, and the doors to it for controllers and for leaders.

Every write is a compare-and-set, as in the real one. A broker's door may be shut (`LOST`), or it may lose the
answers (`MUTE`): then a write is carried out and its writer does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum

from barnabas.broker.replication.isr_changes import IneligibleReplica, IsrConflict, IsrStoreUnavailable
from barnabas.controller.controller_writer import ControllerMoved, StateUpdates
from barnabas.controller.znodes import (
    AdvertisedListener,
    BrokerRegistration,
    LeadershipState,
    StoredConfig,
    TopicAssignment,
)
from barnabas.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)

LISTENER = "INTERNAL"
Watch = Callable[[object], None]


class Door(Enum):
    """How a broker reaches ZooKeeper."""

    OPEN = "open"
    LOST = "lost"
    MUTE = "mute"


class SimZooKeeper:
    """The nodes, and who watches them. Also the `ReignStore` of controllers."""

    def __init__(self, topic: str, topic_id: TopicId, replicas: Sequence[BrokerId]) -> None:
        self.registrations: dict[BrokerId, BrokerRegistration] = {}
        self.states: dict[TopicPartition, LeadershipState] = {}
        self.epoch = ControllerEpoch(0)
        self.notifications: dict[str, list[TopicPartition]] = {}
        self.failed_dirs: dict[str, BrokerId | None] = {}
        self.doors: dict[BrokerId, Door] = dict.fromkeys(replicas, Door.OPEN)
        self._assignment = {topic: TopicAssignment(topic_id=topic_id, replicas={0: tuple(replicas)})}
        self._zxid = 0
        self._watches: dict[str, list[Watch]] = {"brokers": [], "isr": [], "log dirs": []}

    def register(self, broker: BrokerId) -> BrokerEpoch:
        self._zxid += 1
        self.registrations[broker] = BrokerRegistration(
            broker_id=broker,
            listeners=(AdvertisedListener(LISTENER, "sim", 9000 + broker),),
            timestamp_ms=0,
            broker_epoch=BrokerEpoch(self._zxid),
        )
        self._fire("brokers")
        return BrokerEpoch(self._zxid)

    def unregister(self, broker: BrokerId) -> None:
        if self.registrations.pop(broker, None) is not None:
            self._fire("brokers")

    def _fire(self, node: str) -> None:
        watches, self._watches[node] = self._watches[node], []
        for watch in watches:
            watch(None)

    # For controllers

    def brokers(self, watch: Watch | None = None) -> dict[BrokerId, BrokerRegistration]:
        self._watch("brokers", watch)
        return dict(self.registrations)

    def topics(self, watch: Watch | None = None) -> list[str]:
        return list(self._assignment)

    def topic_assignments(
        self, topics: Iterable[str], watch: Callable[[str], None] | None = None
    ) -> dict[str, TopicAssignment]:
        return {name: self._assignment[name] for name in topics}

    def topic_configs(self, topics: Iterable[str]) -> dict[str, StoredConfig]:
        return {name: StoredConfig() for name in topics}

    def deletion_requests(self, watch: Watch | None = None) -> list[str]:
        return []

    def isr_changes(self, watch: Watch | None = None) -> dict[str, list[TopicPartition]]:
        self._watch("isr", watch)
        return dict(self.notifications)

    def log_dir_failures(self, watch: Watch | None = None) -> dict[str, BrokerId | None]:
        self._watch("log dirs", watch)
        return dict(self.failed_dirs)

    def partition_states(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LeadershipState]:
        return {tp: self.states[tp] for tp in partitions if tp in self.states}

    def _watch(self, node: str, watch: Watch | None) -> None:
        if watch is not None:
            self._watches[node].append(watch)

    def are_registered(self, broker_epochs: Mapping[BrokerId, BrokerEpoch]) -> bool:
        """Whether all of these live, and in these lives."""
        return all(
            broker in self.registrations and self.registrations[broker].broker_epoch == epoch
            for broker, epoch in broker_epochs.items()
        )

    # The one write

    def set_state(self, tp: TopicPartition, state: LeadershipState) -> LeadershipState | None:
        """Compare-and-set on the version that `state` carries; the new state, or None on conflict."""
        if self.states[tp].partition_epoch != state.partition_epoch:
            return None
        self.states[tp] = replace(state, partition_epoch=state.partition_epoch + 1)
        return self.states[tp]


class SimWriter:
    """What one elected controller writes with: fenced by its epoch."""

    def __init__(self, zookeeper: SimZooKeeper) -> None:
        zookeeper.epoch = self.epoch = ControllerEpoch(zookeeper.epoch + 1)
        self._zookeeper = zookeeper

    def _check(self) -> None:
        if self._zookeeper.epoch != self.epoch:
            raise ControllerMoved(f"the epoch is {self._zookeeper.epoch}, ours is {self.epoch}")

    def create_partition_states(self, states: Mapping[TopicPartition, LeadershipState]) -> StateUpdates:
        self._check()
        known = self._zookeeper.states
        conflicts = {tp: known[tp] for tp in states if tp in known}
        written = {tp: state for tp, state in states.items() if tp not in known}
        known.update(written)
        return StateUpdates(written, conflicts)

    def update_partition_states(self, states: Mapping[TopicPartition, LeadershipState]) -> StateUpdates:
        self._check()
        written, conflicts = {}, {}
        for tp, state in states.items():
            new = self._zookeeper.set_state(tp, state)
            if new is None:
                conflicts[tp] = self._zookeeper.states[tp]
            else:
                written[tp] = new
        return StateUpdates(written, conflicts)

    def delete_isr_changes(self, sequences: Iterable[str]) -> None:
        self._check()
        for name in sequences:
            self._zookeeper.notifications.pop(name, None)

    def delete_log_dir_failures(self, sequences: Iterable[str]) -> None:
        self._check()
        for name in sequences:
            self._zookeeper.failed_dirs.pop(name, None)

    def set_topic_assignment(self, name: str, topic: TopicAssignment) -> None:
        raise AssertionError("topics have their ids here")

    def delete_topic(self, topic: str) -> None:
        raise AssertionError("no topic is deleted here")

    def clear_deletion_requests(self, topics: Iterable[str]) -> None:
        if list(topics):
            raise AssertionError("no topic is deleted here")


class SimIsrStore:
    """The door of one broker, for the ISRs of what it leads."""

    def __init__(self, zookeeper: SimZooKeeper, broker: BrokerId) -> None:
        self._zookeeper = zookeeper
        self._broker = broker

    def update_isr(
        self,
        partition: TopicPartition,
        *,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        controller_epoch: ControllerEpoch,
        in_sync_replicas: Sequence[BrokerId],
        partition_epoch: int,
        joining: Mapping[BrokerId, BrokerEpoch],
    ) -> int:
        if self._zookeeper.doors[self._broker] is Door.LOST:
            raise IsrStoreUnavailable("no connection")
        wanted = LeadershipState(
            leader=leader,
            leader_epoch=leader_epoch,
            isr=tuple(in_sync_replicas),
            controller_epoch=controller_epoch,
            partition_epoch=partition_epoch,
            broker_epochs={
                broker: epoch
                for broker, epoch in {**self._zookeeper.states[partition].broker_epochs, **joining}.items()
                if broker in in_sync_replicas
            },
        )
        fits = self._zookeeper.are_registered(joining)
        found = self._zookeeper.set_state(partition, wanted) if fits else None
        current = self._zookeeper.states[partition]
        if self._zookeeper.doors[self._broker] is Door.MUTE:
            raise IsrStoreUnavailable("no answer")
        if not fits and current.partition_epoch == partition_epoch:
            raise IneligibleReplica(f"{dict(joining)} are not registered")
        if found is None and current != replace(wanted, partition_epoch=partition_epoch + 1):
            raise IsrConflict(f"expected version {partition_epoch}, found {current}")
        return partition_epoch + 1

    def notify_isr_change(self, partitions: Sequence[TopicPartition]) -> None:
        if self._zookeeper.doors[self._broker] is not Door.OPEN:
            raise IsrStoreUnavailable("no connection")
        name = f"{len(self._zookeeper.notifications)}-{self._zookeeper._zxid}-{self._broker}"
        self._zookeeper.notifications[name] = list(partitions)
        self._zookeeper._fire("isr")

    def notify_log_dir_failure(self, broker_id: BrokerId) -> None:
        if self._zookeeper.doors[self._broker] is not Door.OPEN:
            raise IsrStoreUnavailable("no connection")
        self._zookeeper.failed_dirs[f"{len(self._zookeeper.failed_dirs)}-{broker_id}"] = broker_id
        self._zookeeper._fire("log dirs")
