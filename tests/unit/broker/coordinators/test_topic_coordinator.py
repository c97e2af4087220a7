"""A coordinator's shards: they are opened, loaded, tried again and closed; which of them serve."""

from typing import Any

import pytest

from barnabas.broker.coordinators import topic_coordinator
from barnabas.broker.coordinators.groups.coordinator import GroupCoordinator
from barnabas.broker.coordinators.machine_shard import ShardState
from barnabas.broker.coordinators.topic_coordinator import RETRY_MS
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import TopicPartition
from tests.support.group_requests import PARTITION, commit, join, lead
from tests.support.serving import Serving


def error_of(groups: GroupCoordinator) -> ErrorCode:
    with pytest.raises(ApiError) as caught:
        groups.find(PARTITION.partition)
    return caught.value.code


def load_again(hosting: Serving) -> GroupCoordinator:
    """Another broker leads for a while; the log is not read yet."""
    lead(hosting, epoch=1, leader=2)
    lead(hosting, epoch=2)
    return hosting.groups


def test_machines_are_missing_while_their_shard_is_loaded_or_doubtful(hosting: Serving) -> None:
    hosting.send(commit(7))
    groups, is_partial = hosting.groups.all_machines()
    assert ([group.group_id for group in groups], is_partial) == (["g"], False)
    hosting.managed.manager.fence.silent("no ZooKeeper")
    assert hosting.groups.all_machines() == ([], True)
    assert error_of(hosting.groups) is ErrorCode.NOT_COORDINATOR
    hosting.managed.manager.fence.heard()
    coordinator = load_again(hosting)
    assert error_of(coordinator) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert coordinator.all_machines() == ([], True)
    assert coordinator.serving() == []
    coordinator._work_off()
    assert coordinator.serving() == [coordinator.find(0)]


def test_a_shard_that_cannot_be_loaded_is_tried_again_after_a_pause(
    hosting: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = load_again(hosting)

    def fail(*arguments: Any) -> None:
        raise api_error(ErrorCode.CORRUPT_MESSAGE, "no records")

    with monkeypatch.context() as patch:
        patch.setattr(topic_coordinator, "last_records", fail)
        groups._work_off()
    hosting.managed.pass_time(RETRY_MS - 1)
    groups._work_off()
    assert groups.is_loading(0)
    hosting.managed.pass_time(1)
    groups._work_off()
    assert groups.find(0).state is ShardState.SERVING


def test_the_longest_load_is_remembered(hosting: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, read = load_again(hosting), topic_coordinator.last_records
    before = groups.longest_load_ms

    def slow(*arguments: Any) -> Any:
        hosting.managed.pass_time(before + 5)
        return read(*arguments)

    monkeypatch.setattr(topic_coordinator, "last_records", slow)
    groups._work_off()
    assert groups.longest_load_ms == before + 5


def test_leaderships_from_before_the_start_are_coordinated_until_the_stop(hosting: Serving) -> None:
    groups = GroupCoordinator(hosting.groups._host)
    changed: list[TopicPartition] = []
    groups.state_listeners.append(changed.append)
    groups.listen()
    groups._work_off()
    assert changed == [PARTITION]
    assert groups.log_ends() == {0: hosting.managed.manager.partition(PARTITION).log_end_offset}
    shard = groups.find(0)
    groups.stop()
    assert shard.state is ShardState.CLOSED
    assert error_of(groups) is ErrorCode.NOT_COORDINATOR
    groups.role_changed(PARTITION)
    assert groups.get(0) is None


def test_a_shard_refuses_requests_as_soon_as_the_leadership_ends(hosting: Serving) -> None:
    first = hosting.call(join())
    waiting, shard = hosting.send(join("g", first.member_id)), hosting.groups.find(0)
    lead(hosting, epoch=1, leader=2)
    assert shard.state is ShardState.CLOSED
    assert not waiting.is_answered
    hosting.groups._work_off()
    assert waiting.response.error_code == ErrorCode.NOT_COORDINATOR
    assert hosting.groups.log_ends() == {}
