"""Random histories from a seed: ordinary work and faults, mixed, then an end to all faults.

The same seed always gives the same history. Every seed also draws its own temper: how many brokers, how often
each kind of fault, so that some histories are nearly calm and others are storms of one kind.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from barnabas.protocol.errors import ConnectionClosed, ConnectionRefused, RequestTimedOutLocally
from barnabas.protocol.ids import BrokerId, Offset
from tests.simulation.disk import BATCH_BYTES
from tests.simulation.disk_chaos import DISK_CURES, DISK_FAULTS, DiskChaos
from tests.simulation.world import SimBroker, World
from tests.simulation.zookeeper import Door

WORK = {
    "fetch": 30.0,
    "deliver": 40.0,
    "produce": 12.0,
    "work_off": 9.0,
    "deliver_control": 14.0,
    "control": 9.0,
    "advance": 5.0,
    "shrink": 3.0,
    "consume": 5.0,
}
NUISANCES = {
    "give_up": 1.5,
    "lose_message": 1.5,
    "repeat_control": 1.0,
    "checkpoint": 1.0,
    "flush": 1.0,
    "checkpoint_logs": 0.5,
    "retain": 0.7,
    "produce_acks_1": 3.0,
}
FAULTS = {
    "crash": 2.0,
    "expire": 2.0,
    "pause": 1.0,
    "cut": 1.5,
    "shut_door": 2.0,
    "suspect": 2.5,
    "elect_controller": 0.7,
    "shut_down": 0.6,
    **DISK_FAULTS,
}
UNSEEN_FAULTS = {"restart_unseen": 1.0}
"""What happens between two controllers, in histories of their own."""
CURES = {
    "restart": 3.0,
    "rejoin": 3.0,
    "resume": 2.0,
    "mend": 2.0,
    "open_door": 3.0,
    "clear_suspicion": 2.0,
}

LOST = (ConnectionClosed, ConnectionRefused, RequestTimedOutLocally)
"""How a fetch ends that has no answer."""


class Chaos(DiskChaos):
    """One history."""

    def __init__(self, seed: int, *, faults: Mapping[str, float] = FAULTS) -> None:
        self.random = random.Random(seed)
        brokers = self.random.choice((3, 3, 3, 4, 5))
        self.world = World(
            brokers,
            min_insync_replicas=self.random.choice((1, 2, 2)),
            segment_bytes=self.random.choice((3 * BATCH_BYTES, 1 << 20)),
        )
        self.ids = list(self.world.brokers)
        self.trace: list[str] = []
        weights = WORK | NUISANCES
        for fault, weight in faults.items():
            weights[fault] = weight * self.random.choice((0.0, 0.2, 0.5, 2.0))
        for cure, weight in (CURES | DISK_CURES).items():
            weights[cure] = weight * self.random.choice((0.5, 1.0, 2.0))
        self._names = list(weights)
        self._weights = list(weights.values())

    def run(self, steps: int) -> None:
        """Raises Violation, AssertionError or InvariantViolation when something goes wrong."""
        for _ in range(steps):
            (name,) = self.random.choices(self._names, self._weights)
            self.trace.append(name)
            step: Callable[[], None] = getattr(self, name)
            step()
            self.world.check()
        self.trace.append("heal")
        self.world.heal()
        self.world.settle()

    def _any(self) -> SimBroker:
        broker = self.world.brokers[self.random.choice(self.ids)]
        self.trace[-1] = f"{self.trace[-1]} {broker.id}"
        return broker

    def _leader(self) -> BrokerId:
        """One who thinks that it leads, mostly."""
        leaders = [b.id for b in self.world.brokers.values() if b.partition and b.partition.is_leader]
        if leaders and self.random.random() < 0.9:
            return self.random.choice(leaders)
        return self.random.choice(self.ids)

    # Ordinary work

    def fetch(self) -> None:
        self.world.fetch(
            self._any().id,
            max_wait_ms=self.random.choice((0, 500)),
            max_bytes=self.random.choice((BATCH_BYTES, 2 * BATCH_BYTES, 1 << 20)),
        )

    def deliver(self) -> None:
        if self.world.messages:
            self.world.deliver(self.random.randrange(len(self.world.messages)))

    def produce(self) -> None:
        self.world.produce(self._leader(), self.random.randint(1, 3), is_one_batch=self.random.random() < 0.5)

    def produce_acks_1(self) -> None:
        self.world.produce(self._leader(), acks=1)

    def work_off(self) -> None:
        self.world.work_off(self._any().id)

    def deliver_control(self) -> None:
        self.world.deliver_control(self.random.choice(self.world.channels), self._any().id)

    def control(self) -> None:
        self.world.control()

    def advance(self) -> None:
        self.world.advance(self.random.choice((1, 50, 300, 1_100)))

    def shrink(self) -> None:
        self.world.shrink(self._any().id)

    def consume(self) -> None:
        self.world.consume(self._any().id, self.random.randint(0, len(self.world.truth.committed) + 1))

    # Nuisances

    def give_up(self) -> None:
        """A fetch times out; what it was may still arrive."""
        self._any().fetchers.lose_answers(self.random.choice(LOST)("lost"))

    def lose_message(self) -> None:
        if self.world.messages:
            self.world.messages.pop(self.random.randrange(len(self.world.messages)))

    def repeat_control(self) -> None:
        self.world.deliver_control(self.random.choice(self.world.channels), self._any().id, is_repeated=True)

    def checkpoint(self) -> None:
        broker = self._any()
        if broker.can_act:
            broker.replicas.checkpoint_high_watermarks()

    def flush(self) -> None:
        self._any().disk.flush(self.world.tp)

    def checkpoint_logs(self) -> None:
        """Recovery points and log starts are saved, and sealed segments flushed."""
        disk = self._any().disk
        if not disk.has_failed:
            disk.logs.checkpoint_pass(0)

    def retain(self) -> None:
        broker = self._any()
        log, partition = broker.log, broker.partition
        if broker.can_act and log is not None and partition is not None:
            start = self.random.randint(log.log_start_offset, partition.high_watermark)
            with broker.disk_errors():
                log.increment_log_start_offset(Offset(start))

    # Faults

    def crash(self) -> None:
        broker = self._any()
        if broker.is_up:
            broker.crash()

    def expire(self) -> None:
        broker = self._any()
        if not broker.can_act or self.world.zookeeper.doors[broker.id] is Door.LOST:
            self.world.zookeeper.unregister(broker.id)

    def pause(self) -> None:
        broker = self._any()
        broker.is_paused = broker.is_up

    def cut(self) -> None:
        self.world.cut.add(frozenset(self.random.sample(self.ids, 2)))

    def shut_door(self) -> None:
        self.world.zookeeper.doors[self._any().id] = self.random.choice((Door.LOST, Door.MUTE))

    def suspect(self) -> None:
        self.world.suspect(self._any().id)

    def elect_controller(self) -> None:
        self.world.elect_controller()

    def shut_down(self) -> None:
        broker = self._any()
        if broker.can_act and broker.id in self.world.zookeeper.registrations:
            self.world.shut_down(broker.id)

    def restart_unseen(self) -> None:
        """A broker restarts between two controllers and loses what it did not flush, or its whole disk.

        Another one in sync is well, and has been so since it got there.
        """
        broker, world = self._any(), self.world
        if not broker.is_up or not self._is_another_well(broker):
            return
        if self.random.random() < 0.5:
            broker.crash(power_loss=self.random)
        else:
            broker.crash()
            broker.wipe()
        world.messages = [message for message in world.messages if message.source != broker.id]
        broker.start()
        world.elect_controller()

    # Cures

    def restart(self) -> None:
        broker = self._any()
        if not broker.is_up:
            broker.start()

    def rejoin(self) -> None:
        broker = self._any()
        if broker.can_act and broker.id not in self.world.zookeeper.registrations:
            broker.rejoin()

    def resume(self) -> None:
        self._any().is_paused = False

    def mend(self) -> None:
        self.world.cut.clear()

    def open_door(self) -> None:
        self.world.zookeeper.doors[self._any().id] = Door.OPEN

    def clear_suspicion(self) -> None:
        broker = self._any()
        if broker.can_act:
            self.world.clear_suspicion(broker.id)
