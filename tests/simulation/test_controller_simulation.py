"""The controller's rules under seeded schedules of faults: brokers die, are suspected, restart and stop;
leaders change ISRs without notice; topics are created and deleted; controllers are deposed during an event.

After every step the state in ZooKeeper must keep the rules that the rest of the system relies on. After the
faults every partition has a leader, and every broker has received the state in ZooKeeper. A failure names its
seed: ``Simulation(seed).run()`` repeats it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest

from barnabas.controller import events
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_BROKER, BrokerId, TopicId, TopicPartition
from barnabas.protocol.messages.inter_broker import LeaderAndIsrRequest, StopReplicaResponse
from barnabas.zookeeper.controller_writer import ControllerWriter, StateUpdates
from barnabas.zookeeper.errors import ControllerMoved
from barnabas.zookeeper.znodes import LeadershipState, TopicAssignment
from tests.support.controller_fakes import Cluster

BROKERS = (1, 2, 3, 4)
STEPS = 60


class Simulation:
    """One schedule. A broker exists only as its registration and its channel."""

    def __init__(self, seed: int, *, unclean: bool = False) -> None:
        self.seed = seed
        self.unclean = unclean
        self.rng = random.Random(seed)
        self.cluster = Cluster(*BROKERS, unclean_leader_election_enable=unclean)
        self.suspected: set[int] = set()
        self.stopped_at: dict[int, int] = {}
        self.answered = 0
        self.topics_made = 0
        self.seen: dict[TopicPartition, LeadershipState] = {}
        self.topic_ids: dict[str, TopicId] = {}
        self.elect()

    @property
    def alive(self) -> set[int]:
        return set(self.cluster.zookeeper.registrations)

    def run(self) -> None:
        steps: list[Callable[[], None]] = [
            self.kill,
            self.suspect,
            self.unsuspect,
            self.restart,
            self.bounce,
            self.shrink,
            self.expand,
            self.create_topic,
            self.create_topic,
            self.delete_topic,
            self.answer,
            self.shut_down,
            self.elect,
            self.depose_in_mid_event,
        ]
        for _ in range(STEPS):
            step = self.rng.choice(steps)
            step()
            self.check(step.__name__)
        self.calm_down()
        self.check_calm()

    # Steps

    def kill(self) -> None:
        if self.alive:
            self.cluster.zookeeper.unregister(self.a(self.alive))
            self.handle(events.BrokerChange())

    def suspect(self) -> None:
        candidates = self.alive - self.suspected
        if candidates:
            broker = self.a(candidates)
            self.suspected.add(broker)
            epoch = self.cluster.epoch_of(broker)
            self.handle(events.BrokerSuspected(self.cluster.writer.epoch, BrokerId(broker), epoch))

    def unsuspect(self) -> None:
        if self.suspected & self.alive:
            broker = self.a(self.suspected & self.alive)
            self.suspected.discard(broker)
            epoch = self.cluster.epoch_of(broker)
            self.handle(events.BrokerReturned(self.cluster.writer.epoch, BrokerId(broker), epoch))

    def restart(self) -> None:
        dead = set(BROKERS) - self.alive
        if dead:
            self.register(self.a(dead))

    def bounce(self) -> None:
        if self.alive:
            self.register(self.a(self.alive))

    def register(self, broker: int) -> None:
        self.suspected.discard(broker)
        self.cluster.zookeeper.register(broker)
        self.handle(events.BrokerChange())

    def shrink(self) -> None:
        """A leader removes a member from the ISR by itself; the controller may learn of it late or never."""
        led = [tp for tp, state in self.states.items() if len(state.isr) > 1 and state.leader in self.alive]
        if led:
            tp = self.a(led)
            state = self.states[tp]
            out = self.a([member for member in state.isr if member != state.leader])
            self.cluster.zookeeper.shrink_isr(tp, *(member for member in state.isr if member != out))
            self.perhaps_notify(tp)

    def expand(self) -> None:
        """A leader adds a live replica that has caught up to the ISR."""
        context = self.cluster.term.context
        choices = [
            (tp, replica)
            for tp, state in self.states.items()
            for replica in context.replicas_of(tp)
            if state.leader in self.alive and replica in context.live_brokers and replica not in state.isr
        ]
        if choices:
            tp, replica = self.a(choices)
            self.cluster.zookeeper.shrink_isr(tp, *self.states[tp].isr, replica)
            self.perhaps_notify(tp)

    def perhaps_notify(self, tp: TopicPartition) -> None:
        if self.rng.random() < 0.5:
            self.cluster.zookeeper.notifications["isr_change_0"] = [tp]
            self.handle(events.IsrChangeNotified())

    def create_topic(self) -> None:
        name = self.a(["a", "b", "c"])
        if name not in self.cluster.zookeeper.assignments:
            self.topics_made += 1
            replicas = {index: self.rng.sample(BROKERS, self.rng.randint(1, 3)) for index in range(3)}
            self.cluster.zookeeper.add_topic(name, replicas)
            self.handle(events.TopicChange())

    def delete_topic(self) -> None:
        names = sorted(set(self.cluster.zookeeper.assignments) - set(self.cluster.zookeeper.deletions))
        if names:
            self.cluster.zookeeper.deletions.append(self.a(names))
            self.handle(events.DeletionRequested())

    def answer(self, error_rate: float = 0.1) -> None:
        """Brokers answer all StopReplica requests that they have not answered yet."""
        while self.answered < len(self.cluster.channels.batches):
            broker, batch = self.cluster.channels.batches[self.answered]
            self.answered += 1
            if broker not in self.alive or broker in self.suspected:
                continue
            epoch = self.cluster.epoch_of(broker)
            for request in batch.requests(BrokerId(0), self.cluster.writer.epoch, epoch):
                if hasattr(request.response_type(error_code=0), "partition_errors") and not isinstance(
                    request, LeaderAndIsrRequest
                ):
                    failed = self.rng.random() < error_rate
                    code = ErrorCode.KAFKA_STORAGE_ERROR if failed else ErrorCode.NONE
                    self.handle(
                        events.StopReplicaAnswered(
                            self.cluster.writer.epoch,
                            broker,
                            epoch,
                            request,
                            StopReplicaResponse(error_code=int(code)),
                        )
                    )

    def shut_down(self) -> None:
        if self.alive:
            broker = self.a(self.alive)
            answers: list[ErrorCode] = []
            epoch = self.cluster.epoch_of(broker)
            self.handle(
                events.ControlledShutdown(BrokerId(broker), epoch, lambda code, left: answers.append(code))
            )
            assert answers == [ErrorCode.NONE]

    def elect(self) -> None:
        """Elect a controller without suspicions; its channels report the suspected brokers again."""
        self.answered = 0
        self.cluster.elect()
        suspected, self.suspected = self.suspected & self.alive, set()
        for broker in sorted(suspected):
            self.suspected.add(broker)
            epoch = self.cluster.epoch_of(broker)
            self.handle(events.BrokerSuspected(self.cluster.writer.epoch, BrokerId(broker), epoch))

    def depose_in_mid_event(self) -> None:
        """Another controller is elected after some of the writes of an event."""
        allowed = self.rng.randint(0, 2)
        update = ControllerWriter.update_partition_states
        zookeeper = self.cluster.zookeeper

        class Deposed(ControllerWriter):
            def update_partition_states(
                self, states: Mapping[TopicPartition, LeadershipState]
            ) -> StateUpdates:
                nonlocal allowed
                done = dict(list(states.items())[:allowed])
                allowed -= len(done)
                update(self, done)
                zookeeper.become_controller()
                return update(self, {tp: state for tp, state in states.items() if tp not in done})

        writer = self.cluster.writer
        writer.__class__ = Deposed
        try:
            self.kill()
        except ControllerMoved:
            pass
        finally:
            writer.__class__ = ControllerWriter
        self.elect()

    # What must hold

    def check(self, step: str) -> None:
        where = f"seed {self.seed}, after {step}"
        for tp, state in self.states.items():
            assignment = self.cluster.zookeeper.assignments.get(tp.topic)
            if assignment is None:
                continue
            assert isinstance(assignment, TopicAssignment)
            assert state.isr, f"{where}: {tp} has an empty ISR"
            assert len(set(state.isr)) == len(state.isr), f"{where}: {tp} {state}"
            assert set(state.isr) <= set(assignment.partitions[tp.partition].replicas), (
                f"{where}: {tp} {state}"
            )
            assert state.leader in (NO_BROKER, *state.isr), (
                f"{where}: {tp} is led from outside its ISR: {state}"
            )
            self.check_led(where, tp, state)
            if step not in ("shrink", "expand") and not self.cluster.term.context.is_to_be_deleted(tp.topic):
                gone = set(state.isr) - self.cluster.term.context.live_or_shutting_down
                assert len(state.isr) == 1 or not gone, f"{where}: {tp} waits for {gone}: {state}"
            before = self.seen.get(tp)
            if before is None or self.topic_ids.get(tp.topic) != assignment.topic_id:
                continue
            assert state.partition_epoch >= before.partition_epoch, f"{where}: {tp} {before} -> {state}"
            assert state.leader_epoch >= before.leader_epoch, f"{where}: {tp} {before} -> {state}"
            if state.leader != before.leader:
                assert state.leader_epoch > before.leader_epoch, f"{where}: {tp} {before} -> {state}"
            if step not in ("expand", "shrink") and not self.unclean:
                # The leader and the ISR come from the ISR before, so no acknowledged record is lost.
                assert set(state.isr) <= set(before.isr), f"{where}: {tp} {before} -> {state}"
        self.seen = self.states
        self.topic_ids = {name: topic.topic_id for name, topic in self.cluster.zookeeper.assignments.items()}

    def check_led(self, where: str, tp: TopicPartition, state: LeadershipState) -> None:
        """A partition with a live member of its ISR has a live leader after every event."""
        context = self.cluster.term.context
        if context.is_to_be_deleted(tp.topic) or state.leader in context.live_or_shutting_down:
            return
        able = set(state.isr) & context.live_brokers
        assert not able, f"{where}: {tp} is left to {state.leader} though {able} could lead: {state}"

    def calm_down(self) -> None:
        """All brokers return, and all requests are answered."""
        while self.suspected & self.alive:
            self.unsuspect()
        away = set(BROKERS) - self.alive
        for broker in sorted(away | self.cluster.term.context.shutting_down):
            self.register(broker)
        for _ in range(10):
            self.answer(error_rate=0)
            for broker in BROKERS:
                if self.cluster.zookeeper.deletions:
                    self.register(broker)
        self.answer(error_rate=0)

    def check_calm(self) -> None:
        where = f"seed {self.seed}, when all is calm"
        zookeeper, term, channels = self.cluster.zookeeper, self.cluster.term, self.cluster.channels
        assert zookeeper.deletions == [], where
        assert term.offline_partitions_count == 0, where
        expected = {
            TopicPartition(topic, partition)
            for topic, found in zookeeper.assignments.items()
            if isinstance(found, TopicAssignment)
            for partition in found.partitions
        }
        assert set(zookeeper.states) == expected, where
        for tp, state in zookeeper.states.items():
            assert state.leader != NO_BROKER, f"{where}: {tp} {state}"
            for broker in term.context.replicas_of(tp):
                told = channels.leadership(broker)[tp]
                assert told.leader == state.leader, f"{where}: broker {broker} received {told}, it is {state}"
                assert told.leader_epoch == state.leader_epoch, f"{where}: {broker} {told} {state}"
            for broker in BROKERS:
                known = channels.metadata(broker)[tp]
                assert (known.leader, known.leader_epoch) == (state.leader, state.leader_epoch), where

    @property
    def states(self) -> dict[TopicPartition, LeadershipState]:
        return dict(self.cluster.zookeeper.states)

    def handle(self, event: events.Event) -> None:
        self.cluster.term.handle(event)

    def a(self, choices: set[int] | list) -> object:
        return self.rng.choice(sorted(choices))


@pytest.mark.parametrize("block", range(10))
def test_no_schedule_of_faults_breaks_the_rules(block: int) -> None:
    for seed in range(block * 30, block * 30 + 30):
        Simulation(seed).run()


def test_no_schedule_breaks_the_rules_with_unclean_elections() -> None:
    for seed in range(10_000, 10_060):
        Simulation(seed, unclean=True).run()
