"""What befalls the disks and the clocks of a world's brokers, as steps of a random history."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence

from barnabas.broker.replication.isr import PendingShrink
from barnabas.protocol.ids import BrokerId
from tests.simulation.disk import Fault
from tests.simulation.truth import Truth
from tests.simulation.world import SimBroker, World
from tests.simulation.zookeeper_client import Door

DISK_FAULTS = {
    "fail_disk": 0.7,
    "slow_disk": 1.0,
    "power_loss": 0.8,
    "wipe": 0.5,
    "restart_unseen": 0.5,
    "leave_for_good": 0.5,
    "drift": 1.0,
}
DISK_CURES = {
    "mend_disk": 2.0,
    "speed_up": 1.0,
}


class DiskChaos:
    """The steps; mixed into a history."""

    random: random.Random
    world: World

    @abstractmethod
    def _any(self) -> SimBroker: ...

    def fail_disk(self) -> None:
        """It is full or broken: an append takes a part and refuses."""
        broker = self._any()
        if broker.is_up and not broker.disk.has_failed and self._may_fall(broker):
            broker.disk.fault = self.random.choice(list(Fault))

    def mend_disk(self) -> None:
        """The process is started anew on it."""
        broker = self._any()
        if broker.disk.has_failed and broker.can_act:
            broker.crash()
            broker.start()

    def slow_disk(self) -> None:
        self._any().disk.slow_ms = self.random.choice((10, 100, 700))

    def speed_up(self) -> None:
        self._any().disk.slow_ms = 0.0

    def drift(self) -> None:
        """The clock of one broker goes faster or slower than the others'."""
        self._any().set_clock(self.random.choice((0.5, 0.9, 1.0, 1.1, 2.0)))

    def power_loss(self) -> None:
        """What is not flushed is lost, on one machine, while another one in sync is well."""
        broker = self._any()
        if broker.is_up and self._is_another_well(broker):
            broker.crash(power_loss=self.random)
            self._say_nothing_more(broker)

    def wipe(self) -> None:
        """A machine gets an empty disk, while another one in sync is well."""
        broker = self._any()
        if broker.is_up and self._is_another_well(broker):
            broker.crash()
            broker.wipe()
            self._say_nothing_more(broker)

    def restart_unseen(self) -> None:
        """A broker that has lost something is back at once, and the controller is not the one it was."""
        broker = self._any()
        if broker.is_up and self._is_another_well(broker):
            broker.crash(power_loss=self.random)
            if self.random.random() < 0.5:
                broker.wipe()
            self._say_nothing_more(broker)
            broker.start()
            self.world.depose_controller()

    def rebirth(self) -> None:
        """A broker that has lost something is back at once, while what it said before is still on its way."""
        world = self.world
        behind = [one.id for one in world.brokers.values() if self._is_behind(one)]
        broker = world.brokers[self.random.choice(behind)] if behind else self._any()
        if broker.is_up and self._is_another_well(broker):
            broker.crash(power_loss=self.random)
            if self.random.random() < 0.7:
                broker.wipe()
            broker.start()
            if self.random.random() < 0.7:
                world.held_back += [one for one in world.messages if one.source == broker.id]
                world.messages = [one for one in world.messages if one.source != broker.id]

    def _is_behind(self, broker: SimBroker) -> bool:
        """Whether it is to join an ISR, and something that it said is on its way."""
        world = self.world
        is_heard = any(message.source == broker.id for message in world.messages)
        return (
            broker.is_up
            and is_heard
            and any(
                broker.id in world.replicas_of(truth.tp) and broker.id not in truth.isr
                for truth in world.truths.values()
                if world.has_state(truth.tp)
            )
        )

    def rack_falls(self) -> None:
        """Several machines go down at once and are gone for ZooKeeper, with all that they had."""
        brokers = [one for one in self.world.brokers.values() if one.is_up]
        falling = self.random.sample(brokers, self.random.randint(0, len(brokers)))
        if self._may_all_fall(falling):
            for broker in falling:
                broker.crash()
                self.world.expire(broker.id)

    def leave_for_good(self) -> None:
        """A broker that is known to be down comes back at the very end, with an empty disk.

        Another one in sync has everything, be it up or down.
        """
        broker, world = self._any(), self.world
        if broker.is_up or world.is_registered(broker.id):
            return
        if all(self._has_another_all(truth, broker) for truth in self._at_stake()):
            broker.is_lost = True
            broker.wipe()

    def _has_another_all(self, truth: Truth, broker: SimBroker) -> bool:
        """Whether another one in sync has all records of a partition, be it up or down."""
        return any(
            member not in truth.lossy and not self.world.brokers[member].disk.has_failed
            for member in set(truth.isr) - {broker.id}
        )

    def _say_nothing_more(self, broker: SimBroker) -> None:
        world = self.world
        world.messages = [one for one in world.messages if one.source != broker.id]
        world.held_back = [one for one in world.held_back if one.source != broker.id]

    def _at_stake(self) -> list[Truth]:
        """The partitions that may have records."""
        return [truth for truth in self.world.truths.values() if truth.has_state]

    def _is_another_well(self, broker: SimBroker) -> bool:
        """Whether somebody else is well in each partition."""
        return all(set(self._well(truth)) - {broker.id} for truth in self._at_stake())

    def _may_fall(self, broker: SimBroker) -> bool:
        """Whether somebody stays in sync and is well, while another one only seems to be."""
        return self._may_all_fall([broker])

    def _may_all_fall(self, brokers: Sequence[SimBroker]) -> bool:
        ids = {broker.id for broker in brokers}
        return all(not truth.lossy or set(self._well(truth)) - ids for truth in self._at_stake())

    def _may_put_out(self, leader: SimBroker) -> bool:
        """Whether a leader may propose smaller ISRs: it is well and stays, or nobody has lost anything.

        Else one that is about to be taken for dead would leave only those who have lost something. One that
        is dead for ZooKeeper may propose what it likes.
        """
        return all(
            not truth.lossy or leader.id in self._well(truth)
            for truth in self._at_stake()
            if (partition := truth.partition(leader)) is not None and partition.is_leader
            if self._is_registered_as_known(truth, leader.id)
        )

    def _leaving(self, truth: Truth) -> set[BrokerId]:
        """Whom leaders would put out of the ISR, once they get it written."""
        return {
            member
            for broker in self.world.brokers.values()
            if (partition := truth.partition(broker)) is not None
            if isinstance(partition.isr, PendingShrink) and self._is_registered_as_known(truth, broker.id)
            for member in partition.isr.leaving
        }

    def _is_registered_as_known(self, truth: Truth, broker: BrokerId) -> bool:
        """Whether ZooKeeper knows a member of an ISR in the life in which it got there."""
        return self.world.registered_epoch(broker) == truth.state.broker_epochs.get(broker)

    def _well(self, truth: Truth) -> list[BrokerId]:
        """Who is in sync with all that was committed, has been up since it got there and is heard of."""
        world, leaving = self.world, self._leaving(truth)
        return [
            member
            for member in truth.isr
            if member not in truth.lossy
            and member not in leaving
            and world.brokers[member].is_up
            and not world.brokers[member].disk.has_failed
            and world.doors[member] is Door.OPEN
            and world.brokers[member].member.client.client_id is not None
            and self._is_registered_as_known(truth, member)
            and not any(channels.is_suspected(member) for channels in world.channels)
        ]
