"""The classic ways to lose acknowledged records, each written step by step and run with the old mistake too.

Every history is a function, so that it can run both ways.
"""

from collections.abc import Callable

import pytest

from barnabas.broker.replication.followers import CommittedIsr
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.invariants import InvariantViolation
from tests.simulation import mutations, transaction_mutations
from tests.simulation.disk import BATCH_BYTES, Fault
from tests.simulation.histories_of_sessions import HISTORIES_OF_SESSIONS
from tests.simulation.log_transactions import TransactionalProducer
from tests.simulation.planted import OF_COMPILED_CODE, Mutation
from tests.simulation.steps import (
    A,
    B,
    C,
    D,
    deliver_control,
    deliver_requests,
    fetch_without_answer,
    heal_and_settle,
    kill,
    lose_power,
    read_committed,
    remove_from_isr,
    replicate,
    restart_with_an_empty_disk,
    run_controllers,
    world_with_a_pending_expansion,
    world_with_a_record,
)
from tests.simulation.world import MAX_LAG_MS, TOPIC_ID, TP, World
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.zookeeper_client import Door


def a_stale_high_watermark() -> None:
    """KIP-101: a follower enters a new epoch with a stale high watermark, and then becomes the leader."""
    world = World(3)
    # The leader appends it. It is acknowledged when all members of the ISR have it.
    world.produce(A)
    # The followers copy the record. They do not know yet that the others have it too.
    replicate(world, B, C)
    # These fetches tell the leader that both have the record. The high watermark rises, the producer gets its
    # acknowledgement, but the answers with the new high watermark never reach the followers.
    fetch_without_answer(world, B, C)
    assert world.truth.acknowledged_end == 1
    assert world.brokers[B].partition.high_watermark == 0
    # The controller removes it from the ISR, in a new leader epoch of the same leader.
    kill(world, C)
    # Broker 2 enters the new epoch as a follower with the high watermark 0.
    deliver_requests(world, A, B)
    assert world.brokers[B].partition.leader_epoch == 1
    # Broker 2 is the only member of the ISR that is left, so the controller makes it the leader.
    kill(world, A)
    # Broker 2 leads. What it does not have now is gone.
    deliver_requests(world, B)
    assert world.state.leader == B
    world.check()
    # All brokers return and follow broker 2.
    heal_and_settle(world, committed=[0])


def a_power_cut_of_the_whole_isr() -> None:
    """KIP-101: after a power cut the replicas' logs differ, although their high watermarks are the same."""
    world = World(2)
    # The leader appends the first record.
    world.produce(A)
    # Both replicas have the record, and both disks flush it.
    world.settle()
    for broker in (A, B):
        world.brokers[broker].disk.flush(world.tp)
    # The leader appends the second record.
    world.produce(A)
    # Both replicas have this record too, below their high watermarks, but only broker 1 flushes it.
    world.settle()
    world.brokers[A].disk.flush(world.tp)
    for broker in (A, B):
        world.brokers[broker].replicas.checkpoint_high_watermarks()
    # No promise covers records that every replica may have lost, so what follows is judged by the logs alone.
    world.drop_truths(TOPIC_ID)
    # Broker 2 has only the first record now. Nobody leads.
    lose_power(world, A, B)
    # It was in the ISR, so it may lead.
    world.brokers[B].start()
    run_controllers(world)
    deliver_requests(world, B)
    assert world.state.leader == B
    # The offset of the lost record gets another one.
    world.produce(B, acks=1)
    # It has a record at that offset, below its saved high watermark.
    world.brokers[A].start()
    run_controllers(world)
    # Broker 1 becomes a follower. Its log must agree with the leader's before it appends anything.
    deliver_requests(world, B, A)
    # Broker 1 fetches. The epoch of its last record tells the leader whether their histories part.
    replicate(world, A)
    replicate(world, A)
    # The next records follow.
    world.produce(B, acks=1)
    replicate(world, A)
    logs = [[entry.value for entry in world.brokers[broker].view.between(0, 3)] for broker in (A, B)]
    assert logs == [[0, 2, 3], [0, 2, 3]], "the logs of two replicas differ for ever"


def a_fast_double_failover() -> None:
    """KIP-279: two leaders in a row append records that no follower copies, and the first one leads again."""
    world = world_with_a_record(3, min_insync_replicas=1)
    # Broker 1 writes a record in epoch 0, and no follower has it.
    world.produce(A, acks=1)
    # The leadership moves, and the ISR stays as it is. Broker 1 does not hear of it yet.
    world.move_leadership(B)
    deliver_requests(world, B, C)
    # Broker 2 writes another record at that offset, in epoch 1.
    world.produce(B, acks=1)
    # It moves back before broker 1 has followed broker 2, so broker 1 keeps its record.
    world.move_leadership(A)
    deliver_requests(world, A)
    # Broker 1 writes a record in epoch 2, behind its record of epoch 0. It has none of epoch 1.
    world.produce(A, acks=1)
    # Broker 2 follows. Its last record is of epoch 1, and its log ends where epoch 2 begins.
    deliver_requests(world, B, C)
    # It must find out that its last record is of another history.
    world.settle()
    values = [[entry.value for entry in broker.view.between(0, 3)] for broker in world.brokers.values()]
    assert values == [[0, 1, 3]] * 3, "the logs of two replicas differ for ever"


def a_torn_transaction() -> None:
    """KIP-1228: the marker of one transaction arrives late, while the next one is open."""
    world = World(3)
    world.has_transactions = True
    producer = TransactionalProducer(world, 1, is_raised=True)
    # The first transaction has one record.
    producer.write(A)
    world.settle()
    producer.end(committed=True)
    # The leader writes the marker, but the coordinator gets no answer.
    producer.send_marker(A, is_answer_lost=True)
    world.settle()
    # So it sends the marker again, and this one is delayed in the network.
    producer.send_marker(A)
    late = world.messages.pop()
    # A third one is answered at once, and the producer begins its second transaction.
    producer.send_marker(A)
    world.settle()
    assert producer.marker is None
    # The second transaction has two records. This is the first.
    producer.write(A)
    world.settle()
    world.messages.append(late)
    # The late marker of the first transaction arrives in the middle of the second.
    world.deliver()
    world.settle()
    # This is the second record of the second transaction.
    producer.write(A)
    world.settle()
    # The second transaction is aborted, so no consumer may see any of its records.
    producer.end(committed=False)
    producer.send_marker(A)
    world.settle()
    assert read_committed(world, A) == [0], "half of a transaction is visible"


def a_zombie_leader() -> None:
    """KIP-320: a leader is paused while another is elected, and resumes."""
    world = world_with_a_record(3)
    world.brokers[A].is_paused = True
    world.expire(A)
    run_controllers(world)
    deliver_requests(world, B, C)
    assert world.state.leader == B
    world.produce(B)
    replicate(world, C)
    replicate(world, C)
    assert world.truth.acknowledged_end == 2
    world.brokers[A].is_paused = False
    zombie, old, new = world.brokers[A].partition, 0, 1
    assert zombie.is_leader
    world.produce(A, 5)
    with pytest.raises(ApiError) as refused:
        zombie.check_leading(new)
    assert refused.value.code == ErrorCode.UNKNOWN_LEADER_EPOCH
    with pytest.raises(ApiError) as refused:
        world.brokers[B].partition.check_leading(old)
    assert refused.value.code == ErrorCode.FENCED_LEADER_EPOCH
    world.advance(10_000)
    world.shrink(A)
    world.work_off(A)
    world.check()
    assert zombie.high_watermark == 1, "it must not commit records that no follower has"
    heal_and_settle(world, committed=[0, 1])


def an_expansion_for_an_earlier_registration() -> None:
    """KIP-903: a fetch at the log end arrives after its follower has lost the disk."""
    world = world_with_a_record(3, min_insync_replicas=1)
    remove_from_isr(world, C)
    world.produce(A)
    replicate(world, B, C)
    replicate(world, B)
    assert world.truth.acknowledged_end == 3
    assert world.fetch(C)
    late = world.messages.pop()
    restart_with_an_empty_disk(world, C)
    run_controllers(world)
    deliver_requests(world, A, B, C)
    world.messages.append(late)
    assert world.deliver()
    world.work_off(A)
    world.check()
    assert set(world.state.isr) == {A, B}
    heal_and_settle(world)


def an_expansion_written_after_the_rebirth() -> None:
    """KIP-903: the replica loses its disk while the expansion waits to be written."""
    world = world_with_a_pending_expansion()
    leader = world.brokers[A].partition
    restart_with_an_empty_disk(world, C)
    run_controllers(world)
    # The registration in ZooKeeper decides, whether the leader knows it or not.
    world.work_off(A)
    world.check()
    assert set(world.state.isr) == {A, B}
    assert isinstance(leader.isr, CommittedIsr), "no LeaderAndIsr would end the change"
    heal_and_settle(world)


def a_lost_expansion_and_a_rebirth() -> None:
    """The expansion is written, its answer is lost, and the new member dies: that is no refusal."""
    world = world_with_a_pending_expansion()
    world.doors[A] = Door.MUTE
    world.work_off(A)
    assert set(world.state.isr) == {A, B, C}
    world.doors[A] = Door.OPEN
    world.brokers[C].crash()
    world.expire(C)
    world.work_off(A)
    leader = world.brokers[A].partition
    assert set(leader.isr.maximal) == {A, B, C}, "ZooKeeper has it: only the controller may undo it"
    world.brokers[C].start()
    heal_and_settle(world)


def a_leader_without_zookeeper() -> None:
    """It cannot commit a smaller ISR, so it must not acknowledge with the smaller ISR either."""
    world = world_with_a_record(3)
    world.doors[A] = Door.LOST
    world.cut.add(frozenset((A, C)))
    replicate(world, B)
    world.advance(MAX_LAG_MS + 1)
    world.produce(A)
    replicate(world, B)
    world.shrink(A)
    world.work_off(A)
    assert world.brokers[A].partition.isr.leaving
    replicate(world, B)
    world.check()
    # B dies, A loses its session, and C leads, which A meant to remove from the ISR.
    world.brokers[B].crash()
    world.expire(B)
    world.expire(A)
    run_controllers(world)
    deliver_requests(world, C)
    assert world.state.leader == C
    world.check()
    assert world.truth.acknowledged_end == 1
    world.brokers[B].start()
    heal_and_settle(world)


def an_expansion_whose_answer_was_lost() -> None:
    """A follower is in the ISR and its leader does not know; then the controller elects it."""
    world = world_with_a_record(2, min_insync_replicas=1)
    remove_from_isr(world, B)
    world.doors[A] = Door.MUTE
    replicate(world, B)
    replicate(world, B)
    world.work_off(A)
    assert set(world.state.isr) == {A, B}
    assert world.brokers[A].partition.isr.joining
    world.expire(A)
    run_controllers(world)
    assert world.state.leader == B
    world.doors[A] = Door.OPEN
    world.advance(MAX_LAG_MS + 1)
    world.produce(A)
    world.check()
    assert world.truth.acknowledged_end == 1
    world.work_off(A)
    assert not world.brokers[A].partition.is_leader
    deliver_requests(world, B)
    world.produce(B)
    world.check()
    assert world.truth.acknowledged_end == 3
    heal_and_settle(world)


def an_expansion_whose_answer_was_lost_and_a_new_epoch() -> None:
    """The same, but the controller first writes another epoch of the old leader, which then retries."""
    world = world_with_a_record(2, min_insync_replicas=1)
    remove_from_isr(world, B)
    world.doors[A] = Door.MUTE
    replicate(world, B)
    replicate(world, B)
    world.work_off(A)
    world.doors[A] = Door.OPEN
    world.move_leadership(A)
    world.work_off(A)
    assert (world.state.leader, set(world.state.isr)) == (A, {A, B})
    world.advance(MAX_LAG_MS + 1)
    world.produce(A)
    world.check()
    assert world.truth.acknowledged_end == 1
    kill(world, A)
    assert world.state.leader == B
    heal_and_settle(world)


def a_laggard_joins_a_new_leader() -> None:
    """A new leader's high watermark is stale: a follower that reaches it may lack committed records."""
    world = World(4)
    remove_from_isr(world, C)
    world.produce(A)
    replicate(world, B, D)
    fetch_without_answer(world, B, D)
    assert world.truth.acknowledged_end == 2
    kill(world, A)
    deliver_requests(world, B, C)
    leader = world.brokers[B].partition
    assert (leader.is_leader, leader.high_watermark, leader.log_end_offset) == (True, 1, 2)
    assert world.fetch(C, max_bytes=BATCH_BYTES)
    while world.deliver():
        world.check()
    assert world.brokers[C].partition.log_end_offset == 1
    assert world.fetch(C)
    assert world.deliver()
    world.work_off(B)
    world.check()
    assert isinstance(leader.isr, CommittedIsr)
    heal_and_settle(world)


def a_controller_wakes_from_a_pause() -> None:
    """Its writes are refused, and so are the requests that it had not sent."""
    world = world_with_a_record(3)
    old, channels = world.hosts[BrokerId(0)], world.channels[-1]
    # The controller, broker 0, takes the leader for dead.
    world.suspect(A)
    # It elects broker 2 in a new epoch. Its requests to the brokers wait to be sent.
    run_controllers(world)
    assert world.state.leader == B
    unsaid = {broker: list(link.queue.waiting) for broker, link in channels.links.items()}
    assert unsaid[B]
    assert unsaid[C]
    for link in channels.links.values():
        link.queue.waiting.clear()
    # The controller is paused before it has sent them.
    old.is_paused = True
    # Its session ends.
    world.expire(old.id)
    # Another controller is elected, and it sees all brokers alive.
    world.settle()
    assert world.channels[-1].source != old.id
    # The new leader seems to fail, too.
    world.channels[-1].suspect(B)
    run_controllers(world)
    # The new controller elects another leader, which the brokers follow.
    deliver_requests(world, A, C)
    world.channels[-1].clear_suspicion(B)
    # All replicas follow the leader of the new controller.
    world.settle()
    before = world.state
    assert before.leader != B
    # The first controller resumes, and believes that it is in office.
    old.is_paused = False
    # It takes broker 3 for dead, and it still has the requests that make broker 2 the leader.
    channels.suspect(C)
    for broker, link in channels.links.items():
        view = world.hosts[broker].partition.view() if broker in world.brokers else None
        link.queue.waiting.extend(unsaid[broker])
        # An old request names the leader and the epoch of a controller that is replaced.
        deliver_control(world, channels, broker)
        is_ignored = view is None or world.brokers[broker].partition.view() == view
        assert is_ignored, f"broker {broker} obeys a controller that was replaced"
    assert old.member.controller.is_active
    # ZooKeeper refuses what it writes, and so it learns that it is replaced.
    run_controllers(world)
    assert not old.member.controller.is_active
    assert world.state == before
    heal_and_settle(world)


def a_leader_that_misses_an_epoch_of_another() -> None:
    """Two requests merge: the leader never learns of an epoch between them, in which others truncated."""
    world = World(3)
    world.produce(A)
    assert world.fetch(C)
    while world.deliver():
        world.check()
    assert world.fetch(C)
    assert world.deliver(len(world.messages) - 1)
    assert world.brokers[C].log.log_end_offset == 1
    # A stays in epoch 0. B leads in epoch 1 and writes another record at that offset, which C copies.
    world.move_leadership(B)
    deliver_requests(world, B, C)
    world.produce(B, acks=1)
    replicate(world, C)
    replicate(world, C)
    assert [entry.value for entry in world.brokers[C].view.between(0, 1)] == [1]
    kill(world, B)
    deliver_requests(world, A)
    assert world.brokers[A].partition.leader_epoch == 2
    world.check()
    assert world.truth.acknowledged_end == 0, "C has another record at that offset"
    heal_and_settle(world, committed=[0])


def a_follower_that_ends_where_the_leader_starts() -> None:
    """Found by chance: the leader's log starts within a batch, and its epochs do not cover older records."""
    world = World(3, min_insync_replicas=1)
    world.produce(A, 2)
    world.settle()
    world.produce(A, acks=1)
    kill(world, A)
    deliver_requests(world, B, C)
    assert world.state.leader == B
    # One batch, from offset 2 to 4, of which the first record is deleted.
    world.produce(B, 3, is_one_batch=True)
    replicate(world, C)
    replicate(world, C)
    world.brokers[B].partition.delete_records(3)
    world.brokers[A].start()
    assert world.brokers[A].log.log_end_offset == 3
    heal_and_settle(world)


def a_leader_commits_after_its_disk_has_failed() -> None:
    """Records on other members of the ISR are safe, and the failure may be handled a moment later."""
    world = World(3)
    world.produce(A)
    replicate(world, B)
    world.advance(MAX_LAG_MS + 1)
    replicate(world, B)
    world.brokers[A].disk.fault = Fault.BROKEN
    world.shrink(A)
    world.brokers[A].replicas.checkpoint_high_watermarks()
    assert world.brokers[A].log is None
    world.work_off(A)
    world.check()
    assert world.truth.acknowledged_end == 1
    run_controllers(world)
    deliver_requests(world, A)
    run_controllers(world)
    assert world.state.leader == B
    heal_and_settle(world)


HISTORIES: dict[Callable[[], None], tuple[Mutation, ...]] = {
    a_stale_high_watermark: (mutations.followers_cut_to_their_high_watermark,),
    a_power_cut_of_the_whole_isr: (mutations.followers_cut_to_their_high_watermark,),
    a_fast_double_failover: (mutations.an_epoch_without_records_ends_at_the_next,),
    a_torn_transaction: (transaction_mutations.markers_of_the_present_epoch_are_taken,),
    a_zombie_leader: (mutations.the_leaders_own_append_is_acknowledged,),
    an_expansion_for_an_earlier_registration: (mutations.broker_epochs_of_fetches_are_not_checked,),
    an_expansion_written_after_the_rebirth: (mutations.an_expansion_is_written_for_any_registration,),
    a_lost_expansion_and_a_rebirth: (),
    a_leader_without_zookeeper: (mutations.a_leaving_replica_is_not_waited_for,),
    an_expansion_whose_answer_was_lost: (mutations.a_joining_replica_is_not_waited_for,),
    an_expansion_whose_answer_was_lost_and_a_new_epoch: (mutations.a_conflict_reverts_the_change,),
    a_laggard_joins_a_new_leader: (mutations.followers_join_below_the_start_of_the_epoch,),
    a_controller_wakes_from_a_pause: (mutations.a_replaced_controller_is_obeyed,),
    a_follower_that_ends_where_the_leader_starts: (mutations.a_log_below_the_leaders_log_start_is_kept,),
    a_leader_that_misses_an_epoch_of_another: (mutations.followers_ends_outlive_a_missed_epoch,),
    a_leader_commits_after_its_disk_has_failed: (),
    **HISTORIES_OF_SESSIONS,
}


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_nothing_is_lost_in(history: Callable[[], None]) -> None:
    history()


@pytest.mark.parametrize(
    ("history", "mutation"),
    [
        pytest.param(history, mutation, marks=[PURE_PYTHON_ONLY] if mutation in OF_COMPILED_CODE else [])
        for history, found in HISTORIES.items()
        for mutation in found
    ],
    ids=lambda one: one.__name__,
)
def test_the_old_mistake_shows_in(
    history: Callable[[], None], mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch.setattr)
    with pytest.raises((AssertionError, InvariantViolation)):
        history()


def test_the_partition_is_the_one_that_the_histories_speak_of() -> None:
    world = World(3)
    assert world.state.leader == A
    assert [str(partition.partition) for partition in world.brokers[A].replicas.partitions()] == [str(TP)]
