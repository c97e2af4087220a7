"""Committed offsets: when they become valid, expire, are refused and are deleted."""

import uuid
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from barnabas.broker.coordinators.groups.group import Group, LoadedGroup
from barnabas.broker.coordinators.groups.rebalance import GroupState
from barnabas.broker.coordinators.groups.records import GroupMetadataValue, OffsetAndMetadata, OffsetRecord
from barnabas.broker.coordinators.state_machine import MAX_CLOCK_SKEW_MS
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicId, TopicPartition
from tests.support.grouping import WALL_MS, GroupRig, subscription

E = ErrorCode
S = GroupState

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
RETENTION_MS = 1_000_000


def committed(
    rig: GroupRig, partition: TopicPartition = T0, require_stable: bool = False
) -> tuple[int, ErrorCode]:
    result = rig.group.fetch([partition], require_stable)[partition]
    assert result.partition_index == partition.partition
    return result.committed_offset, ErrorCode(result.error_code)


def store(rig: GroupRig, *partitions: TopicPartition) -> None:
    """Commit while there are no members."""
    offsets = {partition: rig.offset(7) for partition in partitions}
    rig.commit_from_outside(offsets=offsets)
    rig.settle()
    assert set(rig.answer("commit").values()) == {E.NONE}


def tombstones(rig: GroupRig) -> set[TopicPartition | str]:
    """The partitions in the last append, which has only tombstones; "group" for the group's."""
    append = rig.appends.pop()
    assert append.is_removal
    assert all(record.value is None for record in append.records)
    return {record.partition if isinstance(record, OffsetRecord) else "group" for record in append.records}


def deleted(rig: GroupRig, *partitions: TopicPartition) -> Any:
    """The answer to the deletion of these offsets, or of the group, when its tombstones are written."""
    delete = partial(rig.group.delete_offsets, partitions) if partitions else rig.group.delete
    rig.apply(lambda group, now: delete("delete", now))
    if rig.appends:
        rig.settle()
    return rig.answer("delete")


def test_a_commit_is_valid_when_it_is_replicated(rig: GroupRig) -> None:
    rig.stable("m")
    value = OffsetAndMetadata(7, WALL_MS, leader_epoch=3, metadata="note")
    rig.commit("m", offsets={T0: value, T1: rig.offset(8)})
    assert rig.answer("commit") is None
    assert committed(rig) == (-1, E.NONE)
    assert committed(rig, T0, require_stable=True) == (-1, E.UNSTABLE_OFFSET_COMMIT)
    assert rig.appends[0].records == (OffsetRecord("g", T0, value), OffsetRecord("g", T1, rig.offset(8)))
    rig.settle()
    assert rig.answer("commit") == {T0: E.NONE, T1: E.NONE}
    result = rig.group.fetch(None)
    assert list(result) == [T0, T1]
    assert (result[T0].committed_offset, result[T0].committed_leader_epoch) == (7, 3)
    assert (result[T0].metadata, result[T0].error_code) == ("note", E.NONE)
    assert committed(rig, T0, require_stable=True) == (7, E.NONE)


def test_metadata_that_is_too_large_is_refused_and_the_rest_is_taken() -> None:
    rig = GroupRig(offset_metadata_max_bytes=4)
    # Kafka counts UTF-16 units: the last character of the second text has two.
    offsets = {T0: rig.offset(1, "fünf"), T1: rig.offset(2, "vie😀"), U0: rig.offset(3, "vi😀")}
    rig.commit_from_outside(offsets=offsets)
    assert [record.partition for record in rig.appends[0].records if isinstance(record, OffsetRecord)] == [
        T0,
        U0,
    ]
    rig.settle()
    assert rig.answer("commit") == {T0: E.NONE, T1: E.OFFSET_METADATA_TOO_LARGE, U0: E.NONE}
    rig.commit_from_outside(offsets={T1: rig.offset(2, "three")})
    assert rig.answer("commit") == {T1: E.OFFSET_METADATA_TOO_LARGE}
    assert rig.appends == []


# ---- deleting


def test_offsets_of_subscribed_topics_cannot_be_deleted(rig: GroupRig) -> None:
    store(rig, T0, U0)
    rig.stable("m")
    rig.apply(lambda group, now: group.delete_offsets([T0, T1, U0], "delete", now))
    assert rig.answer("delete") is None
    rig.settle(E.NOT_ENOUGH_REPLICAS)
    assert rig.answer("delete") == {
        T0: E.GROUP_SUBSCRIBED_TO_TOPIC,
        T1: E.GROUP_SUBSCRIBED_TO_TOPIC,
        U0: E.COORDINATOR_NOT_AVAILABLE,
    }
    assert (committed(rig), committed(rig, U0)) == ((7, E.NONE), (-1, E.NONE))


def test_offsets_of_other_groups_are_deleted_only_while_they_are_empty(rig: GroupRig) -> None:
    store(rig, T0)
    rig.join("w", protocol_type="connect", protocols={"eager": b""})
    assert deleted(rig, T0) is E.NON_EMPTY_GROUP
    rig.leave("w")
    rig.settle()
    assert deleted(rig, T0) == {T0: E.NONE}
    assert rig.group.is_dead, "a group with nothing left"
    assert deleted(rig, T0) is E.GROUP_ID_NOT_FOUND


def test_the_deletion_of_no_offset_is_answered_at_once(rig: GroupRig) -> None:
    rig.stable("m")
    rig.apply(lambda group, now: group.delete_offsets([U0], "delete", now))
    assert (rig.answer("delete"), rig.appends) == ({U0: E.NONE}, [])


@pytest.mark.parametrize("had_members", [True, False])
def test_a_deleted_group_leaves_only_tombstones(had_members: bool, rig: GroupRig) -> None:
    if had_members:
        rig.stable("m")
        assert deleted(rig) is E.NON_EMPTY_GROUP
        rig.leave("m")
        rig.settle()
    store(rig, T0, U0)
    rig.commit_from_outside(offsets={T1: rig.offset(1)})
    rig.apply(lambda group, now: group.delete("delete", now))
    assert (rig.answer("delete"), rig.group.is_dead) == (None, True)
    rig.settle()
    assert rig.answer("commit") == {T1: E.NONE}
    rig.apply(
        lambda group, now: group.outbox.settle(rig.appends[0].number or 0, E.REQUEST_TIMED_OUT, -1, now)
    )
    assert rig.answer("delete") is E.COORDINATOR_NOT_AVAILABLE
    # A group that only stored offsets has no record of its own.
    assert tombstones(rig) == {T0, T1, U0} | ({"group"} if had_members else set())
    assert deleted(rig) is E.GROUP_ID_NOT_FOUND


# ---- expiry


def expire(rig: GroupRig, after_ms: float) -> set[TopicPartition | str]:
    rig.now_ms += after_ms
    rig.apply(lambda group, now: group.expire_offsets(now, RETENTION_MS))
    return tombstones(rig) if rig.appends else set()


def test_the_retention_of_a_group_without_members_counts_since_it_became_empty(rig: GroupRig) -> None:
    store(rig, T0)
    rig.stable("m")
    rig.now_ms += 5 * RETENTION_MS
    rig.leave("m")
    rig.settle()
    assert expire(rig, RETENTION_MS - 1) == set()
    assert committed(rig) == (7, E.NONE)
    assert expire(rig, 1) == {T0, "group"}
    assert rig.group.is_dead


@pytest.fixture(params=["a group without members", "a group that only stores offsets", "an old client"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Moving:
    """A group with an offset, whose coordinator moves to brokers with other clocks."""

    def __init__(self, rig: GroupRig, kind: str) -> None:
        self.rig = rig
        self._stored: GroupMetadataValue | None = None
        if kind == "a group without members":
            rig.stable("m")
            rig.leave("m")
            self._stored = rig.stored()
            rig.settle()
        if kind == "an old client":
            value = replace(rig.offset(7), expire_timestamp_ms=rig.moment().wall_ms + RETENTION_MS)
            rig.commit_from_outside(offsets={T0: value})
            rig.settle()
        else:
            store(rig, T0)

    def move(self, ahead_ms: float = 0) -> None:
        rig = self.rig
        rig.now_ms += ahead_ms
        loaded = LoadedGroup(self._stored, rig.group.offsets.copy())
        rig.group = Group("g", rig.config, rig.moment())
        rig.group.load(loaded, 1, rig.moment())


@pytest.mark.parametrize("ahead_ms", [-MAX_CLOCK_SKEW_MS, MAX_CLOCK_SKEW_MS])
def test_a_clock_that_differs_expires_no_offset_early(rig: GroupRig, kind: str, ahead_ms: int) -> None:
    moving = Moving(rig, kind)
    moving.move(ahead_ms)
    assert expire(rig, RETENTION_MS - 1) == set()
    assert T0 in expire(rig, 1)


def test_a_clock_that_is_set_forward_expires_no_offset_early(rig: GroupRig, kind: str) -> None:
    Moving(rig, kind)
    rig.wall_ahead_ms = MAX_CLOCK_SKEW_MS
    assert expire(rig, RETENTION_MS - 1) == set()
    assert T0 in expire(rig, 1)


def test_a_clock_that_is_set_forward_by_much_delays_no_end_for_long(rig: GroupRig) -> None:
    store(rig, T0)
    rig.wall_ahead_ms = 100 * RETENTION_MS
    store(rig, U0)
    assert expire(rig, 0) == {T0}
    assert expire(rig, RETENTION_MS + MAX_CLOCK_SKEW_MS - 1) == set()
    assert expire(rig, 1) == {U0}


def test_an_offset_expires_although_its_coordinator_moves_again_and_again(rig: GroupRig, kind: str) -> None:
    moving = Moving(rig, kind)
    while rig.now_ms < RETENTION_MS + MAX_CLOCK_SKEW_MS:
        assert expire(rig, 0) == set()
        moving.move()
        rig.now_ms += RETENTION_MS / 5
    assert T0 in expire(rig, 0)


def test_a_commit_after_a_move_expires_by_the_clock_that_stamped_it(rig: GroupRig) -> None:
    Moving(rig, "a group that only stores offsets").move()
    rig.now_ms += RETENTION_MS / 2
    rig.commit_from_outside(offsets={T0: rig.offset(8)})
    rig.settle(base_offset=2)
    assert expire(rig, RETENTION_MS - 1) == set()
    assert expire(rig, 1) == {T0}


def test_a_consumer_group_loses_only_offsets_of_other_topics(rig: GroupRig) -> None:
    store(rig, T0, U0)
    rig.stable("m")
    assert expire(rig, RETENTION_MS) == {U0}
    rig.join("m", protocols={"range": subscription("other")})
    rig.join("n")
    assert rig.state is S.PREPARING_REBALANCE
    assert expire(rig, RETENTION_MS) == set()


def test_an_offset_with_a_commit_in_flight_does_not_expire(rig: GroupRig) -> None:
    store(rig, T0)
    rig.now_ms += 2 * RETENTION_MS
    rig.commit_from_outside(offsets={T0: rig.offset(9)})
    rig.apply(lambda group, now: group.expire_offsets(now, RETENTION_MS))
    rig.settle()
    assert committed(rig) == (9, E.NONE)
    assert rig.appends == []


def test_offsets_of_deleted_topics_are_removed(rig: GroupRig) -> None:
    store(rig, T0, U0)
    recreated = {"t": TopicId(uuid.uuid4())}
    last = rig.group.offsets.copy()[T0].record_offset
    assert [rig.group.offsets.of_former_topics(set(), recreated, last + more) for more in (0, 1)] == [
        [],
        [T0],
    ]
    rig.stable("m")
    rig.apply(lambda group, now: group.remove_offsets([T0, T1], now))
    assert tombstones(rig) == {T0}
    rig.appends.clear()
    rig.apply(lambda group, now: group.remove_offsets([T1], now))
    assert rig.appends == []
