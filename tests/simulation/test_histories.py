"""The classic ways to lose acknowledged records, each written step by step and run with the old mistake too.

Every history is a function, so that it can run both ways.
"""

from collections.abc import Callable

import pytest

from barnabas.broker.replication.followers import CommittedIsr
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.invariants import InvariantViolation
from tests.simulation import mutations
from tests.simulation.disk import BATCH_BYTES, Fault
from tests.simulation.histories_of_sessions import HISTORIES_OF_SESSIONS
from tests.simulation.planted import Mutation
from tests.simulation.steps import (
    A,
    B,
    C,
    D,
    deliver_requests,
    fetch_without_answer,
    heal_and_settle,
    kill,
    remove_from_isr,
    replicate,
    restart_with_an_empty_disk,
    run_controllers,
    world_with_a_pending_expansion,
    world_with_a_record,
)
from tests.simulation.world import MAX_LAG_MS, TP, World
from tests.support.zookeeper_client import Door


def a_stale_high_watermark() -> None:
    """KIP-101: a follower enters a new epoch with a stale high watermark, and then becomes the leader."""
    world = World(3)
    world.produce(A)
    replicate(world, B, C)
    fetch_without_answer(world, B, C)
    assert world.truth.acknowledged_end == 1
    assert world.brokers[B].partition.high_watermark == 0
    kill(world, C)
    deliver_requests(world, A, B)
    assert world.brokers[B].partition.leader_epoch == 1
    kill(world, A)
    deliver_requests(world, B)
    assert world.state.leader == B
    world.check()
    heal_and_settle(world, committed=[0])


def a_fast_double_failover() -> None:
    """KIP-279: two leaders in a row append records that no follower copies, so their logs diverge."""
    world = world_with_a_record(3, min_insync_replicas=1)
    kill(world, A)
    deliver_requests(world, B, C)
    world.brokers[A].start()
    world.clear_suspicion(A)
    world.settle()
    assert world.state.leader == B
    # B writes two records in its epoch, and dies before a follower has them.
    world.produce(B, 2, acks=1)
    kill(world, B)
    deliver_requests(world, A, C)
    assert world.state.leader == A
    # A writes one record in its own epoch, at the same offsets.
    world.produce(A, 1, acks=1)
    world.brokers[B].start()
    run_controllers(world)
    world.settle()
    values = [entry.value for entry in world.truth.committed]
    assert values == [0, 3]
    assert all(broker.view.between(0, 2) == world.truth.committed for broker in world.brokers.values())


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
    world.suspect(A)
    run_controllers(world)
    assert world.state.leader == B
    unsaid = {broker: list(link.queue.waiting) for broker, link in channels.links.items()}
    assert unsaid[B]
    assert unsaid[C]
    for link in channels.links.values():
        link.queue.waiting.clear()
    # Another controller is elected; it sees all brokers alive, and then the new leader fail.
    old.is_paused = True
    world.expire(old.id)
    world.settle()
    assert world.channels[-1].source != old.id
    world.channels[-1].suspect(B)
    run_controllers(world)
    deliver_requests(world, A, C)
    world.channels[-1].clear_suspicion(B)
    world.settle()
    before = world.state
    assert before.leader != B
    # The first controller resumes.
    old.is_paused = False
    channels.suspect(C)
    for broker, link in channels.links.items():
        view = world.hosts[broker].partition.view() if broker in world.brokers else None
        link.queue.waiting.extend(unsaid[broker])
        while world.deliver_control(channels, broker):
            world.check()
        assert view is None or world.brokers[broker].partition.view() == view
    assert old.member.controller.is_active
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
    a_fast_double_failover: (mutations.no_history_is_compared,),
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
    [(history, mutation) for history, found in HISTORIES.items() for mutation in found],
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
