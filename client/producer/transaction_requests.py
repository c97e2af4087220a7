"""The requests of a transaction: repeated until they have an outcome, within a deadline.

A coordinator that moves or dies is looked up again. `reactions` has the errors that are retried; a
repeated EndTxn, PrepareTxn or TxnOffsetCommit has no further effect.

On the event loop of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from barnabas.client.ask import ToCoordinator, ask
from barnabas.client.cluster import Cluster
from barnabas.client.config import ClientConfig
from barnabas.client.coordinators import CoordinatorLink
from barnabas.client.errors import TransactionOutcomeUnknown
from barnabas.client.offsets import GroupMetadata, OffsetAndMetadata
from barnabas.client.producer.sequences import ProducerIdentity
from barnabas.client.producer.transactions import CONCURRENT_BACKOFF_MS, PreparedTransaction
from barnabas.client.reactions import REPEATED, Api, reaction_to
from barnabas.common.backoff import Backoff, Retries
from barnabas.protocol.errors import BarnabasError, ErrorCode
from barnabas.protocol.ids import TopicPartition, by_topic
from barnabas.protocol.messages.find_coordinator import CoordinatorType
from barnabas.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")


async def ask_coordinator(
    api: Api,
    link: CoordinatorLink,
    message: RequestOf[R],
    retries: Retries,
    *,
    transactional_id: str,
    last_version: int | None = None,
    unanswered: Callable[[], None] = lambda: None,
    is_wanted: Callable[[], bool] = lambda: True,
    concerns_prepared: bool = False,
) -> R:
    """Repeat a request as `ToCoordinator` says. ``concerns_prepared``: brokers must allow to prepare."""

    def subject(code: int) -> str:
        text = f"{api.value} of transactional id {transactional_id!r}"
        if concerns_prepared and code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            text += "; expected transaction.two.phase.commit.enable=true in the brokers"
        return text

    route = ToCoordinator(
        link, api, subject, last_version=last_version, unanswered=unanswered, is_wanted=is_wanted
    )
    return (await ask(route, message, retries)).response


def make_retries(config: ClientConfig, limit_ms: int) -> Retries:
    return Retries(
        Backoff(CONCURRENT_BACKOFF_MS, max(CONCURRENT_BACKOFF_MS, config.retry_backoff_ms)), limit_ms / 1000
    )


async def end_txn(
    link: CoordinatorLink,
    target: PreparedTransaction,
    retries: Retries,
    *,
    committed: bool,
    last_version: int | None = None,
    unanswered: Callable[[], None] = lambda: None,
) -> EndTxnResponse:
    """Raises as `ask_coordinator`, but TransactionOutcomeUnknown after the deadline."""
    request = EndTxnRequest(
        transactional_id=target.transactional_id,
        producer_id=target.producer_id,
        producer_epoch=target.epoch,
        committed=committed,
    )
    try:
        return await ask_coordinator(
            Api.END_TXN,
            link,
            request,
            retries,
            transactional_id=target.transactional_id,
            last_version=last_version,
            unanswered=unanswered,
        )
    except BarnabasError as error:
        raise unless_unknown(Api.END_TXN, error, target.transactional_id) from error


def unless_unknown(api: Api, error: BarnabasError, transactional_id: str) -> BarnabasError:
    """The error of a call: a retriable one, after the deadline, leaves the outcome unknown."""
    if reaction_to(api, error) not in REPEATED:
        return error
    return TransactionOutcomeUnknown(
        f"the coordinator of transactional id {transactional_id!r} did not answer {api.value} in time; "
        f"call again for the outcome: {error}"
    )


async def complete_prepared(
    cluster: Cluster, prepared: PreparedTransaction, *, commit: bool, timeout_ms: int
) -> None:
    """Commit or abort a prepared transaction, of any process; a repeated call has no further effect.

    Raises TransactionOutcomeUnknown, PRODUCER_FENCED if another producer has ended it, INVALID_TXN_STATE if
    it has the other outcome.
    """
    link = CoordinatorLink(cluster, CoordinatorType.TRANSACTION, prepared.transactional_id)
    await end_txn(link, prepared, make_retries(cluster.config, timeout_ms), committed=commit)


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
