"""Metadata, DescribeReplicas, and what brokers and the controller say to one another."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.describe_replicas import DescribeReplicasRequest
from barnabas.protocol.messages.inter_broker import (
    ControlledShutdownRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LiveBroker,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
)
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.building import TOPIC_ID, TP, led_by, metadata, state
from tests.support.serving import EXTERNAL, INTERNAL, Serving

LIVE = {1: 10, 2: 20, 3: 30}


@pytest.fixture
def known(serving: Serving) -> Serving:
    """Topic "topic", led by 1 and 2; brokers 1 to 3 live; 2 is the controller."""
    serving.managed.know(LIVE, led_by(1), led_by(2, index=1))
    return serving


def ask(serving: Serving, *topics: MetadataRequestTopic, everything: bool = False) -> Any:
    asked = None if everything else list(topics)
    return serving.call(MetadataRequest(topics=asked, allow_auto_topic_creation=False), INTERNAL)


def named(name: str) -> MetadataRequestTopic:
    return MetadataRequestTopic(name=name)


# Metadata


def test_metadata_names_brokers_controller_and_leaders(known: Serving) -> None:
    answer = ask(known, everything=True)
    assert (answer.cluster_id, answer.controller_id) == ("cluster", 2)
    assert [(one.node_id, one.host, one.port) for one in answer.brokers] == [
        (1, "host", 9001),
        (2, "host", 9002),
        (3, "host", 9003),
    ]
    (topic,) = answer.topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.NONE, "topic", TOPIC_ID)
    assert [(one.partition_index, one.leader_id, one.leader_epoch) for one in topic.partitions] == [
        (0, 1, 0),
        (1, 2, 0),
    ]
    assert topic.partitions[0].replica_nodes == [1, 2, 3]
    assert topic.partitions[0].isr_nodes == [1, 2]


def test_brokers_are_named_by_the_listener_that_was_asked(known: Serving) -> None:
    assert known.call(MetadataRequest(topics=[]), EXTERNAL).brokers == []


def test_no_topic_is_named_when_none_is_asked_for(known: Serving) -> None:
    assert ask(known).topics == []


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (named("nowhere"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (named(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (MetadataRequestTopic(name=None), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (MetadataRequestTopic(name="topic", topic_id=uuid.UUID(int=99)), ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_a_topic_that_is_not_there(known: Serving, asked: MetadataRequestTopic, code: ErrorCode) -> None:
    missing, there = ask(known, asked, named("topic")).topics
    assert (missing.error_code, missing.partitions) == (code, [])
    assert there.error_code == ErrorCode.NONE


@pytest.mark.parametrize("name", [None, "", "another"])
def test_a_topic_id_wins_over_the_name(known: Serving, name: str | None) -> None:
    (topic,) = ask(known, MetadataRequestTopic(name=name, topic_id=TOPIC_ID)).topics
    assert (topic.error_code, topic.name) == (ErrorCode.NONE, "topic")


def test_a_suspect_is_named_neither_as_leader_nor_as_broker_nor_as_controller(known: Serving) -> None:
    known.managed.metadata.suspect(BrokerId(2))
    answer = ask(known, named("topic"))
    assert [broker.node_id for broker in answer.brokers] == [1, 3]
    assert answer.controller_id == -1
    fine, without = answer.topics[0].partitions
    assert (fine.error_code, fine.leader_id) == (ErrorCode.NONE, 1)
    assert (without.error_code, without.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert answer.topics[0].error_code == ErrorCode.NONE
    known.managed.metadata.trust(BrokerId(2))
    assert ask(known, named("topic")).topics[0].partitions[1].leader_id == 2


def test_replicas_on_dead_brokers_are_offline(known: Serving) -> None:
    known.managed.know({1: 10, 2: 20})
    assert ask(known, named("topic")).topics[0].partitions[0].offline_replicas == [3]


# DescribeReplicas


def test_the_replicas_of_this_broker_are_shown_as_they_are(leading: Serving) -> None:
    follower = state(leader=2, epoch=4)
    follower.partition_index = 1
    leading.managed.tell(follower)
    answer = leading.call(DescribeReplicasRequest(topics=None))
    assert answer.broker_id == 1
    (topic,) = answer.topics
    first, second = topic.replicas
    assert (first.is_leader, first.leader_id, first.leader_epoch, first.isr) == (True, 1, 0, [1, 2, 3])
    assert (first.log_start_offset, first.high_watermark, first.log_end_offset) == (0, 0, 0)
    assert (second.is_leader, second.leader_id, second.leader_epoch, second.isr) == (False, 2, 4, [])
    assert first.log_dir == str(leading.managed.manager.partition(TP).log.folder.parent)
    assert leading.call(DescribeReplicasRequest(topics=["other"])).topics == []


# What the controller says


def leader_and_isr(*, controller_epoch: int = 1, broker_epoch: int = 0, epoch: int = 0) -> Any:
    return LeaderAndIsrRequest(
        controller_id=2,
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[
            LeaderAndIsrTopic(
                topic_name="topic", topic_id=TOPIC_ID, partition_states=[state(epoch=epoch)], configs=[]
            )
        ],
        live_brokers=[LiveBroker(broker_id=1, host="host", port=9001)],
    )


def test_leader_and_isr_gives_roles_and_errors_per_partition(serving: Serving) -> None:
    answer = serving.call(leader_and_isr(epoch=3), INTERNAL)
    assert (answer.error_code, answer.partition_errors) == (ErrorCode.NONE, [])
    assert serving.managed.manager.partition(TP).is_leader
    answer = serving.call(leader_and_isr(epoch=2), INTERNAL)
    assert answer.error_code == ErrorCode.NONE
    (error,) = answer.partition_errors
    assert (error.topic_name, error.partition_index) == ("topic", 0)
    assert error.error_code == ErrorCode.STALE_CONTROLLER_EPOCH


def test_requests_of_a_replaced_controller_or_an_earlier_life_are_refused(serving: Serving) -> None:
    serving.managed.manager.begin_life(20)
    serving.call(leader_and_isr(controller_epoch=5, broker_epoch=20), INTERNAL)
    stale = serving.call(leader_and_isr(controller_epoch=4, broker_epoch=20), INTERNAL)
    assert stale.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    earlier = serving.call(leader_and_isr(controller_epoch=5, broker_epoch=19), INTERNAL)
    assert earlier.error_code == ErrorCode.STALE_BROKER_EPOCH
    stop = StopReplicaRequest(controller_id=2, controller_epoch=4, broker_epoch=20, topic_states=[])
    assert serving.call(stop, INTERNAL).error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    update = metadata({1: 20}, controller_epoch=5, broker_epoch=19)
    assert serving.call(update, INTERNAL).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert serving.managed.metadata.current.brokers == {}
    assert serving.call(metadata({1: 20}, controller_epoch=5, broker_epoch=20), INTERNAL).error_code == 0
    update = metadata({1: 20}, controller_epoch=4, broker_epoch=20)
    assert serving.call(update, INTERNAL).error_code == ErrorCode.STALE_CONTROLLER_EPOCH


def test_a_lost_registration_is_made_good_by_the_controller_alone(serving: Serving) -> None:
    manager = serving.managed.manager
    manager.begin_life(20)
    manager.end_life("the session has expired")
    serving.call(leader_and_isr(broker_epoch=20), INTERNAL)
    assert manager.fenced == "the session has expired", "it speaks of the life that has ended"
    manager.begin_life(31)
    assert manager.fenced == "the session has expired"
    serving.call(leader_and_isr(broker_epoch=31), INTERNAL)
    assert manager.fenced is None


def test_stop_replica_names_what_it_could_not_do(leading: Serving) -> None:
    def stop(epoch: int) -> Any:
        stopped = StopReplicaPartition(partition_index=0, leader_epoch=epoch, delete_partition=True)
        return leading.call(
            StopReplicaRequest(
                controller_id=2,
                controller_epoch=1,
                broker_epoch=0,
                topic_states=[StopReplicaTopic(topic_name="topic", partition_states=[stopped])],
            ),
            INTERNAL,
        )

    leading.managed.tell(state(epoch=3))
    (error,) = stop(2).partition_errors
    assert error.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert stop(3).partition_errors == []
    assert leading.logs.get(TP) is None


def test_controlled_shutdown_is_the_controllers_to_answer(serving: Serving) -> None:
    serving.controller.remaining = [TopicPartition("topic", 4)]
    answer = serving.call(ControlledShutdownRequest(broker_id=3, broker_epoch=30), INTERNAL)
    assert serving.controller.asked == [(3, 30)]
    (left,) = answer.remaining_partitions
    assert (answer.error_code, left.topic_name, left.partition_index) == (ErrorCode.NONE, "topic", 4)
    serving.controller.code = ErrorCode.STALE_BROKER_EPOCH
    answer = serving.call(ControlledShutdownRequest(broker_id=3, broker_epoch=29), INTERNAL)
    assert answer.error_code == ErrorCode.STALE_BROKER_EPOCH
