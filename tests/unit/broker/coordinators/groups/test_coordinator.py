"""The coordinator of groups: its shards, loading, expiry, and leadership that moves.

The rules of one group are in test_group.py and its neighbours.
"""

import threading
import uuid
from functools import partial
from typing import Any

import pytest

from barnabas.broker.coordinators import topic_coordinator
from barnabas.broker.coordinators.groups import coordinator as group_coordinator
from barnabas.broker.coordinators.groups.group import Group
from barnabas.broker.coordinators.groups.records import (
    OffsetAndMetadata,
    OffsetRecord,
    to_bytes,
)
from barnabas.broker.coordinators.machine_shard import ShardState
from barnabas.broker.coordinators.state_machine import Moment
from barnabas.broker.coordinators.topic_coordinator import RETRY_MS
from barnabas.broker.log.log import Log
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, LeaderEpoch, TopicPartition
from barnabas.protocol.messages.groups import (
    DeleteGroupsRequest,
    ListGroupsRequest,
)
from barnabas.protocol.messages.inter_broker import UpdateMetadataRequest
from barnabas.protocol.messages.replicas import DescribeReplicasRequest
from barnabas.protocol.record_batch import LENGTH_OFFSET, MAGIC_OFFSET
from barnabas.protocol.records import MarkerType
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from tests.support.building import LAG_MS, LIVE, NONE, led_by, metadata, state
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
    heartbeat,
    join,
    lead,
    learn,
    records,
    work,
)
from tests.support.grouping import run_once
from tests.support.serving import Serving
from tests.support.transactional_offsets import write_marker, write_pending
from tests.support.waiting import wait_for


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
    assert serving.groups._shards[0].state is ShardState.SERVING


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


def test_a_leader_that_may_be_deposed_coordinates_nothing(hosting: Serving) -> None:
    """Its followers do not fetch, and ZooKeeper, which answers, has not confirmed it; a session ends late."""
    joined = become_member(hosting)
    lead(hosting, epoch=1, isr=(1, 2))
    work(hosting)
    hosting.managed.pass_time(LAG_MS + 1)
    assert hosting.call(heartbeat(joined)).error_code == ErrorCode.NOT_COORDINATOR
    hosting.managed.pass_time(20_000)
    (partition,) = hosting.managed.manager.partitions()
    partition.learn_leader(BrokerId(1), LeaderEpoch(1), hosting.managed.clock.now_ms)
    assert hosting.call(heartbeat(joined)).error_code == NONE


def test_a_timer_that_could_not_be_cancelled_leaves_its_successor(hosting: Serving) -> None:
    joined = become_member(hosting)
    shard = hosting.groups.shard_of("g")
    hosted = shard._hosted["g"]
    before = hosted.timer
    assert before is not None
    # It expires while a request holds the group's lock and replaces it.
    hosted.lock.acquire()
    expiring = threading.Thread(target=before.expire)
    expiring.start()
    try:
        wait_for(lambda: before.is_completed)
        hosted.machine._members.extend_session(hosted.machine._members[joined.member_id], 1.0)
        shard._set_timer(hosted)
        after = hosted.timer
        assert after is not before
    finally:
        hosted.lock.release()
        expiring.join()
    assert hosted.timer is after


# Offsets that expire, and offsets of deleted topics


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
        answer = hosting.call(delete_offsets("g", ("topic", 0)))
        assert answer.topics[0].partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
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


OTHER_ID = uuid.UUID(int=9)
HIDDEN = metadata(LIVE, led_by(1), topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID, is_full=True)
"""A full update without the topic "other", as if its znode were unreadable."""
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
    """The topic was deleted and recreated under another coordinator, or without one."""
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


# Leadership that moves


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
    assert {group.group_id for group in hosting.call(ListGroupsRequest()).groups} == {"g", "store"}
    assert hosting.call(heartbeat(joined)).error_code == NONE
    # Its session begins again, and expires.
    hosting.managed.pass_time(10_001)
    assert hosting.call(heartbeat(joined)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# Transactions


def pending(value: int, group: str = "g", index: int = 0) -> tuple[bytes, bytes | None]:
    offset = OffsetAndMetadata(value, 1_000)
    return to_bytes(OffsetRecord(group, TopicPartition("topic", index), offset))


def is_unstable(hosting: Serving, group: str = "g", index: int = 0) -> bool:
    (topic,) = hosting.call(fetch(group, index, require_stable=True)).groups[0].topics
    return bool(topic.partitions[0].error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT)


@pytest.fixture
def led_again(hosting: Serving) -> Log:
    """Broker 1 leads again and has not read the log yet, which has a commit of 7 and a pending one of 8."""
    hosting.send(commit(7))
    lead(hosting, epoch=1, leader=2)
    work(hosting)
    log = hosting.managed.manager.partition(PARTITION).log
    write_pending(log, 5, pending(8))
    lead(hosting, epoch=2)
    return log


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_after_a_move_of_the_coordinator_ends_the_loaded_transaction(
    is_commit: bool, led_again: Log, hosting: Serving
) -> None:
    work(hosting)
    assert is_unstable(hosting)
    assert fetched(hosting) == {("topic", 0): 7}
    hosting.groups.transaction_ended({0: led_again.log_end_offset}, 5, is_commit)
    assert not is_unstable(hosting)
    assert fetched(hosting) == {("topic", 0): 8 if is_commit else 7}


@pytest.mark.parametrize("is_read", [True, False])
def test_a_marker_that_comes_while_groups_are_loaded_ends_the_transaction(
    is_read: bool, led_again: Log, hosting: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loading may read the marker itself, or miss it."""
    read = topic_coordinator.last_records

    def mark() -> None:
        marker_offset = led_again.log_end_offset
        write_marker(led_again, 5, MarkerType.COMMIT)
        hosting.groups.transaction_ended({0: marker_offset}, 5, True)

    def read_and_mark(log: Log, is_wanted: Any) -> Any:
        if is_read:
            mark()
        records = read(log, is_wanted)
        if not is_read:
            mark()
        return records

    monkeypatch.setattr(topic_coordinator, "last_records", read_and_mark)
    work(hosting)
    assert not is_unstable(hosting)
    assert fetched(hosting) == {("topic", 0): 8}


def test_a_marker_ends_the_transaction_before_the_first_request_after_loading(
    led_again: Log, hosting: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer's next transaction may replace its pending offsets then."""
    hosting.groups.transaction_ended({0: led_again.log_end_offset}, 5, True)
    seen: list[int] = []

    resume = Group.resume

    def resumed(group: Group, now: Moment) -> Any:
        seen.append(group.fetch([TopicPartition("topic", 0)])[TopicPartition("topic", 0)].committed_offset)
        return resume(group, now)

    monkeypatch.setattr(Group, "resume", resumed)
    work(hosting)
    assert seen == [8]


def test_a_group_with_only_an_aborted_offset_is_forgotten(led_again: Log, hosting: Serving) -> None:
    write_pending(led_again, 6, pending(8, group="other"))
    work(hosting)
    assert is_unstable(hosting, "other")
    hosting.groups.transaction_ended({0: led_again.log_end_offset}, 6, False)
    assert [group.group_id for group in hosting.call(ListGroupsRequest()).groups] == ["g"]
    assert is_unstable(hosting)


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


def spoil_reads(log: Log, monkeypatch: pytest.MonkeyPatch, at: int, mask: int) -> None:
    """Damage a byte of all that is read."""
    whole = log.read

    def read_damaged(*arguments: Any, **options: Any) -> Any:
        result = whole(*arguments, **options)
        damaged = bytearray(result.records)
        damaged[at] ^= mask
        return result._replace(records=memoryview(damaged))

    monkeypatch.setattr(log, "read", read_damaged)


def why_failed(hosting: Serving) -> str:
    """The failure of the replica of the offsets topic, as `barnabas status` shows it."""
    topic, *_ = hosting.call(DescribeReplicasRequest(topics=[OFFSETS_TOPIC])).topics
    failure: str = topic.replicas[0].failure
    return failure


DAMAGE = [(-1, 1), (MAGIC_OFFSET, 1), (LENGTH_OFFSET, 0x80)]


@pytest.mark.parametrize(("at", "mask"), DAMAGE, ids=["CRC", "magic", "length"])
def test_a_damaged_log_keeps_its_groups_loading_while_no_other_replica_is_in_sync(
    hosting: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: int, mask: int
) -> None:
    hosting.send(commit(7))
    lead(hosting, epoch=1, leader=2)
    lead(hosting, epoch=2)
    other_work: list[int] = []
    with monkeypatch.context() as patch:
        spoil_reads(hosting.managed.manager.partition(PARTITION).log, patch, at, mask)
        for number in range(2):
            # The offsets of deleted topics must be removed in the other shards.
            hosting.groups.submit(partial(other_work.append, number))
            hosting.managed.pass_time(RETRY_MS)
            for _ in range(4):
                run_once(hosting.groups)
            assert other_work == [*range(number + 1)]
        assert hosting.call(fetch()).groups[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert "no other replica is in sync" in why_failed(hosting)
        assert [record.levelname for record in caplog.records].count("CRITICAL") == 1
    hosting.managed.pass_time(RETRY_MS)
    work(hosting)
    assert fetched(hosting) == {("topic", 0): 7}
    assert why_failed(hosting) == ""


@pytest.mark.parametrize(("at", "mask"), DAMAGE, ids=["CRC", "magic", "length"])
def test_a_damaged_log_goes_offline_if_another_replica_is_in_sync(
    hosting: Serving, monkeypatch: pytest.MonkeyPatch, at: int, mask: int
) -> None:
    notified: list[BrokerId] = []
    manager = hosting.managed.manager
    monkeypatch.setattr(
        manager.disk_failures._store, "notify_log_dir_failure", notified.append, raising=False
    )
    hosting.send(commit(7))
    lead(hosting, epoch=1, leader=2)
    lead(hosting, epoch=2, isr=(1, 2))
    spoil_reads(manager.partition(PARTITION).log, monkeypatch, at, mask)
    # Close the former shard, and load.
    for _ in range(2):
        assert run_once(hosting.groups)
    assert manager.disk_failures.work_off()
    assert notified == [1]
    assert hosting.managed.tell(
        state(leader=1, epoch=2, isr=(1, 2)), topic=OFFSETS_TOPIC, topic_id=OFFSETS_ID
    ) == [ErrorCode.KAFKA_STORAGE_ERROR]
    work(hosting)
    assert hosting.call(fetch()).groups[0].error_code == ErrorCode.NOT_COORDINATOR


def test_a_damaged_log_stays_while_the_last_other_replica_may_leave_the_isr(
    hosting: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the only member of the ISR could be the damaged one, which is offline."""
    manager = hosting.managed.manager
    hosting.send(commit(7))
    lead(hosting, epoch=1, leader=2)
    lead(hosting, epoch=2, isr=(1, 2))
    partition = manager.partition(PARTITION)
    spoil_reads(partition.log, monkeypatch, -1, 1)
    hosting.managed.pass_time(60_000)
    assert partition.propose_shrink(hosting.managed.now_ms()) is not None
    work(hosting)
    assert manager.logs.get(PARTITION) is partition.log


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
