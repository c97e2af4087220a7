"""Asks the coordinators of transactions, before a leader appends to one that is new in its log (KIP-890).

Records of a transaction that its coordinator does not know would never get a marker: their partition would
hide all later records from readers of committed ones. So the coordinator either confirms that the partition
was added to the transaction (Kafka's clients of Produce 11 and before), or adds it now (later ones and the
native protocol). The log's guard makes sure that the transaction has not ended between the answer and the
append.

A coordinator in this process is asked directly, another broker by AddPartitionsToTxn. Up to
`MAX_IN_FLIGHT` requests to a broker are in flight; further questions go into one request when the first of
them is answered. Nothing is sent twice: after an error the client tries again, and finds the coordinator of
that moment.

Any thread. No call waits. Each answer is given once: at once, or later on a thread of a coordinator or of the
links, without a lock; within `TIMEOUT_MS`, unless this broker is the coordinator and is fenced: then when it
is no longer fenced, or another broker leads.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from barnabas.broker.base.contained import contained
from barnabas.broker.coordinators.broker_links import BrokerLinks, Window
from barnabas.broker.coordinators.state_machine import TransactionalProducer
from barnabas.broker.coordinators.transactions.requests import (
    LOADING_WAIT_MS,
    WAIT_MS,
    AddPartitions,
    Request,
)
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.protocol.errors import ApiError, ErrorCode, LocalError, known_code
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages import transactions as wire
from barnabas.protocol.partition_entries import entries, numbers_in_topics
from barnabas.protocol.schema import MAX_INNER_ELEMENTS

logger = logging.getLogger(__name__)

VERIFICATION: Final = "transaction.partition.verification.enable"
"""The dynamic setting. Without it, partitions are added to transactions and not verified."""
TIMEOUT_MS: Final = LOADING_WAIT_MS + WAIT_MS + 1_000
"""The limit for another broker, whose coordinator may wait until it has loaded the id, and then for the end
of the former transaction."""
MAX_IN_FLIGHT: Final = 16
MAX_WAITING: Final = 10_000
"""The questions to one broker that wait to be sent."""
_MAX_BATCH_LENGTH: Final = MAX_INNER_ELEMENTS // 2
"""Of the questions in one request; a character takes at most 4 bytes."""
_RETRIABLE: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE


Outcome = Mapping[TopicPartition, ErrorCode]
"""An error or NONE for each partition of a question."""
Answer = Callable[[Outcome], None]


class _Question(NamedTuple):
    transactional_id: str
    request: AddPartitions
    answer: Answer


class TransactionVerification:
    """``coordinator_of`` finds the coordinator of a transactional id; it raises COORDINATOR_NOT_AVAILABLE.

    ``ask_own`` is `TransactionCoordinator.apply`; ``is_enabled`` is the value of `VERIFICATION`.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        replicas: ReplicaManager,
        *,
        coordinator_of: Callable[[str], BrokerId],
        ask_own: Callable[[str, Request, Callable[[Any], None]], None],
        links: BrokerLinks,
        is_enabled: bool,
    ) -> None:
        self.is_enabled = is_enabled
        self._broker_id = broker_id
        self._replicas = replicas
        self._coordinator_of = coordinator_of
        self._ask_own = ask_own
        self._window = Window(
            links,
            max_in_flight=MAX_IN_FLIGHT,
            take=_next_batch,
            make_request=_make_request,
            answered=_answered,
            max_waiting=MAX_WAITING,
            timeout_ms=TIMEOUT_MS,
        )

    def confirm(self, transactional_id: str, request: AddPartitions, answer: Answer) -> None:
        """Ask the coordinator. If it is not available, that is the outcome of all partitions."""

        def answered(outcome: ErrorCode | Outcome) -> None:
            answer(dict.fromkeys(request.partitions, outcome) if isinstance(outcome, ErrorCode) else outcome)

        try:
            coordinator = self._coordinator_of(transactional_id)
        except ApiError as error:
            answered(error.code)
            return
        if coordinator == self._broker_id:
            self._ask_own(transactional_id, request, answered)
        elif not self._window.put(coordinator, _Question(transactional_id, request, answer)):
            answered(_RETRIABLE)

    def confirm_append(
        self,
        partition: TopicPartition,
        transactional_id: str,
        producer: TransactionalProducer,
        adds: bool,
        answer: Callable[[ErrorCode, TransactionalProducer], None],
    ) -> None:
        """Prepare an append of this broker to a partition that it leads.

        The answer has the producer with its guard, if the transaction is new there. Raises as
        `ReplicaManager.partition`.
        """
        log = self._replicas.partition(partition).log
        guard = log.begin_verification(producer.producer_id, producer.epoch, adds=adds)
        guarded = producer._replace(guard=guard)
        if guard is None or not self.asks(adds):
            answer(ErrorCode.NONE, guarded)
            return
        request = AddPartitions(producer.producer_id, producer.epoch, frozenset([partition]), not adds)
        self.confirm(transactional_id, request, lambda outcome: answer(outcome[partition], guarded))

    def asks(self, adds: bool) -> bool:
        """Whether coordinators are asked at all."""
        return adds or self.is_enabled


def _next_batch(waiting: deque[_Question]) -> list[_Question]:
    """All that waits, up to the second question about one transactional id: the answers go by the id.

    A batch that could not be encoded would fail the questions of others. One question came in a request, so
    it fits alone.
    """
    batch: list[_Question] = []
    ids: set[str] = set()
    length = 0
    while waiting and waiting[0].transactional_id not in ids:
        length += _length(waiting[0])
        if batch and length > _MAX_BATCH_LENGTH:
            break
        batch.append(waiting.popleft())
        ids.add(batch[-1].transactional_id)
    return batch


def _length(question: _Question) -> int:
    """At least the characters of its names and the number of its partitions."""
    return len(question.transactional_id) + sum(len(name.topic) + 1 for name in question.request.partitions)


def _make_request(batch: Sequence[_Question]) -> wire.AddPartitionsToTxnRequest:
    return wire.AddPartitionsToTxnRequest(
        transactions=[
            wire.AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                verify_only=request.verify_only,
                topics=numbers_in_topics(wire.AddPartitionsToTxnTopic, sorted(request.partitions)),
            )
            for transactional_id, request, _ in batch
        ]
    )


def _answered(
    broker_id: BrokerId, batch: Sequence[_Question], response: wire.AddPartitionsToTxnResponse | LocalError
) -> None:
    """Give each question its outcome; a partition without a result counts as not confirmed."""
    codes: dict[str, dict[TopicPartition, ErrorCode]] = {}
    missing = _RETRIABLE
    if isinstance(response, LocalError):
        logger.info("transactions could not be confirmed by broker %d: %s", broker_id, response)
    else:
        missing = known_code(response.error_code) or _RETRIABLE
        codes = {
            result.transactional_id: {
                tp: known_code(partition.partition_error_code)
                for tp, partition in entries(result.topic_results)
            }
            for result in response.results_by_transaction
        }
    for transactional_id, request, answer in batch:
        by_partition = codes.get(transactional_id, {})
        outcome = {name: by_partition.get(name, missing) for name in request.partitions}
        failure = f"{request} of {transactional_id!r} was answered, but its request failed"
        contained(failure, answer, outcome)
