"""Random histories of a coordinated world: a time of faults, then a calm one that must come to rest.

The faults of brokers are the same in all of them. A history adds those of its clients: each is a method with
the name of a weight.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from barnabas.protocol.ids import NO_BROKER, BrokerId, TopicPartition
from tests.simulation.broker import SimBroker
from tests.simulation.coordinated_judge import CoordinatedJudge
from tests.simulation.coordinated_world import OFFSETS, STATES, CoordinatedWorld
from tests.simulation.disk_chaos import DiskChaos
from tests.simulation.ends import heal, owed
from tests.simulation.promises import Promise
from tests.simulation.settings_chaos import SETTINGS_WORK, SettingsChaos

_CALM_MS: Final = 100_000
FAULTS_OF_BROKERS: Final = {
    "crash": 1.5,
    "lose_power": 1.0,
    "pause": 1.0,
    "move": 5.0,
    "move_twice": 4.0,
    "there_and_back": 2.0,
    "suspect": 1.0,
    "stall": 1.5,
    "cut": 1.5,
    "alone": 0.7,
    "expire": 0.5,
    "expire_ids": 1.0,
    "expire_offsets": 1.0,
    "set_wall_clock": 0.7,
    "depose": 0.4,
    "change_level": 1.0,
    "reassign": 2.0,
    "clean_log": 3.0,
}


class CoordinatedChaos(DiskChaos, SettingsChaos):
    """Runs one history: injects faults into brokers and clients, and moves the leaders of `partitions`."""

    faults: ClassVar[Mapping[str, float]]
    """The faults of clients, the first of them at its full weight in every history."""
    faults_end_ms: ClassVar[float]
    turn_ms: ClassVar[float]
    """The mean time between two faults."""
    of_topics: ClassVar = {
        "min.insync.replicas": (1, 2),
        "segment.bytes": (10_000, 1 << 20),
        "segment.ms": (500, 1 << 20),
    }
    of_brokers: ClassVar = {"min.insync.replicas": (1, 2)}
    judge: CoordinatedJudge

    def __init__(self, world: CoordinatedWorld, judge: Any, partitions: tuple[TopicPartition, ...]) -> None:
        self.world: CoordinatedWorld = world
        self.judge = world.judge = judge
        self.random = draw = world.random
        self.trace = world.trace
        self._partitions = (*STATES, OFFSETS, *partitions)
        world.may_shrink = self._may_shrink
        self._weights = {
            fault: weight * (draw.choice((0.0, 0.5, 1.0, 2.0)) if at else 1.0)
            for at, (fault, weight) in enumerate({**self.faults, **FAULTS_OF_BROKERS}.items())
        }
        if world.settings is not None:
            self._weights |= {name: SETTINGS_WORK[name] for name in ("change_settings", "change_defaults")}
        world.at(0, self._fault)

    def _any(self) -> SimBroker:
        return self.random.choice(list(self.world.brokers.values()))

    def _lasts_ms(self) -> float:
        """Mostly short, because nothing happens in a cluster that is always disturbed."""
        return self.random.uniform(0, self.random.choice((800, 800, 800, 7_000)))

    def _fault(self) -> None:
        world = self.world
        if world.now_ms >= self.faults_end_ms:
            return
        world.at(self.random.expovariate(1 / self.turn_ms), self._fault)
        (fault,) = self.random.choices(list(self._weights), list(self._weights.values()))
        world.note(fault)
        self.judge.before_fault()
        getattr(self, fault)()

    def _some_broker(self) -> SimBroker | None:
        """A broker that can act, mostly the leader of one of the partitions; the trace names it."""
        broker = self.world.brokers.get(self.world.state_of(self.random.choice(self._partitions)).leader)
        if broker is None or self.random.random() < 0.3:
            broker = self._any()
        self.trace[-1] = f"{self.trace[-1]} {broker.id}"
        return broker if broker.can_act else None

    # Processes and links

    def crash(self) -> None:
        broker = self._some_broker()
        if broker is not None and self._may_fall(broker):
            self._end(broker)
            self.world.at(self._lasts_ms(), self._restart_all)

    def _end(self, broker: SimBroker) -> None:
        broker.crash()
        if self.random.random() < 0.7:
            self.world.suspect(broker.id)

    def _restart_all(self) -> None:
        for host in self.world.hosts.values():
            if not host.is_up and not host.is_lost:
                host.start()
                self.world.clear_suspicion(host.id)

    def lose_power(self) -> None:
        self.power_loss()
        self.world.at(self._lasts_ms(), self._restart_all)

    def alone(self) -> None:
        """All brokers but one end."""
        broker = self._some_broker()
        others = [other for other in self.world.brokers.values() if other is not broker and other.is_up]
        if broker is not None and self._may_all_fall(others):
            for other in others:
                self._end(other)
            self.world.at(self._lasts_ms(), self._restart_all)

    def pause(self) -> None:
        if (broker := self._some_broker()) is not None:
            broker.is_paused = True
            self.world.at(self._lasts_ms(), lambda: self.world.resume(broker))

    def stall(self) -> None:
        """A broker reaches no other: what it leads is not replicated."""
        world, broker = self.world, self._some_broker()
        if broker is not None:
            links = {frozenset((broker.id, other)) for other in world.hosts if other != broker.id}
            self._cut(links, self._lasts_ms())

    def cut(self) -> None:
        """Two brokers do not reach each other, perhaps for long; ZooKeeper and clients reach both."""
        lasts_ms = self._lasts_ms()
        if self.random.random() < 0.2:
            lasts_ms = self.random.uniform(7_000, 20_000)
        self._cut({frozenset(self.random.sample(list(self.world.hosts), 2))}, lasts_ms)

    def _cut(self, links: set[frozenset[BrokerId]], lasts_ms: float) -> None:
        self.world.cut |= links
        self.world.at(lasts_ms, lambda: self.world.cut.difference_update(links))

    def suspect(self) -> None:
        """The controller alone cannot reach a broker, perhaps for long, and takes it for dead."""
        broker, lasts_ms = self._some_broker(), self._lasts_ms()
        if self.random.random() < 0.4:
            lasts_ms = self.random.uniform(7_000, 20_000)
        if broker is not None and self._may_fall(broker):
            self.world.deaf_until_ms[broker.id] = self.world.now_ms + lasts_ms
            self.world.suspect(broker.id)
            self.world.at(lasts_ms, lambda: self.world.clear_suspicion(broker.id))

    def expire(self) -> None:
        broker = self._some_broker()
        if broker is not None and self._may_fall(broker):
            self.world.expire(broker.id)

    def expire_ids(self) -> None:
        """Transactional ids that were not used for some time are forgotten."""
        if (broker := self._some_broker()) is not None:
            self.world.parts[broker.id].transactions.expire_ids()

    def expire_offsets(self) -> None:
        """A broker looks for offsets that were not committed for a long time; here is none."""
        if (broker := self._some_broker()) is not None:
            self.world.parts[broker.id].groups.expire_offsets()

    def set_wall_clock(self) -> None:
        if (broker := self._some_broker()) is not None:
            self.world.skew(broker)

    def depose(self) -> None:
        """Another controller is elected, perhaps because one dies; the requests that wait are lost."""
        world, controller = self.world, self.world.controller
        host = None if controller is None else world.hosts[controller.broker_id]
        if host is None or self.random.random() < 0.5 or not self._may_fall(host):
            world.depose_controller()
            return
        self.judge.before_fault()
        host.crash()
        world.expire(host.id)
        world.at(self._lasts_ms(), self._restart_all)

    def change_level(self) -> None:
        self.world.transaction_version = 2 - self.world.transaction_version

    def clean_log(self) -> None:
        """A broker cleans its replica of an internal topic."""
        tp, broker = self.random.choice((*STATES, OFFSETS)), self._some_broker()
        if broker is not None:
            self._clean(broker, tp, broker.wall_ms(), is_rolled=self.random.random() < 0.7)

    def reassign(self) -> None:
        """A partition moves away from a broker, or gets a replica more."""
        world, tp, topics = self.world, self._some_partition(), self.world.topics
        least = max(2, self._least)
        target = self.random.sample(list(world.brokers), self.random.randint(least, len(world.brokers)))
        if world.controller is not None and topics is not None:
            topics.allow(tp, target)
            world.controller.alter_reassignments({tp: target}, lambda code, outcomes: None)

    # Leaders

    def move(self) -> None:
        """Elect another leader; the former one may learn of it late."""
        self._move(self._some_partition(), is_deaf=self.random.random() < 0.5)

    def there_and_back(self) -> None:
        """Elect another leader, then the former one, before it learns of the first election."""
        tp, lasts_ms = self._some_partition(), self._lasts_ms()
        former = self._move(tp, is_deaf=True, lasts_ms=lasts_ms)
        if former is not None:
            self.world.at(lasts_ms * self.random.random(), lambda: self._elect(tp, former))

    def move_twice(self) -> None:
        """Elect a coordinator, and soon a third one, which lacks the last records that the second has."""
        world, draw, tp = self.world, self.random, self.random.choice((*STATES, OFFSETS))
        first = world.state_of(tp).leader
        others = [member for member in world.state_of(tp).isr if member != first]
        if first == NO_BROKER or len(others) < 2:
            return
        second, third = draw.sample(others, 2)
        links = {frozenset((third, first)), frozenset((third, second))}
        at_ms = draw.uniform(20, 400)
        world.at(at_ms, lambda: self._elect(tp, world.brokers[second]))
        at_ms += draw.uniform(100, 900)
        world.at(at_ms, lambda: self._elect(tp, world.brokers[third]))
        self._cut(links, at_ms)

    def _some_partition(self) -> TopicPartition:
        tp = self.random.choice(self._partitions)
        self.trace[-1] = f"{self.trace[-1]} {tp}"
        return tp

    def _move(self, tp: TopicPartition, *, is_deaf: bool, lasts_ms: float | None = None) -> SimBroker | None:
        """Elect another member of the ISR; returns the former leader if there was an election."""
        world, state = self.world, self.world.state_of(tp)
        leader = world.brokers.get(state.leader)
        others = [world.brokers[member] for member in state.isr if member != state.leader]
        ready = [broker for broker in others if broker.can_act]
        if leader is None or not ready or not self._elect(tp, self.random.choice(ready)):
            return None
        if is_deaf:
            world.deaf_until_ms[leader.id] = world.now_ms + (lasts_ms or self._lasts_ms())
        return leader

    def _elect(self, tp: TopicPartition, broker: SimBroker) -> bool:
        world = self.world
        if world.controller is None or not broker.can_act:
            return False
        truth = next(truth for truth in world.truths.values() if truth.tp == tp)
        if broker.id not in self._healthy(truth):
            return False
        world.move_leadership(broker.id, tp)
        return True

    # The calm time

    @abstractmethod
    def is_at_rest(self) -> bool:
        """Whether all that the faults have left is done, and the history may go on."""

    def end_faults(self) -> None:
        """In half of the histories a broker is dead then, and stays so until the others are at rest."""
        self.world.run_until(self.faults_end_ms)
        dead = self._any()
        if self.random.random() < 0.5 and self._are_others_enough(dead):
            self._restart_all()
            self.judge.before_fault()
            if dead.is_up:
                self._end(dead)
            dead.is_lost = True
        self.world.end_faults()

    def _are_others_enough(self, dead: SimBroker) -> bool:
        """Whether each partition has a healthy leader and enough replicas without this broker."""
        topics = self.world.topics
        assert topics is not None
        least = self._least
        return self._is_another_healthy(dead) and all(
            len({*replicas} - {dead.id}) >= least
            for assignment in topics.assignments()
            for replicas in (assignment.replicas, assignment.target)
        )

    @property
    def _least(self) -> int:
        """As many replicas in sync as any topic needs."""
        changing = max(self.of_brokers["min.insync.replicas"]) if self.world.settings is not None else 0
        return max(self.world.min_insync_replicas, changing)

    def heal_if_too_few(self) -> None:
        """Let the dead return if a reassignment that was requested before has made them needed."""
        lost = [broker for broker in self.world.brokers.values() if broker.is_lost]
        if not all(map(self._are_others_enough, lost)):
            heal(self.world)

    def _is_done(self) -> bool:
        self.heal_if_too_few()
        return self.is_at_rest()

    def come_to_rest(self) -> None:
        self._come_to_rest()
        if self._is_any_lost:
            heal(self.world)
            self._come_to_rest()

    def _come_to_rest(self) -> None:
        world = self.world
        world.run_until(world.now_ms + _CALM_MS, self._is_done)
        world.check()
        assert self.is_calm, "\n".join(["the cluster is not whole:", *owed(world), world.describe()])
        for fault in self.judge.faults_at_rest():
            self.judge.require(Promise.REST, False, fault)
        self.judge.checked[Promise.REST] += 1

    @property
    def is_calm(self) -> bool:
        """Whether all replicas are in sync, or while a broker is lost, all replicas of the others."""
        return next(owed(self.world), None) is None if self._is_any_lost else self.world.is_whole

    @property
    def _is_any_lost(self) -> bool:
        return any(broker.is_lost for broker in self.world.brokers.values())
