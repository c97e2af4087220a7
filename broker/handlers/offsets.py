"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete.

A commit is answered when its record is replicated. Unknown partitions are refused one by one; the others are
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Final

from barnabas.broker.coordinators.groups.group import Group
from barnabas.broker.coordinators.groups.offsets import Commit, CommitResponse, commit_error
from barnabas.broker.coordinators.groups.records import OffsetAndMetadata
from barnabas.broker.coordinators.state_machine import Moment, TransactionalProducer
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorization import check, permitted
from barnabas.broker.handlers.groups import shard_of
from barnabas.broker.handlers.known_errors import known_error, respond_code
from barnabas.broker.handlers.services import Services
from barnabas.broker.handlers.waiting import when_known
from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import NO_TOPIC_ID, LeaderEpoch, TopicPartition
from barnabas.protocol.messages import offsets as wire
from barnabas.protocol.messages.partitions import TopicPartitionIndexes, TopicResult
from barnabas.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from barnabas.protocol.partition_entries import (
    entries,
    in_topics,
    named_once,
    outcomes_in_topics,
    outcomes_per_partition,
    partitions_of,
    per_partition,
)

_SEVERAL_GROUPS_SINCE: Final = 8
_ERROR_OF_GROUP_SINCE: Final = 2
_DEFAULT_RETENTION: Final = -1
"""The ``retention_time_ms`` that leaves the retention to the broker's settings."""
_LAST_TIMESTAMP_MS: Final = (1 << 63) - 1
"""The latest time that a record of an offset can hold."""


# ---- OffsetCommit


def _unknown(services: Services, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
    """The errors of partitions that do not exist."""
    current = services.metadata.current
    return {each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for each in partitions if not current.has(each)}


def _in_other_topics(
    services: Services, topics: Iterable[wire.OffsetCommitRequestTopic]
) -> dict[TopicPartition, ErrorCode]:
    """The errors of offsets in a topic with another id than the one that has its name now."""
    existing = services.metadata.current.topics
    others = (
        topic
        for topic in topics
        if topic.name in existing and topic.topic_id not in (NO_TOPIC_ID, existing[topic.name].topic_id)
    )
    return dict.fromkeys(partitions_of(others), ErrorCode.UNKNOWN_TOPIC_ID)


def handle_commit(services: Services, request: ApiRequest) -> None:
    body: wire.OffsetCommitRequest = request.body
    partitions = named_once(body.topics)
    refused = {**_in_other_topics(services, body.topics), **_unknown(services, partitions)}

    @request.answering
    def answer(outcome: CommitResponse) -> None:
        results = outcomes_per_partition(body.topics, TopicResult, {**outcome, **refused})
        request.respond(wire.OffsetCommitResponse(topics=results))

    def commit(group: Group, now: Moment) -> None:
        expires_ms = _expiry_ms(now.wall_ms, body.retention_time_ms)
        offsets = _offsets_to_commit(services, body.topics, refused, now.wall_ms, expires_ms)
        member = body.member_id, body.group_instance_id, body.generation_id_or_member_epoch
        group.commit(Commit(offsets, *member), answer, now)

    try:
        shard = services.groups.shard_of(body.group_id)
        # Only a commit from outside may create a group: a member has joined it before.
        is_outsider = body.generation_id_or_member_epoch < 0
        if len(refused) == len(partitions):
            answer({})
        elif not shard.apply(body.group_id, commit, create=is_outsider):
            answer(dict.fromkeys(partitions, ErrorCode.ILLEGAL_GENERATION))
    except ApiError as error:
        answer(dict.fromkeys(partitions, error.code))


def _expiry_ms(now_ms: int, retention_ms: int) -> int | None:
    """When an offset expires whose client set the retention, at the latest at the last timestamp; else None.

    (In Kafka the sum overflows, so that the offset expires at once.)
    """
    return None if retention_ms == _DEFAULT_RETENTION else min(now_ms + retention_ms, _LAST_TIMESTAMP_MS)


def _offsets_to_commit(
    services: Services,
    topics: Iterable[wire.OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic],
    refused: Container[TopicPartition],
    now_ms: int,
    expires_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets of a request, but for those of ``refused`` partitions."""
    existing = services.metadata.current.topics
    return {
        tp: OffsetAndMetadata(
            committed_offset=entry.committed_offset,
            commit_timestamp_ms=now_ms,
            leader_epoch=LeaderEpoch(entry.committed_leader_epoch),
            metadata=entry.committed_metadata or "",
            expire_timestamp_ms=expires_ms,
            topic_id=existing[tp.topic].topic_id if tp.topic in existing else None,
        )
        for tp, entry in entries(topics)
        if tp not in refused
    }


# ---- OffsetFetch


def handle_fetch(services: Services, request: ApiRequest) -> None:
    topic = services.groups.topic
    when_known(services, request, topic, lambda: _answer_fetch(services, request))


def _answer_fetch(services: Services, request: ApiRequest) -> None:
    body: wire.OffsetFetchRequest = request.body
    if request.is_since(_SEVERAL_GROUPS_SINCE):
        # Each group once, by its last entry: a short request could ask for gigabytes otherwise.
        by_id = {group.group_id: group for group in body.groups}
        groups = [_fetch(services, request, group) for group in by_id.values()]
        request.respond(wire.OffsetFetchResponse(groups=groups))
        return
    entry = wire.OffsetFetchRequestGroup(group_id=body.group_id, topics=body.topics)
    fetched = _fetch(services, request, entry)
    if fetched.error_code and not request.is_since(_ERROR_OF_GROUP_SINCE):
        fetched.topics = _without_offsets(body.topics or [], fetched.error_code)
    request.respond(wire.OffsetFetchResponse(topics=fetched.topics, error_code=fetched.error_code))


def _fetch(
    services: Services, request: ApiRequest, entry: wire.OffsetFetchRequestGroup
) -> wire.OffsetFetchResponseGroup:
    """A group's offsets, if the principal may describe the group, in the topics that it may describe."""
    require_stable = request.body.require_stable
    partitions = None if entry.topics is None else partitions_of(entry.topics)
    try:
        check(services, request, Operation.DESCRIBE, ResourceType.GROUP, entry.group_id)
        shard = services.groups.shard_of(entry.group_id)
        fetched = shard.read(entry.group_id, lambda group, now: group.fetch(partitions, require_stable))
    except ApiError as error:
        return wire.OffsetFetchResponseGroup(group_id=entry.group_id, error_code=error.code)
    if fetched is None:
        topics = _without_offsets(entry.topics or [], ErrorCode.NONE)
    else:
        topics = in_topics(wire.OffsetFetchResponseTopic, fetched.items())
    return wire.OffsetFetchResponseGroup(
        group_id=entry.group_id, topics=_shown(services, request, topics, is_listing=entry.topics is None)
    )


def _shown(
    services: Services,
    request: ApiRequest,
    topics: list[wire.OffsetFetchResponseTopic],
    *,
    is_listing: bool,
) -> list[wire.OffsetFetchResponseTopic]:
    """The answer without the offsets in topics that the principal may not describe."""
    names = [topic.name for topic in topics]
    shown = permitted(
        services, request, Operation.DESCRIBE, ResourceType.TOPIC, names, logs_denied=not is_listing
    )
    for topic in topics:
        if topic.name not in shown:
            topic.partitions = [
                wire.OffsetFetchResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                )
                for partition in topic.partitions
            ]
    return [topic for topic in topics if topic.name in shown] if is_listing else topics


def _without_offsets(topics: list[TopicPartitionIndexes], code: int) -> list[wire.OffsetFetchResponseTopic]:
    def answer(tp: TopicPartition, _: int) -> wire.OffsetFetchResponsePartition:
        return wire.OffsetFetchResponsePartition(partition_index=tp.partition, error_code=code)

    return per_partition(topics, wire.OffsetFetchResponseTopic, answer)


# ---- OffsetDelete


def handle_delete(services: Services, request: ApiRequest) -> None:
    """Answered when the tombstones are replicated, or have failed."""
    body: wire.OffsetDeleteRequest = request.body
    partitions = named_once(body.topics)
    unknown = _unknown(services, partitions)
    existing = [tp for tp in partitions if tp not in unknown]

    @request.answering
    def answer(outcome: ErrorCode | dict[TopicPartition, ErrorCode]) -> None:
        if isinstance(outcome, ErrorCode):
            respond_code(request, outcome)
            return
        topics = outcomes_in_topics(TopicResult, {**unknown, **outcome})
        request.respond(wire.OffsetDeleteResponse(topics=topics))

    try:
        shard = shard_of(services, body.group_id)
        if not shard.apply(
            body.group_id, lambda group, now: group.delete_offsets(existing, answer, now), create=False
        ):
            answer(ErrorCode.GROUP_ID_NOT_FOUND)
    except ApiError as error:
        answer(error.code)


# ---- TxnOffsetCommit


_ADDS_PARTITION_SINCE: Final = 5


def handle_transaction_commit(services: Services, request: ApiRequest) -> None:
    """Commits offsets that become valid when the producer's transaction is committed.

    The transaction must be ongoing in the group's partition of the offsets topic, or confirmed by its
    coordinator before the records are appended (KIP-890). For producers of Kafka's version 5 and of the
    native protocol, the coordinator adds the partition to the transaction.
    """
    body: TxnOffsetCommitRequest = request.body
    partitions = named_once(body.topics)
    unknown = _unknown(services, partitions)

    @request.answering
    def answer(outcome: CommitResponse) -> None:
        outcomes = {each: known_error(request, error) for each, error in {**outcome, **unknown}.items()}
        results = outcomes_per_partition(body.topics, TopicResult, outcomes)
        request.respond(TxnOffsetCommitResponse(topics=results))

    def refuse(error: ErrorCode) -> None:
        answer(dict.fromkeys(partitions, error))

    def commit(producer: TransactionalProducer) -> None:
        def event(group: Group, now: Moment) -> None:
            offsets = _offsets_to_commit(services, body.topics, unknown, now.wall_ms)
            member = body.member_id, body.group_instance_id, body.generation_id
            group.commit(Commit(offsets, *member, producer), answer, now)

        try:
            # The coordinator of the group may have moved meanwhile.
            shard = services.groups.shard_of(body.group_id)
            # A member of a generation is unknown where there is no group.
            if not shard.apply(body.group_id, event, create=body.generation_id < 0):
                refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        except ApiError as error:
            refuse(error.code)

    try:
        tp = shard_of(services, body.group_id).partition
    except ApiError as error:
        refuse(error.code)
        return
    if len(unknown) == len(partitions):
        answer({})
    else:
        _when_confirmed(services, request, tp, commit, refuse)


def _when_confirmed(
    services: Services,
    request: ApiRequest,
    tp: TopicPartition,
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
            refuse(commit_error(error))

    raw.pause(proceed)
    try:
        adds = request.is_since(_ADDS_PARTITION_SINCE)
        services.verification.confirm_append(tp, body.transactional_id, outcome[1], adds, confirmed)
    except ApiError as error:
        confirmed(error.code, outcome[1])
