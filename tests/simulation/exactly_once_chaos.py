"""Random histories of transactions over several brokers: a time of faults, then a calm one.

In the calm time every transaction must be decided and complete, and then each transactional id can be used:
a last producer commits a transaction over all partitions.
"""

from typing import Final

from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.topics import CreatableReplicaAssignment, CreatableTopic, DeleteTopicState
from tests.simulation.broker import SimBroker
from tests.simulation.disk_chaos import DiskChaos
from tests.simulation.exactly_once_clients import Kind, OffsetReader, Producer, Reader
from tests.simulation.exactly_once_judge import Judge
from tests.simulation.exactly_once_world import BRIEF, DATA, OFFSETS, STATES, ExactlyOnceWorld

FAULTS_END_MS: Final = 20_000
CALM_MS: Final = 60_000
_LAST_MS: Final = 30_000
_TURN_MS: Final = 700
_IDS: Final = ("x", "y")
_PRODUCERS: Final = 5
_KINDS: Final = ((Kind.FIRST,), (Kind.SECOND,), (Kind.FIRST, Kind.SECOND), (Kind.CHANGING,), tuple(Kind))
_FAULTS: Final = {
    "start": 3.0,
    "crash producer": 1.0,
    "pause producer": 2.0,
    "crash": 1.5,
    "power loss": 1.0,
    "pause": 1.0,
    "move": 5.0,
    "there and back": 2.0,
    "suspect": 1.0,
    "stall": 1.0,
    "cut": 1.5,
    "alone": 0.7,
    "expire": 0.5,
    "depose": 0.4,
    "delete topic": 0.6,
    "create topic": 1.0,
    "change level": 1.0,
}


class Chaos(DiskChaos):
    """One history."""

    def __init__(self, seed: int) -> None:
        self.world: ExactlyOnceWorld = ExactlyOnceWorld(seed)
        self.world.may_shrink = self._may_shrink
        self.random = draw = self.world.random
        self.judge = self.world.judge = Judge(self.world)
        self.trace = self.world.trace
        self.producers: list[Producer] = []
        self._kinds = draw.choice(_KINDS)
        self._weights = [weight * draw.choice((0.0, 0.5, 1.0, 2.0)) for weight in _FAULTS.values()]
        # Without it a history could be without any.
        self._weights[0] = _FAULTS["start"]
        self.readers = [Reader(self.world, tp) for tp in (*DATA, OFFSETS)]
        for transactional_id in _IDS:
            OffsetReader(self.world, transactional_id)
        for _ in range(2):
            self._start_producer()
        self.world.at(0, self._fault)

    def _any(self) -> SimBroker:
        return self.random.choice(list(self.world.brokers.values()))

    @property
    def running(self) -> list[Producer]:
        return [producer for producer in self.producers if not producer.is_gone]

    def _start_producer(self, transactional_id: str | None = None, *, is_last: bool = False) -> Producer:
        draw = self.random
        kind = draw.choice(self._kinds)
        if transactional_id is None:
            transactional_id = draw.choice(_IDS)
        name = f"p{len(self.producers)}"
        self.world.note(f"{name} of {transactional_id} starts")
        producer = Producer(self.world, name, transactional_id, kind, is_last=is_last)
        self.producers.append(producer)
        return producer

    # Faults

    def _fault(self) -> None:
        world, draw = self.world, self.random
        if world.now_ms >= FAULTS_END_MS:
            return
        world.at(draw.expovariate(1 / _TURN_MS), self._fault)
        (fault,) = draw.choices(list(_FAULTS), self._weights)
        world.note(fault)
        lasts_ms = draw.uniform(0, 5_000)
        match fault:
            case "start":
                if len(self.running) < _PRODUCERS:
                    self._start_producer()
            case "crash producer" | "pause producer":
                self._disturb_producer(fault)
            case "move" | "there and back":
                self._move(lasts_ms, and_back=fault == "there and back")
            case "cut":
                world.cut.add(frozenset(draw.sample(list(world.hosts), 2)))
                world.at(lasts_ms, world.cut.clear)
            case "depose":
                world.depose_controller()
            case "change level":
                world.transaction_version = 2 - world.transaction_version
            case "delete topic" | "create topic":
                self._change_topic(fault)
            case _:
                self._disturb_broker(fault, lasts_ms)

    def _disturb_producer(self, fault: str) -> None:
        if self.running:
            producer = self.random.choice(self.running)
            if fault == "crash producer":
                producer.is_gone = True
            else:
                producer.paused_until_ms = self.world.now_ms + self.random.uniform(500, 8_000)

    def _disturb_broker(self, fault: str, lasts_ms: float) -> None:
        world, broker = self.world, self._any()
        self.trace[-1] = f"{fault} {broker.id}"
        if not broker.can_act:
            return
        # Before a process ends, the judge must know what it has committed.
        world.check()
        self.judge.read_states()
        match fault:
            case "power loss":
                self.power_loss()
                world.at(lasts_ms, self._restart_all)
            case "pause":
                broker.is_paused = True
                world.at(lasts_ms, lambda: self._resume(broker))
            case "stall":
                world.cut |= {frozenset((broker.id, other)) for other in world.hosts if other != broker.id}
                world.at(lasts_ms, world.cut.clear)
            case "alone":
                others = [other for other in world.brokers.values() if other is not broker and other.is_up]
                if self._may_all_fall(others):
                    for other in others:
                        self._crash(other)
                    world.at(lasts_ms, self._restart_all)
            case _ if not self._may_fall(broker):
                return
            case "crash":
                self._crash(broker)
                world.at(lasts_ms, self._restart_all)
            case "suspect":
                # It is wrongly taken for dead, and leads until the controller reaches it.
                world.deaf_until_ms[broker.id] = world.now_ms + lasts_ms
                world.suspect(broker.id)
                world.at(lasts_ms, lambda: world.clear_suspicion(broker.id))
            case "expire":
                world.expire(broker.id)

    def _crash(self, broker: SimBroker) -> None:
        broker.crash()
        if self.random.random() < 0.7:
            self.world.suspect(broker.id)

    def _restart_all(self) -> None:
        for broker in self.world.brokers.values():
            if not broker.is_up:
                broker.start()
                self.world.clear_suspicion(broker.id)

    def _resume(self, broker: SimBroker) -> None:
        broker.is_paused = False

    def _move(self, lasts_ms: float, *, and_back: bool) -> None:
        """Elect another leader; the former one may learn of it late, or lead again before it does."""
        world, draw = self.world, self.random
        tp = draw.choice([*STATES, *DATA, OFFSETS])
        leader = world.brokers.get(world.state_of(tp).leader)
        self.trace[-1] = f"{self.trace[-1]} {tp}"
        if leader is None or not self._elect_other(tp):
            return
        if and_back or draw.random() < 0.5:
            world.deaf_until_ms[leader.id] = world.now_ms + lasts_ms
        if and_back:
            world.at(lasts_ms * draw.random(), lambda: self._elect(tp, leader))

    def _elect_other(self, tp: TopicPartition) -> bool:
        state = self.world.state_of(tp)
        others = [self.world.brokers[member] for member in state.isr if member != state.leader]
        ready = [broker for broker in others if broker.can_act]
        return bool(ready) and self._elect(tp, self.random.choice(ready))

    def _elect(self, tp: TopicPartition, broker: SimBroker) -> bool:
        if self.world.controller is None or not broker.can_act:
            return False
        if broker.id not in self._healthy(self.world.truths[self._key_of(tp)]):
            return False
        self.world.move_leadership(broker.id, tp)
        return True

    def _key_of(self, tp: TopicPartition) -> tuple[object, int]:
        return next(key for key, truth in self.world.truths.items() if truth.tp == tp)

    def _change_topic(self, fault: str) -> None:
        world = self.world
        controllers = [
            host for host in world.hosts.values() if host.can_act and host.member.controller.is_active
        ]
        if not controllers:
            return
        if fault == "delete topic":
            world.ask(controllers[0], lambda admin: admin.delete_topics([DeleteTopicState(name=BRIEF.topic)]))
            return
        replicas = [int(broker) for broker in world.brokers if world.is_registered(broker)]
        assigned = CreatableReplicaAssignment(partition_index=0, broker_ids=replicas)
        topic = CreatableTopic(name=BRIEF.topic, assignments=[assigned])
        world.ask(controllers[0], lambda admin: admin.create_topics([topic]))

    # The whole

    def run(self) -> None:
        """Raises BrokenPromises, or at once another AssertionError or InvariantViolation."""
        world = self.world
        world.run_until(FAULTS_END_MS)
        world.end_faults()
        for producer in self.producers:
            producer.is_gone = True
        self._come_to_rest()
        for transactional_id in _IDS:
            self._use(transactional_id)
        self._come_to_rest()
        for reader in self.readers:
            reader.read()
        self.judge.check_end()

    def _come_to_rest(self) -> None:
        world = self.world
        world.run_until(world.now_ms + CALM_MS, self._is_at_rest)
        world.check()
        assert world.is_whole, f"the cluster is not whole:\n{world.describe()}"
        self.judge.check_at_rest()

    def _is_at_rest(self) -> bool:
        if not self.world.is_whole or any(self.judge.faults_of_offsets()):
            return False
        try:
            self.judge.check_at_rest()
        except AssertionError:
            return False
        return True

    def _use(self, transactional_id: str) -> None:
        """A new producer commits a transaction over all partitions.

        A late InitProducerId of an earlier producer may fence it; then another one tries.
        """
        world = self.world
        for _ in range(len(self.producers)):
            last = self._start_producer(transactional_id, is_last=True)
            world.run_until(world.now_ms + _LAST_MS, lambda last=last: last.committed > 0 or last.is_gone)
            if last.committed:
                break
        assert last.committed, f"{last} could not commit"
        last.is_gone = True
