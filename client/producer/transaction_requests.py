"""The requests of a transaction: repeated until they have an outcome, within a deadline.

A coordinator that moves or dies is looked up again. `transactions` has the errors that are retried; a
repeated EndTxn, PrepareTxn or TxnOffsetCommit has no further effect.

On the event loop of the cluster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.coordinators import CoordinatorLink
from barnabas.client.errors import TransactionOutcomeUnknown
from barnabas.client.offsets import GroupMetadata, OffsetAndMetadata
from barnabas.client.producer.sequences import ProducerIdentity
from barnabas.client.producer.transactions import (
    CONCURRENT_BACKOFF_MS,
    Api,
    Kind,
    PreparedTransaction,
    kind_of,
)
from barnabas.common.backoff import Backoff, Retries
from barnabas.protocol.errors import (
    ApiError,
    BarnabasError,
    ConnectionRefused,
    ErrorCode,
    LocalError,
    api_error,
)
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    PrepareTxnRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")
log = logging.getLogger(__name__)


class Call(NamedTuple):
    """One request: its API, its coordinator, and the last version of Kafka's protocol that it may have."""

    api: Api
    link: CoordinatorLink
    last_version: int | None = None


_SEVERITY: Final = {
    kind: place
    for place, kind in enumerate((Kind.FENCED, Kind.FATAL, Kind.ABORTABLE, Kind.REFRESH, Kind.RETRIABLE))
}


async def ask(
    call: Call,
    message: RequestOf[R],
    codes: Callable[[R], Iterable[int]],
    retries: Retries,
    at_most_ms: int,
    *,
    unanswered: Callable[[], None] = lambda: None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> R:
    """Repeat a request until its answer has no error. An error that is not retriable is raised.

    After the deadline, or when the answer is not wanted any more, the last error is raised. ``unanswered`` is
    called if the request may have been carried out without an answer.
    """
    api, link = call.api, call.link
    while True:
        try:
            answer = await link.ask(
                message, timeout_ms=retries.left_ms(at_most_ms), last_version=call.last_version
            )
            errors = [
                api_error(code, f"{api.value} of {_subject(message)}{_hint(message, code)}")
                for code in codes(answer)
                if code != ErrorCode.NONE
            ]
            if not errors:
                return answer
            error: BarnabasError = min(errors, key=lambda error: _SEVERITY[kind_of(api, error)])
        except ApiError as refused:
            error = refused
        except LocalError as lost:
            error = lost
            if not isinstance(lost, ConnectionRefused):
                unanswered()
        kind = kind_of(api, error)
        if kind is Kind.REFRESH:
            link.forget()
        if kind not in (Kind.REFRESH, Kind.RETRIABLE) or not is_wanted():
            raise error
        log.debug("%s will be repeated: %s", api.value, error)
        await retries.wait_after(error)


def _subject(message: Any) -> str:
    """The transactional id of a request, for errors."""
    transactional_id = getattr(message, "transactional_id", "") or message.v3_and_below_transactional_id
    return f"transactional id {transactional_id!r}"


def _hint(message: Any, code: int) -> str:
    """The setting that refuses this request, as far as its error tells."""
    is_of_prepared = isinstance(message, PrepareTxnRequest) or getattr(message, "keep_prepared_txn", False)
    if is_of_prepared and code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return "; expected transaction.two.phase.commit.enable=true in the brokers"
    return ""


def make_retries(config: ClientConfig, limit_ms: int) -> Retries:
    return Retries(
        Backoff(CONCURRENT_BACKOFF_MS, max(CONCURRENT_BACKOFF_MS, config.retry_backoff_ms)), limit_ms / 1000
    )


async def end_txn(
    call: Call,
    target: PreparedTransaction,
    retries: Retries,
    at_most_ms: int,
    *,
    committed: bool,
    unanswered: Callable[[], None] = lambda: None,
) -> EndTxnResponse:
    """Raises as `ask`, but TransactionOutcomeUnknown after the deadline."""
    request = EndTxnRequest(
        transactional_id=target.transactional_id,
        producer_id=target.producer_id,
        producer_epoch=target.epoch,
        committed=committed,
    )
    try:
        return await ask(call, request, code_of, retries, at_most_ms, unanswered=unanswered)
    except BarnabasError as error:
        raise unless_unknown(call.api, error, target.transactional_id) from error


def unless_unknown(api: Api, error: BarnabasError, transactional_id: str) -> BarnabasError:
    """The error of a call: a retriable one, after the deadline, leaves the outcome unknown."""
    if kind_of(api, error) not in (Kind.RETRIABLE, Kind.REFRESH):
        return error
    return TransactionOutcomeUnknown(
        f"the coordinator of transactional id {transactional_id!r} did not answer {api.value} in time; "
        f"call again for the outcome: {error}"
    )


def code_of(answer: Any) -> list[int]:
    return [answer.error_code]


async def complete_prepared(
    cluster: Cluster, prepared: PreparedTransaction, *, commit: bool, timeout_ms: int
) -> None:
    """Commit or abort a prepared transaction, of any process; a repeated call has no further effect.

    Raises TransactionOutcomeUnknown, PRODUCER_FENCED if another producer has ended it, INVALID_TXN_STATE if
    it has the other outcome.
    """
    config = cluster.config
    link = CoordinatorLink(cluster, CoordinatorType.TRANSACTION, prepared.transactional_id)
    await end_txn(
        Call(Api.END_TXN, link),
        prepared,
        make_retries(config, timeout_ms),
        config.request_timeout_ms,
        committed=commit,
    )


def add_partitions(
    transactional_id: str, identity: ProducerIdentity, partitions: Iterable[TopicPartition]
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=identity.producer_id,
        v3_and_below_producer_epoch=identity.epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in by_topic((tp, tp.partition) for tp in partitions).items()
        ],
    )


def commit_offsets(
    transactional_id: str,
    identity: ProducerIdentity,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    group: GroupMetadata,
) -> TxnOffsetCommitRequest:
    entries = by_topic(
        (
            tp,
            TxnOffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=to_commit.offset,
                committed_leader_epoch=to_commit.leader_epoch,
                committed_metadata=to_commit.metadata,
            ),
        )
        for tp, to_commit in offsets.items()
    )
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
            for name, partitions in entries.items()
        ],
    )


def codes_of_added(answer: AddPartitionsToTxnResponse) -> list[int]:
    return [
        result.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for result in topic.results_by_partition
    ]


def codes_of_offsets(answer: TxnOffsetCommitResponse) -> list[int]:
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]
