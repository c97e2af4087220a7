"""The roles that the controller assigns, strays and recreated topics, deletions; and the fence."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.broker.replication.failures import FIRST_PAUSE_MS, LONGEST_PAUSE_MS, FailedReplicas
from barnabas.broker.replication.fence import Fence
from barnabas.broker.replication.partition import Partition, Role
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages.inter_broker import (
    BrokerListener,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LiveBroker,
)
from tests.support.building import TOPIC_ID, TP, TWO, Clock, Managed, NoStore, led_by, state
from tests.support.errors import refused
from tests.support.memory_log import MemoryLog, MemoryLogs

OTHER_ID = uuid.UUID(int=8)
SECOND = TopicPartition(TP.topic, 1)


@pytest.fixture
def managed() -> Managed:
    return Managed()


def second(**fields: Any) -> LeaderAndIsrPartition:
    return state(index=SECOND.partition, **fields)


def test_replicas_take_the_roles_of_the_request_before_the_listeners_are_called(managed: Managed) -> None:
    calls: list[tuple[TopicPartition, Role]] = []
    managed.manager.role_listeners.append(
        lambda name: calls.append((name, managed.manager.partition(name).role))
    )
    assert managed.tell(state(), second(leader=2)) == []
    assert calls == [(TP, Role.LEADER), (SECOND, Role.FOLLOWER)]
    assert managed.fetchers.followed == {SECOND: (TWO, Endpoint("host", 9002), 0)}
    managed.stop_replica(0)
    assert calls[2:] == [(TP, Role.NONE)]


def test_a_new_leader_fetches_no_longer(managed: Managed) -> None:
    managed.tell(state(leader=2))
    managed.tell(state(epoch=1))
    assert managed.fetchers.followed == {}
    managed.tell(state(leader=3, epoch=2))
    assert managed.fetchers.followed[TP].broker_id == 3


def test_a_known_state_changes_nothing(managed: Managed) -> None:
    managed.tell(state(leader=2))
    before = managed.fetchers.followed[TP]
    assert managed.tell(state(leader=2)) == []
    assert managed.fetchers.followed[TP] == before
    # Without the leader's address the follower keeps the former address.
    assert managed.tell(state(leader=2), live=(1, 3)) == []
    assert managed.fetchers.followed[TP] == before
    managed.tell(state(leader=2, epoch=1))
    assert managed.fetchers.followed[TP].leader_epoch > before.leader_epoch


def test_a_leader_is_followed_to_another_address_in_the_same_epoch(managed: Managed) -> None:
    managed.tell(state(leader=2), live=(1, 3))
    assert managed.fetchers.followed[TP].endpoint is None
    managed.tell(state(leader=2))
    assert managed.fetchers.followed[TP].endpoint == Endpoint("host", 9002)


@pytest.mark.parametrize(
    ("listener", "followed_at"),
    [("PLAINTEXT", Endpoint("host", 1)), ("SASL_SSL", Endpoint("host", 2)), ("OTHER", None)],
)
def test_a_leader_is_followed_at_its_listener_for_this_broker(
    managed: Managed, listener: str, followed_at: Endpoint | None
) -> None:
    """The controller may be the first or the last broker whose inter-broker listener is changed."""
    managed.manager.roles.inter_broker_listener = listener
    endpoints = [
        BrokerListener(listener=name, host="host", port=port)
        for name, port in (("PLAINTEXT", 1), ("SASL_SSL", 2))
    ]
    leader = LiveBroker(broker_id=2, host="host", port=1, endpoints=endpoints)
    topic = LeaderAndIsrTopic(topic_name="topic", topic_id=TOPIC_ID, partition_states=[state(leader=2)])
    request = LeaderAndIsrRequest(
        controller_id=9, controller_epoch=1, broker_epoch=0, topic_states=[topic], live_brokers=[leader]
    )
    assert managed.manager.roles.become_leader_or_follower(request) == []
    assert managed.fetchers.followed[TP].endpoint == followed_at


def test_an_unforeseen_error_fails_only_its_partition_until_the_role_changes(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(self: Partition, state: object, now_ms: float) -> bool:
        raise KeyError("a bug")

    managed.tell(state(), second(leader=2))
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "make_leader", poisoned)
        assert managed.tell(state(epoch=1), second(leader=3, epoch=1)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert managed.manager.partition(TP).role is Role.NONE
    assert managed.manager.roles.failed.reasons() == {TP: "the role of leader epoch 1: KeyError('a bug')"}
    # The controller stops the replica after the error; the reason stays visible.
    managed.stop_replica(1)
    assert list(managed.manager.roles.failed.reasons()) == [TP]
    # The other partition has its role, and the controller's next request is tried again.
    assert managed.fetchers.followed[SECOND].broker_id == 3
    assert managed.tell(state(epoch=2)) == []
    assert managed.manager.partition(TP).is_leader
    assert managed.manager.roles.failed.reasons() == {}


def test_a_replica_that_cannot_be_created_is_failed(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryLogs, "get_or_create_without_id", lambda *_, **__: 1 / 0)
    assert managed.tell(state()) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert list(managed.manager.roles.failed.reasons()) == [TP]
    managed.stop_replica(-2, delete=True)
    assert managed.manager.roles.failed.reasons() == {}


def test_a_replica_whose_topic_id_cannot_be_written_takes_no_role(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def assign(log: MemoryLog, topic_id: TopicId) -> None:
        if log.topic_partition == TP:
            raise api_error(ErrorCode.KAFKA_STORAGE_ERROR, "the disk refuses the topic id")
        log.topic_id = topic_id

    created = MemoryLogs.get_or_create_without_id

    def without_id(
        logs: MemoryLogs, name: TopicPartition, _: TopicId | None, now_ms: int, **flags: bool
    ) -> MemoryLog:
        return created(logs, name, None, now_ms, **flags)

    monkeypatch.setattr(MemoryLogs, "get_or_create_without_id", without_id)
    with monkeypatch.context() as patch:
        patch.setattr(MemoryLog, "assign_topic_id", assign)
        assert managed.tell(state(), second()) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert managed.manager.partition(TP).role is Role.NONE
    assert managed.manager.partition(SECOND).is_leader
    # The next request writes the id of the log that exists already.
    assert managed.tell(state(), second()) == []
    assert managed.manager.partition(TP).is_leader
    assert managed.manager.partition(TP).log.topic_id is not None


def test_a_follower_that_fails_is_followed_no_longer_unless_its_epoch_has_passed(managed: Managed) -> None:
    managed.tell(state(leader=2), second(leader=2))
    partition = managed.manager.partition(TP)
    managed.tell(state(leader=2, epoch=1))
    changed: list[TopicPartition] = []
    managed.manager.role_listeners.append(changed.append)
    managed.manager.roles.fail_follower(partition, LeaderEpoch(0), KeyError("late"))
    assert partition.role is Role.FOLLOWER
    managed.manager.roles.fail_follower(partition, LeaderEpoch(1), KeyError("a bug"))
    assert partition.role is Role.NONE
    assert list(managed.fetchers.followed) == [SECOND]
    assert changed == [TP]
    assert "following in leader epoch 1" in managed.manager.roles.failed.reasons()[TP]


class Notified(NoStore):
    """Counts the reports about lost replicas."""

    def __init__(self) -> None:
        self.count = 0

    def notify_log_dir_failure(self, broker: BrokerId) -> None:
        self.count += 1


def requests_for_roles(managed: Managed, store: Notified) -> int:
    """How often the controller was asked for roles, after another pass of the scheduler."""
    managed.manager.shrink_isrs()
    managed.manager.disk_failures.work_off()
    return store.count


def test_the_role_of_a_failed_replica_is_requested_after_longer_and_longer_pauses() -> None:
    store = Notified()
    managed = Managed(store=store)
    managed.tell(state(leader=2))
    partition = managed.manager.partition(TP)
    for count, pause_ms in enumerate((FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS)):
        managed.manager.roles.fail_follower(partition, LeaderEpoch(0), KeyError("a bug"))
        assert managed.fetchers.followed == {}
        managed.clock.now_ms += pause_ms - 1
        assert requests_for_roles(managed, store) == count
        managed.clock.now_ms += 1
        assert requests_for_roles(managed, store) == count + 1
        # The controller repeats its request.
        assert managed.tell(state(leader=2)) == []
        assert list(managed.fetchers.followed) == [TP]
        managed.clock.now_ms += pause_ms
        assert requests_for_roles(managed, store) == count + 1
    assert managed.manager.roles.failed.reasons() == {}
    managed.clock.now_ms += 100 * LONGEST_PAUSE_MS
    assert requests_for_roles(managed, store) == 3
    # After a long time without failures the pause is short again.
    managed.manager.roles.fail_follower(partition, LeaderEpoch(0), KeyError("a bug"))
    managed.clock.now_ms += FIRST_PAUSE_MS
    assert requests_for_roles(managed, store) == 4


def test_each_failed_replica_has_its_own_pause() -> None:
    clock = Clock()
    failed = FailedReplicas(clock)
    for name in (TP, TP, SECOND):
        failed.note(name, KeyError("a bug"), "a test", is_retried=True)
    clock.now_ms = FIRST_PAUSE_MS
    assert [failed.take_due() for _ in range(2)] == [True, False]
    failed.clear(SECOND)
    clock.now_ms = 2 * FIRST_PAUSE_MS
    assert [failed.take_due() for _ in range(2)] == [True, False]
    failed.clear(TP)
    clock.now_ms = 3 * FIRST_PAUSE_MS
    assert not failed.take_due()


def test_a_replaced_controller_is_refused_as_a_whole(managed: Managed) -> None:
    managed.tell(state(), controller_epoch=4)
    with refused(ErrorCode.STALE_CONTROLLER_EPOCH):
        managed.tell(state(leader=2, epoch=9), controller_epoch=3)
    with refused(ErrorCode.STALE_CONTROLLER_EPOCH):
        managed.stop_replica(9, controller_epoch=3)
    with refused(ErrorCode.STALE_CONTROLLER_EPOCH):
        managed.manager.roles.check_epochs(3, 0)
    assert managed.manager.partition(TP).is_leader
    assert managed.tell(state(leader=2, epoch=9), controller_epoch=4) == []
    # A registration reads the controller epoch in ZooKeeper.
    managed.manager.roles.registered(BrokerEpoch(20), ControllerEpoch(5))
    with refused(ErrorCode.STALE_CONTROLLER_EPOCH):
        managed.tell(state(), controller_epoch=4, broker_epoch=20)


def test_requests_for_an_earlier_broker_epoch_are_refused(managed: Managed) -> None:
    managed.manager.roles.registered(20)
    with refused(ErrorCode.STALE_BROKER_EPOCH):
        managed.tell(state(), broker_epoch=19)
    with refused(ErrorCode.STALE_BROKER_EPOCH):
        managed.stop_replica(-2, delete=True, broker_epoch=19)
    assert managed.tell(state(), broker_epoch=20) == []
    assert managed.manager.roles.registered_epoch() == 20
    managed.manager.roles.registration_lost("expired")
    with refused(ErrorCode.STALE_BROKER_EPOCH):
        managed.tell(state(epoch=1), broker_epoch=20)
    managed.manager.roles.registered(31)
    assert managed.tell(state(epoch=1), broker_epoch=31) == []
    assert managed.manager.roles.registered_epoch() is None, "the new one is not confirmed"
    managed.manager.fence.confirmed(BrokerEpoch(31))
    assert managed.manager.roles.registered_epoch() == 31


def test_a_role_request_has_the_settings_of_its_topic(managed: Managed) -> None:
    managed.tell(state(), min_insync_replicas=2)
    partition = managed.manager.partition(TP)
    assert partition.min_insync_replicas == 2
    managed.tell(state(), min_insync_replicas=3)
    assert partition.min_insync_replicas == 3


def test_settings_in_a_role_request_reach_the_replicas_that_it_does_not_name(managed: Managed) -> None:
    other = TopicPartition(TP.topic, 1)
    managed.tell(state(), state(index=1))
    waken: list[TopicPartition] = []
    managed.manager.role_listeners.append(waken.append)
    managed.tell(state(epoch=1), min_insync_replicas=2)
    # A notification of the same change finds the settings known, and changes nothing.
    assert managed.manager.partition(other).min_insync_replicas == 2
    assert waken == [TP, other]


# Strays and recreated topics


def stray(logs: MemoryLogs, name: TopicPartition, topic_id: int = 7) -> None:
    logs.get_or_create_without_id(name, TopicId(uuid.UUID(int=topic_id)), 0)


def test_a_full_request_sets_aside_logs_that_it_does_not_name() -> None:
    logs = MemoryLogs()
    gone = TopicPartition("gone", 3)
    for name in (TP, gone):
        stray(logs, name)
    logs.high_watermarks = {gone: Offset(9)}
    managed = Managed(logs)
    managed.tell(second(leader=2))
    managed.tell(state(), is_full=False)
    assert logs.deleted == []
    assert managed.tell(state(), is_full=True) == []
    assert logs.deleted == []
    assert sorted(name for name, _ in logs.strays) == sorted([gone, SECOND])
    assert [partition.partition for partition in managed.manager.partitions()] == [TP]
    managed.manager.checkpoint_high_watermarks()
    assert list(logs.high_watermarks) == [TP]
    assert SECOND not in managed.fetchers.followed
    kept = logs.strays[SECOND, TOPIC_ID]
    managed.tell(second(leader=2))
    assert managed.manager.partition(SECOND).log is kept


@pytest.mark.parametrize(
    ("error", "is_noted"),
    [(LogDirFailure(Path("disk"), OSError(5, "Input/output error")), True), (KeyError("a bug"), False)],
)
def test_a_stray_that_cannot_be_set_aside_affects_no_other_log(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_noted: bool
) -> None:
    logs = MemoryLogs()
    gone = TopicPartition("gone", 3)
    stray(logs, gone)

    def refuse(name: TopicPartition, now_ms: int) -> bool:
        raise error

    logs.set_aside = refuse
    managed = Managed(logs)
    noted: list[object] = []
    monkeypatch.setattr(managed.manager.disk_failures, "note", noted.append)
    managed.tell(state(), second(leader=2), is_full=True)
    assert managed.manager.partition(TP).is_leader
    assert list(managed.fetchers.followed) == [SECOND]
    assert noted == ([error] if is_noted else [])
    assert list(managed.manager.roles.failed.reasons()) == ([] if is_noted else [gone])


def test_a_recreated_topic_starts_with_an_empty_log() -> None:
    logs = MemoryLogs()
    stray(logs, TP)
    managed = Managed(logs)
    assert managed.tell(state(), topic_id=OTHER_ID) == []
    assert (logs.deleted, list(logs.strays)) == ([], [(TP, TOPIC_ID)])
    assert logs.logs[TP].topic_id == OTHER_ID
    assert managed.manager.partition(TP).is_leader


# StopReplica


def test_a_stopped_replica_keeps_its_log_and_may_be_taken_up_again(managed: Managed) -> None:
    managed.tell(state(leader=2, epoch=3))
    assert managed.stop_replica(3) == []
    assert managed.fetchers.followed == {}
    assert managed.manager.partition(TP).role is Role.NONE
    assert managed.logs.deleted == []
    assert managed.tell(state(leader=2, epoch=3)) == []
    assert managed.manager.partition(TP).role is Role.FOLLOWER


def test_a_late_deletion_of_an_earlier_topic_of_the_name_harms_nothing(managed: Managed) -> None:
    managed.tell(state(epoch=0), topic_id=OTHER_ID)
    assert managed.stop_replica(-2, delete=True) == []
    assert managed.stop_replica(0) == []
    partition = managed.manager.partition(TP)
    assert partition.is_leader
    assert managed.logs.get(TP) is partition.log
    assert managed.stop_replica(-2, delete=True, topic_id=OTHER_ID) == []
    assert managed.logs.get(TP) is None


def test_the_deletion_of_a_topic_that_was_set_aside_deletes_the_stray(managed: Managed) -> None:
    managed.tell(state(epoch=0))
    managed.tell(second(epoch=0), is_full=True)
    assert list(managed.logs.strays) == [(TP, TOPIC_ID)]
    assert managed.stop_replica(-2, delete=True) == []
    assert managed.logs.strays == {}


def test_an_older_stop_is_refused(managed: Managed) -> None:
    managed.tell(state(leader=2, epoch=3))
    assert managed.stop_replica(0, delete=True) == [ErrorCode.FENCED_LEADER_EPOCH]
    assert managed.manager.partition(TP).role is Role.FOLLOWER
    assert list(managed.fetchers.followed) == [TP]


def test_a_stop_is_obeyed_that_was_sent_before_the_leader_that_zookeeper_names(managed: Managed) -> None:
    managed.tell(state(epoch=0))
    assert managed.manager.partition(TP).learn_leader(BrokerId(3), LeaderEpoch(2), 0.0)
    assert managed.stop_replica(1, delete=True) == []
    assert managed.logs.deleted == [TP]


def test_a_deletion_is_accepted_in_every_epoch_and_when_repeated(managed: Managed) -> None:
    managed.tell(state(epoch=3))
    partition = managed.manager.partition(TP)
    assert managed.stop_replica(-2, delete=True) == []
    assert partition.role is Role.NONE
    assert managed.logs.deleted == [TP]
    assert managed.manager.partitions() == []
    assert managed.stop_replica(-2, delete=True) == []


# Finding partitions


def test_a_partition_elsewhere_has_another_error_than_an_unknown_one(managed: Managed) -> None:
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        managed.manager.partition(TP)
    managed.know({1: 0, 2: 5}, led_by(2))
    with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
        managed.manager.partition(TP)
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        managed.manager.partition(SECOND)


# High watermarks over a restart


def test_high_watermarks_survive_a_restart_also_before_a_role_is_given() -> None:
    logs = MemoryLogs()
    managed = Managed(logs)
    managed.tell(state(isr=(1,)))
    managed.produce(count=4)
    managed.manager.checkpoint_high_watermarks()
    again = Managed(logs)
    again.manager.checkpoint_high_watermarks()
    assert logs.high_watermarks == {TP: Offset(4)}
    again.tell(state(leader=2, epoch=1))
    assert again.manager.partition(TP).high_watermark == 4
    # Without a checkpoint it begins at the log's start.
    logs.high_watermarks = {}
    third = Managed(logs)
    third.tell(state(leader=2, epoch=2))
    assert third.manager.partition(TP).high_watermark == 0


def test_a_deleted_replica_leaves_no_high_watermark() -> None:
    logs = MemoryLogs()
    logs.high_watermarks = {TP: Offset(9)}
    stray(logs, TP)
    managed = Managed(logs)
    managed.stop_replica(-2, delete=True)
    managed.manager.checkpoint_high_watermarks()
    assert logs.high_watermarks == {}


ENDED, PRESENT = BrokerEpoch(4), BrokerEpoch(9)


def test_a_fence_for_silence_ends_when_zookeeper_answers() -> None:
    fence = Fence()
    assert fence.reason is None
    fence.silent("nothing heard")
    assert fence.reason == "nothing heard"
    fence.confirmed(PRESENT)
    assert fence.reason == "nothing heard", "a controller knows nothing of this session"
    fence.heard()
    assert fence.reason is None


def test_a_fence_for_a_lost_registration_ends_when_the_controller_confirms_the_next() -> None:
    fence = Fence()
    fence.silent("nothing heard")
    fence.registration_lost("expired", ENDED)
    fence.heard()
    fence.confirmed(ENDED)
    assert fence.reason == "expired"
    fence.confirmed(PRESENT)
    assert fence.reason is None


def test_the_callback_of_a_fence_is_called_when_writes_stop() -> None:
    fenced: list[str | None] = []
    fence = Fence(lambda: fenced.append(fence.reason))
    fence.silent("nothing heard")
    fence.registration_lost("expired", ENDED)
    fence.heard()
    assert fenced == ["nothing heard"]
    fence.confirmed(PRESENT)
    fence.registration_lost("expired again", PRESENT)
    assert fenced == ["nothing heard", "expired again"]
