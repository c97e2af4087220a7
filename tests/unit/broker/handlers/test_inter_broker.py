"""DescribeReplicas and the requests between brokers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from barnabas.broker.compaction.cleaner import CleanerFigures, Totals
from barnabas.broker.handlers import replicas
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.broker.replication.partition import Role
from barnabas.protocol import schema
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.inter_broker import (
    ControlledShutdownRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LiveBroker,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
)
from barnabas.protocol.messages.replicas import (
    CleanerDescription,
    DescribeReplicasRequest,
    FollowerDescription,
    ReplicaDescription,
)
from tests.support.batches import build_batch
from tests.support.building import LAG_MS, TOPIC_ID, TP, led_by, metadata, state
from tests.support.serving import INTERNAL, Serving

# DescribeReplicas


def test_describe_replicas_shows_the_state_of_each_replica(leading: Serving) -> None:
    follower = state(leader=2, epoch=4)
    follower.partition_index = 1
    leading.managed.tell(follower)
    answer = leading.call(DescribeReplicasRequest(topics=None))
    assert answer.broker_id == 1
    (topic,) = answer.topics
    first, second = topic.replicas
    assert (first.is_leader, first.leader_id, first.leader_epoch, first.isr) == (True, 1, 0, [1, 2, 3])
    assert (first.log_start_offset, first.high_watermark, first.log_end_offset) == (0, 0, 0)
    assert first.last_stable_offset == 0
    assert (second.is_leader, second.leader_id, second.leader_epoch, second.isr) == (False, 2, 4, [])
    assert first.log_dir == str(leading.managed.manager.partition(TP).log.folder.parent)
    assert (first.is_offline, second.is_offline, answer.error_code) == (False, False, ErrorCode.NONE)
    assert leading.call(DescribeReplicasRequest(topics=["other"])).topics == []


def test_describe_replicas_shows_the_followers_as_their_leader_knows_them(leading: Serving) -> None:
    managed = leading.managed
    managed.tell(state(leader=2, epoch=1))
    managed.tell(state(epoch=2, isr=(1, 2)))

    def followers() -> list[FollowerDescription]:
        (topic,) = leading.call(DescribeReplicasRequest(topics=None)).topics
        return topic.replicas[0].followers

    managed.pass_time(5)
    assert followers() == [
        FollowerDescription(broker_id=2, caught_up_ms_ago=5, is_in_sync=True),
        FollowerDescription(broker_id=3),
    ], "nobody has fetched in this epoch; the ISR gets the whole allowed lag"
    records = parse_produced(build_batch([(None, b"v")] * 4))
    managed.manager.append(1, 0, [(TP, records)], lambda _: None)
    managed.fetch(2, replica=2, epoch=2)
    managed.pass_time(7)
    managed.fetch(4, replica=3, epoch=2)
    managed.manager.append(1, 0, [(TP, records)], lambda _: None)
    second, third = followers()
    assert second == FollowerDescription(
        broker_id=2,
        log_end_offset=2,
        log_start_offset=0,
        leader_end_at_fetch=4,
        fetched_ms_ago=7,
        caught_up_ms_ago=12,
        is_in_sync=True,
    )
    assert (third.log_end_offset, third.leader_end_at_fetch, third.caught_up_ms_ago) == (4, 4, 0)
    assert (third.is_in_sync, third.is_joining, third.is_leaving) == (False, True, False)
    managed.tell(state(epoch=3, isr=(1, 2, 3)))
    managed.pass_time(LAG_MS + 1)
    managed.manager.partition(TP).propose_shrink(managed.clock())
    second, third = followers()
    assert (second.log_end_offset, second.fetched_ms_ago) == (2, -1), "this epoch follows the last one"
    assert [each.is_leaving and each.is_in_sync for each in (second, third)] == [True, True]
    managed.tell(state(leader=2, epoch=4))
    assert followers() == []


def test_describe_replicas_shows_the_logs_that_the_cleaner_cannot_clean(leading: Serving) -> None:
    leading.managed.manager.partition(TP).log.cleaning_problem = "no space"
    (topic,) = leading.call(DescribeReplicasRequest(topics=None)).topics
    assert [replica.cleaning_problem for replica in topic.replicas] == ["no space"]


def test_describe_replicas_shows_the_cleaner(leading: Serving) -> None:
    assert leading.call(DescribeReplicasRequest(topics=[])).cleaner.threads == 0, "it does not run"
    figures = CleanerFigures(
        max_dirty_ratio=1.0,
        max_compaction_delay_ms=3,
        ms_since_last_assessment=4,
        max_buffer_utilization=3.0,
        recopy_ratio=2.0,
        max_clean_time_s=1.5,
        dead_threads=1,
        uncleanable=[(Path("a"), 10), (Path("b"), 20)],
        in_progress=[TP],
        totals=Totals(cleanings=7, bytes_read=8, bytes_written=9),
    )
    cleaner: Any = SimpleNamespace(settings=SimpleNamespace(threads=2), figures=lambda: figures)
    assert replicas._describe_cleaner(cleaner) == CleanerDescription(
        threads=2,
        dead_threads=1,
        max_dirty_percent=100,
        uncleanable_partitions=2,
        uncleanable_bytes=30,
        time_since_last_run_ms=4,
        max_compaction_delay_ms=3,
        max_clean_time_ms=1_500,
        max_buffer_utilization_percent=300,
        recopy_percent=200,
        in_progress=["topic-0"],
        cleanings=7,
        bytes_read=8,
        bytes_written=9,
    )


def test_describe_replicas_shows_those_that_have_failed(leading: Serving) -> None:
    manager = leading.managed.manager
    folder = manager.partition(TP).log.folder.parent
    manager.disk_failures.note(LogDirFailure(folder, OSError("broken")))
    manager.disk_failures.work_off()
    for name in (TopicPartition("topic", 1), TopicPartition("other", 0)):
        manager.roles.failed.note(name, OSError("no room"), "it is not created", is_retried=False)
    (topic,) = leading.call(DescribeReplicasRequest(topics=["topic"])).topics
    lost, not_created = topic.replicas
    assert lost == ReplicaDescription(
        partition_index=0,
        leader_id=-1,
        leader_epoch=-1,
        is_leader=False,
        isr=[],
        replicas=[],
        log_start_offset=-1,
        high_watermark=-1,
        log_end_offset=-1,
        size_bytes=-1,
        log_dir=str(folder),
        is_offline=True,
        failure=lost.failure,
    )
    assert (not_created.partition_index, not_created.is_offline, not_created.log_dir) == (1, True, "")
    assert "no room" in not_created.failure


# Requests of the controller


def leader_and_isr(
    *states: LeaderAndIsrPartition,
    controller_epoch: int = 1,
    broker_epoch: int = 0,
    epoch: int = 0,
    is_full: bool = False,
    sequence: int = -1,
) -> Any:
    return LeaderAndIsrRequest(
        controller_id=2,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[
            LeaderAndIsrTopic(
                topic_name="topic",
                topic_id=TOPIC_ID,
                partition_states=list(states) or [state(epoch=epoch)],
            )
        ],
        is_full=is_full,
        sequence=sequence,
        live_brokers=[LiveBroker(broker_id=1, host="host", port=9001)],
    )


def stop(epoch: int, *, delete: bool, sequence: int = -1) -> StopReplicaRequest:
    stopped = StopReplicaPartition(partition_index=0, leader_epoch=epoch, delete_partition=delete)
    topic = StopReplicaTopic(topic_name="topic", topic_id=TOPIC_ID, partition_states=[stopped])
    return StopReplicaRequest(
        controller_id=2, controller_epoch=1, broker_epoch=0, topic_states=[topic], sequence=sequence
    )


def test_leader_and_isr_assigns_roles_and_returns_errors_per_partition(serving: Serving) -> None:
    serving.managed.know({1: 10, 2: 20}, led_by(2, epoch=2))
    answer = serving.call(leader_and_isr(epoch=3), INTERNAL)
    assert (answer.error_code, answer.partition_errors) == (ErrorCode.NONE, [])
    assert serving.managed.manager.partition(TP).is_leader
    assert serving.managed.metadata.current.topics["topic"].partitions[0].leader == 1
    answer = serving.call(leader_and_isr(epoch=2), INTERNAL)
    assert answer.error_code == ErrorCode.NONE
    (error,) = answer.partition_errors
    assert (error.topic_name, error.partition_index) == ("topic", 0)
    assert error.error_code == ErrorCode.STALE_CONTROLLER_EPOCH


def test_requests_with_an_old_controller_or_broker_epoch_are_refused(serving: Serving) -> None:
    serving.managed.manager.roles.registered(20)
    serving.call(leader_and_isr(controller_epoch=5, broker_epoch=20), INTERNAL)
    stale = serving.call(leader_and_isr(controller_epoch=4, broker_epoch=20), INTERNAL)
    assert stale.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    earlier = serving.call(leader_and_isr(controller_epoch=5, broker_epoch=19), INTERNAL)
    assert earlier.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert serving.call(stop(0, delete=True), INTERNAL).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    update = metadata({1: 20}, controller_epoch=5, broker_epoch=19)
    assert serving.call(update, INTERNAL).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert serving.managed.metadata.current.brokers == {}
    assert serving.call(metadata({1: 20}, controller_epoch=5, broker_epoch=20), INTERNAL).error_code == 0
    assert list(serving.managed.metadata.current.brokers) == [1]
    update = metadata({1: 20}, controller_epoch=4, broker_epoch=20)
    assert serving.call(update, INTERNAL).error_code == ErrorCode.STALE_CONTROLLER_EPOCH


def test_a_controller_epoch_that_zookeeper_does_not_confirm_changes_nothing(serving: Serving) -> None:
    roles = serving.managed.manager.roles
    asked: list[int] = []

    def is_elected(epoch: int) -> bool:
        asked.append(epoch)
        return epoch <= 2

    roles.is_elected = is_elected
    lie = StopReplicaRequest(controller_id=2, controller_epoch=2**31 - 1, broker_epoch=2**62, topic_states=[])
    connection = serving.send(lie, INTERNAL)
    assert connection.closed == "StopReplicaRequest: ZooKeeper does not confirm controller epoch 2147483647"
    for sequence in (0, 1):
        answer = serving.call(leader_and_isr(controller_epoch=1, epoch=1, sequence=sequence), INTERNAL)
        assert answer.error_code == ErrorCode.NONE
    assert serving.managed.manager.partition(TP).is_leader
    assert asked == [2**31 - 1, 1], "a known epoch needs no look"


def test_a_late_request_is_answered_and_not_applied(serving: Serving) -> None:
    manager, metadata_cache = serving.managed.manager, serving.managed.metadata
    second = state()
    second.partition_index = 1
    serving.call(leader_and_isr(sequence=0), INTERNAL)
    serving.call(leader_and_isr(state(), second, sequence=5), INTERNAL)
    serving.call(schema.replace(metadata({1: 10}, led_by(1)), sequence=6), INTERNAL)
    known = metadata_cache.current
    # Copies of earlier requests, from before the second partition was created.
    late = [
        leader_and_isr(state(), is_full=True, sequence=0),
        stop(-2, delete=True, sequence=4),
        schema.replace(metadata({1: 10}, led_by(3, epoch=1)), sequence=5),
    ]
    for request in late:
        assert serving.call(request, INTERNAL).error_code == ErrorCode.NONE
    assert manager.partition(TP).is_leader
    assert manager.partition(TopicPartition("topic", 1)).is_leader
    assert metadata_cache.current is known
    # The last request may be resent, and the next controller has its own numbers.
    serving.call(stop(0, delete=False, sequence=6), INTERNAL)
    assert manager.partition(TP).role is Role.NONE
    serving.call(leader_and_isr(epoch=1, controller_epoch=2, sequence=0), INTERNAL)
    assert manager.partition(TP).is_leader


def test_the_numbers_of_another_sender_make_no_request_of_the_controller_late(serving: Serving) -> None:
    begin = 2**59
    serving.call(leader_and_isr(sequence=begin), INTERNAL)
    for number in (2**62, 0, 2**61):
        serving.call(schema.replace(stop(0, delete=False, sequence=number), topic_states=[]), INTERNAL)
    # A late copy, and then the next request.
    serving.call(stop(-2, delete=True, sequence=begin - 1), INTERNAL)
    assert serving.managed.manager.partition(TP).is_leader
    serving.call(stop(0, delete=False, sequence=begin + 1), INTERNAL)
    assert serving.managed.manager.partition(TP).role is Role.NONE


def test_a_broker_that_registers_again_is_fenced_until_the_controller_sends_its_roles(
    serving: Serving,
) -> None:
    manager = serving.managed.manager
    manager.roles.registered(20)
    manager.roles.registration_lost("the session has expired")
    serving.call(leader_and_isr(broker_epoch=20), INTERNAL)
    assert manager.fence.reason == "the session has expired", "the request is for the earlier registration"
    manager.roles.registered(31)
    assert manager.fence.reason == "the session has expired"
    probe = schema.replace(leader_and_isr(broker_epoch=31), topic_states=[])
    serving.call(probe, INTERNAL)
    assert manager.fence.reason == "the session has expired"
    serving.call(schema.replace(probe, is_full=True), INTERNAL)
    assert manager.fence.reason is None, "it has no replicas"


def test_stop_replica_returns_an_error_per_partition(leading: Serving) -> None:
    leading.managed.tell(state(epoch=3))
    (error,) = leading.call(stop(2, delete=True), INTERNAL).partition_errors
    assert error.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert leading.call(stop(3, delete=True), INTERNAL).partition_errors == []
    assert leading.logs.get(TP) is None


def test_the_controller_answers_a_controlled_shutdown(serving: Serving) -> None:
    serving.controller.remaining = [TopicPartition("topic", 4)]
    answer = serving.call(ControlledShutdownRequest(broker_id=3, broker_epoch=30), INTERNAL)
    assert serving.controller.calls == [(3, 30)]
    (left,) = answer.remaining_partitions
    assert (answer.error_code, left.topic_name, left.partition_index) == (ErrorCode.NONE, "topic", 4)
    serving.controller.code = ErrorCode.STALE_BROKER_EPOCH
    answer = serving.call(ControlledShutdownRequest(broker_id=3, broker_epoch=29), INTERNAL)
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
