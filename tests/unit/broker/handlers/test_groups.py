"""Group requests through the handlers: the wire, the shards, and leadership that moves.

The rules of a group are tested in `tests/unit/broker/coordinators`.
"""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from barnabas.broker.clocks import monotonic_ms
from barnabas.broker.coordinators import group_coordinator
from barnabas.broker.coordinators.group import Group
from barnabas.broker.coordinators.group_records import (
    GroupRecord,
    OffsetAndMetadata,
    OffsetRecord,
    Record,
    from_bytes,
)
from barnabas.broker.coordinators.internal_topic import OFFSETS_TOPIC
from barnabas.broker.coordinators.led_shards import ShardState
from barnabas.broker.handlers.authorized_operations import GROUP_OPERATIONS
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.find_coordinator import CoordinatorType, FindCoordinatorRequest
from barnabas.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from barnabas.protocol.messages.inter_broker import UpdateMetadataRequest
from barnabas.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from barnabas.protocol.messages.replicas import DescribeReplicasRequest
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import decode_records
from tests.support.building import led_by, metadata, state
from tests.support.serving import EXTERNAL, INTERNAL, Connection, Serving
from tests.support.waiting import wait_for

OFFSETS_ID = uuid.UUID(int=50)
PARTITION = TopicPartition(OFFSETS_TOPIC, 0)
LIVE = {1: 0, 2: 5, 3: 5}
NONE = ErrorCode.NONE


def learn(serving: Serving, leader: int = 1) -> None:
    """The brokers and the topics "topic" (two partitions) and "other" become known."""
    update = serving.managed.metadata.update
    update(metadata(LIVE, led_by(1), led_by(1, index=1)))
    update(metadata(LIVE, led_by(1), topic="other", topic_id=uuid.UUID(int=9)))
    update(metadata(LIVE, led_by(leader), topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID))


def work(serving: Serving) -> None:
    """Do all work of the coordinator's thread."""
    while serving.groups.shards.run_once():
        pass


def expire(serving: Serving, *, after_ms: int) -> None:
    """Run the reaper for a later time, for answers that wait by the real clock."""
    serving.managed.reaper.expire_due(int(monotonic_ms()) + after_ms)


def lead(serving: Serving, *, epoch: int = 0, leader: int = 1, isr: tuple[int, ...] = (1,)) -> None:
    """Set the leader of the only partition of the offsets topic."""
    partition_state = state(leader=leader, epoch=epoch, isr=isr)
    assert serving.managed.tell(partition_state, topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID) == []


@pytest.fixture
def hosting(serving: Serving) -> Serving:
    """Broker 1 coordinates all groups."""
    serving.partitions_in_zookeeper = 1
    learn(serving)
    lead(serving)
    serving.call(find("g"))
    work(serving)
    return serving


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
    topics = [OffsetFetchRequestTopic(name="topic", partition_indexes=list(indexes))] if indexes else None
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=require_stable
    )


def fetched(serving: Serving, group: str = "g", *indexes: int) -> dict[tuple[str, int], int]:
    (found,) = serving.call(fetch(group, *indexes)).groups
    assert found.error_code == NONE
    return {
        (topic.name, one.partition_index): one.committed_offset
        for topic in found.topics
        for one in topic.partitions
    }


def records(serving: Serving) -> list[Record]:
    """All records of the offsets topic."""
    log = serving.managed.manager.partition(PARTITION).log
    found: list[Record] = []
    position = 0
    while position < log.log_end_offset:
        view = log.read(position, 1 << 20).records
        for at, header in iter_batches(view):
            position = header.next_offset
            for record in decode_records(view[at : at + header.size_bytes]):
                found.append(from_bytes(record.key or b"", record.value))
    return found


# ---- finding the coordinator


def test_groups_that_cannot_be_loaded_fail_their_partition_until_leadership_changes(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving.partitions_in_zookeeper = 1
    learn(serving)
    serving.call(find("g"))
    with monkeypatch.context() as patch:
        patch.setattr(group_coordinator, "groups_of", lambda *_: 1 / 0)
        lead(serving)
        work(serving)
    assert serving.call(join()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    answer = serving.call(DescribeReplicasRequest(topics=[OFFSETS_TOPIC]))
    assert "loading its groups: ZeroDivisionError" in answer.topics[0].replicas[0].failure
    lead(serving, epoch=1, leader=2)
    lead(serving, epoch=2)
    work(serving)
    assert serving.managed.manager.roles.failed.reasons() == {}
    assert serving.groups.shards._shards[0].state is ShardState.SERVING


@pytest.mark.parametrize("version", [None, 0, 1, 2, 3, 4])
def test_the_coordinator_is_the_leader_of_the_groups_partition(hosting: Serving, version: int | None) -> None:
    several = version is None or version >= 4
    request = find("g", "") if several else FindCoordinatorRequest(key="g")
    response = hosting.call(request, INTERNAL, version=version)
    for one in response.coordinators if several else [response]:
        assert (one.error_code, one.node_id, one.host, one.port) == (NONE, 1, "host", 9001)
    assert [one.key for one in response.coordinators] == (["g", ""] if several else [])


@pytest.mark.parametrize(
    ("key_type", "code"),
    [(CoordinatorType.TRANSACTION, ErrorCode.COORDINATOR_NOT_AVAILABLE), (7, ErrorCode.INVALID_REQUEST)],
)
def test_only_groups_have_coordinators(hosting: Serving, key_type: int, code: ErrorCode) -> None:
    (one,) = hosting.call(find("t", key_type=key_type)).coordinators
    assert (one.error_code, one.node_id, one.port) == (code, -1, -1)
    assert one.error_message


def test_the_first_request_for_a_coordinator_creates_the_topic(serving: Serving) -> None:
    serving.managed.metadata.update(metadata(LIVE, led_by(1)))
    connection = serving.send(find("g"))
    assert serving.auto_created == [[OFFSETS_TOPIC]]
    assert serving.call(join()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not connection.is_answered
    expire(serving, after_ms=3_001)
    (one,) = connection.response.coordinators
    assert one.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_requests_wait_until_the_topic_is_known(serving: Serving) -> None:
    # librdkafka's admin client asks three times within 300 ms, and then not for long.
    serving.managed.metadata.update(metadata(LIVE, led_by(1)))
    finding = serving.send(find("g"), INTERNAL)
    describing, fetching = serving.send(DescribeGroupsRequest(groups=["g"])), serving.send(fetch("g", 0))
    lead(serving)
    assert not any(connection.is_answered for connection in (finding, describing, fetching))
    all_led = [led_by(1, index=index) for index in range(50)]
    serving.managed.metadata.update(metadata(LIVE, *all_led, topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID))
    (one,) = finding.response.coordinators
    assert (one.error_code, one.node_id) == (NONE, 1)
    assert fetching.is_answered
    work(serving)
    assert describing.is_answered


def test_the_topic_waits_until_as_many_brokers_live_as_it_has_replicas(serving: Serving) -> None:
    serving.managed.metadata.update(metadata({1: 0, 2: 5}, led_by(1)))
    serving.send(find("g"))
    serving.managed.pass_time(60_000)
    connection = serving.send(find("g"))
    assert serving.auto_created == []
    expire(serving, after_ms=3_001)
    (one,) = connection.response.coordinators
    assert one.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert "offsets.topic.replication.factor is 3, alive are 2" in one.error_message
    serving.managed.metadata.update(metadata(LIVE, led_by(1)))
    serving.send(find("g"))
    assert serving.auto_created == [[OFFSETS_TOPIC]]


def test_another_number_of_partitions_is_used_when_zookeeper_confirms_it(
    serving: Serving,
) -> None:
    learn(serving)
    lead(serving)
    for in_zookeeper in (None, 50, 2):
        serving.partitions_in_zookeeper = in_zookeeper
        (one,) = serving.call(find("g")).coordinators
        assert one.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        work(serving)
    serving.partitions_in_zookeeper = 1
    serving.call(find("g"))
    work(serving)
    (one,) = serving.call(find("g"), INTERNAL).coordinators
    assert one.error_code == NONE


@pytest.mark.parametrize(("listener", "leader"), [(EXTERNAL, 1), (INTERNAL, 9)])
def test_without_a_live_leader_or_its_listener_there_is_no_coordinator(
    hosting: Serving, listener: str, leader: int
) -> None:
    learn(hosting, leader=leader)
    (one,) = hosting.call(find("g"), listener).coordinators
    assert one.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_other_brokers_groups_are_refused(hosting: Serving) -> None:
    lead(hosting, epoch=1, leader=2)
    for request in (join(), HeartbeatRequest(group_id="g", generation_id=1, member_id="m")):
        assert hosting.call(request).error_code == ErrorCode.NOT_COORDINATOR
    assert hosting.call(fetch()).groups[0].error_code == ErrorCode.NOT_COORDINATOR
    assert code_of(hosting.send(commit())) == ErrorCode.NOT_COORDINATOR


def test_a_broker_without_a_session_coordinates_nothing(hosting: Serving) -> None:
    hosting.managed.manager.fence.silent("test")
    assert hosting.call(join()).error_code == ErrorCode.NOT_COORDINATOR
    listed = hosting.call(ListGroupsRequest())
    assert (listed.error_code, listed.groups) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])


# ---- members


def test_no_session_expires_while_the_broker_is_fenced(hosting: Serving) -> None:
    joined = become_member(hosting)
    fence = hosting.managed.manager.fence
    fence.silent("no ZooKeeper")
    beat = heartbeat(joined)
    for _ in range(100):
        hosting.managed.pass_time(1_000)
        assert hosting.call(beat).error_code == ErrorCode.NOT_COORDINATOR
    fence.heard()
    hosting.managed.pass_time(9_000)
    assert hosting.call(beat).error_code == NONE
    hosting.managed.pass_time(10_001)
    assert hosting.call(beat).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_an_empty_group_expires_members_after_its_timer_met_a_fenced_broker(hosting: Serving) -> None:
    joined = become_member(hosting)
    hosting.call(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=joined.member_id)]))
    fence = hosting.managed.manager.fence
    fence.silent("no ZooKeeper")
    hosting.managed.pass_time(60_000)
    fence.heard()
    second = become_member(hosting)
    hosting.managed.pass_time(10_001)
    assert hosting.call(heartbeat(second)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_continues_when_the_broker_is_no_longer_fenced(hosting: Serving) -> None:
    first = hosting.call(join())
    waiting = hosting.send(join(member=first.member_id))
    fence = hosting.managed.manager.fence
    fence.silent("no ZooKeeper")
    hosting.managed.pass_time(60_000)
    assert not waiting.is_answered
    fence.heard()
    hosting.managed.pass_time(501)
    assert waiting.response.error_code == NONE


def test_a_group_of_one_becomes_stable_and_its_generation_is_in_the_log(hosting: Serving) -> None:
    joined = become_member(hosting)
    (stored,) = records(hosting)
    assert isinstance(stored, GroupRecord)
    assert stored.value is not None
    assert (stored.group_id, stored.value.generation) == ("g", joined.generation_id)
    (member,) = stored.value.members
    assert (member.client_id, member.client_host, member.assignment) == ("test", "/127.0.0.1", b"all")
    assert hosting.call(heartbeat(joined)).error_code == NONE


@pytest.mark.parametrize("version", range(10))
def test_every_version_joins(hosting: Serving, version: int) -> None:
    request = join()
    if version < 1:
        request.rebalance_timeout_ms = -1
    connection = hosting.send(request, version=version)
    if version >= 4:
        assert connection.response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        # Older versions have no null.
        assert connection.response.protocol_name == (None if version >= 7 else "")
        request.member_id = connection.response.member_id
        connection = hosting.send(request, version=version)
    assert not connection.is_answered
    hosting.managed.pass_time(3_000)
    assert (connection.response.error_code, connection.response.protocol_name) == (NONE, "range")


@pytest.mark.parametrize("version", range(6))
def test_every_version_leaves(hosting: Serving, version: int) -> None:
    member_id = become_member(hosting).member_id
    for expected in (NONE, ErrorCode.UNKNOWN_MEMBER_ID):
        if version < 3:
            request = LeaveGroupRequest(group_id="g", member_id=member_id)
            assert hosting.call(request, version=version).error_code == expected
        else:
            request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
            response = hosting.call(request, version=version)
            assert (response.error_code, response.members[0].error_code) == (NONE, expected)


def test_the_empty_group_id_is_refused_where_there_are_members(hosting: Serving) -> None:
    invalid = ErrorCode.INVALID_GROUP_ID
    assert hosting.call(join("")).error_code == invalid
    for request in (
        SyncGroupRequest(group_id="", generation_id=1, member_id="m"),
        HeartbeatRequest(group_id="", generation_id=1, member_id="m"),
        LeaveGroupRequest(group_id="", members=[]),
        OffsetDeleteRequest(group_id="", topics=[]),
    ):
        assert hosting.call(request).error_code == invalid
    # Old consumers committed without a group id.
    assert code_of(hosting.send(commit(group=""))) == NONE


def test_requests_for_unknown_groups_leave_no_group(hosting: Serving) -> None:
    assert hosting.call(join("x", "made up")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert hosting.call(join("x", session_timeout_ms=1)).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    beat = HeartbeatRequest(group_id="x", generation_id=1, member_id="m")
    assert hosting.call(beat).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert hosting.call(ListGroupsRequest()).groups == []
    # A pending member id is remembered until it expires.
    assert hosting.call(join("x")).error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert len(hosting.call(ListGroupsRequest()).groups) == 1
    hosting.managed.pass_time(10_001)
    assert hosting.call(ListGroupsRequest()).groups == []
    assert records(hosting) == []


def test_an_answer_that_cannot_be_encoded_affects_no_other_member(hosting: Serving) -> None:
    """A native client's name may be longer than Kafka's protocol can tell the leader."""
    leader = hosting.send(join(instance="leader"), version=5)
    other = hosting.send(join(instance="x" * 40_000))
    third = hosting.send(join(), version=3)
    for _ in range(3):
        hosting.managed.pass_time(3_000)
    assert leader.closed is not None
    assert "cannot be sent" in leader.closed
    assert other.response.error_code == NONE
    assert third.response.error_code == NONE


def test_the_longest_instance_id_gives_a_member_id_that_fits(hosting: Serving) -> None:
    joining = hosting.send(join(instance="x" * 32_767), version=9)
    hosting.managed.pass_time(3_000)
    assert joining.response.error_code == NONE


def test_a_timer_that_could_not_be_cancelled_leaves_its_successor(hosting: Serving) -> None:
    joined = become_member(hosting)
    shard = hosting.groups.shard_of("g")
    hosted = shard._groups["g"]
    before = hosted.timer
    assert before is not None
    # It expires while a request holds the group's lock and replaces it.
    hosted.lock.acquire()
    expiring = threading.Thread(target=before.expire)
    expiring.start()
    try:
        wait_for(lambda: before.is_completed)
        hosted.group._members.extend_session(hosted.group._members[joined.member_id], 1.0)
        shard._set_timer(hosted)
        after = hosted.timer
        assert after is not before
    finally:
        hosted.lock.release()
        expiring.join()
    assert hosted.timer is after


# ---- offsets


@pytest.mark.parametrize("version", [None, *range(1, 9)])
def test_every_version_commits_and_fetches(hosting: Serving, version: int | None) -> None:
    assert code_of(hosting.send(commit(7), version=None if version is None else max(version, 2))) == NONE
    epoch = 2 if version is None or version >= 6 else -1
    value = OffsetAndMetadata(7, hosting.wall_ms, epoch, "m")
    assert records(hosting) == [OffsetRecord("g", TopicPartition("topic", 0), value)]
    has_groups = version is None or version >= 8
    topics = [OffsetFetchRequestTopic(name="topic", partition_indexes=[0, 1])]
    for entry, expected in [(topics, [(0, 7, "m"), (1, -1, "")]), (None, [(0, 7, "m")])]:
        if entry is None and version == 1:
            continue
        group = OffsetFetchRequestGroup(group_id="g", topics=entry)
        request = (
            OffsetFetchRequest(groups=[group])
            if has_groups
            else OffsetFetchRequest(group_id="g", topics=entry)
        )
        response = hosting.call(request, version=version)
        (topic,) = response.groups[0].topics if has_groups else response.topics
        assert [(p.partition_index, p.committed_offset, p.metadata) for p in topic.partitions] == expected
        assert topic.partitions[0].committed_leader_epoch == epoch


def test_a_group_that_a_request_names_twice_is_answered_once(hosting: Serving) -> None:
    hosting.send(commit(7))
    entries = fetch("g", 0).groups + fetch("other").groups + fetch("g").groups
    groups = hosting.call(OffsetFetchRequest(groups=entries), version=8).groups
    assert [group.group_id for group in groups] == ["g", "other"]
    assert groups[0].topics[0].partitions[0].committed_offset == 7
    described = hosting.call(DescribeGroupsRequest(groups=["g", "other", "g"]), version=5).groups
    assert [group.group_id for group in described] == ["g", "other"]


def test_the_oldest_version_has_an_error_for_each_partition(hosting: Serving) -> None:
    lead(hosting, epoch=1, leader=2)
    topics = [OffsetFetchRequestTopic(name="topic", partition_indexes=[0, 1])]
    (topic,) = hosting.call(OffsetFetchRequest(group_id="g", topics=topics), version=1).topics
    assert [one.error_code for one in topic.partitions] == [ErrorCode.NOT_COORDINATOR] * 2
    response = hosting.call(OffsetFetchRequest(group_id="g", topics=topics), version=2)
    assert (response.error_code, response.topics) == (ErrorCode.NOT_COORDINATOR, [])


def test_a_commit_is_answered_and_valid_when_it_is_replicated(hosting: Serving) -> None:
    lead(hosting, epoch=1, isr=(1, 2))
    connection = hosting.send(commit(7))
    assert not connection.is_answered
    assert fetched(hosting, "g", 0) == {("topic", 0): -1}
    unstable = hosting.call(fetch("g", 0, require_stable=True)).groups[0].topics[0].partitions[0]
    assert unstable.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    hosting.managed.fetch(1, replica=2, partition=PARTITION)
    assert code_of(connection) == NONE
    assert fetched(hosting, "g", 0) == {("topic", 0): 7}


@pytest.mark.parametrize("what", ["group", "offsets", "expiry"])
def test_removals_with_too_few_replicas_in_sync_are_permanent(hosting: Serving, what: str) -> None:
    hosting.send(commit(7))
    hosting.managed.tell(
        state(epoch=1, isr=(1,)), topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID, min_insync_replicas=2
    )
    # It is written, but not replicated yet, which is the answer.
    if what == "group":
        result = hosting.call(DeleteGroupsRequest(groups_names=["g"])).results[0]
        assert result.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    elif what == "offsets":
        found = hosting.call(delete_offsets("g", ("topic", 0)))
        assert found.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    else:
        hosting.wall_ms += 8 * 24 * 3_600_000
        hosting.groups.expire_offsets()
    assert fetched(hosting) == {}
    lead(hosting, epoch=2, leader=2)
    work(hosting)
    lead(hosting, epoch=3)
    work(hosting)
    assert fetched(hosting) == {}


def test_nothing_expires_while_nothing_can_be_written(hosting: Serving) -> None:
    hosting.send(commit(7))
    hosting.wall_ms += 8 * 24 * 3_600_000
    hosting.managed.manager.fence.silent("no ZooKeeper")
    hosting.groups.expire_offsets()
    hosting.managed.manager.fence.heard()
    assert fetched(hosting) == {("topic", 0): 7}


def test_unknown_partitions_are_refused_individually(hosting: Serving) -> None:
    request = commit(7)
    request.topics += commit(8, topic="nowhere").topics + commit(9, index=5).topics
    codes = [topic.partitions[0].error_code for topic in hosting.call(request).topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [NONE, unknown, unknown]
    assert code_of(hosting.send(commit(topic="nowhere"))) == unknown
    assert fetched(hosting) == {("topic", 0): 7}


def test_metadata_that_is_too_long_is_refused(hosting: Serving) -> None:
    assert code_of(hosting.send(commit(metadata="x" * 4_097))) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert code_of(hosting.send(commit(metadata=None))) == NONE


def test_a_commit_of_an_unknown_generation_creates_no_group(hosting: Serving) -> None:
    stranger = JoinGroupResponse(error_code=NONE, generation_id=3, member_id="m")
    assert code_of(hosting.send(commit(7, by=stranger))) == ErrorCode.ILLEGAL_GENERATION
    hosting.send(commit(8))
    assert code_of(hosting.send(commit(9, by=stranger))) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched(hosting) == {("topic", 0): 8}


def test_the_retention_of_a_commit_is_obeyed(hosting: Serving) -> None:
    request = commit(7)
    request.retention_time_ms = 60_000
    assert hosting.call(request, version=4).topics[0].partitions[0].error_code == NONE
    hosting.wall_ms += 59_999
    hosting.groups.expire_offsets()
    assert fetched(hosting) == {("topic", 0): 7}
    hosting.wall_ms += 1
    hosting.groups.expire_offsets()
    assert fetched(hosting) == {}
    assert records(hosting)[-1] == OffsetRecord("g", TopicPartition("topic", 0), None)


OTHER_ID = uuid.UUID(int=9)
HIDDEN = metadata(LIVE, led_by(1), topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID, is_full=True)
"""Does not name the topic "other", whose znode may be unreadable."""
DELETED = metadata(LIVE, led_by(-2), topic="other", topic_id=OTHER_ID)
RECREATED = metadata(LIVE, led_by(1), topic="other", topic_id=uuid.UUID(int=10))


@pytest.mark.parametrize(
    "updates",
    [[DELETED], [HIDDEN, DELETED], [HIDDEN, RECREATED]],
    ids=["deleted", "deleted while hidden", "deleted and recreated in one update"],
)
def test_offsets_of_a_deleted_topic_are_removed(
    hosting: Serving, updates: list[UpdateMetadataRequest]
) -> None:
    hosting.send(commit(7))
    hosting.send(commit(8, topic="other"))
    for update in updates:
        hosting.managed.metadata.update(update)
    work(hosting)
    assert fetched(hosting).get(("other", 0)) is None
    assert records(hosting)[-1] == OffsetRecord("g", TopicPartition("other", 0), None)
    hosting.managed.metadata.update(metadata(LIVE, led_by(1), led_by(1, index=1)))
    assert fetched(hosting) == {("topic", 0): 7}


def test_offsets_of_a_hidden_topic_stay(hosting: Serving) -> None:
    hosting.send(commit(7, topic="other"))
    hosting.managed.metadata.update(HIDDEN)
    work(hosting)
    hosting.managed.metadata.update(metadata(LIVE, led_by(1), topic="other", topic_id=OTHER_ID))
    work(hosting)
    assert fetched(hosting) == {("other", 0): 7}
    assert len(records(hosting)) == 1, "there is no tombstone"


@pytest.mark.parametrize("is_known_first", [True, False])
def test_offsets_of_a_deleted_topic_do_not_survive_a_change_of_coordinator(
    hosting: Serving, is_known_first: bool
) -> None:
    """It was deleted and recreated under another coordinator, or without one."""
    hosting.send(commit(7, topic="other"))
    hosting.send(commit(8))
    lead(hosting, epoch=1, leader=2)
    work(hosting)
    if is_known_first:
        hosting.managed.metadata.update(RECREATED)
    else:
        # A newly started process knows no topic yet.
        hosting.managed.metadata.update(
            metadata(LIVE, led_by(1), topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID, is_full=True)
        )
    lead(hosting, epoch=2)
    work(hosting)
    if is_known_first:
        # The controller sends this with a role.
        hosting.managed.metadata.update(metadata(LIVE, led_by(1), topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID))
        work(hosting)
    else:
        assert fetched(hosting) == {("topic", 0): 8, ("other", 0): 7}
        hosting.managed.metadata.update(RECREATED)
        work(hosting)
    assert fetched(hosting) == {("topic", 0): 8}


def test_offsets_of_a_topic_that_this_broker_does_not_know_yet_stay(hosting: Serving) -> None:
    """It was recreated and committed for while this broker was paused; the role arrives before the
    metadata."""
    update, old = hosting.managed.metadata.update, uuid.UUID(int=9)
    update(metadata(LIVE, led_by(1), topic="other", topic_id=uuid.UUID(int=10)))
    hosting.send(commit(7, topic="other"))
    lead(hosting, epoch=1, leader=2)
    update(metadata(LIVE, led_by(1), topic="other", topic_id=old))
    lead(hosting, epoch=2)
    work(hosting)
    # Metadata sent before the role do not count either.
    hosting.groups.topics_changed(["other"])
    work(hosting)
    assert fetched(hosting) == {("other", 0): 7}
    update(metadata(LIVE, led_by(1), topic="other", topic_id=uuid.UUID(int=10)))
    work(hosting)
    assert fetched(hosting) == {("other", 0): 7}
    assert len(records(hosting)) == 1, "there is no tombstone"


def test_the_coordinator_forgets_the_names_of_deleted_topics(hosting: Serving) -> None:
    """A cluster may create and delete topics for years."""
    update, kept = hosting.managed.metadata.update, len(hosting.groups._topic_ids)
    for number in range(20):
        topic_id = uuid.UUID(int=100 + number)
        update(metadata(LIVE, led_by(1), topic=f"short-{number}", topic_id=topic_id))
        update(metadata(LIVE, led_by(-2), topic=f"short-{number}", topic_id=topic_id))
    work(hosting)
    assert len(hosting.groups._topic_ids) == kept


def recreate(serving: Serving, topic: str) -> None:
    """Delete the topic and create it again, before the coordinator's thread handles either."""
    update = serving.managed.metadata.update
    update(metadata(LIVE, led_by(-2), topic=topic, topic_id=OTHER_ID))
    update(metadata(LIVE, led_by(1), led_by(1, index=1), topic=topic, topic_id=uuid.UUID(int=10)))


def test_offsets_committed_for_a_recreated_topic_stay(hosting: Serving) -> None:
    hosting.send(commit(7, topic="other"))
    hosting.send(commit(8, topic="other", index=1))
    recreate(hosting, "other")
    assert code_of(hosting.send(commit(9, topic="other"))) == NONE
    work(hosting)
    assert fetched(hosting) == {("other", 0): 9}
    lead(hosting, epoch=1, leader=2)
    work(hosting)
    lead(hosting, epoch=2)
    work(hosting)
    assert fetched(hosting) == {("other", 0): 9}


def test_a_commit_in_flight_for_a_recreated_topic_is_not_removed(hosting: Serving) -> None:
    hosting.send(commit(7, topic="other"))
    lead(hosting, epoch=1, isr=(1, 2))
    recreate(hosting, "other")
    in_flight = hosting.send(commit(9, topic="other"))
    work(hosting)
    hosting.managed.fetch(2, replica=2, partition=PARTITION)
    assert code_of(in_flight) == NONE
    assert fetched(hosting) == {("other", 0): 9}


def test_a_commit_in_flight_for_a_deleted_topic_is_removed(hosting: Serving) -> None:
    lead(hosting, epoch=1, isr=(1, 2))
    in_flight = hosting.send(commit(7, topic="other"))
    hosting.managed.metadata.update(DELETED)
    work(hosting)
    hosting.managed.fetch(1, replica=2, partition=PARTITION)
    hosting.managed.fetch(2, replica=2, partition=PARTITION)
    assert code_of(in_flight) == NONE
    assert fetched(hosting) == {}
    assert records(hosting)[-1] == OffsetRecord("g", TopicPartition("other", 0), None)


# ---- operators


@pytest.mark.parametrize("version", [None, *range(6)])
def test_groups_are_described(hosting: Serving, version: int | None) -> None:
    joined = become_member(hosting)
    request = DescribeGroupsRequest(
        groups=["g", "nobody"], include_authorized_operations=version is None or version >= 3
    )
    known, unknown = hosting.call(request, version=version).groups
    assert (known.error_code, known.group_state) == (NONE, "Stable")
    assert (known.protocol_type, known.protocol_data) == ("consumer", "range")
    (member,) = known.members
    assert (member.member_id, member.client_id) == (joined.member_id, "test")
    assert (member.client_host, member.member_metadata, member.member_assignment) == (
        "/127.0.0.1",
        b"sub",
        b"all",
    )
    assert (unknown.error_code, unknown.group_state, unknown.members) == (NONE, "Dead", [])
    if request.include_authorized_operations:
        assert known.authorized_operations == GROUP_OPERATIONS


@pytest.mark.parametrize("version", [None, *range(6)])
def test_groups_are_listed(hosting: Serving, version: int | None) -> None:
    become_member(hosting)
    hosting.send(commit(group="store"))
    found = hosting.call(ListGroupsRequest(), version=version)
    assert found.error_code == NONE
    has_state = version is None or version >= 4
    has_type = version is None or version >= 5
    assert [(one.group_id, one.protocol_type, one.group_state, one.group_type) for one in found.groups] == [
        ("g", "consumer", "Stable" if has_state else "", "classic" if has_type else ""),
        ("store", "", "Empty" if has_state else "", "classic" if has_type else ""),
    ]


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        (["sTABLE"], [], ["g"]),
        (["Empty", "Dead"], [], ["store"]),
        ([], ["CLASSIC"], ["g", "store"]),
        ([], ["consumer"], []),
        (["nonsense"], [], []),
    ],
)
def test_lists_are_filtered(
    hosting: Serving, states: list[str], types: list[str], expected: list[str]
) -> None:
    become_member(hosting)
    hosting.send(commit(group="store"))
    found = hosting.call(ListGroupsRequest(states_filter=states, types_filter=types), version=5)
    assert [one.group_id for one in found.groups] == expected


def test_empty_groups_are_deleted_and_others_are_not(hosting: Serving) -> None:
    become_member(hosting)
    hosting.send(commit(group="store"))
    results = hosting.call(DeleteGroupsRequest(groups_names=["g", "store", "nobody"])).results
    assert [(one.group_id, one.error_code) for one in results] == [
        ("g", ErrorCode.NON_EMPTY_GROUP),
        ("store", NONE),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
    ]
    assert fetched(hosting, "store") == {}
    assert hosting.call(DeleteGroupsRequest(groups_names=[])).results == []


def test_a_deletion_is_answered_when_its_tombstones_are_replicated(hosting: Serving) -> None:
    hosting.send(commit(group="store"))
    lead(hosting, epoch=1, isr=(1, 2))
    connection = hosting.send(DeleteGroupsRequest(groups_names=["store"]))
    assert not connection.is_answered
    hosting.managed.fetch(2, replica=2, partition=PARTITION)
    assert connection.response.results[0].error_code == NONE
    hosting.managed.fetch(2, replica=2, partition=PARTITION)
    hosting.send(commit(group="store"))
    hosting.managed.fetch(3, replica=2, partition=PARTITION)
    connection = hosting.send(DeleteGroupsRequest(groups_names=["store"]))
    hosting.managed.pass_time(5_001)
    assert connection.response.results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


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


@pytest.mark.parametrize("version", [None, 0])
def test_offsets_are_deleted(hosting: Serving, version: int | None) -> None:
    hosting.send(commit(7))
    hosting.send(commit(8, topic="other"))
    found = hosting.call(delete_offsets("g", ("topic", 0), ("nowhere", 0)), version=version)
    codes = {topic.name: topic.partitions[0].error_code for topic in found.topics}
    assert (found.error_code, codes) == (
        NONE,
        {"topic": NONE, "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    )
    assert fetched(hosting) == {("other", 0): 8}
    unknown = hosting.call(delete_offsets("nobody", ("topic", 0)), version=version)
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND


# ---- leadership that moves


def test_groups_and_offsets_are_loaded_when_leadership_returns(hosting: Serving) -> None:
    joined = become_member(hosting)
    hosting.send(commit(7, by=joined))
    hosting.send(commit(8, group="store"))
    hosting.send(commit(9, group="gone"))
    hosting.call(DeleteGroupsRequest(groups_names=["gone"]))
    lead(hosting, epoch=1, leader=2)
    work(hosting)
    lead(hosting, epoch=2)
    work(hosting)
    assert fetched(hosting) == {("topic", 0): 7}
    assert fetched(hosting, "store") == {("topic", 0): 8}
    assert {one.group_id for one in hosting.call(ListGroupsRequest()).groups} == {"g", "store"}
    assert hosting.call(heartbeat(joined)).error_code == NONE
    # Its session restarted, and expires.
    hosting.managed.pass_time(10_001)
    assert hosting.call(heartbeat(joined)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_sessions_begin_when_all_groups_are_loaded(hosting: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = become_member(hosting)
    lead(hosting, epoch=1, leader=2)
    lead(hosting, epoch=2)
    load = Group.load

    def slow_load(*arguments: Any) -> Any:
        loaded = load(*arguments)
        hosting.managed.clock.now_ms += 10_001
        return loaded

    monkeypatch.setattr(Group, "load", slow_load)
    work(hosting)
    hosting.managed.pass_time(9_999)
    assert hosting.call(heartbeat(joined)).error_code == NONE
    hosting.managed.pass_time(10_001)
    assert hosting.call(heartbeat(joined)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_each_request_gets_its_error_while_groups_are_loaded(hosting: Serving) -> None:
    lead(hosting, epoch=1, leader=2)
    lead(hosting, epoch=2)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert hosting.call(join()).error_code == loading
    assert hosting.call(fetch()).groups[0].error_code == loading
    assert code_of(hosting.send(commit())) == loading
    described = hosting.send(DescribeGroupsRequest(groups=["g"]))
    expire(hosting, after_ms=3_001)
    assert described.response.groups[0].error_code == loading
    described = hosting.send(DescribeGroupsRequest(groups=["g"]))
    assert not described.is_answered
    assert hosting.call(ListGroupsRequest()).error_code == loading
    assert hosting.call(DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == loading
    assert hosting.call(delete_offsets("g", ("topic", 0))).error_code == loading
    assert hosting.call(HeartbeatRequest(group_id="g", generation_id=1, member_id="m")).error_code == NONE
    request = SyncGroupRequest(group_id="g", generation_id=1, member_id="m")
    assert hosting.call(request).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    work(hosting)
    assert described.response.groups[0].error_code == NONE
    assert hosting.call(fetch()).groups[0].error_code == NONE


def test_waiting_requests_get_not_coordinator_when_leadership_ends(hosting: Serving) -> None:
    first = hosting.call(join())
    waiting = hosting.send(join(member=first.member_id))
    lead(hosting, epoch=1, leader=2)
    assert not waiting.is_answered
    work(hosting)
    assert waiting.response.error_code == ErrorCode.NOT_COORDINATOR
    # The timer of a closed group does nothing.
    hosting.managed.pass_time(60_000)


def test_a_commit_in_flight_is_refused_when_leadership_ends(hosting: Serving) -> None:
    lead(hosting, epoch=1, isr=(1, 2))
    in_flight, queued = hosting.send(commit(7)), hosting.send(commit(8))
    lead(hosting, epoch=2, leader=2)
    work(hosting)
    lead(hosting, epoch=3)
    work(hosting)
    assert code_of(in_flight) == ErrorCode.NOT_COORDINATOR
    assert code_of(queued) == ErrorCode.NOT_COORDINATOR
    # The queued commit was not written in the next leadership.
    assert len(records(hosting)) == 1


def test_a_new_epoch_of_the_same_leader_changes_nothing(hosting: Serving) -> None:
    first = hosting.call(join())
    waiting = hosting.send(join(member=first.member_id))
    lead(hosting, epoch=1)
    assert not hosting.groups.shards.run_once()
    hosting.managed.pass_time(3_000)
    assert waiting.response.error_code == NONE


def test_a_recreated_offsets_topic_has_no_groups(hosting: Serving) -> None:
    # While the broker was away: it leads the new topic since epoch 0 too.
    hosting.send(commit(7))
    partition_state = state(leader=1, epoch=0, isr=(1,))
    new_id = uuid.UUID(int=51)
    assert hosting.managed.tell(partition_state, topic=OFFSETS_TOPIC, topic_id=new_id, is_full=True) == []
    hosting.managed.metadata.update(metadata(LIVE, led_by(1), topic=OFFSETS_TOPIC, topic_id=new_id))
    hosting.call(find("g"))
    work(hosting)
    assert fetched(hosting) == {}
    hosting.send(commit(8, index=1))
    assert fetched(hosting) == {("topic", 1): 8}


def test_a_log_that_cannot_be_read_keeps_its_groups_loading(
    hosting: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosting.send(commit(7))
    lead(hosting, epoch=1, leader=2)
    lead(hosting, epoch=2)
    log = hosting.managed.manager.partition(PARTITION).log
    whole = log.read

    def damaged(*arguments: Any, **options: Any) -> Any:
        found = whole(*arguments, **options)
        spoilt = bytearray(found.records)
        spoilt[-1] ^= 1
        return found._replace(records=memoryview(spoilt))

    monkeypatch.setattr("barnabas.broker.coordinators.led_shards.RETRY_MS", 0)
    monkeypatch.setattr(log, "read", damaged)
    # Close the former shard, and load once.
    assert hosting.groups.shards.run_once()
    assert hosting.groups.shards.run_once()
    assert hosting.call(fetch()).groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    monkeypatch.setattr(log, "read", whole)
    work(hosting)
    assert fetched(hosting) == {("topic", 0): 7}


def spoil(monkeypatch: pytest.MonkeyPatch, name: str, group_id: str = "g") -> None:
    """A bug in one group."""
    sound = getattr(Group, name)

    def buggy(self: Group, *arguments: Any) -> Any:
        if self.group_id == group_id:
            raise ZeroDivisionError("a bug")
        return sound(self, *arguments)

    monkeypatch.setattr(Group, name, buggy)


def test_a_bug_in_closing_one_group_affects_no_other(
    hosting: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("g", "h"):
        first = hosting.call(join(group))
        waiting = hosting.send(join(group, first.member_id))
    assert not waiting.is_answered
    spoil(monkeypatch, "unload")
    lead(hosting, leader=2, epoch=9)
    work(hosting)
    assert waiting.response.error_code == ErrorCode.NOT_COORDINATOR


def test_a_bug_in_expiring_one_groups_offsets_affects_no_other(
    hosting: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("g", "h"):
        assert code_of(hosting.send(commit(group=group))) == NONE
    hosting.wall_ms += 365 * 24 * 3_600_000
    spoil(monkeypatch, "expire_offsets")
    hosting.groups.expire_offsets()
    assert fetched(hosting, "g") == {("topic", 0): 5}
    assert fetched(hosting, "h") == {}
