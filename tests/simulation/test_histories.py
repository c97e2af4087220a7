"""The classic ways to lose acknowledged records, each told step by step, and with the old mistake back in.

Every history is a function of its own, so that it can be run both ways.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.broker.replication.isr import CommittedIsr, PendingExpand, PendingShrink
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.invariants import InvariantViolation
from tests.simulation import mutations
from tests.simulation.disk import BATCH_BYTES
from tests.simulation.mutations import Mutation
from tests.simulation.world import MAX_LAG_MS, TP, World
from tests.simulation.zookeeper_client import Door

A, B, C, D = (BrokerId(number) for number in (1, 2, 3, 4))


def _replicate(world: World, *followers: BrokerId) -> None:
    """One round trip of a fetch for each of these followers."""
    for follower in followers:
        assert world.fetch(follower)
    while world.deliver():
        world.check()


def _fetch_without_answer(world: World, *followers: BrokerId) -> None:
    """The leader hears of these followers' ends; its answers are lost."""
    for follower in followers:
        assert world.fetch(follower)
        assert world.deliver(len(world.messages) - 1)
        world.messages.pop()
        world.brokers[follower].fetchers.lose_answers()
        world.check()


def _die(world: World, broker: BrokerId) -> None:
    """A process is killed, and the controller notices at once."""
    world.brokers[broker].crash()
    world.suspect(broker)
    _control(world)


def _control(world: World) -> None:
    while world.control():
        world.check()


def _tell(world: World, *brokers: BrokerId) -> None:
    """What the controller has to say reaches these brokers."""
    for broker in brokers:
        while world.deliver_control(world.channels[-1], broker):
            world.check()


def _end(world: World) -> None:
    world.heal()
    world.settle()


def _put_out_of_isr(world: World, *followers: BrokerId) -> None:
    """They are silent for too long, and miss a record; the leader is broker 1, the others go on."""
    others = [broker for broker in world.brokers if broker not in (A, *followers)]
    world.produce(A, acks=1)
    _replicate(world, *others)
    world.advance(MAX_LAG_MS + 1)
    _replicate(world, *others)
    world.shrink(A)
    world.work_off(A)
    assert set(world.state.isr) == {A, *others}


def a_stale_high_watermark() -> None:
    """KIP-101: a follower hears of a new epoch while its high watermark is behind, and then has to lead."""
    world = World(3)
    world.produce(A)
    _replicate(world, B, C)
    _fetch_without_answer(world, B, C)
    assert world.truth.acknowledged_end == 1
    assert world.brokers[B].partition.high_watermark == 0
    _die(world, C)
    _tell(world, A, B)
    assert world.brokers[B].partition.leader_epoch == 1
    _die(world, A)
    _tell(world, B)
    assert world.state.leader == B
    world.check()
    _end(world)
    assert [entry.value for entry in world.truth.committed] == [0]


def a_fast_double_failover() -> None:
    """KIP-279: two leaders in a row write what nobody copies, and their histories part."""
    world = World(3, min_insync_replicas=1)
    world.produce(A)
    world.settle()
    _die(world, A)
    _tell(world, B, C)
    world.brokers[A].start()
    world.clear_suspicion(A)
    world.settle()
    assert world.state.leader == B
    # B writes two records in its epoch, and dies before anybody has them.
    world.produce(B, 2, acks=1)
    _die(world, B)
    _tell(world, A, C)
    assert world.state.leader == A
    # So does A, in its own epoch, at the same offsets.
    world.produce(A, 1, acks=1)
    world.brokers[B].start()
    _control(world)
    world.settle()
    values = [entry.value for entry in world.truth.committed]
    assert values == [0, 3]
    assert all(broker.view.between(0, 2) == world.truth.committed for broker in world.brokers.values())


def a_zombie_leader() -> None:
    """KIP-320: a leader sleeps through its own deposition, and wakes."""
    world = World(3)
    world.produce(A)
    world.settle()
    world.brokers[A].is_paused = True
    world.expire(A)
    _control(world)
    _tell(world, B, C)
    assert world.state.leader == B
    world.produce(B)
    _replicate(world, C)
    _replicate(world, C)
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
    assert zombie.high_watermark == 1, "it must not commit what it wrote alone"
    _end(world)
    assert [entry.value for entry in world.truth.committed] == [0, 1]


def an_expansion_for_an_earlier_life() -> None:
    """KIP-903: a fetch that says "I have everything" arrives when the disk behind it is already gone."""
    world = World(3, min_insync_replicas=1)
    world.produce(A)
    world.settle()
    _put_out_of_isr(world, C)
    world.produce(A)
    _replicate(world, B, C)
    _replicate(world, B)
    assert world.truth.acknowledged_end == 3
    assert world.fetch(C)
    late = world.messages.pop()
    world.brokers[C].crash()
    world.brokers[C].wipe()
    world.brokers[C].start()
    _control(world)
    _tell(world, A, B, C)
    world.messages.append(late)
    assert world.deliver()
    world.work_off(A)
    world.check()
    assert set(world.state.isr) == {A, B}
    _end(world)


def an_expansion_written_after_the_rebirth() -> None:
    """KIP-903 once more: the replica loses its disk while the expansion waits to be written."""
    world = World(3, min_insync_replicas=1)
    world.produce(A)
    world.settle()
    _put_out_of_isr(world, C)
    _replicate(world, C)
    _replicate(world, C)
    leader = world.brokers[A].partition
    assert isinstance(leader.isr, PendingExpand)
    world.brokers[C].crash()
    world.brokers[C].wipe()
    world.brokers[C].start()
    _control(world)
    # The leader may hear of the new life or not: what ZooKeeper holds is what counts.
    world.work_off(A)
    world.check()
    assert set(world.state.isr) == {A, B}
    assert isinstance(leader.isr, CommittedIsr), "no LeaderAndIsr comes to end it"
    _end(world)


def a_lost_expansion_and_a_rebirth() -> None:
    """The expansion went in, its answer was lost, and then the joiner lost its disk: that is no refusal."""
    world = World(3, min_insync_replicas=1)
    world.produce(A)
    world.settle()
    _put_out_of_isr(world, C)
    _replicate(world, C)
    _replicate(world, C)
    world.doors[A] = Door.MUTE
    world.work_off(A)
    assert set(world.state.isr) == {A, B, C}
    world.doors[A] = Door.OPEN
    world.brokers[C].crash()
    world.expire(C)
    world.work_off(A)
    leader = world.brokers[A].partition
    assert set(leader.isr.maximal) == {A, B, C}, "ZooKeeper has it: only the controller may take it back"
    world.brokers[C].start()
    _end(world)


def a_leader_without_zookeeper() -> None:
    """It cannot commit a smaller ISR, so it must not acknowledge with the smaller ISR either."""
    world = World(3)
    world.produce(A)
    world.settle()
    world.doors[A] = Door.LOST
    world.cut.add(frozenset((A, C)))
    _replicate(world, B)
    world.advance(MAX_LAG_MS + 1)
    world.produce(A)
    _replicate(world, B)
    world.shrink(A)
    world.work_off(A)
    assert isinstance(world.brokers[A].partition.isr, PendingShrink)
    _replicate(world, B)
    world.check()
    # Everybody else dies, and the one that A would have liked to forget leads.
    world.brokers[B].crash()
    world.expire(B)
    world.expire(A)
    _control(world)
    _tell(world, C)
    assert world.state.leader == C
    world.check()
    assert world.truth.acknowledged_end == 1
    world.brokers[B].start()
    _end(world)


def an_expansion_whose_answer_was_lost() -> None:
    """The joiner is in the ISR and its leader does not know; then the controller makes it the leader."""
    world = World(2, min_insync_replicas=1)
    world.produce(A)
    world.settle()
    _put_out_of_isr(world, B)
    world.doors[A] = Door.MUTE
    _replicate(world, B)
    _replicate(world, B)
    world.work_off(A)
    assert set(world.state.isr) == {A, B}
    assert isinstance(world.brokers[A].partition.isr, PendingExpand)
    world.expire(A)
    _control(world)
    assert world.state.leader == B
    world.doors[A] = Door.OPEN
    world.work_off(A)
    world.advance(MAX_LAG_MS + 1)
    world.produce(A)
    world.check()
    assert world.truth.acknowledged_end == 1
    _tell(world, B)
    world.produce(B)
    world.check()
    assert world.truth.acknowledged_end == 3
    _end(world)


def a_laggard_joins_a_new_leader() -> None:
    """The new leader's high watermark is behind: who has all below it need not have all that is committed."""
    world = World(4)
    _put_out_of_isr(world, C)
    world.produce(A)
    _replicate(world, B, D)
    _fetch_without_answer(world, B, D)
    assert world.truth.acknowledged_end == 2
    _die(world, A)
    _tell(world, B, C)
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
    _end(world)


def a_controller_wakes_from_a_pause() -> None:
    """Its writes are refused, and so is what it had still to say."""
    world = World(3)
    world.produce(A)
    world.settle()
    old, channels = world.hosts[BrokerId(0)], world.channels[-1]
    world.suspect(A)
    _control(world)
    assert world.state.leader == B
    unsaid = {broker: list(link.waiting) for broker, link in channels.links.items()}
    assert unsaid[B]
    assert unsaid[C]
    for link in channels.links.values():
        link.waiting.clear()
    # Another controller is elected, sees everybody alive, and then the new leader fail.
    old.is_paused = True
    world.expire(old.id)
    world.settle()
    assert world.channels[-1].source != old.id
    world.channels[-1].suspect(B)
    _control(world)
    _tell(world, A, C)
    world.channels[-1].clear_suspicion(B)
    world.settle()
    before = world.state
    assert before.leader != B
    # The first one wakes.
    old.is_paused = False
    channels.suspect(C)
    for broker, link in channels.links.items():
        view = world.hosts[broker].partition.view() if broker in world.brokers else None
        link.waiting.extend(unsaid[broker])
        while world.deliver_control(channels, broker):
            world.check()
        assert view is None or world.brokers[broker].partition.view() == view
    assert old.member.controller.is_active
    _control(world)
    assert not old.member.controller.is_active
    assert world.state == before
    _end(world)


def a_leader_that_misses_an_epoch_of_another() -> None:
    """Two orders merge: it leads again and never heard that it did not, while others truncated."""
    world = World(3)
    world.produce(A)
    assert world.fetch(C)
    while world.deliver():
        world.check()
    assert world.fetch(C)
    assert world.deliver(len(world.messages) - 1)
    assert world.brokers[C].log.log_end_offset == 1
    # A stands still in epoch 0. B leads in epoch 1 and writes another record there, which C takes.
    world.move_leadership(B)
    _tell(world, B, C)
    world.produce(B, acks=1)
    _replicate(world, C)
    _replicate(world, C)
    assert [entry.value for entry in world.brokers[C].view.between(0, 1)] == [1]
    _die(world, B)
    _tell(world, A)
    assert world.brokers[A].partition.leader_epoch == 2
    world.check()
    assert world.truth.acknowledged_end == 0, "C holds another record there"
    _end(world)
    assert [entry.value for entry in world.truth.committed] == [0]


def everybody_in_sync_goes_at_once() -> None:
    """Any of them has all that was acknowledged, so the first to return leads, whoever is lost for good."""
    world = World(3)
    world.produce(A)
    world.settle()
    _put_out_of_isr(world, C)
    world.produce(A)
    _replicate(world, B)
    _replicate(world, B)
    assert world.truth.acknowledged_end == 3
    for broker in (A, B):
        world.brokers[broker].crash()
        world.expire(broker)
    _control(world)
    world.check()
    assert (world.state.leader, set(world.state.isr)) == (-1, {A, B})
    world.brokers[B].wipe()
    world.brokers[A].start()
    _control(world)
    assert (world.state.leader, set(world.state.isr)) == (A, {A})
    _end(world)


def a_follower_that_ends_where_the_leader_starts() -> None:
    """Found by chance: the leader's log starts within a batch, and no epoch of it tells what lay before."""
    world = World(3, min_insync_replicas=1)
    world.produce(A, 2)
    world.settle()
    world.produce(A, acks=1)
    _die(world, A)
    _tell(world, B, C)
    assert world.state.leader == B
    # One batch, from offset 2 to 4, of which the first record is deleted.
    world.produce(B, 3, is_one_batch=True)
    _replicate(world, C)
    _replicate(world, C)
    world.brokers[B].partition.delete_records(3)
    world.brokers[A].start()
    assert world.brokers[A].log.log_end_offset == 3
    _end(world)


def an_expiry_heard_after_the_next_registration() -> None:
    """Two sessions end one after the other; the end of the second is heard when the third has registered."""
    world = World(3)
    world.produce(A)
    world.settle()
    member = world.brokers[B].member
    world.expire(B)
    member.connection()
    assert member.session_event()
    assert member.session_event()
    world.expire(B)
    member.connection()
    while member.session_event():
        continue
    world.settle()
    assert world.brokers[B].replicas.fenced is None
    _end(world)


def a_member_loses_its_disk_between_two_controllers() -> None:
    """Nobody sees it go: the next controller finds it registered, as if it had been there all the time."""
    world = World(3)
    world.produce(A)
    world.settle()
    world.brokers[B].crash()
    world.brokers[B].wipe()
    world.brokers[B].start()
    world.elect_controller()
    world.check()
    assert (world.state.leader, set(world.state.isr)) == (A, {A, C})
    _tell(world, A, B, C)
    _die(world, A)
    assert (world.state.leader, set(world.state.isr)) == (C, {C})
    _end(world)
    assert [entry.value for entry in world.truth.committed] == [0]


def a_leader_loses_its_tail_between_two_controllers() -> None:
    """It would go on leading in the same epoch, and have the others truncate what it has acknowledged."""
    world = World(3)
    world.produce(A)
    world.settle()
    world.brokers[A].crash()
    world.brokers[A].wipe()
    world.brokers[A].start()
    world.elect_controller()
    world.check()
    assert (world.state.leader, world.state.leader_epoch, set(world.state.isr)) == (B, 1, {B, C})
    _end(world)
    assert [entry.value for entry in world.truth.committed] == [0]


def all_restart_between_two_controllers() -> None:
    """Who restarted with all that it had is the last choice, but a choice: nothing is lost."""
    world = World(3)
    world.produce(A)
    world.settle()
    for broker in world.brokers.values():
        broker.crash()
        world.expire(broker.id)
    for broker in world.brokers.values():
        broker.start()
    world.elect_controller()
    world.check()
    assert (world.state.leader, world.state.leader_epoch, set(world.state.isr)) == (A, 1, {A})
    _end(world)
    assert [entry.value for entry in world.truth.committed] == [0]


def _accepts(world: World, broker: BrokerId, acks: int = -1) -> bool:
    """Whether a broker takes a record that somebody produces there."""
    partition = world.brokers[broker].partition
    assert partition is not None
    before = partition.log_end_offset
    world.produce(broker, acks=acks)
    return bool(partition.log_end_offset > before)


def a_leader_that_does_not_hear_zookeeper() -> None:
    """It goes on with acks=all while all others in sync fetch in its epoch, and no longer."""
    with World(3) as world:
        _replicate(world, B, C)
        world.doors[A] = Door.LOST
        world.brokers[A].replicas.fence.silent("ZooKeeper is silent")
        assert _accepts(world, A)
        assert not _accepts(world, A, acks=1)
        _replicate(world, B, C)
        _replicate(world, B, C)
        assert world.truth.acknowledged_end == 1
        # Deposed, and nobody tells it. Who is elected, and who follows, fetches here no longer.
        world.suspect(A)
        _control(world)
        _tell(world, B, C)
        assert world.state.leader != A
        world.advance(2 * MAX_LAG_MS)
        assert not _accepts(world, A)
        world.doors[A] = Door.OPEN
        world.brokers[A].replicas.fence.heard()
        _end(world)


def a_leader_with_one_silent_follower_does_not_hear_zookeeper() -> None:
    """It could not put it out of the ISR, and it may be the one that leads by now."""
    with World(3) as world:
        _replicate(world, B, C)
        world.doors[A] = Door.LOST
        world.brokers[A].replicas.fence.silent("ZooKeeper is silent")
        world.advance(2 * MAX_LAG_MS)
        _replicate(world, B)
        assert not _accepts(world, A)
        _replicate(world, B, C)
        assert _accepts(world, A)
        world.doors[A] = Door.OPEN
        world.brokers[A].replicas.fence.heard()
        _end(world)


def a_leader_that_is_alone_does_not_hear_zookeeper() -> None:
    """It has no witness."""
    with World(3, min_insync_replicas=1) as world:
        _put_out_of_isr(world, B, C)
        world.brokers[A].replicas.fence.silent("ZooKeeper is silent")
        assert not _accepts(world, A)
        world.brokers[A].replicas.fence.heard()
        assert _accepts(world, A)
        _end(world)


HISTORIES: dict[Callable[[], None], tuple[Mutation, ...]] = {
    a_stale_high_watermark: (mutations.followers_cut_to_their_high_watermark,),
    a_fast_double_failover: (mutations.no_history_is_compared,),
    a_zombie_leader: (mutations.the_leaders_own_append_is_acknowledged,),
    an_expansion_for_an_earlier_life: (mutations.broker_epochs_of_fetches_are_not_checked,),
    an_expansion_written_after_the_rebirth: (mutations.an_expansion_is_written_whoever_lives,),
    a_lost_expansion_and_a_rebirth: (),
    a_leader_that_does_not_hear_zookeeper: (
        mutations.without_zookeeper_no_witness_is_asked_for,
        mutations.any_fetch_bears_witness,
    ),
    a_leader_with_one_silent_follower_does_not_hear_zookeeper: (
        mutations.without_zookeeper_no_witness_is_asked_for,
    ),
    a_leader_that_is_alone_does_not_hear_zookeeper: (mutations.without_zookeeper_no_witness_is_asked_for,),
    a_leader_without_zookeeper: (mutations.a_leaving_replica_is_not_waited_for,),
    an_expansion_whose_answer_was_lost: (
        mutations.a_conflict_takes_the_change_back,
        mutations.a_joining_replica_is_not_waited_for,
    ),
    a_laggard_joins_a_new_leader: (mutations.followers_join_below_the_start_of_the_epoch,),
    a_controller_wakes_from_a_pause: (mutations.a_replaced_controller_is_obeyed,),
    a_follower_that_ends_where_the_leader_starts: (mutations.a_log_that_lies_before_the_leaders_is_kept,),
    a_leader_that_misses_an_epoch_of_another: (mutations.followers_ends_outlive_a_missed_epoch,),
    an_expiry_heard_after_the_next_registration: (mutations.a_life_that_was_ended_goes_on,),
    everybody_in_sync_goes_at_once: (mutations.one_of_a_lost_isr_is_kept,),
    a_member_loses_its_disk_between_two_controllers: (mutations.lives_of_the_isr_are_not_compared,),
    a_leader_loses_its_tail_between_two_controllers: (mutations.lives_of_the_isr_are_not_compared,),
    all_restart_between_two_controllers: (),
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
