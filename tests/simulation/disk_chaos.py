"""Faults of the disks and clocks of a world's brokers, as steps of a random history."""

import random
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from barnabas.broker.base.pacing import Stopped
from barnabas.broker.replication.followers import PendingIsr
from barnabas.protocol.ids import BrokerId, TopicPartition
from tests.simulation.broker import SimBroker
from tests.simulation.disk import Fault
from tests.simulation.truth import Truth
from tests.simulation.world import World
from tests.support.zookeeper_client import Door

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
_SMALL_MAP_BYTES = 1_000
"""Two or three keys."""


class DiskChaos:
    """The steps; mixed into a history."""

    random: random.Random
    world: World

    @abstractmethod
    def _any(self) -> SimBroker: ...

    def fail_disk(self) -> None:
        """The disk is full or fails: an append writes a part and raises an error."""
        broker = self._any()
        if broker.is_up and not broker.disk.has_failed and self._may_fall(broker):
            broker.disk.fault = self.random.choice(list(Fault))

    def mend_disk(self) -> None:
        """The process restarts, and its disk works again."""
        broker = self._any()
        if broker.disk.has_failed and broker.can_act:
            broker.crash()
            broker.start()

    def slow_disk(self) -> None:
        self._any().disk.slow_ms = self.random.choice((10, 100, 700))

    def speed_up(self) -> None:
        self._any().disk.slow_ms = 0.0

    def clean(self) -> None:
        """One replica of a compacted topic cleans its log, perhaps after a roll."""
        broker, is_rolled = self._any(), self.random.random() < 0.3
        self._clean(broker, self.world.tp, int(broker.now_ms()), is_rolled=is_rolled)

    def _clean(self, broker: SimBroker, tp: TopicPartition, now_ms: int, *, is_rolled: bool) -> None:
        """Clean a log, or a part of it. Meanwhile messages arrive, so the log may grow and change."""
        world, batches = self.world, self.random.choice((3, 10, 1 << 20))
        map_bytes = self.random.choice((_SMALL_MAP_BYTES, 1 << 20))

        def pause(bytes_read: int) -> None:
            nonlocal batches
            batches -= 1
            if not batches:
                raise Stopped
            if world.messages and self.random.random() < 0.1:
                world.deliver(self.random.randrange(len(world.messages)))

        log, ends = broker.logs.get(tp), broker.replicas.committed_ends(tp)
        if log is not None and ends is not None and broker.can_act and not broker.disk.has_failed:
            with broker.disk_errors(), suppress(Stopped):
                if is_rolled:
                    log.roll(0)
                broker.disk.clean(tp, ends, now_ms, map_bytes=map_bytes, pause=pause)

    def drift(self) -> None:
        """The clock of one broker runs faster or slower than the others."""
        self._any().set_clock(self.random.choice((0.5, 0.9, 1.0, 1.1, 2.0)))

    def power_loss(self) -> None:
        """One machine loses its unflushed bytes, while each ISR has another healthy member."""
        broker = self._any()
        if broker.is_up and self._is_another_healthy(broker):
            broker.crash(power_loss=self.random)
            self._drop_messages(broker)

    def wipe(self) -> None:
        """One machine gets an empty disk, while each ISR has another healthy member."""
        broker = self._any()
        if broker.is_up and self._is_another_healthy(broker):
            broker.crash()
            broker.wipe()
            self._drop_messages(broker)

    def restart_unseen(self) -> None:
        """A broker that has lost data restarts at once, and the controller is deposed."""
        broker = self._any()
        if broker.is_up and self._is_another_healthy(broker):
            broker.crash(power_loss=self.random)
            if self.random.random() < 0.5:
                broker.wipe()
            self._drop_messages(broker)
            broker.start()
            self.world.depose_controller()

    def rebirth(self) -> None:
        """A broker that has lost data restarts at once, while its earlier messages are still in flight."""
        world = self.world
        joining = [broker.id for broker in world.brokers.values() if self._is_joining(broker)]
        broker = world.brokers[self.random.choice(joining)] if joining else self._any()
        if broker.is_up and self._is_another_healthy(broker):
            broker.crash(power_loss=self.random)
            if self.random.random() < 0.7:
                broker.wipe()
            broker.start()
            if self.random.random() < 0.7:
                world.held_back += [message for message in world.messages if message.source == broker.id]
                world.messages = [message for message in world.messages if message.source != broker.id]

    def _is_joining(self, broker: SimBroker) -> bool:
        """Whether the broker is outside an ISR and has a message in flight."""
        world = self.world
        has_message = any(message.source == broker.id for message in world.messages)
        return (
            broker.is_up
            and has_message
            and any(
                broker.id in world.replicas_of(truth.tp) and broker.id not in truth.isr
                for truth in world.truths.values()
                if world.has_state(truth.tp)
            )
        )

    def rack_falls(self) -> None:
        """Several machines go down at once, and their sessions expire."""
        brokers = [broker for broker in self.world.brokers.values() if broker.is_up]
        falling = self.random.sample(brokers, self.random.randint(0, len(brokers)))
        if self._may_all_fall(falling):
            for broker in falling:
                broker.crash()
                self.world.expire(broker.id)

    def leave_for_good(self) -> None:
        """A broker that is known to be down returns at the very end, with an empty disk.

        Each ISR has another member with all records, whether it is up or down.
        """
        broker, world = self._any(), self.world
        if broker.is_up or world.is_registered(broker.id):
            return
        if all(self._is_held_elsewhere(truth, broker) for truth in self._at_stake()):
            broker.is_lost = True
            broker.wipe()

    def _is_held_elsewhere(self, truth: Truth, broker: SimBroker) -> bool:
        """Whether another member of the ISR, up or down, has all records of a partition."""
        return any(
            member not in truth.lossy and not self.world.brokers[member].disk.has_failed
            for member in set(truth.isr) - {broker.id}
        )

    def _drop_messages(self, broker: SimBroker) -> None:
        world = self.world
        world.messages = [message for message in world.messages if message.source != broker.id]
        world.held_back = [message for message in world.held_back if message.source != broker.id]

    def _at_stake(self) -> list[Truth]:
        """The partitions that may have records."""
        return [truth for truth in self.world.truths.values() if truth.has_state]

    def _is_another_healthy(self, broker: SimBroker) -> bool:
        """Whether each ISR has another healthy member."""
        return all(set(self._healthy(truth)) - {broker.id} for truth in self._at_stake())

    def _may_fall(self, broker: SimBroker) -> bool:
        """Whether each ISR that has lost data keeps a healthy member without this broker."""
        return self._may_all_fall([broker])

    def _may_all_fall(self, brokers: Sequence[SimBroker]) -> bool:
        ids = {broker.id for broker in brokers}
        return all(not truth.lossy or set(self._healthy(truth)) - ids for truth in self._at_stake())

    def _may_shrink(self, leader: SimBroker) -> bool:
        """Whether a leader may propose smaller ISRs: it is healthy, or no replica has lost data.

        Otherwise a leader about to be declared dead could leave only replicas that have lost data. A leader
        without its registration may propose any ISR.
        """
        return all(
            not truth.lossy or leader.id in self._healthy(truth)
            for truth in self._at_stake()
            if (partition := truth.partition(leader)) is not None and partition.is_leader
            if self._is_registered_as_known(truth, leader.id)
        )

    def _leaving(self, truth: Truth) -> set[BrokerId]:
        """The members that leaders are about to remove from the ISR."""
        return {
            member
            for broker in self.world.brokers.values()
            if (partition := truth.partition(broker)) is not None
            if isinstance(partition.isr, PendingIsr) and self._is_registered_as_known(truth, broker.id)
            for member in partition.isr.leaving
        }

    def _is_registered_as_known(self, truth: Truth, broker: BrokerId) -> bool:
        """Whether a member of an ISR is registered with the broker epoch in the ISR."""
        return self.world.registered_epoch(broker) == truth.state.broker_epochs.get(broker)

    def _healthy(self, truth: Truth) -> list[BrokerId]:
        """The reachable members of the ISR that have all committed records and have not restarted."""
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
            and not any(channels.is_taken_for_dead(member) for channels in world.channels)
        ]
