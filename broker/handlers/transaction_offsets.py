"""TxnOffsetCommit: offsets that become valid when the producer's transaction is committed.

The transaction must be ongoing in the group's partition of the offsets topic, or confirmed by its
coordinator before the records are appended (KIP-890). For producers of Kafka's version 5 and of the native
protocol, the coordinator adds the partition to the transaction. A commit is answered when its record is
replicated. Unknown partitions are refused one by one; the others are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from barnabas.broker.coordinators.groups.effects import Commit, CommitResponse, Effects, commit_error
from barnabas.broker.coordinators.groups.group import Group
from barnabas.broker.coordinators.state_machine import Moment, TransactionalProducer
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.offsets import offsets_to_commit, partitions_to_commit
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_KNOWS_LOADING_SINCE: Final = 2
"""Older producers fail at COORDINATOR_LOAD_IN_PROGRESS."""
_KNOWS_ABORTABLE_SINCE: Final = 4
_ADDS_PARTITION_SINCE: Final = 5


def handle(services: Services, request: ApiRequest) -> None:
    body: TxnOffsetCommitRequest = request.body
    names, unknown = partitions_to_commit(services, body.topics)

    @request.answering
    def answer(outcome: CommitResponse) -> None:
        request.respond(_response(request, {**outcome, **unknown}))

    def refuse(error: ErrorCode) -> None:
        answer(dict.fromkeys(names, error))

    def commit(producer: TransactionalProducer) -> None:
        def event(group: Group, now: Moment) -> Effects:
            offsets = offsets_to_commit(services, body.topics, unknown, now.wall_ms)
            member = body.member_id, body.group_instance_id, body.generation_id
            return group.commit(Commit(offsets, *member, producer), answer, now)

        try:
            # The coordinator of the group may have moved meanwhile.
            shard = services.groups.shard_of(body.group_id)
            # A member of a generation is unknown where there is no group.
            if not shard.apply(body.group_id, event, create=body.generation_id < 0):
                refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        except ApiError as error:
            refuse(error.code)

    if not body.group_id:
        refuse(ErrorCode.INVALID_GROUP_ID)
        return
    try:
        partition = services.groups.shard_of(body.group_id).partition
    except ApiError as error:
        refuse(error.code)
        return
    if len(unknown) == len(names):
        answer({})
    else:
        _when_confirmed(services, request, partition, commit, refuse)


def _when_confirmed(
    services: Services,
    request: ApiRequest,
    partition: TopicPartition,
    commit: Callable[[TransactionalProducer], None],
    refuse: Callable[[ErrorCode], None],
) -> None:
    """Commit on a worker when the transaction is confirmed; the answer may come on a thread of the links."""
    body: TxnOffsetCommitRequest = request.body
    raw = request.raw
    outcome = ErrorCode.NONE, TransactionalProducer(body.producer_id, body.producer_epoch)

    def confirmed(error: ErrorCode, producer: TransactionalProducer) -> None:
        nonlocal outcome
        outcome = error, producer
        raw.resume()

    def proceed() -> None:
        error, producer = outcome
        if error is ErrorCode.NONE:
            commit(producer)
        else:
            refuse(_refusal(request, error))

    raw.pause(proceed)
    try:
        adds = request.is_since(_ADDS_PARTITION_SINCE)
        services.verification.confirm_append(partition, body.transactional_id, outcome[1], adds, confirmed)
    except ApiError as error:
        confirmed(error.code, outcome[1])


def _refusal(request: ApiRequest, error: ErrorCode) -> ErrorCode:
    """The answer to a commit whose transaction was not confirmed."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and not request.is_since(_KNOWS_ABORTABLE_SINCE):
        return ErrorCode.INVALID_TXN_STATE
    return commit_error(error)


def _response(request: ApiRequest, outcome: Mapping[TopicPartition, ErrorCode]) -> TxnOffsetCommitResponse:
    def code(name: TopicPartition) -> int:
        error = outcome[name]
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and not request.is_since(_KNOWS_LOADING_SINCE):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return error

    body: TxnOffsetCommitRequest = request.body
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=code(TopicPartition(topic.name, partition.partition_index)),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )
