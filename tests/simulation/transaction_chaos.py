"""Producers with one transactional id that crash, pause and race, and a judge of their transactions.

The judge works from the coordinators' replicated records, the data partitions and the answers, not from the
machine's own state, because the next coordinator loads the log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from barnabas.broker.coordinators.transaction_effects import (
    AddPartitions,
    Ended,
    EndTransaction,
    InitProducerId,
    PrepareTransaction,
    ProducerGiven,
    Request,
    Response,
)
from barnabas.broker.coordinators.transaction_records import TransactionMetadata, TransactionRecord, to_bytes
from barnabas.broker.coordinators.transaction_rules import LAST_EPOCH, present_producer
from barnabas.broker.coordinators.transaction_state import NEXT_STATES, TransactionState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId, TopicPartition
from tests.simulation.process import Process, Sleep
from tests.simulation.promises import Promise, PromiseKeeper
from tests.simulation.transaction_world import (
    EPOCH_MS,
    ID,
    LIMITS,
    PARTITIONS,
    Coordinator,
    TransactionWorld,
)

FAULTS_END_MS: Final = 30_000
CALM_MS: Final = 30_000
TURN_MS: Final = 700
RESEND_MS: Final = 2_500
GIVE_UP_MS: Final = 12_000
RETRIABLE: Final = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}
KINDS: Final = (("v1",), ("v2",), ("v1", "v2"), ("prepares",), ("v2", "prepares"), ("v1", "v2", "prepares"))
FAULTS: Final = (
    *("start", "start", "crash", "pause", "move", "move twice"),
    *("move twice", "stall", "too few", "expire"),
)
Tag = tuple[str, int]


class Put(NamedTuple):
    partition: TopicPartition
    tag: Tag


Life = Generator[Request | Put | Sleep, Any, None]


def error_of(response: Any) -> ErrorCode:
    error: ErrorCode = response.error if isinstance(response, ProducerGiven | Ended) else response
    return error


class Producer(Process):
    def __init__(self, chaos: Chaos, name: str, kind: str, *, is_last: bool = False) -> None:
        super().__init__(chaos.world, resend_ms=RESEND_MS, give_up_ms=GIVE_UP_MS)
        self.chaos = chaos
        self.name = name
        self.kind = kind
        self.version = 0 if kind == "v1" else 2
        self.is_last = is_last
        self.timeout_ms = 20_000 if is_last else self.world.random.choice((1_500, 4_000, 10_000))
        self.producer_id, self.epoch = -1, -1
        self._transactions = 0
        self.begin()

    # Life

    def life(self) -> Life:
        if not (
            yield from self._init(InitProducerId(self.timeout_ms, keep_prepared=self.kind == "prepares"))
        ):
            return
        while True:
            yield Sleep(self.world.random.uniform(1, 300))
            self._transactions += 1
            if not (yield from self._transact((self.name, self._transactions))):
                return

    def _init(self, request: InitProducerId) -> Generator[Any, Any, bool]:
        given: ProducerGiven = yield request
        if given.error is not ErrorCode.NONE:
            return False
        self.producer_id, self.epoch = given.producer_id, given.producer_epoch
        if given.ongoing_producer_id == NO_PRODUCER_ID:
            return True
        prepared = given.ongoing_producer_id, given.ongoing_producer_epoch
        by = self.world.random.choice((prepared, (self.producer_id, self.epoch)))
        ended: Ended = yield EndTransaction(*by, self.chaos.decisions[prepared], 2)
        if ended.producer_id != NO_PRODUCER_ID:
            self.producer_id, self.epoch = ended.producer_id, ended.producer_epoch
        return ended.error is ErrorCode.NONE

    def _transact(self, tag: Tag) -> Generator[Any, Any, bool]:
        draw, judge = self.world.random, self.chaos.judge
        is_well, has_begun = True, False
        for partition in draw.sample(PARTITIONS, draw.randint(1, len(PARTITIONS))):
            error = ErrorCode.NONE
            if self.kind == "v1":
                error = yield AddPartitions(self.producer_id, self.epoch, frozenset({partition}))
                has_begun = has_begun or error is ErrorCode.NONE
            if error is ErrorCode.NONE:
                error = yield Put(partition, tag)
            if error is not ErrorCode.NONE:
                is_well = False
                break
            judge.acknowledged(tag, partition)
            if draw.random() < 0.1:
                yield Sleep(draw.uniform(100, 3_000))
        is_commit = is_well and draw.random() < 0.75
        prepares = is_well and self.kind == "prepares" and not self.is_last and draw.random() < 0.5
        if prepares and not (yield from self._prepare(tag, is_commit)):
            return False
        if has_begun or self.version >= 2:
            ended: Ended = yield EndTransaction(self.producer_id, self.epoch, is_commit, self.version)
            if ended.error is not ErrorCode.NONE:
                return False
            judge.told(tag, is_commit)
            if ended.producer_id == NO_PRODUCER_ID:
                return False
            self.producer_id, self.epoch = ended.producer_id, ended.producer_epoch
        if not is_well or draw.random() < 0.05:
            return (yield from self._init(InitProducerId(self.timeout_ms, self.producer_id, self.epoch)))
        return True

    def _prepare(self, tag: Tag, is_commit: bool) -> Generator[Any, Any, bool]:
        producer = self.producer_id, self.epoch
        self.chaos.decisions[producer] = is_commit
        error = yield PrepareTransaction(*producer)
        if error is not ErrorCode.NONE:
            return False
        self.chaos.judge.prepared(tag, is_commit)
        return self.world.random.random() < 0.5

    def perform(self, step: Any, answered: Callable[[Any], None]) -> None:
        world = self.chaos.world
        if isinstance(step, Put):
            adds = self.version >= 2
            world.produce(step.partition, self.producer_id, self.epoch, step.tag, adds=adds, answer=answered)
        else:
            world.ask(step, answered)

    def is_retriable(self, response: Any) -> bool:
        return error_of(response) in RETRIABLE


class Judge(PromiseKeeper):
    # COMPLETENESS follows from REST: the model of a partition loses no record.
    promises = frozenset(
        {
            Promise.ATOMICITY,
            Promise.ENDS,
            Promise.FENCING,
            Promise.MARKERS,
            Promise.PRODUCERS,
            Promise.REST,
            Promise.STATES,
        }
    )

    def __init__(self, world: TransactionWorld) -> None:
        super().__init__()
        self.world = world
        self.states: set[TransactionState] = set()
        self.errors: set[ErrorCode] = set()
        self._stored: TransactionMetadata | None = None
        self._replicated: list[TransactionMetadata | None] = []
        self._latest = (-1, -1)
        """The producer of the last answered InitProducerId."""
        self._last_answered = (-1, -1)
        self._acknowledged: dict[Tag, set[TopicPartition]] = {}
        self._told: dict[Tag, bool] = {}
        self._prepared: dict[Tag, bool] = {}

    def may_come_late(self, request: Request) -> bool:
        """Without an epoch for each transaction, a request of a former one may hit the next."""
        if isinstance(request, EndTransaction):
            return request.transaction_version >= 2
        return not isinstance(request, AddPartitions)

    # Coordinators

    def observe(self, state: TransactionState) -> None:
        self.states.add(state)

    def answered(self, request: Request, response: Response) -> None:
        if not isinstance(response, ProducerGiven | Ended):
            return
        self.errors.add(response.error)
        if response.error is not ErrorCode.NONE:
            return
        producer = response.producer_id, response.producer_epoch
        if response.producer_id == NO_PRODUCER_ID:
            return
        self.require(
            Promise.PRODUCERS, response.producer_epoch <= LAST_EPOCH, f"{response} could not be fenced"
        )
        self.require(
            Promise.PRODUCERS,
            producer >= self._last_answered,
            f"{producer} is given after {self._last_answered}",
        )
        self._last_answered = producer
        if isinstance(request, InitProducerId):
            is_new = request.producer_id == NO_PRODUCER_ID
            self.require(
                Promise.PRODUCERS,
                not is_new or producer > self._latest,
                f"{producer} is given to two producers",
            )
            self._latest = producer

    def appended(self, value: TransactionMetadata | None) -> None:
        """A coordinator that leads appends a record."""
        if value is None or value.state not in (
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        ):
            return
        decision = self._stored
        assert decision is not None
        for name in decision.partitions:
            self.require(
                Promise.MARKERS,
                decision.producer_id not in self.world.partitions[name].ongoing,
                f"{name} has no marker",
            )

    def replicated(self, batch: list[TransactionMetadata | None]) -> None:
        """The last record of a batch will be loaded by every later coordinator."""
        if batch != self._replicated:
            for value in batch:
                self._replicated_one(value)
        self._replicated = batch

    def _replicated_one(self, value: TransactionMetadata | None) -> None:
        former, self._stored = self._stored, value
        if former is None or value is None or value == former:
            self.require(
                Promise.STATES,
                value is not None or former is None or TransactionState.DEAD in NEXT_STATES[former.state],
            )
            return
        self.require(
            Promise.STATES, value.state in NEXT_STATES[former.state], f"{value.state} follows {former.state}"
        )
        self.require(
            Promise.STATES, present_producer(value) >= present_producer(former), "an epoch goes back"
        )

    def produced(self, producer_id: int, epoch: int, tag: Tag) -> None:
        self.require(
            Promise.FENCING, (producer_id, epoch) >= self._latest, f"{tag} of a fenced producer is appended"
        )

    # Answers to producers

    def acknowledged(self, tag: Tag, partition: TopicPartition) -> None:
        self._acknowledged.setdefault(tag, set()).add(partition)

    def told(self, tag: Tag, is_commit: bool) -> None:
        self._told[tag] = is_commit

    def prepared(self, tag: Tag, is_commit: bool) -> None:
        self._prepared[tag] = is_commit

    def check_end(self, *, all_prepare: bool) -> None:
        fates: dict[Tag, dict[TopicPartition, bool]] = {}
        for name, partition in self.world.partitions.items():
            self.require(
                Promise.REST,
                not partition.ongoing,
                f"{name} has a transaction without an end: {partition.ongoing}",
            )
            open_tags: dict[int, list[Tag]] = {}
            for entry in partition.entries:
                if entry.tag is not None:
                    open_tags.setdefault(entry.producer_id, []).append(entry.tag)
                    continue
                for tag in open_tags.pop(entry.producer_id, ()):
                    fates.setdefault(tag, {})[name] = entry.is_commit
        for tag, fate in fates.items():
            self.require(Promise.ATOMICITY, len(set(fate.values())) == 1, f"{tag} is torn: {fate}")
            is_commit = next(iter(fate.values()))
            self.require(
                Promise.ENDS,
                self._told.get(tag, is_commit) is is_commit,
                f"{tag} has another end than its producer knows",
            )
            if all_prepare:
                self.require(
                    Promise.ENDS,
                    self._prepared.get(tag, is_commit) is is_commit,
                    f"prepared {tag} has another end",
                )
        for tag, is_commit in self._told.items():
            if is_commit:
                missing = self._acknowledged.get(tag, set()) - set(fates.get(tag, {}))
                self.require(
                    Promise.COMPLETENESS, not missing, f"{tag} is committed without its records in {missing}"
                )


class Chaos:
    def __init__(self, seed: int) -> None:
        self.world = world = TransactionWorld(seed)
        self.trace = world.trace
        draw = world.random
        self.judge = world.judge = Judge(world)
        self.kinds = draw.choice(KINDS)
        self.producers: list[Producer] = []
        self.decisions: dict[tuple[int, int], bool] = {}
        """The ends that processes outside have chosen for prepared transactions."""
        if draw.random() < 0.25:
            self._begin_near_the_last_epoch()
        self._start_producer()
        world.at(draw.uniform(0, TURN_MS), self._turn)

    def _begin_near_the_last_epoch(self) -> None:
        world = self.world
        stored = TransactionMetadata(
            TransactionState.EMPTY,
            ProducerId(next(world.producer_ids)),
            ProducerEpoch(LAST_EPOCH - world.random.randint(0, 6)),
            LIMITS.max_timeout_ms,
            EPOCH_MS,
        )
        world.records.append((to_bytes(TransactionRecord(ID, stored), 0)[1],))
        world.high_watermark = 1
        world.coordinator = Coordinator(world, 0, stored)

    def _start_producer(self) -> Producer:
        kind = self.world.random.choice(self.kinds)
        producer = Producer(self, f"p{len(self.producers)}-{kind}", kind)
        self.producers.append(producer)
        return producer

    def _turn(self) -> None:
        """Something happens."""
        world, draw = self.world, self.world.random
        if world.now_ms >= FAULTS_END_MS:
            return
        what = draw.choice(FAULTS)
        world.note(what)
        running = [producer for producer in self.producers if not producer.is_gone]
        if what == "start" or not running:
            self._start_producer()
        elif what == "crash":
            draw.choice(running).is_gone = True
        elif what == "pause":
            draw.choice(running).paused_until_ms = world.now_ms + draw.uniform(500, 6_000)
        elif what == "move":
            world.move()
        elif what == "move twice":
            # The second leader may lack what the first one loaded.
            world.stalled_until_ms = world.now_ms + draw.uniform(100, 1_000)
            world.at(draw.uniform(0, 50), world.move)
            world.at(draw.uniform(50, 150), world.move)
        elif what == "stall":
            world.stalled_until_ms = world.now_ms + draw.uniform(100, 3_000)
        elif what == "too few":
            world.too_few_until_ms = world.now_ms + draw.uniform(10, 1_500)
        else:
            world.coordinator.expire()
        world.at(draw.uniform(0, 2 * TURN_MS), self._turn)

    def run(self) -> None:
        world = self.world
        world.run_until(FAULTS_END_MS)
        world.is_faulty = False
        for producer in self.producers:
            producer.is_gone = True
        world.run_until(FAULTS_END_MS + 17_000)
        for partition in world.partitions.values():
            self.judge.require(
                Promise.REST,
                not partition.ongoing or "prepares" in self.kinds,
                "a transaction does not time out",
            )
        last = Producer(self, "last", self.kinds[0], is_last=True)
        world.run_until(FAULTS_END_MS + 24_000)
        self.judge.require(Promise.REST, not last.is_gone, "the last producer was refused")
        self.judge.require(
            Promise.REST,
            any(tag[0] == "last" for tag in self.judge._told),
            "the last producer ended no transaction",
        )
        last.is_gone = True
        world.run_until(FAULTS_END_MS + CALM_MS)
        world.coordinator.handle(InitProducerId(LIMITS.max_timeout_ms), lambda response: None)
        world.run_until(FAULTS_END_MS + CALM_MS + 1_000)
        self.judge.check_end(all_prepare=self.kinds == ("prepares",))
