"""Random histories of transactions over several brokers.

In the calm time every transaction must be decided and complete, and then each transactional id can be used:
a last producer commits a transaction over all partitions.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

from barnabas.broker.coordinators.transactions.records import TransactionMetadata, TransactionRecord, to_bytes
from barnabas.broker.coordinators.transactions.rules import LAST_EPOCH
from barnabas.broker.coordinators.transactions.state import TransactionState
from barnabas.broker.log.appending import parse_produced
from barnabas.controller.topic_admin import TopicAdmin
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.ids import ProducerEpoch, ProducerId
from barnabas.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsTopic,
    DeleteTopicState,
)
from tests.simulation.broker import EPOCH_MS
from tests.simulation.coordinated_chaos import CoordinatedChaos
from tests.simulation.coordinated_world import MAX_TIMEOUT_MS, OFFSETS, CoordinatedWorld
from tests.simulation.exactly_once_clients import (
    BRIEF,
    DATA,
    PROFILE,
    Kind,
    OffsetReader,
    PlainProducer,
    Producer,
    Reader,
)
from tests.simulation.exactly_once_judge import Judge
from tests.simulation.topics import Topics

_LAST_MS: Final = 30_000
_IDS: Final = ("x", "y")
_PRODUCERS: Final = 5
_KINDS: Final = (
    (Kind.FIRST,),
    (Kind.SECOND,),
    (Kind.FIRST, Kind.SECOND),
    (Kind.CHANGING,),
    (Kind.PREPARING,),
    (Kind.SECOND, Kind.PREPARING),
    tuple(Kind),
)


class Chaos(CoordinatedChaos):
    """One history."""

    faults = {
        "start": 6.0,
        "crash_producer": 1.0,
        "pause_producer": 2.0,
        "delete_topic": 2.0,
        "create_topic": 4.0,
        "grow_topic": 1.0,
    }
    faults_end_ms = 20_000
    turn_ms = 900
    judge: Judge

    def __init__(self, seed: int, *, pushes: bool = False) -> None:
        world = CoordinatedWorld(seed, PROFILE, pushes=pushes)
        world.sent_again_to = frozenset(BRIEF)
        super().__init__(world, Judge(world), DATA)
        self.producers: list[Producer] = []
        self._kinds = self.random.choice(_KINDS)
        self.judge.may_be_left = self._kinds != (Kind.PREPARING,)
        if self.random.random() < 0.25:
            self._begin_near_the_last_epoch()
        self.readers = [Reader(world, tp) for tp in (*DATA, OFFSETS)]
        for transactional_id in _IDS:
            OffsetReader(world, transactional_id)
        PlainProducer(world)
        world.at(self.random.uniform(0, 1_000), self.create_topic)
        for _ in range(2):
            self.start()

    def _begin_near_the_last_epoch(self) -> None:
        """The log has each id with an epoch that is soon exhausted."""
        world = self.world
        broker = world.brokers[world.state.leader]
        first_id = broker.member.store.claim_producer_ids(broker.id).start
        for number, transactional_id in enumerate(_IDS):
            stored = TransactionMetadata(
                TransactionState.EMPTY,
                ProducerId(first_id + number),
                ProducerEpoch(LAST_EPOCH - self.random.randint(0, 6)),
                MAX_TIMEOUT_MS,
                EPOCH_MS,
            )
            builder = RecordBatchBuilder()
            builder.append(*to_bytes(TransactionRecord(transactional_id, stored), 0), None, 0)
            tp = world.state_partition_of(broker, transactional_id)
            leader = world.brokers[world.state_of(tp).leader]
            leader.replicas.append(-1, 0, [(tp, parse_produced(builder.build()))], lambda outcomes: None)
        world.settle()

    @property
    def running(self) -> list[Producer]:
        return [producer for producer in self.producers if not producer.is_gone]

    # Faults of producers and topics

    def start(self) -> None:
        if len(self.running) < _PRODUCERS:
            self._start_producer(self.random.choice(_IDS))

    def _start_producer(self, transactional_id: str, *, is_last: bool = False) -> Producer:
        kind = self.random.choice(self._kinds)
        name = f"p{len(self.producers)}"
        self.world.note(f"{name} of {transactional_id} starts")
        producer = Producer(self.world, name, transactional_id, kind, is_last=is_last)
        self.producers.append(producer)
        return producer

    def crash_producer(self) -> None:
        if self.running:
            self.random.choice(self.running).is_gone = True

    def pause_producer(self) -> None:
        if self.running:
            until_ms = self.world.now_ms + self.random.uniform(500, 8_000)
            self.random.choice(self.running).paused_until_ms = until_ms

    def delete_topic(self) -> None:
        """Perhaps a broker without a replica hears of it late, from another controller."""
        topics, world = self._topics(), self.world
        if BRIEF[0].topic not in topics.names():
            return
        without = set(world.brokers) - topics.assigned_to(BRIEF[0].topic)
        if without and self.random.random() < 0.7:
            lasts_ms = self.random.uniform(500, 3_000)
            world.deaf_until_ms[self.random.choice(sorted(without))] = world.now_ms + lasts_ms
            world.at(lasts_ms * self.random.random(), self.depose)
        self._change_topics(lambda admin: admin.delete_topics([DeleteTopicState(name=BRIEF[0].topic)]))

    def create_topic(self) -> None:
        assigned = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=self._some_replicas(count))
            for count in [self.random.choice((2, 2, 3))]
            for index in range(self.random.choice((1, 2)))
        ]
        topic = CreatableTopic(name=BRIEF[0].topic, assignments=assigned)
        self._change_topics(lambda admin: admin.create_topics([topic]))

    def grow_topic(self) -> None:
        topics = self._topics()
        if BRIEF[0].topic in topics.names() and len(topics.partitions_of(BRIEF[0].topic)) < len(BRIEF):
            count = len(topics.partitions_of(BRIEF[0].topic)[0].replicas)
            replicas = CreatePartitionsAssignment(broker_ids=self._some_replicas(count))
            topic = CreatePartitionsTopic(name=BRIEF[0].topic, count=len(BRIEF), assignments=[replicas])
            self._change_topics(lambda admin: [grown.result for grown in admin.create_partitions([topic])])

    def _topics(self) -> Topics:
        topics = self.world.topics
        assert topics is not None
        return topics

    def _some_replicas(self, count: int) -> list[int]:
        live = [int(broker) for broker in self.world.brokers if self.world.is_registered(broker)]
        return self.random.sample(live, min(count, len(live)))

    def _change_topics(self, ask: Callable[[TopicAdmin], Sequence[Any]]) -> None:
        for host in self.world.hosts.values():
            if host.can_act and host.member.controller.is_active:
                self.world.ask(host, ask)
                return

    # The whole

    def run(self) -> None:
        """Raises BrokenPromises, or at once another AssertionError or InvariantViolation."""
        self.end_faults()
        for producer in self.producers:
            producer.is_gone = True
        if Kind.PREPARING in self._kinds:
            # A prepared transaction stays until a producer comes that ends it.
            self.world.run_until(self.world.now_ms + MAX_TIMEOUT_MS)
            self.heal_if_too_few()
        else:
            self.come_to_rest()
        for transactional_id in _IDS:
            self._use(transactional_id)
        self.come_to_rest()
        for reader in self.readers:
            reader.read()
        self.judge.check_end()

    def is_at_rest(self) -> bool:
        faults = itertools.chain(self.judge.faults_of_offsets(), self.judge.faults_at_rest())
        return self.is_calm and next(faults, None) is None

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
