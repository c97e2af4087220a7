"""OffsetCommit, OffsetFetch and OffsetDelete.

A commit is answered when its record is replicated. Unknown partitions are refused one by one; the others are
committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from barnabas.broker.coordinators.group import Group
from barnabas.broker.coordinators.group_effects import Commit, CommitResponse, Effects, Moment, removal_error
from barnabas.broker.coordinators.group_records import OffsetAndMetadata
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.groups import shard_of
from barnabas.broker.handlers.offsets_topic_wait import when_there
from barnabas.broker.handlers.services import Services
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import LeaderEpoch, TopicPartition
from barnabas.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)

_SEVERAL_GROUPS_SINCE: Final = 8
_ERROR_OF_GROUP_SINCE: Final = 2
_AS_THE_BROKER_SAYS: Final = -1
"""As ``retention_time_ms``."""


def _is_known(services: Services, name: TopicPartition) -> bool:
    return name.partition in services.metadata.current.partitions_of(name.topic)


# Committing


def handle_commit(services: Services, request: ApiRequest) -> None:
    body: OffsetCommitRequest = request.body
    names = [
        TopicPartition(topic.name, partition.partition_index)
        for topic in body.topics
        for partition in topic.partitions
    ]
    unknown = {name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for name in names if not _is_known(services, name)}

    @request.answering
    def answer(found: CommitResponse) -> None:
        request.respond(_commit_response(body, {**found, **unknown}))

    def commit(group: Group, now: Moment) -> Effects:
        asked = Commit(
            _offsets(services, body, unknown, now.wall_ms),
            body.member_id,
            body.group_instance_id,
            body.generation_id_or_member_epoch,
        )
        return group.commit(asked, answer, now)

    try:
        shard = services.groups.shard_of(body.group_id)
        # Only who stores offsets and has no members may begin a group by a commit.
        is_outsider = body.generation_id_or_member_epoch < 0
        if len(unknown) == len(names):
            answer({})
        elif not shard.apply(body.group_id, commit, create=is_outsider):
            answer(dict.fromkeys(names, ErrorCode.ILLEGAL_GENERATION))
    except ApiError as error:
        answer(dict.fromkeys(names, error.code))


def _offsets(
    services: Services, body: OffsetCommitRequest, unknown: Mapping[TopicPartition, ErrorCode], now_ms: int
) -> dict[TopicPartition, OffsetAndMetadata]:
    kept_ms = body.retention_time_ms
    expires_ms = None if kept_ms == _AS_THE_BROKER_SAYS else now_ms + kept_ms
    found = {}
    known = services.metadata.current.topics
    for topic in body.topics:
        topic_id = known[topic.name].topic_id if topic.name in known else None
        for partition in topic.partitions:
            name = TopicPartition(topic.name, partition.partition_index)
            if name not in unknown:
                found[name] = OffsetAndMetadata(
                    committed_offset=partition.committed_offset,
                    commit_timestamp_ms=now_ms,
                    leader_epoch=LeaderEpoch(partition.committed_leader_epoch),
                    metadata=partition.committed_metadata or "",
                    expire_timestamp_ms=expires_ms,
                    topic_id=topic_id,
                )
    return found


def _commit_response(body: OffsetCommitRequest, found: Mapping[TopicPartition, int]) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=found[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )


# Fetching


def handle_fetch(services: Services, request: ApiRequest) -> None:
    when_there(services, request.answering(lambda: _answer_fetch(services, request)))


def _answer_fetch(services: Services, request: ApiRequest) -> None:
    body: OffsetFetchRequest = request.body
    version = request.api_version
    if version is None or version >= _SEVERAL_GROUPS_SINCE:
        # Each once, by what is asked of it last, or few bytes could ask for gigabytes.
        asked_of = {group.group_id: group for group in body.groups}
        groups = [_fetch(services, group, body.require_stable) for group in asked_of.values()]
        request.respond(OffsetFetchResponse(groups=groups))
        return
    asked = OffsetFetchRequestGroup(group_id=body.group_id, topics=body.topics)
    found = _fetch(services, asked, body.require_stable)
    if version < _ERROR_OF_GROUP_SINCE and found.error_code:
        found.topics = _nothing(body.topics or [], found.error_code)
    request.respond(OffsetFetchResponse(topics=found.topics, error_code=found.error_code))


def _fetch(
    services: Services, asked: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    names = None
    if asked.topics is not None:
        names = [
            TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partition_indexes
        ]
    try:
        shard = services.groups.shard_of(asked.group_id)
        found = shard.read(asked.group_id, lambda group, now: group.fetch(names, require_stable))
    except ApiError as error:
        return OffsetFetchResponseGroup(group_id=asked.group_id, error_code=error.code)
    if found is None:
        return OffsetFetchResponseGroup(group_id=asked.group_id, topics=_nothing(asked.topics or [], 0))
    topics: dict[str, list[OffsetFetchResponsePartition]] = {}
    for name, partition in found.items():
        topics.setdefault(name.topic, []).append(partition)
    return OffsetFetchResponseGroup(
        group_id=asked.group_id,
        topics=[OffsetFetchResponseTopic(name=name, partitions=each) for name, each in topics.items()],
    )


def _nothing(asked: list[OffsetFetchRequestTopic], code: int) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(partition_index=index, error_code=code)
                for index in topic.partition_indexes
            ],
        )
        for topic in asked
    ]


# Deleting


def handle_delete(services: Services, request: ApiRequest) -> None:
    """Answered when the tombstones are replicated, or have failed."""
    body: OffsetDeleteRequest = request.body
    outcome: dict[TopicPartition, int] = {}
    wanted = []
    for topic in body.topics:
        for partition in topic.partitions:
            name = TopicPartition(topic.name, partition.partition_index)
            if _is_known(services, name):
                wanted.append(name)
            else:
                outcome[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    refusal = [ErrorCode.NONE]

    def delete(group: Group, now: Moment) -> Effects:
        deletion = group.delete_offsets(wanted, now)
        refusal[0] = deletion.error
        outcome.update(deletion.partitions)
        return deletion.effects

    @request.answering
    def removed(error: ErrorCode) -> None:
        if refusal[0] != ErrorCode.NONE:
            request.respond(OffsetDeleteResponse(error_code=refusal[0]))
            return
        if error != ErrorCode.NONE:
            deleted = [name for name in wanted if outcome[name] == ErrorCode.NONE]
            outcome.update(dict.fromkeys(deleted, removal_error(error)))
        request.respond(_delete_response(outcome))

    try:
        shard = shard_of(services, body.group_id)
        if not shard.apply(body.group_id, delete, create=False, removed=removed):
            request.respond(OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND))
    except ApiError as error:
        request.respond(OffsetDeleteResponse(error_code=error.code))


def _delete_response(outcome: Mapping[TopicPartition, int]) -> OffsetDeleteResponse:
    topics: dict[str, list[OffsetDeleteResponsePartition]] = {}
    for name, code in outcome.items():
        topics.setdefault(name.topic, []).append(
            OffsetDeleteResponsePartition(partition_index=name.partition, error_code=code)
        )
    return OffsetDeleteResponse(
        topics=[OffsetDeleteResponseTopic(name=name, partitions=each) for name, each in topics.items()]
    )
