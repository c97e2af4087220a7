from barnabas.controller.context import Replica
from barnabas.controller.request_batch import BrokerBatch, RequestBatch
from barnabas.protocol.ids import BrokerId, ControllerEpoch, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    StopReplicaPartition,
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
        update_metadata={tp: update}, has_metadata=True, is_full_metadata=is_full, metadata_brokers=[broker]
    )


def stop(tp: TopicPartition, *, delete: bool) -> BrokerBatch:
    return BrokerBatch(
        stop_replicas={
            tp: StopReplicaPartition(partition_index=tp.partition, leader_epoch=1, delete_partition=delete)
        }
    )


def test_only_the_last_state_of_a_partition_is_kept() -> None:
    batch = leadership(T0, 1)
    assert batch.merge(leadership(T1, 1))
    assert batch.merge(leadership(T0, 2))
    assert {tp: state.leader_epoch for tp, state in batch.leader_and_isr.items()} == {T0: 2, T1: 1}


def test_a_new_partition_stays_new_when_batches_are_merged() -> None:
    batch = leadership(T0, 0, is_new=True)
    assert batch.merge(leadership(T0, 1))
    assert batch.leader_and_isr[T0].is_new
    assert batch.leader_and_isr[T0].leader_epoch == 1


def test_a_full_request_replaces_earlier_states() -> None:
    batch = leadership(T0, 1)
    full = leadership(T1, 1)
    full.is_full_leader_and_isr = True
    assert batch.merge(full)
    assert set(batch.leader_and_isr) == {T1}
    assert batch.merge(leadership(T0, 2))
    assert batch.is_full_leader_and_isr
    assert set(batch.leader_and_isr) == {T0, T1}


def test_metadata_keeps_the_latest_brokers() -> None:
    batch = metadata(T0, 1)
    assert batch.merge(metadata(T1, 2, is_full=True))
    assert set(batch.update_metadata) == {T1}
    assert [broker.broker_id for broker in batch.metadata_brokers] == [2]
    assert batch.merge(stop(T0, delete=False))
    assert [broker.broker_id for broker in batch.metadata_brokers] == [2]


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


def test_a_later_stop_does_not_cancel_a_deletion() -> None:
    batch = stop(T0, delete=True)
    assert batch.merge(stop(T0, delete=False))
    assert batch.stop_replicas[T0].delete_partition


def test_an_empty_batch_sends_nothing_and_a_full_one_does_even_when_it_names_nothing() -> None:
    assert BrokerBatch().requests(BrokerId(0), ControllerEpoch(1), 7) == []
    [request] = BrokerBatch(is_full_leader_and_isr=True).requests(BrokerId(0), ControllerEpoch(1), 7)
    assert request.is_full
    assert request.broker_epoch == 7


def gathering() -> tuple[Cluster, RequestBatch]:
    cluster = Cluster(1, 2, 3)
    cluster.zookeeper.add_topic("t", {0: (1, 2), 1: (2, 1)})
    cluster.elect()
    return cluster, RequestBatch(cluster.term.context, "PLAINTEXT")


def test_leadership_goes_to_the_named_brokers_and_metadata_to_all() -> None:
    _, batch = gathering()
    batch.add_leader_and_isr([BrokerId(1)], T0)
    taken = batch.take()
    assert set(taken) == {1, 2, 3}
    assert set(taken[BrokerId(1)].leader_and_isr) == {T0}
    assert taken[BrokerId(3)].leader_and_isr == {}
    assert all(set(other.update_metadata) == {T0} for other in taken.values())
    assert [(b.broker_id, b.port) for b in taken[BrokerId(1)].live_brokers] == [
        (1, 9001),
        (2, 9002),
        (3, 9003),
    ]
    assert batch.take() == {}


def test_metadata_has_the_state_at_the_end_of_the_event() -> None:
    cluster, batch = gathering()
    batch.add_metadata_for_all([T0])
    cluster.term.context.leadership[T0] = state(2, (2,), epoch=9)
    update = batch.take()[BrokerId(3)].update_metadata[T0]
    assert (update.leader, update.leader_epoch) == (2, 9)


def test_a_suspected_or_unknown_broker_gets_no_batch() -> None:
    cluster, batch = gathering()
    cluster.term.context.suspected.add(BrokerId(1))
    batch.add_leader_and_isr([BrokerId(1), BrokerId(9)], T0)
    batch.add_stop_replica([Replica(T0, BrokerId(1))], delete=False)
    batch.mark_full(BrokerId(1))
    taken = batch.take()
    assert set(taken) == {2, 3}
    assert [b.broker_id for b in taken[BrokerId(2)].metadata_brokers] == [2, 3]
    assert taken[BrokerId(2)].update_metadata[T0].offline_replicas == [1]
