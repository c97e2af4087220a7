"""Random histories from a seed: ordinary work and faults, mixed, then the end of all faults.

The same seed always gives the same history. Each seed also draws the number of brokers and the rate of each
fault, so that some histories are nearly calm and others are full of one kind of fault.
"""

import random
from collections.abc import Callable

from barnabas.broker.replication.followers import PendingIsr
from barnabas.protocol.errors import ConnectionClosed, ConnectionRefused, RequestTimedOutLocally
from barnabas.protocol.ids import BrokerId, Offset, TopicPartition
from tests.simulation.broker import SimBroker
from tests.simulation.disk import BATCH_BYTES
from tests.simulation.disk_chaos import DISK_CURES, DISK_FAULTS, DiskChaos
from tests.simulation.ends import heal, heal_the_living
from tests.simulation.log_transactions import TRANSACTION_WORK, TransactionChaos
from tests.simulation.profiles import PUSHES, USUAL, Profile
from tests.simulation.settings_chaos import SETTINGS_WORK, SettingsChaos
from tests.simulation.topic_chaos import MOVE_WORK, TOPIC_CURES, TOPIC_FAULTS, TOPIC_WORK, TopicChaos
from tests.simulation.topics import Topics
from tests.simulation.world import World
from tests.support.zookeeper_client import Door

WORK = {
    "fetch": 30.0,
    "deliver": 40.0,
    "produce": 12.0,
    "work_off": 9.0,
    "send_control": 14.0,
    "control": 24.0,
    "advance": 5.0,
    "shrink": 3.0,
    "consume": 5.0,
}
NUISANCES = {
    "give_up": 1.5,
    "lose_message": 1.5,
    "time_out_control": 1.0,
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
    "break_session": 4.0,
    "suspect": 2.5,
    "depose_controller": 0.7,
    "shut_down": 0.6,
    **DISK_FAULTS,
}
CURES = {
    "restart": 3.0,
    "resume": 2.0,
    "mend": 2.0,
    "open_door": 3.0,
    "clear_suspicion": 2.0,
}

_ROUNDS_OF_CONTROL = 50
LOST = (ConnectionClosed, ConnectionRefused, RequestTimedOutLocally)
"""The errors of a fetch that gets no answer."""


class Chaos(DiskChaos, SettingsChaos, TopicChaos, TransactionChaos):
    """One history; a profile says which weights differ from the usual ones.

    In half of the usual histories topics are created and deleted.
    """

    def __init__(self, seed: int, profile: Profile = USUAL) -> None:
        self.random = random.Random(seed)
        brokers = self.random.choice((3, 3, 3, 4, 5))
        min_insync_replicas = self.random.choice((1, 2, 2))
        segment_bytes = self.random.choice((3 * BATCH_BYTES, 1 << 20))
        self.world = World(
            brokers,
            min_insync_replicas,
            segment_bytes=3 * BATCH_BYTES if profile.is_compacted else segment_bytes,
            is_controller_apart=self.random.random() < 0.4,
            is_compacted=profile.is_compacted,
            is_min_isr_strict=profile.is_min_isr_strict,
            has_settings=profile.has_settings,
            pushes=profile.has_pushes,
        )
        self.ids = list(self.world.brokers)
        self.hosts = list(self.world.hosts)
        self.trace: list[str] = []
        weights = WORK | NUISANCES
        for fault, weight in FAULTS.items():
            weights[fault] = weight * self.random.choice((0.0, 0.2, 0.5, 2.0))
        for cure, weight in (CURES | DISK_CURES).items():
            weights[cure] = weight * self.random.choice((0.5, 1.0, 2.0))
        if profile.has_transactions:
            weights |= TRANSACTION_WORK
        weights |= profile.weights
        self._steps = profile.steps
        self._has_transactions = profile.has_transactions
        if profile.has_transactions:
            self.begin_transactions()
        # Separate generators, so that the steps do not depend on them.
        self._leaves_dead = random.Random(f"end of {seed}").random() < 0.5
        topics = random.Random(f"topics of {seed}")
        if profile.has_topics or profile.has_moves or (profile in (USUAL, PUSHES) and topics.random() < 0.5):
            self.topics = Topics(self.world)
            weights |= TOPIC_WORK | TOPIC_CURES | (MOVE_WORK if profile.has_moves else {})
            for fault, weight in TOPIC_FAULTS.items():
                weights[fault] = weight * topics.choice((0.0, 0.5, 2.0))
            weights |= profile.weights
        if profile.has_settings:
            weights |= SETTINGS_WORK
        self._names = list(weights)
        self._weights = list(weights.values())

    def run(self) -> None:
        """Raises Violation, AssertionError or InvariantViolation if a promise is broken."""
        for _ in range(self._steps):
            (name,) = self.random.choices(self._names, self._weights)
            self.trace.append(name)
            step: Callable[[], None] = getattr(self, name)
            step()
            self.world.check()
        if self._leaves_dead:
            self.trace.append("heal_the_living")
            heal_the_living(self.world, self._may_shrink)
        self.trace.append("heal")
        heal(self.world)
        self.world.settle()
        if self._has_transactions:
            self.end_transactions()

    def _any(self) -> SimBroker:
        broker = self.world.brokers[self.random.choice(self.ids)]
        self.trace[-1] = f"{self.trace[-1]} {broker.id}"
        return broker

    def _any_host(self) -> SimBroker:
        """A broker, or the controller's host if that is separate."""
        host = self.world.hosts[self.random.choice(self.hosts)]
        self.trace[-1] = f"{self.trace[-1]} {host.id}"
        return host

    def _leader(self, tp: TopicPartition) -> BrokerId:
        """Mostly a broker that believes it leads, sometimes any broker."""
        partitions = {broker.id: broker.partition_of(tp) for broker in self.world.brokers.values()}
        leaders = [broker for broker, partition in partitions.items() if partition and partition.is_leader]
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
        tp = self._tp()
        self.world.produce(
            self._leader(tp), self.random.randint(1, 3), is_one_batch=self.random.random() < 0.5, tp=tp
        )

    def produce_acks_1(self) -> None:
        tp = self._tp()
        self.world.produce(self._leader(tp), acks=1, tp=tp)

    def work_off(self) -> None:
        self.world.work_off(self._any().id)

    def send_control(self) -> None:
        """A controller, perhaps a deposed one that does not know it, sends a broker the next request."""
        links = [
            (channels, broker)
            for channels in self.world.channels
            if self.world.hosts[channels.source].can_act
            for broker, link in channels.links.items()
            if link.under_way is None and link.has_something
        ]
        if links:
            channels, broker = self.random.choice(links)
            self.trace[-1] = f"{self.trace[-1]} {channels.source}->{broker}"
            channels.send_next(broker)

    def control(self) -> None:
        """One thread of one process takes a step."""
        hosts = [host for host in self.world.hosts.values() if host.can_act]
        steps = [(host, step) for host in hosts for step in host.member.ready()]
        if hosts and (not steps or self.random.random() < 0.1):
            host = self.random.choice(hosts)
            steps = [(host, self.random.choice((host.member.connection, host.member.sentinel)))]
        if steps:
            host, step = self.random.choice(steps)
            self.trace[-1] = f"{self.trace[-1]} {host.id} {step.__name__}"
            step()

    def control_all(self) -> None:
        """The controllers handle all their events and deliver all requests, while nothing else runs."""
        world = self.world
        for _ in range(_ROUNDS_OF_CONTROL):
            is_done = world.control()
            for channels in list(world.channels):
                if world.hosts[channels.source].can_act:
                    for host in self.hosts:
                        is_done = world.deliver_control(channels, host) or is_done
            world.check()
            if not is_done:
                return

    def advance(self) -> None:
        self.world.advance(self.random.choice((1, 50, 300, 1_100)))

    def shrink(self) -> None:
        broker = self._any()
        if self._may_shrink(broker):
            self.world.shrink(broker.id)

    def consume(self) -> None:
        tp, broker = self._tp(), self._any()
        truth = self.world.truth_of(broker, tp) or self.world.truth
        self.world.consume(broker.id, self.random.randint(0, len(truth.committed) + 1), tp)

    # Nuisances

    def give_up(self) -> None:
        """A fetch times out; its request or its answer may still arrive."""
        self._any().fetchers.lose_answers(self.random.choice(LOST)("lost"))

    def lose_message(self) -> None:
        if self.world.messages:
            self.world.messages.pop(self.random.randrange(len(self.world.messages)))

    def hold_back(self) -> None:
        """A message is delayed, and others overtake it."""
        world = self.world
        if world.messages:
            world.held_back.append(world.messages.pop(self.random.randrange(len(world.messages))))

    def let_go(self) -> None:
        """A delayed message arrives."""
        world = self.world
        if world.held_back:
            index = self.random.randrange(len(world.held_back))
            world.messages.append(world.held_back.pop(index))
            world.deliver(len(world.messages) - 1)

    def time_out_control(self) -> None:
        """A controller's request times out and will be sent again; both may arrive."""
        links = [
            (channels, broker)
            for channels in self.world.channels
            for broker, link in channels.links.items()
            if link.under_way is not None
        ]
        if links:
            channels, broker = self.random.choice(links)
            channels.time_out(broker)

    def break_session(self) -> None:
        """A connection to ZooKeeper breaks between the requests of an ISR change or a controller event."""
        host = self._any_host()
        if host.can_act and self._may_fall(host):
            client = host.member.client
            client.break_after(
                self.random.randint(0, 4),
                is_last_done=self.random.random() < 0.6,
                waits_away=self.random.choice((0, 0, 1, 3)),
            )
            if self.random.random() < 0.6:
                self.world.work_off(host.id)
            else:
                host.member.control()
            client.heal()

    def interleave(self) -> None:
        """Another broker writes its ISR changes between the requests of a controller event."""
        host, other = self._any_host(), self._any()
        if host.can_act and other.id != host.id:
            client = host.member.client
            client.interrupt_after(self.random.randint(0, 4), lambda: self.world.work_off(other.id))
            host.member.control()
            client.heal()

    def checkpoint(self) -> None:
        broker = self._any()
        if broker.can_act:
            broker.replicas.checkpoint_high_watermarks()

    def flush(self) -> None:
        tp = self._tp()
        self._any().disk.flush(tp)

    def checkpoint_logs(self) -> None:
        """Save recovery points and log starts, and flush sealed segments."""
        disk = self._any().disk
        if not disk.has_failed:
            disk.logs.checkpoint_pass(0)

    def retain(self) -> None:
        broker = self._any()
        tp = self._tp()
        log, partition = broker.logs.get(tp), broker.partition_of(tp)
        if broker.can_act and log is not None and partition is not None:
            start = self.random.randint(log.log_start_offset, partition.high_watermark)
            with broker.disk_errors():
                log.increment_log_start_offset(Offset(start))
            partition.log_start_moved()

    # Faults

    def crash(self) -> None:
        host = self._any_host()
        if host.is_up and self._may_fall(host):
            host.crash()

    def die_midway(self) -> None:
        """A broker dies between the requests of an ISR change, perhaps before it notifies the controller."""
        self._die_midway(self._any())

    def die_while_changing(self) -> None:
        """The same, of a broker with an ISR change to write."""
        changing = [
            broker
            for broker in self.world.brokers.values()
            if broker.is_up and any(isinstance(each.isr, PendingIsr) for each in broker.replicas.partitions())
        ]
        self._die_midway(self.random.choice(changing) if changing else self._any())

    def _die_midway(self, broker: SimBroker) -> None:
        if broker.can_act and self._may_fall(broker):
            broker.member.client.break_after(self.random.randint(0, 4), is_last_done=True)
            self.world.work_off(broker.id)
            broker.crash()

    def expire(self) -> None:
        host = self._any_host()
        if self._may_fall(host):
            self.world.expire(host.id)

    def pause(self) -> None:
        host = self._any_host()
        host.is_paused = host.is_up

    def cut(self) -> None:
        self.world.cut.add(frozenset(self.random.sample(self.hosts, 2)))

    def shut_door(self) -> None:
        host = self._any_host()
        if self._may_fall(host):
            self.world.doors[host.id] = self.random.choice((Door.LOST, Door.MUTE))

    def suspect(self) -> None:
        host = self._any_host()
        if self.world.channels and self._may_fall(host):
            self.random.choice(self.world.channels).suspect(host.id)

    def depose_controller(self) -> None:
        self.world.depose_controller()

    def shut_down(self) -> None:
        broker = self._any()
        if broker.can_act and self.world.is_registered(broker.id) and self._may_fall(broker):
            self.world.shut_down(broker.id)

    # Cures

    def restart(self) -> None:
        host = self._any_host()
        if not host.is_up and not host.is_lost:
            host.start()

    def resume(self) -> None:
        self._any_host().is_paused = False

    def mend(self) -> None:
        self.world.cut.clear()

    def open_door(self) -> None:
        self.world.doors[self._any_host().id] = Door.OPEN

    def clear_suspicion(self) -> None:
        host = self._any_host()
        if host.can_act:
            self.world.clear_suspicion(host.id)
