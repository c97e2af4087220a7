import uuid

import pytest

from barnabas.controller.context import Replica
from barnabas.controller.request_batch import BrokerBatch, RequestBatch, TopicFacts
from barnabas.protocol.ids import BrokerId, ControllerEpoch, TopicId, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    LEADER_DURING_DELETE,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
)
from tests.support.controller_fakes import T0, T1, Cluster, leader_and_isr, state


def leadership(tp: TopicPartition, epoch: int, *, is_new: bool = False) -> BrokerBatch:
    return BrokerBatch(leader_and_isr={tp: leader_and_isr(tp.partition, epoch=epoch, is_new=is_new)})


def metadata(tp: TopicPartition, epoch: int, *, is_full: bool = False) -> BrokerBatch:
    update = UpdateMetadataPartition(
        partition_index=tp.partition,
        controller_epoch=1,
        leader=1,
        leader_epoch=epoch,
        isr=[1],
        partition_epoch=epoch,
        replicas=[1],
    )
    broker = UpdateMetadataBroker(broker_id=epoch, endpoints=[])
    return BrokerBatch(
        update_metadata={tp: update}, has_metadata=True, is_full=is_full, metadata_brokers=[broker]
    )


def stop(tp: TopicPartition, *, delete: bool) -> BrokerBatch:
    return BrokerBatch(
        stop_replicas={
            tp: StopReplicaPartition(partition_index=tp.partition, leader_epoch=1, delete_partition=delete)
        }
    )


def test_a_new_partition_stays_new_when_batches_are_merged() -> None:
    batch = leadership(T0, 0, is_new=True)
    assert batch.merge(leadership(T0, 1))
    assert batch.leader_and_isr[T0].is_new
    assert batch.leader_and_isr[T0].leader_epoch == 1


def test_a_full_request_replaces_earlier_states() -> None:
    batch = leadership(T0, 1)
    full = leadership(T1, 1)
    full.is_full = True
    assert batch.merge(full)
    assert set(batch.leader_and_isr) == {T1}
    assert batch.merge(leadership(T0, 2))
    assert batch.is_full
    assert set(batch.leader_and_isr) == {T0, T1}
    assert not batch.has_metadata
    assert batch.merge(metadata(T0, 2))
    assert batch.has_metadata


def test_metadata_keeps_the_latest_brokers() -> None:
    batch = metadata(T0, 1)
    assert batch.merge(metadata(T1, 2, is_full=True))
    assert set(batch.update_metadata) == {T1}
    assert batch.merge(stop(T0, delete=False))
    assert [broker.broker_id for broker in batch.metadata_brokers] == [2]
    assert (batch.has_metadata, batch.is_full) == (True, True)


def test_a_full_update_does_not_drop_the_mark_of_a_deletion() -> None:
    batch = metadata(T0, 1)
    batch.update_metadata[T0].leader = LEADER_DURING_DELETE
    assert batch.merge(metadata(T1, 2, is_full=True))
    assert {tp: sent.leader for tp, sent in batch.update_metadata.items()} == {
        T0: LEADER_DURING_DELETE,
        T1: 1,
    }


def test_states_of_an_earlier_topic_of_the_name_are_not_sent_for_the_next() -> None:
    def of_topic(batch: BrokerBatch, number: int) -> BrokerBatch:
        batch.topics["t"] = TopicFacts(TopicId(uuid.UUID(int=number)))
        return batch

    batch = of_topic(metadata(T0, 1), 1)
    assert batch.merge(of_topic(metadata(T1, 2), 1))
    assert set(batch.update_metadata) == {T0, T1}
    assert batch.merge(of_topic(metadata(T1, 2), 2))
    assert set(batch.update_metadata) == {T1}
    assert batch.topics["t"].topic_id.int == 2
    for earlier in (leadership(T0, 1), stop(T0, delete=False)):
        assert not of_topic(earlier, 1).merge(of_topic(leadership(T1, 2), 2))
        assert earlier.merge(of_topic(leadership(T1, 2), 1))


def test_leadership_replaces_an_earlier_stop() -> None:
    batch = stop(T0, delete=False)
    assert batch.merge(leadership(T0, 2))
    assert batch.stop_replicas == {}


def test_a_stop_after_leadership_keeps_both() -> None:
    batch = leadership(T0, 2)
    assert batch.merge(stop(T0, delete=True))
    assert set(batch.leader_and_isr) == set(batch.stop_replicas) == {T0}


def test_a_partition_recreated_after_its_deletion_is_not_merged() -> None:
    batch = stop(T0, delete=True)
    assert not batch.merge(leadership(T0, 0, is_new=True))
    assert batch.leader_and_isr == {}
    assert batch.stop_replicas[T0].delete_partition


def test_a_replica_of_an_earlier_topic_is_deleted_before_a_topic_with_its_id_is_back() -> None:
    def of_topic(number: int) -> BrokerBatch:
        later = leadership(T0, 2)
        later.topics["t"] = TopicFacts(TopicId(uuid.UUID(int=number)))
        return later

    batch = BrokerBatch()
    assert batch.merge(BrokerBatch(former_replicas={(T0, TopicId(uuid.UUID(int=1))): None}))
    assert not batch.merge(of_topic(1))
    assert batch.merge(of_topic(2))
    _, stop = batch.requests(BrokerId(1), ControllerEpoch(1), 1)
    assert isinstance(stop, StopReplicaRequest)
    assert [topic.topic_id.int for topic in stop.topic_states] == [1]


def test_a_later_stop_does_not_cancel_a_deletion() -> None:
    batch = stop(T0, delete=True)
    assert batch.merge(stop(T0, delete=False))
    assert batch.stop_replicas[T0].delete_partition


@pytest.fixture
def batch(cluster: Cluster) -> RequestBatch:
    return RequestBatch(cluster.term.context, "PLAINTEXT")


def test_leadership_goes_to_the_named_brokers_and_metadata_to_all(
    cluster: Cluster, batch: RequestBatch
) -> None:
    batch.add_leader_and_isr([BrokerId(1)], T0, is_new=True)
    batch.add_leader_and_isr([BrokerId(1)], T0)
    # Metadata has the state at the end of the event.
    cluster.term.context.leadership[T0] = state(2, (2,), epoch=9)
    taken = batch.take()
    assert set(taken) == {1, 2, 3}
    assert {tp: sent.is_new for tp, sent in taken[BrokerId(1)].leader_and_isr.items()} == {T0: True}
    assert taken[BrokerId(3)].leader_and_isr == {}
    topic_id = cluster.zookeeper.assignments["t"].topic_id
    for other in taken.values():
        assert {tp: sent.leader_epoch for tp, sent in other.update_metadata.items()} == {T0: 9}
        assert {name: facts.topic_id for name, facts in other.topics.items()} == {"t": topic_id}
    live = [(broker.broker_id, broker.port) for broker in taken[BrokerId(1)].live_brokers]
    assert live == [(1, 9001), (2, 9002), (3, 9003)]
    assert batch.take() == {}


def test_a_suspected_or_unknown_broker_gets_no_batch(cluster: Cluster, batch: RequestBatch) -> None:
    one, two = BrokerId(1), BrokerId(2)
    cluster.term.context.suspected.add(one)
    batch.add_leader_and_isr([one, BrokerId(9), two], T0)
    batch.add_stop_replica([Replica(T1, one), Replica(T1, two)], delete=False)
    batch.add_metadata([one, two], [], is_full=True)
    taken = batch.take()
    assert {broker: its.is_full for broker, its in taken.items()} == {2: True, 3: False}
    assert set(taken[two].leader_and_isr) == {T0}
    assert [(tp, sent.leader_epoch) for tp, sent in taken[two].stop_replicas.items()] == [(T1, 0)]
    assert [b.broker_id for b in taken[two].metadata_brokers] == [2, 3]
    assert taken[two].update_metadata[T0].offline_replicas == [1]
