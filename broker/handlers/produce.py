"""Produce: append each partition's batches, and answer when the requested acks are complete.

A transactional batch is appended only if its transaction is ongoing in the partition, or its coordinator has
just confirmed it: see `coordinators.transactions.verification`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

from barnabas.broker.base.limits import MAX_ON_NETWORK_THREAD, MAX_PRODUCED_BATCHES
from barnabas.broker.coordinators.transactions.requests import AddPartitions
from barnabas.broker.coordinators.transactions.verification import Outcome
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorization import check, permitted
from barnabas.broker.handlers.leader_hints import LeaderHints
from barnabas.broker.handlers.services import Services
from barnabas.broker.log.appending import ProducedBatches, count_batches, parse_produced
from barnabas.broker.log.log_transactions import VerificationGuard
from barnabas.broker.log.producer_state import VerificationGuards
from barnabas.broker.log.record_checks import are_quickly_prepared
from barnabas.broker.network.request import Lane, Request
from barnabas.broker.replication.replica_manager import AppendAnswer
from barnabas.broker.security.authorizer import Authorizer
from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages import produce as wire
from barnabas.protocol.record_batch import ATTRIBUTES_OFFSET, COMPRESSION_MASK, TRANSACTIONAL_MASK
from barnabas.protocol.topic_names import INTERNAL_TOPICS

_name_of: Final = attrgetter("name")
_ACKS: Final = (-1, 0, 1)
_NETWORK: Final = Lane.NETWORK
_EMPTY: Final = memoryview(b"")
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_FIRST_SERVED: Final = 3
_FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_HINTS: Final = 10
_KNOWS_ABORTABLE_SINCE: Final = 11
_ADDS_PARTITIONS_SINCE: Final = 12
"""From this version on, the brokers add the partitions of a transaction, not the client (KIP-890)."""

Named = tuple[TopicPartition, ProducedBatches]
Refusals = Mapping[TopicPartition, wire.PartitionProduceResponse]
Guards = Mapping[TopicPartition, VerificationGuards]
_NO_REFUSALS: Final[Refusals] = {}
_NO_GUARDS: Final[Guards] = {}


def handle(services: Services, request: ApiRequest) -> None:
    body: wire.ProduceRequest = request.body
    if sum([len(topic.partition_data) for topic in body.topic_data]) > MAX_ON_NETWORK_THREAD:
        request.raw.continue_in(Lane.GENERAL, lambda: _produce(services, request, body))
    elif request.api_version is None and _has_many_batches(body):
        request.raw.continue_in(Lane.RECORDS, lambda: _produce(services, request, body))
    else:
        _produce(services, request, body)


def _produce(services: Services, request: ApiRequest, body: wire.ProduceRequest) -> None:
    produce = _Produce(services, request)
    tps, refused, batches = produce.tps, produce.refused, produce.batches
    is_transactional = 0
    authorizer = services.authorizer
    writable = None if authorizer is None else _writable(services, authorizer, request)
    for topic in body.topic_data:
        for data in topic.partition_data:
            tp = TopicPartition(topic.name, data.index)
            tps.append(tp)
            try:
                if writable is not None and topic.name not in writable:
                    is_transactional |= _first_attributes(data.records) & TRANSACTIONAL_MASK
                    raise api_error(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                produced = _checked(services, body.acks, request.api_version, tp, data.records)
            except ApiError as error:
                refused.append(produce.refusal(tp, error))
                continue
            batches.append((tp, produced))
            refused.append(None)
            for _, header in produced.batches:
                is_transactional |= header.attributes & TRANSACTIONAL_MASK
    if is_transactional:
        produce.confirm()
    else:
        produce.append(_NO_REFUSALS, _NO_GUARDS)


class _Produce:
    """A request from its check to its answer.

    Its steps are methods: compiled, functions within a function that know each other are a cycle of
    references, which would keep the records until a collection.
    """

    def __init__(self, services: Services, request: ApiRequest) -> None:
        self.tps: list[TopicPartition] = []
        self.refused: list[wire.PartitionProduceResponse | None] = []
        """The answer of each partition that is refused, by its place."""
        self.batches: list[Named] = []
        self._services = services
        self._request = request
        self._guards: dict[TopicPartition, VerificationGuards] = {}
        self._texts: ErrorTexts | None = None

    def refusal(self, tp: TopicPartition, error: ApiError) -> wire.PartitionProduceResponse:
        texts = self._texts = self._texts or ErrorTexts()
        return wire.PartitionProduceResponse(
            index=tp.partition, error_code=int(error.code), error_message=texts.of(error)
        )

    def append(self, unconfirmed: Refusals, guards: Guards) -> None:
        """Append the batches that are not refused, in the lane that they need."""
        batches = self.batches
        if unconfirmed:
            for index, tp in enumerate(self.tps):
                self.refused[index] = unconfirmed.get(tp) or self.refused[index]
            batches = [named for named in batches if named[0] not in unconfirmed]
        services, request = self._services, self._request
        answer = request.answering(self._answer)
        write = partial(_write, services, request, batches, answer, guards, self._texts)
        lane = _lane_for(services, batches)
        if lane is None:
            write()
        else:
            request.raw.continue_in(lane, write)

    def _answer(self, appended: list[wire.PartitionProduceResponse]) -> None:
        services, request = self._services, self._request
        rest = iter(appended)
        responses = [response or next(rest) for response in self.refused]
        if request.quotas is not None:
            request.charge_produced()
        if request.body.acks != 0:
            request.respond(_response(services, request, self.tps, responses))
        else:
            _end_unanswered(request, self.tps, responses)

    # Transactions

    def confirm(self) -> None:
        """Append when the coordinator has confirmed the transaction where it is not ongoing.

        The connection's later requests wait, so that none overtakes this one.
        """
        services, request = self._services, self._request
        if request.raw.lane is Lane.NETWORK and services.replicas.waits_for_disk(
            [tp for tp, _ in self.batches]
        ):
            # The guards take the locks of the logs, which an append that waits for a disk holds.
            request.raw.continue_in(Lane.DISK, self.confirm)
            return
        try:
            producer = _only_producer(services, request, self.batches)
        except ApiError as error:
            # As in Kafka also of refused topics: it ends the producer, their error only a transaction.
            self.append({tp: self.refusal(tp, error) for tp in self.tps}, _NO_GUARDS)
            return
        if producer is None:
            self.append(_NO_REFUSALS, _NO_GUARDS)
            return
        producer_id, epoch = producer
        adds = request.is_since(_ADDS_PARTITIONS_SINCE)
        guards, unasked = _guards(services, self.batches, producer_id, epoch, adds)
        self._guards = guards | unasked
        if not guards or not services.verification.asks(adds):
            self.append(_NO_REFUSALS, self._guards)
            return
        addition = AddPartitions(producer_id, epoch, frozenset(guards), verify_only=not adds)
        # A coordinator in this process appends to its own log.
        request.raw.continue_in(Lane.GENERAL, partial(self._ask, addition))

    def _ask(self, addition: AddPartitions) -> None:
        raw, outcomes = self._request.raw, list[Outcome]()
        raw.pause(partial(self._confirmed, outcomes))
        # The coordinator may keep what it calls for long, but not the records.
        answered = partial(_answered, raw, outcomes)
        self._services.verification.confirm(self._request.body.transactional_id, addition, answered)

    def _confirmed(self, outcomes: list[Outcome]) -> None:
        unconfirmed = {
            tp: self.refusal(tp, _unconfirmed(self._request, error))
            for tp, error in outcomes[0].items()
            if error is not ErrorCode.NONE
        }
        self.append(unconfirmed, self._guards)


def _write(
    services: Services,
    request: ApiRequest,
    batches: Sequence[Named],
    answer: AppendAnswer,
    guards: Guards,
    texts: ErrorTexts | None,
) -> None:
    raw, body = request.raw, request.body
    timers = raw.deadlines if raw.lane is _NETWORK else None
    cancel = services.replicas.append(
        body.acks, max(0, body.timeout_ms), batches, answer, guards=guards, timers=timers, texts=texts
    )
    if cancel is not None:
        raw.park(cancel)
    raw.release_frame()


def _end_unanswered(
    request: ApiRequest, tps: list[TopicPartition], responses: list[wire.PartitionProduceResponse]
) -> None:
    """End a request with acks=0, which is exempt from request_percentage, as in Kafka."""
    for tp, response in zip(tps, responses, strict=True):
        if response.error_code != ErrorCode.NONE:
            # The client expects no answer; closing is the only signal, and makes it refresh its metadata.
            code = ErrorCode(response.error_code).name
            request.raw.close_connection(f"acks=0 to {tp}: {code}: {response.error_message}")
            return
    request.raw.respond_nothing()


def _lane_for(services: Services, batches: Iterable[Named]) -> Lane | None:
    """The lane of workers for an append of these batches; None if any thread may do it in a moment."""
    partitions = services.replicas.roles.partitions
    prepared = []
    for tp, produced in batches:
        partition = partitions.get(tp)
        if partition is not None:
            if partition.waits_for_disk:
                return Lane.DISK
            prepared.append((produced, partition.log.config))
    return None if are_quickly_prepared(prepared) else Lane.RECORDS


# Transactions


def _answered(raw: Request, outcomes: list[Outcome], outcome: Outcome) -> None:
    outcomes.append(outcome)
    raw.resume()


def _first_attributes(records: Any) -> int:
    """The attributes of the first batch, which is not checked."""
    is_whole = isinstance(records, memoryview) and len(records) > ATTRIBUTES_OFFSET + 1
    return records[ATTRIBUTES_OFFSET + 1] if is_whole else 0


def _only_producer(
    services: Services, request: ApiRequest, batches: Iterable[Named]
) -> tuple[int, int] | None:
    """The producer id and epoch of all transactional batches; None if none is left.

    Raises Kafka's errors without a transactional id or the right to it, or with two producers.
    """
    transactional_id = request.body.transactional_id
    if transactional_id is None:
        raise api_error(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "the batches are transactional, and the request names no transactional id",
        )
    check(services, request, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    producers = {
        (header.producer_id, header.producer_epoch)
        for _, produced in batches
        for _, header in produced.batches
        if header.is_transactional
    }
    if len(producers) > 1:
        raise api_error(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"the transactional batches are of {len(producers)} producers; expected one",
        )
    return producers.pop() if producers else None


def _guards(
    services: Services, batches: Iterable[Named], producer_id: int, epoch: int, adds: bool
) -> tuple[dict[TopicPartition, VerificationGuards], dict[TopicPartition, VerificationGuards]]:
    """Guards for the partitions where the transaction is to be confirmed, and for those not led here.

    A partition of the second kind may be led here when the append comes: its guard, which its log does not
    know, then makes the producer retry.
    """
    guards: dict[TopicPartition, VerificationGuards] = {}
    unasked: dict[TopicPartition, VerificationGuards] = {}
    for tp, produced in batches:
        transactional = [header for _, header in produced.batches if header.is_transactional]
        if not transactional:
            continue
        first = transactional[0]
        partition = services.replicas.roles.partitions.get(tp)
        if partition is None or not partition.is_leader:
            guard = VerificationGuard(producer_id, epoch, first.base_sequence, adds)
            unasked[tp] = {producer_id: guard}
            continue
        begun = partition.log.begin_verification(producer_id, epoch, first.base_sequence, adds=adds)
        if begun is not None:
            guards[tp] = {producer_id: begun}
    return guards, unasked


def _unconfirmed(request: ApiRequest, error: ErrorCode) -> ApiError:
    """The error for a producer whose transaction was not confirmed, as the versions of its protocol know it.

    Kafka's producers retry NOT_ENOUGH_REPLICAS, but not the errors of coordinators; from version 12 on they
    know CONCURRENT_TRANSACTIONS.
    """
    is_native = request.api_version is None
    if error is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif error is ErrorCode.TRANSACTION_ABORTABLE and not request.is_since(_KNOWS_ABORTABLE_SINCE):
        code = ErrorCode.INVALID_TXN_STATE
    elif error is ErrorCode.CONCURRENT_TRANSACTIONS and request.is_since(_ADDS_PARTITIONS_SINCE):
        code = error
    elif error is ErrorCode.OPERATION_NOT_ATTEMPTED or (error in wire.NOT_YET_CONFIRMED and not is_native):
        code = ErrorCode.NOT_ENOUGH_REPLICAS
    else:
        code = error
    return api_error(code, f"the coordinator did not confirm the partition's transaction: {error.name}")


# The request


def _writable(services: Services, authorizer: Authorizer, request: ApiRequest) -> Container[str] | None:
    """The topics of the request that the principal may write to; None for all."""
    topics = request.body.topic_data
    known = authorizer.known_topics(request.raw.peer.session, Operation.WRITE)
    if known is None or known.issuperset(map(_name_of, topics)):
        return None
    return permitted(services, request, Operation.WRITE, ResourceType.TOPIC, map(_name_of, topics))


def _has_many_batches(body: wire.ProduceRequest) -> bool:
    left = MAX_ON_NETWORK_THREAD
    for topic in body.topic_data:
        for data in topic.partition_data:
            if isinstance(data.records, memoryview):
                left -= count_batches(data.records, left + 1)
    return left < 0


def _checked(
    services: Services, acks: int, api_version: int | None, tp: TopicPartition, records: Any
) -> ProducedBatches:
    """A partition's batches, checked against the rules that hold for every topic. Raises ApiError.

    Kafka's own clients send one batch per partition; ours may send several in one go.
    """
    if acks not in _ACKS:
        raise api_error(ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {acks}; expected 0, 1 or -1 (all)")
    if tp.topic in INTERNAL_TOPICS:
        raise api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only brokers write {tp.topic}")
    if api_version is not None and api_version < _FIRST_SERVED:
        # ApiVersions names older versions too: librdkafka takes a higher minimum for a lack of compression.
        raise api_error(ErrorCode.UNSUPPORTED_VERSION, f"Produce is served from version {_FIRST_SERVED} on")
    most = MAX_PRODUCED_BATCHES if api_version is None else 1
    try:
        produced = parse_produced(records if isinstance(records, memoryview) else _EMPTY, most)
    except ApiError:
        # As in Kafka, an unknown partition is reported first.
        services.replicas.partition(tp)
        raise
    if api_version is None:
        return produced
    header = produced.batches[0][1]
    if api_version < _FIRST_WITH_ZSTD and header.attributes & COMPRESSION_MASK == Compression.ZSTD:
        raise api_error(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce version {_FIRST_WITH_ZSTD} or later"
        )
    return produced


def _response(
    services: Services,
    request: ApiRequest,
    tps: list[TopicPartition],
    responses: list[wire.PartitionProduceResponse],
) -> wire.ProduceResponse:
    topics: dict[str, wire.TopicProduceResponse] = {}
    for tp, response in zip(tps, responses, strict=True):
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = wire.TopicProduceResponse(name=tp.topic, partition_responses=[])
        topic.partition_responses.append(response)
    answer = wire.ProduceResponse(responses=list(topics.values()))
    if request.api_version is not None and request.api_version >= _FIRST_WITH_HINTS:
        hints = LeaderHints(services, request.raw.peer.listener_name)
        for tp, response in zip(tps, responses, strict=True):
            if response.error_code == _NOT_LEADER:
                response.current_leader = hints.find(tp)
        answer.node_endpoints = list(hints.endpoints.values())
    return answer
