"""Group requests through the handlers: their versions, their errors, and the answers that wait.

The rules of groups and of their coordinator are tested in `tests/unit/broker/coordinators`.
"""

import pytest

from barnabas.broker.coordinators.groups import coordinator as group_coordinator
from barnabas.broker.coordinators.groups.group import GROUP_BYTES
from barnabas.broker.coordinators.groups.members import MEMBER_BYTES
from barnabas.broker.coordinators.groups.records import OffsetAndMetadata, OffsetRecord
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from barnabas.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.building import LIVE, NONE, TOPIC_ID, led_by, metadata
from tests.support.group_requests import (
    OFFSETS_ID,
    PARTITION,
    become_member,
    code_of,
    commit,
    delete_offsets,
    fetch,
    fetched,
    find,
    join,
    lead,
    records,
    sync,
    work,
)
from tests.support.serving import INTERNAL, Serving

# Finding the coordinator


@pytest.mark.parametrize("version", [None, 0, 3, 4, 6])
def test_the_coordinator_is_the_leader_of_the_groups_partition(hosting: Serving, version: int | None) -> None:
    several = version is None or version >= 4
    request = find("g", "") if several else FindCoordinatorRequest(key="g")
    response = hosting.call(request, INTERNAL, version=version)
    for found in response.coordinators if several else [response]:
        assert (found.error_code, found.node_id, found.host, found.port) == (NONE, 1, "host", 9001)
    assert [coordinator.key for coordinator in response.coordinators] == (["g", ""] if several else [])


def test_only_groups_and_transactions_have_coordinators(hosting: Serving) -> None:
    share_group, unknown = 2, 7
    for key_type in (share_group, unknown):
        (coordinator,) = hosting.call(find("t", key_type=key_type), version=6).coordinators
        code = ErrorCode.INVALID_REQUEST
        assert (coordinator.error_code, coordinator.node_id, coordinator.port) == (code, -1, -1)
        assert coordinator.error_message


def test_the_first_request_for_a_coordinator_creates_the_topic(serving: Serving) -> None:
    serving.managed.metadata.update(metadata(LIVE, led_by(1)))
    connection = serving.send(find("g"))
    assert serving.auto_created == [[OFFSETS_TOPIC]]
    assert serving.call(join()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not connection.is_answered
    serving.expire(after_ms=3_001)
    (coordinator,) = connection.response.coordinators
    assert coordinator.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_requests_wait_until_the_topic_is_known(serving: Serving) -> None:
    # librdkafka's admin client asks three times within 300 ms, and then not for long.
    serving.managed.metadata.update(metadata(LIVE, led_by(1)))
    finding = serving.send(find("g"), INTERNAL)
    describing, fetching = serving.send(DescribeGroupsRequest(groups=["g"])), serving.send(fetch("g", 0))
    lead(serving)
    assert not any(connection.is_answered for connection in (finding, describing, fetching))
    all_led = [led_by(1, index=index) for index in range(50)]
    serving.managed.metadata.update(metadata(LIVE, *all_led, topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID))
    (coordinator,) = finding.response.coordinators
    assert (coordinator.error_code, coordinator.node_id) == (NONE, 1)
    assert fetching.is_answered
    work(serving)
    assert describing.is_answered


def test_a_broker_without_a_session_coordinates_nothing(hosting: Serving) -> None:
    hosting.managed.manager.fence.silent("test")
    assert hosting.call(join()).error_code == ErrorCode.NOT_COORDINATOR
    listed = hosting.call(ListGroupsRequest())
    assert (listed.error_code, listed.groups) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, [])


# Members


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


def test_groups_without_a_generation_and_an_offset_are_bounded(
    hosting: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_coordinator, "MAX_NEW_GROUPS", 2)
    become_member(hosting)

    def joins(group: str) -> bool:
        code = hosting.call(join(group)).error_code
        assert code in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return bool(code == ErrorCode.MEMBER_ID_REQUIRED)

    assert [joins(group) for group in ("a", "b", "b", "c", "g")] == [True, True, True, False, True]
    # A group counts no longer when it has an offset, or when its last pending id expires.
    assert code_of(hosting.send(commit(group="a"))) == NONE
    assert [joins(group) for group in ("c", "d")] == [True, False]
    hosting.managed.pass_time(10_000)
    assert [joins(group) for group in ("d", "e", "f")] == [True, True, False]


def test_the_memory_of_all_groups_is_bounded(hosting: Serving) -> None:
    memory = hosting.groups.memory
    unavailable = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert memory.held_bytes == 0
    joined = become_member(hosting)
    one_group = memory.held_bytes
    assert GROUP_BYTES + MEMBER_BYTES < one_group < GROUP_BYTES + MEMBER_BYTES + 1_000
    memory.max_bytes = one_group + GROUP_BYTES
    # A member may join again, and takes part in the next generation.
    again = hosting.call(join(member=joined.member_id))
    assert again.error_code == NONE
    assert hosting.call(sync(again, **{again.member_id: b"x" * 4_000})).error_code == unavailable
    assert hosting.call(sync(again, **{again.member_id: b"x" * 2_000})).error_code == NONE
    assert hosting.call(join("large group id" * 100), version=3).error_code == unavailable
    assert hosting.call(join("g"), version=3).error_code == unavailable
    memory.max_bytes += GROUP_BYTES + 2 * MEMBER_BYTES
    assert hosting.call(join("h")).error_code == ErrorCode.MEMBER_ID_REQUIRED
    # The memory of deleted groups is free again.
    hosting.managed.pass_time(60_000)
    hosting.call(DeleteGroupsRequest(groups_names=["g", "h"]))
    assert memory.held_bytes == 0


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


def test_an_answer_that_cannot_be_encoded_affects_no_other_member(hosting: Serving) -> None:
    """The metadata of all members may be longer than a native message."""
    leader = hosting.send(join(instance="leader"))
    long = join()
    long.protocols[0].metadata = bytes(4_500_000)
    other, third = (hosting.send(long, version=3) for _ in range(2))
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


# Offsets


@pytest.mark.parametrize("version", [None, *range(1, 9)])
def test_every_version_commits_and_fetches(hosting: Serving, version: int | None) -> None:
    assert code_of(hosting.send(commit(7), version=None if version is None else max(version, 2))) == NONE
    epoch = 2 if version is None or version >= 6 else -1
    value = OffsetAndMetadata(7, hosting.wall_ms, epoch, "m")
    assert records(hosting) == [OffsetRecord("g", TopicPartition("topic", 0), value)]
    has_groups = version is None or version >= 8
    topics = [TopicPartitionIndexes(name="topic", partition_indexes=[0, 1])]
    for entry, expected in [(topics, [(0, 7, "m"), (1, -1, "")]), (None, [(0, 7, "m")])]:
        if entry is None and version == 1:
            continue
        group = OffsetFetchRequestGroup(group_id="g", topics=entry)
        request = OffsetFetchRequest(group_id="g", topics=entry)
        if has_groups:
            request = OffsetFetchRequest(groups=[group])
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
    topics = [TopicPartitionIndexes(name="topic", partition_indexes=[0, 1])]
    (topic,) = hosting.call(OffsetFetchRequest(group_id="g", topics=topics), version=1).topics
    assert [partition.error_code for partition in topic.partitions] == [ErrorCode.NOT_COORDINATOR] * 2
    response = hosting.call(OffsetFetchRequest(group_id="g", topics=topics), version=2)
    assert (response.error_code, response.topics) == (ErrorCode.NOT_COORDINATOR, [])


def test_unknown_partitions_are_refused_individually(hosting: Serving) -> None:
    request = commit(7)
    request.topics += commit(8, topic="nowhere").topics + commit(9, index=5).topics
    codes = [topic.partitions[0].error_code for topic in hosting.call(request).topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [NONE, unknown, unknown]
    assert code_of(hosting.send(commit(topic="nowhere"))) == unknown
    assert fetched(hosting) == {("topic", 0): 7}


def test_an_offset_in_an_earlier_topic_of_the_name_is_refused(hosting: Serving) -> None:
    """A request may have offsets in both, of a member that has noticed the change in one partition only."""
    request = commit(7)
    request.topics[0].topic_id = TOPIC_ID
    earlier = commit(9, index=1).topics[0]
    earlier.topic_id = OFFSETS_ID
    request.topics.append(earlier)
    codes = [topic.partitions[0].error_code for topic in hosting.call(request).topics]
    assert codes == [NONE, ErrorCode.UNKNOWN_TOPIC_ID]
    assert fetched(hosting) == {("topic", 0): 7}
    request.topics = [earlier]
    assert code_of(hosting.send(request)) == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_commit_of_an_unknown_generation_creates_no_group(hosting: Serving) -> None:
    stranger = JoinGroupResponse(error_code=NONE, generation_id=3, member_id="m")
    assert code_of(hosting.send(commit(7, by=stranger))) == ErrorCode.ILLEGAL_GENERATION
    first = JoinGroupResponse(error_code=NONE, generation_id=0, member_id="m")
    assert code_of(hosting.send(commit(7, by=first))) == ErrorCode.ILLEGAL_GENERATION
    assert hosting.call(ListGroupsRequest()).groups == []
    hosting.send(commit(8))
    assert code_of(hosting.send(commit(9, by=stranger))) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetched(hosting) == {("topic", 0): 8}


def test_the_retention_of_a_commit_is_obeyed(hosting: Serving) -> None:
    request = commit(7, metadata=None)
    request.retention_time_ms = 60_000
    assert hosting.call(request, version=4).topics[0].partitions[0].error_code == NONE
    hosting.wall_ms += 59_999
    hosting.groups.expire_offsets()
    assert fetched(hosting) == {("topic", 0): 7}
    hosting.wall_ms += 1
    hosting.groups.expire_offsets()
    assert fetched(hosting) == {}
    assert records(hosting)[-1] == OffsetRecord("g", TopicPartition("topic", 0), None)


@pytest.mark.parametrize(("retention_ms", "is_kept"), [((1 << 63) - 1, True), (-(1 << 63), False)])
def test_a_retention_may_have_every_value_of_its_field(
    hosting: Serving, retention_ms: int, is_kept: bool
) -> None:
    request = commit(7)
    request.retention_time_ms = retention_ms
    assert hosting.call(request, version=4).topics[0].partitions[0].error_code == NONE
    hosting.groups.expire_offsets()
    assert fetched(hosting) == ({("topic", 0): 7} if is_kept else {})


# Operators


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
    assert (member.member_id, member.client_id, member.client_host) == (
        joined.member_id,
        "test",
        "/127.0.0.1",
    )
    assert (member.member_metadata, member.member_assignment) == (b"sub", b"all")
    assert (unknown.error_code, unknown.group_state, unknown.members) == (NONE, "Dead", [])
    if request.include_authorized_operations:
        assert known.authorized_operations == 328


@pytest.mark.parametrize("version", [None, 0, 5])
def test_groups_are_listed(hosting: Serving, version: int | None) -> None:
    become_member(hosting)
    hosting.send(commit(group="store"))
    answer = hosting.call(ListGroupsRequest(), version=version)
    assert answer.error_code == NONE
    assert [(group.group_id, group.protocol_type) for group in answer.groups] == [
        ("g", "consumer"),
        ("store", ""),
    ]
    states = [(group.group_state, group.group_type) for group in answer.groups]
    assert states == ([("", "")] * 2 if version == 0 else [("Stable", "classic"), ("Empty", "classic")])


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
    answer = hosting.call(ListGroupsRequest(states_filter=states, types_filter=types), version=5)
    assert [group.group_id for group in answer.groups] == expected


def test_empty_groups_are_deleted_and_others_are_not(hosting: Serving) -> None:
    become_member(hosting)
    hosting.send(commit(group="store"))
    results = hosting.call(DeleteGroupsRequest(groups_names=["g", "store", "nobody"])).results
    assert [(result.group_id, result.error_code) for result in results] == [
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
    hosting.managed.fetch(2, replica=2, partitions=[PARTITION])
    assert connection.response.results[0].error_code == NONE
    hosting.managed.fetch(2, replica=2, partitions=[PARTITION])
    hosting.send(commit(group="store"))
    hosting.managed.fetch(3, replica=2, partitions=[PARTITION])
    connection = hosting.send(DeleteGroupsRequest(groups_names=["store"]))
    hosting.managed.pass_time(5_001)
    assert connection.response.results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", [None, 0])
def test_offsets_are_deleted(hosting: Serving, version: int | None) -> None:
    hosting.send(commit(7))
    hosting.send(commit(8, topic="other"))
    answer = hosting.call(delete_offsets("g", ("topic", 0), ("nowhere", 0)), version=version)
    codes = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert (answer.error_code, codes) == (
        NONE,
        {"topic": NONE, "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
    )
    assert fetched(hosting) == {("other", 0): 8}
    unknown = hosting.call(delete_offsets("nobody", ("topic", 0)), version=version)
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_members_without_subscriptions_are_not_deleted(hosting: Serving) -> None:
    member = hosting.call(join(protocol_type="connect")).member_id
    hosting.send(join(member=member, protocol_type="connect"))
    hosting.managed.pass_time(3_000)
    assert hosting.call(delete_offsets("g", ("topic", 0))).error_code == ErrorCode.NON_EMPTY_GROUP


def test_a_deletion_of_offsets_that_is_not_replicated_has_an_error(hosting: Serving) -> None:
    hosting.send(commit(7))
    lead(hosting, epoch=1, isr=(1, 2))
    connection = hosting.send(delete_offsets("g", ("topic", 0), ("nowhere", 0)))
    assert not connection.is_answered
    lead(hosting, epoch=2, leader=2)
    codes = {topic.name: topic.partitions[0].error_code for topic in connection.response.topics}
    assert codes == {
        "topic": ErrorCode.NOT_COORDINATOR,
        "nowhere": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_each_request_gets_its_error_while_groups_are_loaded(hosting: Serving) -> None:
    lead(hosting, epoch=1, leader=2)
    lead(hosting, epoch=2)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert hosting.call(join()).error_code == loading
    assert hosting.call(fetch()).groups[0].error_code == loading
    assert code_of(hosting.send(commit())) == loading
    described = hosting.send(DescribeGroupsRequest(groups=["g"]))
    hosting.expire(after_ms=3_001)
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
