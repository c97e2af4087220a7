"""A dumb coordinator and leaders for transactions, on a fake cluster, for the tests of producers.

    transactions = FakeTransactions(cluster)                   # the new protocol; see `speak_kafka`
    transactions.fail(ApiKey.END_TXN, ErrorCode.NOT_COORDINATOR, LOST)
    …
    assert transactions.of("x").committed == [{b"1", b"2"}]

A fault is an error code, `LOST` (carried out, but the connection ends before the answer) or `UNREAD` (the
connection ends before the request is read). `wrong` names what no producer may do; tests assert that it is
empty at their end. A transaction's records are a set of values, because partitions have no common order.
"""

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from barnabas.protocol import codec_kafka
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse, FinalizedFeature
from barnabas.protocol.messages.find_coordinator import Coordinator, CoordinatorType, FindCoordinatorResponse
from barnabas.protocol.messages.partitions import PartitionResult, TopicResult
from barnabas.protocol.messages.produce import (
    InitProducerIdResponse,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from barnabas.protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnResponse,
    PrepareTxnResponse,
    TxnOffsetCommitResponse,
)
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import decode_records
from barnabas.protocol.schema import ApiKey
from tests.support.fake_broker import FakeBroker, FakeCluster

LOST: Final = "lost"
UNREAD: Final = "unread"
Fault = int | str
_OFFSETS: Final = itertools.count()
"""Leaders assign each batch a higher offset than the one before."""


class FakeId:
    """One transactional id."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.epoch = -1
        self.is_ongoing = False
        self.prepared: tuple[int, int] | None = None
        self.records: set[bytes] = set()
        self.offsets: dict[TopicPartition, int] = {}
        self.added: set[TopicPartition] = set()
        self.committed: list[set[bytes]] = []
        self.aborted: list[set[bytes]] = []
        self.committed_offsets: dict[TopicPartition, int] = {}
        self.last_end: tuple[int, int, bool] | None = None
        self.sequences: dict[TopicPartition, tuple[int, int]] = {}
        """The epoch and the next sequence number of each partition."""

    def end(self, *, committed: bool) -> None:
        (self.committed if committed else self.aborted).append(self.records)
        if committed:
            self.committed_offsets |= self.offsets
        self.is_ongoing, self.prepared = False, None
        self.records, self.offsets = set(), {}
        self.added = set()

    def time_out(self) -> None:
        """The coordinator aborts the transaction; its producer may ask for that too, and no more."""
        self.end(committed=False)
        self.last_end = self.producer_id, self.epoch, False
        self.epoch += 1

    def error_of(self, producer_id: int, epoch: int) -> int:
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if epoch == self.epoch else ErrorCode.PRODUCER_FENCED


class FakeTransactions:
    """See the module."""

    def __init__(self, cluster: FakeCluster, *, is_new: bool = True) -> None:
        self.cluster = cluster
        self.is_new = is_new
        self.coordinator = cluster.coordinator_id
        self.ids: dict[str, FakeId] = {}
        self.wrong: list[str] = []
        self.calls: list[str] = []
        self.faults: dict[int, deque[Fault]] = {}
        self.before: dict[int, Callable[[], None]] = {}
        """Called before a request of this API is handled."""
        self._next_producer_id = 2_000
        handlers: dict[ApiKey, Callable[[Any], Any]] = {
            ApiKey.FIND_COORDINATOR: self._find,
            ApiKey.INIT_PRODUCER_ID: self._init,
            ApiKey.PRODUCE: self._produce,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.TXN_OFFSET_COMMIT: self._commit_offsets,
            ApiKey.END_TXN: self._end,
            ApiKey.PREPARE_TXN: self._prepare,
        }
        for api, handler in handlers.items():
            cluster.intercept[api] = self._with_faults(api, handler)

    def of(self, transactional_id: str) -> FakeId:
        return self.ids.setdefault(transactional_id, FakeId())

    def fail(self, api: ApiKey, *faults: Fault) -> None:
        """The faults of the next requests of this API."""
        self.faults.setdefault(api, deque()).extend(faults)

    def speak_kafka(self, *, last_produce: int, last_end: int, level: int) -> None:
        """Answer ApiVersions like a broker of Apache Kafka, with a finalized ``transaction.version``."""
        last = {
            ApiKey.PRODUCE: last_produce,
            ApiKey.END_TXN: last_end,
            ApiKey.TXN_OFFSET_COMMIT: last_end,
        }
        ranges = [
            ApiVersion(api_key=api, min_version=first, max_version=min(end, last.get(api, end)))
            for api in ApiKey
            for first, end in [codec_kafka.supported_versions(api)]
            if first <= end
        ]
        features = []
        if level:
            features.append(
                FinalizedFeature(name="transaction.version", max_version_level=level, min_version_level=level)
            )
        self.cluster.intercept[ApiKey.API_VERSIONS] = lambda broker, body: ApiVersionsResponse(
            error_code=0, api_keys=ranges, finalized_features_epoch=1, finalized_features=features
        )

    def _with_faults(self, api: ApiKey, handle: Callable[[Any], Any]) -> Callable[[FakeBroker, Any], Any]:
        def answer(broker: FakeBroker, body: Any) -> Any:
            if getattr(body, "transactional_id", "") is None or getattr(body, "key_type", 1) == 0:
                return None
            self.calls.append(api.name)
            if before := self.before.get(api):
                before()
            fault = self.faults[api].popleft() if self.faults.get(api) else None
            if fault == UNREAD:
                raise ConnectionResetError
            needs_coordinator = api not in (ApiKey.FIND_COORDINATOR, ApiKey.PRODUCE, ApiKey.TXN_OFFSET_COMMIT)
            if fault is None and needs_coordinator and broker.node_id != self.coordinator:
                fault = ErrorCode.NOT_COORDINATOR
            if isinstance(fault, int):
                return _refusal(api, body, fault)
            response = handle(body)
            if fault == LOST:
                raise ConnectionResetError
            return response

        return answer

    def _find(self, body: Any) -> Any:
        assert body.key_type == CoordinatorType.TRANSACTION
        return FindCoordinatorResponse(
            coordinators=[Coordinator(key=key, node_id=self.coordinator) for key in body.coordinator_keys]
        )

    def _init(self, body: Any) -> Any:
        state = self.of(body.transactional_id)
        if body.producer_id >= 0 and body.producer_epoch == state.epoch - 1 and not state.is_ongoing:
            # Repeated without an answer.
            return InitProducerIdResponse(
                error_code=0, producer_id=state.producer_id, producer_epoch=state.epoch
            )
        if body.producer_id >= 0 and (error := state.error_of(body.producer_id, body.producer_epoch)):
            return InitProducerIdResponse(error_code=error)
        kept = (-1, -1)
        if state.prepared is not None and body.keep_prepared_txn:
            kept = state.prepared
        elif state.is_ongoing:
            state.end(committed=False)
        if state.producer_id < 0:
            state.producer_id = self._next_producer_id
            self._next_producer_id += 1
        state.epoch += 1
        state.last_end = None
        return InitProducerIdResponse(
            error_code=0,
            producer_id=state.producer_id,
            producer_epoch=state.epoch,
            ongoing_txn_producer_id=kept[0],
            ongoing_txn_producer_epoch=kept[1],
        )

    def _produce(self, body: Any) -> Any:
        state = self.of(body.transactional_id)
        return _produced(body, lambda tp, batch: self._append(state, tp, batch))

    def _append(self, state: FakeId, tp: TopicPartition, batch: Any) -> int:
        header = parse_header(batch)
        if not header.is_transactional:
            self.wrong.append(f"{tp}: a batch is not transactional")
        if (header.producer_id, header.producer_epoch) != (state.producer_id, state.epoch):
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if state.prepared is not None or (not self.is_new and tp not in state.added):
            return ErrorCode.INVALID_TXN_STATE
        epoch, expected = state.sequences.get(tp, (-1, 0))
        if epoch != header.producer_epoch:
            expected = 0
        if header.base_sequence > expected:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        state.is_ongoing = True
        if header.base_sequence == expected:
            state.sequences[tp] = header.producer_epoch, expected + header.record_count
            state.records |= {record.value or b"" for record in decode_records(batch)}
        return ErrorCode.NONE

    def _add_partitions(self, body: Any) -> Any:
        state = self.of(body.v3_and_below_transactional_id)
        error = state.error_of(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
        if not error:
            state.is_ongoing = True
            state.added |= {
                TopicPartition(topic.name, index)
                for topic in body.v3_and_below_topics
                for index in topic.partitions
            }
        return _refusal(ApiKey.ADD_PARTITIONS_TO_TXN, body, error)

    def _add_offsets(self, body: Any) -> Any:
        state = self.of(body.transactional_id)
        error = state.error_of(body.producer_id, body.producer_epoch)
        state.is_ongoing = state.is_ongoing or not error
        return AddOffsetsToTxnResponse(error_code=error)

    def _commit_offsets(self, body: Any) -> Any:
        state = self.of(body.transactional_id)
        error = state.error_of(body.producer_id, body.producer_epoch)
        if not error:
            if not self.is_new and not state.is_ongoing:
                self.wrong.append("offsets of a transaction that they were not added to")
            state.is_ongoing = True
            state.offsets |= {
                TopicPartition(topic.name, partition.partition_index): partition.committed_offset
                for topic in body.topics
                for partition in topic.partitions
            }
        if error == ErrorCode.PRODUCER_FENCED:
            # As Kafka's and our group coordinators answer in every version.
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        return _refusal(ApiKey.TXN_OFFSET_COMMIT, body, error)

    def _end(self, body: Any) -> Any:
        state = self.of(body.transactional_id)
        asker = (body.producer_id, body.producer_epoch)
        if self.is_new and state.last_end == (*asker, body.committed):
            return EndTxnResponse(producer_id=state.producer_id, producer_epoch=state.epoch)
        if self.is_new and state.last_end == (*asker, not body.committed):
            return EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE)
        if asker != state.prepared and (error := state.error_of(*asker)):
            return EndTxnResponse(error_code=error)
        if not state.is_ongoing:
            if not self.is_new and state.last_end == (*asker, body.committed):
                return EndTxnResponse()
            if body.committed or not self.is_new:
                return EndTxnResponse(error_code=ErrorCode.INVALID_TXN_STATE)
        is_own = asker == (state.producer_id, state.epoch)
        state.end(committed=body.committed)
        state.last_end = (*asker, body.committed)
        if not self.is_new:
            return EndTxnResponse()
        if is_own:
            state.epoch += 1
        return EndTxnResponse(producer_id=state.producer_id, producer_epoch=state.epoch)

    def _prepare(self, body: Any) -> Any:
        state = self.of(body.transactional_id)
        error = state.error_of(body.producer_id, body.producer_epoch)
        if not error and not state.is_ongoing:
            error = ErrorCode.INVALID_TXN_STATE
        if not error:
            state.prepared = body.producer_id, body.producer_epoch
        return PrepareTxnResponse(error_code=error)


def _produced(body: Any, code_of: Callable[[TopicPartition, Any], int]) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(
                        index=data.index,
                        error_code=code_of(TopicPartition(topic.name, data.index), data.records),
                        base_offset=next(_OFFSETS),
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in body.topic_data
        ]
    )


def _refusal(api: ApiKey, body: Any, code: int) -> Any:
    """The answer with this code, repeated for every partition if the API has codes for each."""
    match api:
        case ApiKey.FIND_COORDINATOR:
            coordinators = [Coordinator(key=key, error_code=code) for key in body.coordinator_keys]
            return FindCoordinatorResponse(coordinators=coordinators)
        case ApiKey.INIT_PRODUCER_ID:
            return InitProducerIdResponse(error_code=code)
        case ApiKey.PRODUCE:
            return _produced(body, lambda tp, batch: code)
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            return AddPartitionsToTxnResponse(
                results_by_topic_v3_and_below=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=[
                            AddPartitionsToTxnPartitionResult(
                                partition_index=index, partition_error_code=code
                            )
                            for index in topic.partitions
                        ],
                    )
                    for topic in body.v3_and_below_topics
                ]
            )
        case ApiKey.ADD_OFFSETS_TO_TXN:
            return AddOffsetsToTxnResponse(error_code=code)
        case ApiKey.TXN_OFFSET_COMMIT:
            return TxnOffsetCommitResponse(
                topics=[
                    TopicResult(
                        name=topic.name,
                        partitions=[
                            PartitionResult(partition_index=partition.partition_index, error_code=code)
                            for partition in topic.partitions
                        ],
                    )
                    for topic in body.topics
                ]
            )
        case ApiKey.END_TXN:
            return EndTxnResponse(error_code=code)
        case _:
            return PrepareTxnResponse(error_code=code)
