"""What befalls the disks and the clocks of a world's brokers, as steps of a random history."""

from __future__ import annotations

import random
from abc import abstractmethod

from tests.simulation.disk import Fault
from tests.simulation.world import SimBroker, World

DISK_FAULTS = {
    "fail_disk": 0.7,
    "slow_disk": 1.0,
    "power_loss": 0.8,
    "wipe": 0.5,
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
        if broker.is_up and not broker.disk.has_failed:
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
        """What is not flushed is lost, on one machine, while another one in sync is well; noticed at once."""
        broker = self._any()
        if broker.is_up and self._is_another_well(broker):
            broker.crash(power_loss=self.random)
            self._noticed(broker)

    def wipe(self) -> None:
        """A machine gets an empty disk, while another one in sync is well; noticed at once."""
        broker = self._any()
        if broker.is_up and self._is_another_well(broker):
            broker.crash()
            broker.wipe()
            self._noticed(broker)

    def _is_another_well(self, broker: SimBroker) -> bool:
        world = self.world
        while world.control():
            world.check()
        state, registered = world.state, world.zookeeper.registrations
        return any(
            member != broker.id
            and member in registered
            and registered[member].broker_epoch == state.broker_epochs.get(member)
            and not world.brokers[member].disk.has_failed
            for member in state.isr
        )

    def _noticed(self, broker: SimBroker) -> None:
        world = self.world
        world.zookeeper.unregister(broker.id)
        while world.control():
            continue
