"""Elections of preferred replicas and reassignments, as steps of a random history.

A request goes to a broker that believes it is the controller, or is written under ``/admin`` by hand. Live
brokers get replicas, and targets of fewer replicas than acknowledgements need are rare.
"""

import random
from abc import abstractmethod
from typing import Final

from barnabas.controller.controller import Controller
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.zookeeper import admin_requests, paths
from tests.simulation.topics import Topics
from tests.simulation.world import World
from tests.support.zookeeper import Kind, Operation

MOVE_WORK: Final = {
    "elect_preferred": 3.0,
    "reassign": 5.0,
    "cancel_reassignment": 1.0,
    "request_by_hand": 1.5,
}


class MoveChaos:
    """The steps; mixed into a history with topic changes."""

    random: random.Random
    world: World
    ids: list[BrokerId]
    trace: list[str]

    @abstractmethod
    def _topics(self) -> Topics: ...

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
        path, data = paths.PREFERRED_ELECTION, admin_requests.encode_preferred_elections([partition])
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
