"""Requests of groups for the handlers of a broker, and their answers."""

import uuid

from barnabas.broker.coordinators.groups.records import (
    Record,
    from_bytes,
)
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from barnabas.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import decode_records
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.building import LIVE, NONE, led_by, metadata, state
from tests.support.grouping import run_once
from tests.support.serving import Connection, Serving

OFFSETS_ID = uuid.UUID(int=50)
PARTITION = TopicPartition(OFFSETS_TOPIC, 0)


def learn(serving: Serving, leader: int = 1) -> None:
    """The brokers and the topics "topic" (two partitions) and "other" become known."""
    update = serving.managed.metadata.update
    update(
        metadata(LIVE, led_by(1), led_by(1, index=1), is_full=not serving.managed.metadata.current.updates)
    )
    update(metadata(LIVE, led_by(1), topic="other", topic_id=uuid.UUID(int=9)))
    update(metadata(LIVE, led_by(leader), topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID))


def work(serving: Serving) -> None:
    """Do all work of the coordinator's thread."""
    while run_once(serving.groups):
        pass


def lead(serving: Serving, *, epoch: int = 0, leader: int = 1, isr: tuple[int, ...] = (1,)) -> None:
    """Set the leader of the only partition of the offsets topic."""
    partition_state = state(leader=leader, epoch=epoch, isr=isr)
    assert serving.managed.tell(partition_state, topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID) == []


def find(*groups: str, key_type: int = 0) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(coordinator_keys=list(groups), key_type=key_type)


def join(
    group: str = "g",
    member: str = "",
    *,
    instance: str | None = None,
    protocol_type: str = "consumer",
    session_timeout_ms: int = 10_000,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=60_000,
        member_id=member,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"sub")],
    )


def sync(joined: JoinGroupResponse, **given: bytes) -> SyncGroupRequest:
    assignments = [
        SyncGroupRequestAssignment(member_id=name, assignment=data) for name, data in given.items()
    ]
    return SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=assignments,
    )


def heartbeat(joined: JoinGroupResponse) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)


def become_member(serving: Serving, group: str = "g") -> JoinGroupResponse:
    """The only member of a stable group: initial delay, generation, assignment."""
    first = serving.call(join(group))
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    connection = serving.send(join(group, first.member_id))
    serving.managed.pass_time(3_000)
    joined: JoinGroupResponse = connection.response
    assert (joined.error_code, joined.leader) == (NONE, joined.member_id)
    request = sync(joined, **{joined.member_id: b"all"})
    request.group_id = group
    assert serving.call(request).assignment == b"all"
    return joined


def commit(
    offset: int = 5,
    *,
    group: str = "g",
    by: JoinGroupResponse | None = None,
    topic: str = "topic",
    index: int = 0,
    metadata: str | None = "m",
) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=index, committed_offset=offset, committed_leader_epoch=2, committed_metadata=metadata
    )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1 if by is None else by.generation_id,
        member_id="" if by is None else by.member_id,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
    )


def code_of(connection: Connection) -> int:
    """The error of a commit of one partition."""
    code: int = connection.response.topics[0].partitions[0].error_code
    return code


def fetch(group: str = "g", *indexes: int, require_stable: bool = False) -> OffsetFetchRequest:
    """Fetch some partitions of "topic", or all committed ones."""
    topics = [TopicPartitionIndexes(name="topic", partition_indexes=list(indexes))] if indexes else None
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=require_stable
    )


def fetched(serving: Serving, group: str = "g", *indexes: int) -> dict[tuple[str, int], int]:
    (answer,) = serving.call(fetch(group, *indexes)).groups
    assert answer.error_code == NONE
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in answer.topics
        for partition in topic.partitions
    }


def records(serving: Serving) -> list[Record]:
    """All records of the offsets topic."""
    log = serving.managed.manager.partition(PARTITION).log
    decoded: list[Record] = []
    position = 0
    while position < log.log_end_offset:
        view = log.read(position, 1 << 20).records
        for at, header in iter_batches(view):
            position = header.next_offset
            for record in decode_records(view[at : at + header.size_bytes]):
                decoded.append(from_bytes(record.key or b"", record.value))
    return decoded


def delete_offsets(group: str, *partitions: tuple[str, int]) -> OffsetDeleteRequest:
    return OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=index)]
            )
            for topic, index in partitions
        ],
    )
