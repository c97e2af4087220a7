"""A client of one transactional id: what it asks coordinators and leaders, and what the answers say.

It asks one thing at a time, and again until the answer is final; so requests arrive late and twice. Version 1
of transactions adds partitions itself and keeps its epoch; version 2 has an epoch for each transaction. After
`Gone` the process ends; what it does until then, its subclasses say.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple

from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition, by_topic
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
    PrepareTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.simulation.coordinated_world import CoordinatedWorld

_RESEND_MS: Final = 2_500
_GIVE_UP_MS: Final = 12_000
"""After the first time without an answer a client asks again; after the second one it ends."""
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


_DONE: Final = object()
"""The answer to a `Sleep`."""


class Sleep(NamedTuple):
    ms: float


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


Commit = tuple[TopicPartition, int, str]
"""A partition with its committed offset and metadata, which no other commit of the partition has."""


class CommitOffsets(NamedTuple):
    commits: tuple[Commit, ...]
    member: tuple[tuple[str, Any], ...] = ()
    """The fields of the request that name a member of the group."""


class Prepare(NamedTuple):
    pass


class End(NamedTuple):
    is_commit: bool
    of: tuple[int, int] | None = None
    """The id and epoch of a prepared transaction, if they are not the client's own."""


class Gone(Exception):
    """The client cannot go on."""


class TransactionalClient(ABC):
    """A process. It may crash (`is_gone`), and pause while its requests and their answers are under way."""

    def __init__(
        self, world: CoordinatedWorld, transactional_id: str, group: str, *, version: int, timeout_ms: int
    ) -> None:
        self.world = world
        self.transactional_id = transactional_id
        self.group = group
        self.version = version
        """Of the transaction that it is in."""
        self.keeps_prepared = False
        self.is_gone = False
        self.paused_until_ms = 0.0
        self._timeout_ms = timeout_ms
        self._producer_id, self._epoch = -1, -1
        self._attempt = 0
        self._asked_at_ms = 0.0

    # The sequence of steps

    @abstractmethod
    def life(self) -> Generator[Any, Any, None]:
        """Yields a `Sleep`, or a request that `perform` takes; gets the final answer."""

    def begin(self) -> None:
        self._life = self.life()
        self._go_on(None)

    def _go_on(self, answer: Any) -> None:
        try:
            step = self._life.send(answer)
        except StopIteration:
            self.is_gone = True
            return
        self._asked_at_ms = self.world.now_ms
        self._do(step)

    def _do(self, step: Any) -> None:
        """Do a step, again if no answer comes or it says so."""
        world = self.world
        if self.is_gone:
            return
        if world.now_ms < self.paused_until_ms:
            world.at(self.paused_until_ms - world.now_ms + 1, lambda: self._do(step))
            return
        self._attempt += 1
        attempt = self._attempt

        def answered(response: Any) -> None:
            if self.is_gone or attempt != self._attempt:
                return
            self._attempt += 1
            if response is None or (response is not _DONE and self.is_retriable(response)):
                if world.now_ms - self._asked_at_ms > _GIVE_UP_MS:
                    self.is_gone = True
                else:
                    world.at(world.random.uniform(20, 100), lambda: self._do(step))
            elif world.now_ms < self.paused_until_ms:
                world.at(self.paused_until_ms - world.now_ms + 1, lambda: self._go_on(response))
            else:
                self._go_on(response)

        if isinstance(step, Sleep):
            world.at(step.ms, lambda: answered(_DONE))
            return
        world.at(_RESEND_MS, lambda: answered(None))
        self.perform(step, answered)

    # Steps

    def about(self) -> Any:
        """Describe the next request to the judge."""
        return None

    def is_given_up(self, tp: TopicPartition) -> bool:
        """Whether the client does not wait for the return of a partition that is gone."""
        return False

    def _init(self, init: Init) -> Generator[Any, Any, Any]:
        given = yield init
        if given.error_code != ErrorCode.NONE:
            raise Gone
        self._be(given.producer_id, given.producer_epoch)
        return given

    def _end(self, is_commit: bool, of: tuple[int, int] | None = None) -> Generator[Any, Any, Any]:
        ended = yield End(is_commit, of)
        if ended.error_code != ErrorCode.NONE:
            raise Gone
        if self.version == 2 and ended.producer_id != -1:
            self._be(ended.producer_id, ended.producer_epoch)
        return ended

    def _be(self, producer_id: int, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch

    # Requests

    def is_retriable(self, response: Any) -> bool:
        error = response if isinstance(response, ErrorCode) else response.error_code
        return error in _RETRIABLE

    def perform(self, step: Any, answered: Callable[[Any], None]) -> None:
        world, me = self.world, (self.transactional_id, self._producer_id, self._epoch)
        coordinator = world.coordinator_of
        body: Any
        match step:
            case Init(producer_id, epoch):
                body = InitProducerIdRequest(
                    transactional_id=self.transactional_id,
                    transaction_timeout_ms=self._timeout_ms,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    keep_prepared_txn=self.keeps_prepared,
                )
                self._send(coordinator(me[0]), body, answered, None if self.keeps_prepared else 4)
            case Add(partitions):
                body = _add_request(*me, partitions)
                self._send(coordinator(me[0]), body, lambda each: answered(self._added(each)), 3)
            case AddOffsets():
                body = AddOffsetsToTxnRequest(
                    transactional_id=me[0], producer_id=me[1], producer_epoch=me[2], group_id=self.group
                )
                self._send(coordinator(me[0]), body, lambda each: answered(ErrorCode(each.error_code)), 3)
            case Put():
                body = self._produce_request(step)
                target = world.leader_of(step.partition)
                version = 11 if self.version == 1 else 12
                self._send(target, body, lambda each: answered(self._produced(step, each)), version)
            case CommitOffsets():
                body = self._commit_request(step)
                target = world.group_coordinator_of(self.group)
                version = 4 if self.version == 1 else 5
                self._send(target, body, lambda each: answered(_committed(each)), version)
            case Prepare():
                body = PrepareTxnRequest(transactional_id=me[0], producer_id=me[1], producer_epoch=me[2])
                self._send(coordinator(me[0]), body, answered, None)
            case End(is_commit, of):
                producer_id, epoch = of or me[1:]
                body = EndTxnRequest(
                    transactional_id=me[0],
                    producer_id=producer_id,
                    producer_epoch=epoch,
                    committed=is_commit,
                )
                self._send(coordinator(me[0]), body, answered, 4 if self.version == 1 else 5)

    def _send(self, target: Any, body: Any, answered: Callable[[Any], None], api_version: int | None) -> None:
        self.world.request(target, body, answered, api_version, self.about())

    def _added(self, response: Any) -> ErrorCode:
        codes = {
            TopicPartition(topic.name, result.partition_index): ErrorCode(result.partition_error_code)
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        }
        return worst([*(self._unless_given_up(*each) for each in codes.items()), *codes.values()])

    def _unless_given_up(self, tp: TopicPartition, error: ErrorCode) -> ErrorCode:
        """A final error for a partition that is gone and given up; NONE for others that are gone."""
        if error is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return ErrorCode.NONE
        return ErrorCode.INVALID_TOPIC_EXCEPTION if self.is_given_up(tp) else ErrorCode.NONE

    def _produce_request(self, put: Put) -> ProduceRequest:
        builder = RecordBatchBuilder()
        builder.append(None, put.value.to_bytes(8), None, 0)
        batch = builder.build(
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=put.sequence,
            is_transactional=True,
        )
        data = PartitionProduceData(index=put.partition.partition, records=memoryview(batch))
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=-1,
            timeout_ms=_PRODUCE_TIMEOUT_MS,
            topic_data=[TopicProduceData(name=put.partition.topic, partition_data=[data])],
        )

    def _produced(self, put: Put, response: Any) -> ErrorCode:
        error = ErrorCode(response.responses[0].partition_responses[0].error_code)
        if error is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return ErrorCode.NONE
        return worst([self._unless_given_up(put.partition, error), error])

    def _commit_request(self, step: CommitOffsets) -> TxnOffsetCommitRequest:
        topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
        for name, offset, metadata in step.commits:
            topics.setdefault(name.topic, []).append(
                TxnOffsetCommitRequestPartition(
                    partition_index=name.partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        return TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=self.group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[
                TxnOffsetCommitRequestTopic(name=topic, partitions=each) for topic, each in topics.items()
            ],
            **dict(step.member),
        )


def _add_request(
    transactional_id: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    topics = by_topic((name, name.partition) for name in partitions)
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer_id,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=indexes) for topic, indexes in topics.items()
        ],
    )


def _committed(response: Any) -> ErrorCode:
    return worst(ErrorCode(each.error_code) for topic in response.topics for each in topic.partitions)


def worst(errors: Iterable[ErrorCode]) -> ErrorCode:
    return next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)
