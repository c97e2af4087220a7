"""Producers that write in transactions over many partitions, and readers of committed records and offsets.

A producer is a process of one transactional id: of version 1, which adds partitions itself and keeps its
epoch, or of version 2. Some change their version between transactions, in both directions, and not all of
those raise their epoch then, as Java's producer and ours do. A producer asks one thing at a time, and again
until the answer is final; so requests arrive late and twice. After an error it aborts, and begins with a
raised epoch, as real clients do.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from barnabas.protocol.messages.produce import (
    InitProducerIdRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.simulation.exactly_once_world import (
    BRIEF,
    COMMITTED,
    DATA,
    MAX_TIMEOUT_MS,
    OFFSETS,
    ExactlyOnceWorld,
)
from tests.simulation.process import Process, Sleep

if TYPE_CHECKING:
    from tests.simulation.exactly_once_judge import Attempt, Judge

RESEND_MS: Final = 2_500
GIVE_UP_MS: Final = 12_000
_PRODUCE_TIMEOUT_MS: Final = 2_000
_RETRIABLE: Final = {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class Init(NamedTuple):
    producer_id: int = -1
    epoch: int = -1


class Add(NamedTuple):
    partitions: tuple[TopicPartition, ...]


class AddOffsets(NamedTuple):
    pass


class Put(NamedTuple):
    partition: TopicPartition
    value: int
    sequence: int


class CommitOffset(NamedTuple):
    value: int


class End(NamedTuple):
    is_commit: bool


class Kind(Enum):
    FIRST = "version 1"
    SECOND = "version 2"
    CHANGING = "a changing version"


class Gone(Exception):
    """The producer cannot go on."""


class Producer(Process):
    def __init__(
        self,
        world: ExactlyOnceWorld,
        name: str,
        transactional_id: str,
        kind: Kind,
        *,
        is_last: bool = False,
    ) -> None:
        super().__init__(world, resend_ms=RESEND_MS, give_up_ms=GIVE_UP_MS)
        self.world: ExactlyOnceWorld = world
        self.judge: Judge = world.judge
        self.name = name
        self.transactional_id = transactional_id
        self.group = group_of(transactional_id)
        self.kind = kind
        self.version = 2 if kind is Kind.SECOND else 1
        """Of the transaction that it is in."""
        self.is_last = is_last
        self.attempt: Attempt | None = None
        """The transaction that it is in, until it begins the next one."""
        self.committed = 0
        """The commits that were acknowledged."""
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[TopicPartition, int] = {}
        self._number = 0
        self._timeout_ms = MAX_TIMEOUT_MS if is_last else world.random.choice((1_500, 4_000, 10_000))
        self.begin()

    def __str__(self) -> str:
        return f"{self.name} of {self.transactional_id} ({self.kind.value})"

    # Life

    def life(self) -> Generator[Any, Any, None]:
        try:
            yield from self._init(Init())
            while True:
                if self.kind is Kind.CHANGING and self.world.random.random() < 0.5:
                    # At once: the markers of its former transaction may be on their way.
                    yield from self._change_version()
                else:
                    yield Sleep(self.world.random.uniform(1, 400))
                yield from self._transact()
        except Gone:
            return

    def _init(self, init: Init) -> Generator[Any, Any, None]:
        given = yield init
        if given.error_code != ErrorCode.NONE:
            raise Gone
        self._be(given.producer_id, given.producer_epoch)

    def _change_version(self) -> Generator[Any, Any, None]:
        self.version = 3 - self.version
        if self.world.random.random() < 0.3:
            yield from self._init(Init(self._producer_id, self._epoch))

    def _be(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._sequences.clear()
        self._producer_id, self._epoch = producer_id, epoch

    def _transact(self) -> Generator[Any, Any, None]:
        draw = self.world.random
        self._number += 1
        attempt = self.attempt = self.judge.begin(self, self._number, (self._producer_id, self._epoch))
        names = draw.sample([*DATA, BRIEF, OFFSETS], draw.randint(2, 4))
        if self.is_last:
            names = [*DATA, OFFSETS]
        error, has_begun = yield from self._write(attempt, names)
        is_well = error is ErrorCode.NONE
        is_commit = is_well and (self.is_last or draw.random() < 0.7)
        attempt.is_end_sent, attempt.is_commit_sent = True, is_commit
        if has_begun or self.version == 2:
            ended = yield End(is_commit)
            if ended.error_code != ErrorCode.NONE:
                raise Gone
            attempt.told = is_commit
            self.committed += is_commit
            if self.version == 2:
                self._be(ended.producer_id, ended.producer_epoch)
        if not is_well or draw.random() < 0.05:
            yield from self._init(Init(self._producer_id, self._epoch))

    def _write(
        self, attempt: Attempt, names: list[TopicPartition]
    ) -> Generator[Any, Any, tuple[ErrorCode, bool]]:
        """The first error, and whether the coordinator knows that the transaction has begun."""
        draw, has_begun = self.world.random, False
        if self.version == 1:
            added = tuple(name for name in names if name != OFFSETS)
            for names_at_once in (added,) if draw.random() < 0.5 else tuple((name,) for name in added):
                error = yield Add(names_at_once)
                has_begun = has_begun or error is ErrorCode.NONE
                if error is not ErrorCode.NONE:
                    return error, has_begun
        places = [name for name in names for _ in range(draw.randint(1, 2))]
        draw.shuffle(places)
        for name in places:
            value = self.world.next_value
            self.world.next_value += 1
            if name == OFFSETS and self.version == 1:
                error = yield AddOffsets()
                has_begun = has_begun or error is ErrorCode.NONE
                if error is not ErrorCode.NONE:
                    return error, has_begun
            if name == OFFSETS:
                error = yield CommitOffset(value)
            else:
                sequence = self._sequences.get(name, 0)
                error = yield Put(name, value, sequence)
                self._sequences[name] = sequence + 1
            if error is not ErrorCode.NONE:
                return error, has_begun
            attempt.acknowledged[name].append(value)
            if draw.random() < 0.05:
                yield Sleep(draw.uniform(100, 3_000))
        return ErrorCode.NONE, has_begun

    # Requests

    def is_retriable(self, response: Any) -> bool:
        error = response if isinstance(response, ErrorCode) else response.error_code
        return error in _RETRIABLE

    def perform(self, step: Any, answered: Callable[[Any], None]) -> None:
        match step:
            case Put():
                self._put(step, answered)
            case CommitOffset(value):
                self._commit_offset(value, answered)
            case _:
                self._ask_coordinator(step, answered)

    def _send(self, target: Any, body: Any, answered: Callable[[Any], None], api_version: int | None) -> None:
        self.world.request(target, body, answered, api_version, self.judge.about(self.attempt, self))

    def _ask_coordinator(self, step: Any, answered: Callable[[Any], None]) -> None:
        me = self.transactional_id, self._producer_id, self._epoch
        body: Any
        match step:
            case Init(producer_id, epoch):
                body, api_version = (
                    InitProducerIdRequest(
                        transactional_id=self.transactional_id,
                        transaction_timeout_ms=self._timeout_ms,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                    ),
                    4,
                )
                heard = answered
            case Add(partitions):
                topics = by_topic((name, name.partition) for name in partitions)
                body, api_version = (
                    AddPartitionsToTxnRequest(
                        v3_and_below_transactional_id=me[0],
                        v3_and_below_producer_id=me[1],
                        v3_and_below_producer_epoch=me[2],
                        v3_and_below_topics=[
                            AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                            for topic, indexes in topics.items()
                        ],
                    ),
                    3,
                )

                def heard(response: Any) -> None:
                    codes = {
                        TopicPartition(topic.name, result.partition_index): ErrorCode(
                            result.partition_error_code
                        )
                        for topic in response.results_by_topic_v3_and_below
                        for result in topic.results_by_partition
                    }
                    answered(_of_brief_topic(codes.get(BRIEF)) or _worst(codes.values()))
            case AddOffsets():
                body, api_version = (
                    AddOffsetsToTxnRequest(
                        transactional_id=me[0], producer_id=me[1], producer_epoch=me[2], group_id=self.group
                    ),
                    3,
                )

                def heard(response: Any) -> None:
                    answered(ErrorCode(response.error_code))
            case End(is_commit):
                body, api_version = (
                    EndTxnRequest(
                        transactional_id=me[0], producer_id=me[1], producer_epoch=me[2], committed=is_commit
                    ),
                    4 if self.version == 1 else 5,
                )
                heard = answered
        self._send(self.world.coordinator_of(self.transactional_id), body, heard, api_version)

    def _put(self, put: Put, answered: Callable[[Any], None]) -> None:
        assert self.attempt is not None
        self.judge.sends(self.attempt, put.value)
        builder = RecordBatchBuilder()
        builder.append(None, put.value.to_bytes(8), None, 0)
        batch = builder.build(
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=put.sequence,
            is_transactional=True,
        )
        data = PartitionProduceData(index=put.partition.partition, records=memoryview(batch))
        body = ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=_PRODUCE_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=put.partition.topic, partition_data=[data])],
        )

        def heard(response: Any) -> None:
            error = ErrorCode(response.responses[0].partition_responses[0].error_code)
            if error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                error = ErrorCode.NONE
            answered((_of_brief_topic(error) if put.partition == BRIEF else None) or error)

        self._send(self.world.leader_of(put.partition), body, heard, 11 if self.version == 1 else 12)

    def _commit_offset(self, value: int, answered: Callable[[Any], None]) -> None:
        assert self.attempt is not None
        self.judge.sends(self.attempt, value)
        partition = TxnOffsetCommitRequestPartition(
            partition_index=COMMITTED.partition, committed_offset=value, committed_metadata=str(value)
        )
        body = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[TxnOffsetCommitRequestTopic(name=COMMITTED.topic, partitions=[partition])],
        )

        def heard(response: Any) -> None:
            answered(ErrorCode(response.topics[0].partitions[0].error_code))

        target = self.world.group_coordinator_of(self.group)
        self._send(target, body, heard, 4 if self.version == 1 else 5)


def group_of(transactional_id: str) -> str:
    """The group whose offsets the producers of an id commit."""
    return f"g-{transactional_id}"


def _of_brief_topic(error: ErrorCode | None) -> ErrorCode | None:
    """A topic that is gone does not come back soon, so its producer gives the transaction up."""
    return ErrorCode.INVALID_TOPIC_EXCEPTION if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None


def _worst(errors: Any) -> ErrorCode:
    return next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)


class Reader:
    """Reads one partition in order, as a consumer with read_committed, from any broker that may lead it."""

    def __init__(self, world: ExactlyOnceWorld, tp: TopicPartition) -> None:
        self._world = world
        self._tp = tp
        self._offset = 0
        world.at(0, self._turn)

    def _turn(self) -> None:
        world = self._world
        self.read()
        world.at(world.random.uniform(100, 1_500), self._turn)

    def read(self) -> None:
        """Read up to the last stable offset; one fetch reads up to the end of a segment."""
        world, shown = self._world, []
        broker = world.leader_of(self._tp)
        while broker is not None:
            read = world.consume(broker.id, self._offset, self._tp, is_read_committed=True)
            # A new leader's last stable offset may be lower for a while.
            if read is None or read[0] <= self._offset:
                break
            self._offset, records = read
            shown += records
        if shown:
            world.check()
            world.judge.shows(self._tp, shown)


class OffsetReader:
    """Asks for the offset of a group, mostly for a stable one, as a consumer does when it begins."""

    def __init__(self, world: ExactlyOnceWorld, transactional_id: str) -> None:
        self._world = world
        self._group = group_of(transactional_id)
        world.at(0, self._turn)

    def _turn(self) -> None:
        world = self._world
        topic = OffsetFetchRequestTopic(name=COMMITTED.topic, partition_indexes=[COMMITTED.partition])
        body = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=self._group, topics=[topic])],
            require_stable=world.random.random() < 0.7,
        )
        # The judge sees every answer.
        world.request(world.group_coordinator_of(self._group), body, lambda response: None)
        world.at(world.random.uniform(100, 1_500), self._turn)
