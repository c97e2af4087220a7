"""Topics that are created, grown, moved, deleted and created again, as steps of a random history.

Clients' requests go through the real `TopicAdmin` of a broker that believes it is the controller. An operator
who removes a topic by hand, or makes its node unreadable, restores it later. A request to elect or to move is
also written under ``/admin`` by hand. Live brokers get replicas, and targets of fewer replicas than
acknowledgements need are rare.
"""

import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from barnabas.controller.controller import Controller
from barnabas.controller.topic_admin import TopicAdmin
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsTopic,
    DeleteTopicState,
)
from barnabas.zookeeper import admin_requests, paths, znodes
from tests.simulation.broker import SimBroker
from tests.simulation.topics import Topics
from tests.simulation.world import World
from tests.support.zookeeper import Kind, Operation

TOPIC_WORK: Final = {
    "create_topic": 6.0,
    "grow_topic": 1.5,
    "delete_topic": 3.0,
    "let_be": 9.0,
}
MOVE_WORK: Final = {
    "elect_preferred": 3.0,
    "reassign": 5.0,
    "cancel_reassignment": 1.0,
    "request_by_hand": 1.5,
}
TOPIC_FAULTS: Final = {
    "hide_topic": 0.5,
    "garble_topic": 0.4,
}
TOPIC_CURES: Final = {
    "restore_topic": 2.0,
    "mend_topic": 2.0,
}
NAMES: Final = ("a", "b")
_MAX_PARTITIONS: Final = 3


class TopicChaos:
    """The steps; mixed into a history. `topics` is None in a history without topic changes."""

    random: random.Random
    world: World
    ids: list[BrokerId]
    trace: list[str]
    topics: Topics | None = None

    @abstractmethod
    def _may_shrink(self, leader: SimBroker) -> bool: ...

    def _topics(self) -> Topics:
        assert self.topics is not None
        return self.topics

    def _tp(self) -> TopicPartition:
        """A partition to write to or to read from; its topic may be marked for deletion."""
        if self.topics is None or self.random.random() < 0.3:
            return self.world.tp
        known = {truth.tp for truth in self.world.truths.values()} | {TopicPartition(NAMES[0], 0)}
        tp = self.random.choice(sorted(known))
        self.trace[-1] = f"{self.trace[-1]} {tp}"
        return tp

    def create_topic(self) -> None:
        name, partitions = self.random.choice(NAMES), self.random.randint(1, 2)
        assigned = [self._replicas(self.random.choice((2, 3))) for _ in range(partitions)]
        topic = CreatableTopic(
            name=name,
            assignments=[
                CreatableReplicaAssignment(partition_index=index, broker_ids=replicas)
                for index, replicas in enumerate(assigned)
            ],
        )
        self._ask(name, lambda admin: admin.create_topics([topic]))

    def grow_topic(self) -> None:
        names = [
            name
            for name in self._topics().names()
            if name not in self._topics().garbled
            and len(self._topics().partitions_of(name)) < _MAX_PARTITIONS
        ]
        if names:
            name = self.random.choice(names)
            known = self._topics().partitions_of(name)
            replicas = CreatePartitionsAssignment(broker_ids=self._replicas(len(known[0].replicas)))
            topic = CreatePartitionsTopic(name=name, count=len(known) + 1, assignments=[replicas])
            self._ask(name, lambda admin: [grown.result for grown in admin.create_partitions([topic])])

    def delete_topic(self) -> None:
        if names := self._changeable():
            name = self.random.choice(names)
            self._ask(name, lambda admin: admin.delete_topics([DeleteTopicState(name=name)]))

    def let_be(self) -> None:
        """Let all processes do their ordinary work for a while."""
        for _ in range(self.random.randint(1, 3)):
            self.world.take_turns(self._may_shrink)

    def hide_topic(self) -> None:
        names = [name for name in self._changeable() if name not in self._topics().hidden]
        if names:
            self._topics().hide(self._named(names))

    def restore_topic(self) -> None:
        if self._topics().hidden:
            self._topics().restore(self._named(list(self._topics().hidden)))

    def garble_topic(self) -> None:
        if names := self._changeable():
            self._topics().garble(self._named(names))

    def mend_topic(self) -> None:
        if self._topics().garbled:
            self._topics().mend(self._named(list(self._topics().garbled)))

    def _changeable(self) -> list[str]:
        """Readable topics that are not marked for deletion, without the topic of every world."""
        topics = self._topics()
        return [n for n in topics.names() if n not in topics.garbled and n != self.world.tp.topic]

    def _named(self, names: list[str]) -> str:
        name = self.random.choice(names)
        self.trace[-1] = f"{self.trace[-1]} {name}"
        return name

    def _replicas(self, count: int) -> list[int]:
        """Up to this many live brokers, since the controller refuses others; any brokers if too few live."""
        live = [broker for broker in self.ids if self.world.is_registered(broker)]
        chosen = live if len(live) >= 2 else self.ids
        return [int(broker) for broker in self.random.sample(chosen, min(count, len(chosen)))]

    def _ask(self, name: str, ask: Callable[[TopicAdmin], Sequence[Any]]) -> None:
        """A client asks a controller; the connection to ZooKeeper may break meanwhile."""
        hosts = [
            host for host in self.world.hosts.values() if host.can_act and host.member.controller.is_active
        ]
        if hosts:
            host = self.random.choice(hosts)
            client = host.member.client
            if self.random.random() < 0.15:
                client.break_after(self.random.randint(0, 4), is_last_done=self.random.random() < 0.6)
            errors = self.world.ask(host, ask)
            client.heal()
            self.trace[-1] = f"{self.trace[-1]} {name} at {host.id}: {[error.name for error in errors]}"

    # Elections and reassignments

    def elect_preferred(self) -> None:
        controller, partition = self._some_controller(), self._some_partition()
        if controller is not None:
            named = None if partition is None or self.random.random() < 0.3 else [partition]
            self.trace[-1] = f"{self.trace[-1]} {named} at {controller.broker_id}"
            controller.elect_leaders(named, is_unclean=False, done=lambda code, outcomes: None)

    def reassign(self) -> None:
        controller, partition = self._some_controller(), self._some_partition()
        if controller is not None and partition is not None:
            target = self._target(partition)
            self.trace[-1] = f"{self.trace[-1]} {partition} to {target} at {controller.broker_id}"
            controller.alter_reassignments({partition: target}, lambda code, outcomes: None)

    def cancel_reassignment(self) -> None:
        controller = self._some_controller()
        changing = [tp for tp in self._partitions() if self._topics().is_changing(tp)]
        if controller is not None and changing:
            partition = self.random.choice(changing)
            self.trace[-1] = f"{self.trace[-1]} {partition} at {controller.broker_id}"
            controller.alter_reassignments({partition: None}, lambda code, outcomes: None)

    def request_by_hand(self) -> None:
        """An operator's tool writes a request under ``/admin``."""
        partition = self._some_partition()
        if partition is None:
            return
        path, data = paths.PREFERRED_ELECTION, znodes.encode_partitions([partition])
        if self.random.random() < 0.7 and paths.REASSIGNMENTS not in self.world.zookeeper.nodes:
            path = paths.REASSIGNMENTS
            data = admin_requests.encode_reassignments({partition: self._target(partition)})
        if path not in self.world.zookeeper.nodes:
            self.trace[-1] = f"{self.trace[-1]} {path} {partition}"
            session = self.world.zookeeper.open_session()
            self.world.zookeeper.transact(session, [Operation(Kind.CREATE, path, data)])
            self.world.zookeeper.expire(session)

    def _some_controller(self) -> Controller | None:
        hosts = [host for host in self.world.hosts.values() if host.can_act]
        active = [host.member.controller for host in hosts if host.member.controller.is_active]
        return self.random.choice(active) if active else None

    def _partitions(self) -> list[TopicPartition]:
        topics = self._topics()
        return [
            TopicPartition(name, index)
            for name in topics.names()
            if name not in topics.garbled
            for index in topics.partitions_of(name)
        ]

    def _some_partition(self) -> TopicPartition | None:
        partitions = self._partitions()
        return self.random.choice(partitions) if partitions else None

    def _target(self, tp: TopicPartition) -> list[BrokerId]:
        count = self.random.choice((1, 2, 2, 2, 3))
        target = self.random.sample(self.ids, min(count, len(self.ids)))
        self._topics().allow(tp, target)
        return target
