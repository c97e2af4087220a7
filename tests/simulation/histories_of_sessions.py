"""Histories of sessions that expire, of disks lost then, and of a silent ZooKeeper; see `test_histories`."""

from collections.abc import Callable

from barnabas.protocol.ids import BrokerId
from tests.simulation import mutations
from tests.simulation.planted import Mutation
from tests.simulation.steps import (
    A,
    B,
    C,
    deliver_requests,
    heal_and_settle,
    kill,
    remove_from_isr,
    replicate,
    restart_with_an_empty_disk,
    run_controllers,
    world_with_a_pending_expansion,
    world_with_a_record,
)
from tests.simulation.world import MAX_LAG_MS, World
from tests.support.zookeeper_client import Door


def all_members_of_the_isr_stop_at_once() -> None:
    """Each member has all acknowledged records, so the first to return leads, even if others never do."""
    world = world_with_a_record(3)
    remove_from_isr(world, C)
    world.produce(A)
    replicate(world, B)
    replicate(world, B)
    assert world.truth.acknowledged_end == 3
    for broker in (A, B):
        world.brokers[broker].crash()
        world.expire(broker)
    run_controllers(world)
    world.check()
    assert (world.state.leader, set(world.state.isr)) == (-1, {A, B})
    world.brokers[B].wipe()
    world.brokers[A].start()
    run_controllers(world)
    assert (world.state.leader, set(world.state.isr)) == (A, {A})
    heal_and_settle(world)


def an_expiry_handled_after_the_next_registration() -> None:
    """Two sessions expire in a row; the broker learns of the second expiry after its third registration."""
    world = world_with_a_record(3)
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
    assert world.brokers[B].replicas.fence.reason is None
    heal_and_settle(world)


def a_member_loses_its_disk_between_two_controllers() -> None:
    """No controller notices: the next one finds the broker registered, as if it had never been away."""
    world = world_with_a_record(3)
    restart_with_an_empty_disk(world, B)
    world.elect_controller()
    world.check()
    assert (world.state.leader, set(world.state.isr)) == (A, {A, C})
    deliver_requests(world, A, B, C)
    kill(world, A)
    assert (world.state.leader, set(world.state.isr)) == (C, {C})
    heal_and_settle(world, committed=[0])


def a_leader_loses_its_tail_between_two_controllers() -> None:
    """It would keep leading in the same epoch, and make the others truncate acknowledged records."""
    world = world_with_a_record(3)
    restart_with_an_empty_disk(world, A)
    world.elect_controller()
    world.check()
    assert (world.state.leader, world.state.leader_epoch, set(world.state.isr)) == (B, 1, {B, C})
    heal_and_settle(world, committed=[0])


def all_restart_between_two_controllers() -> None:
    """A replica that restarted with all its records may lead if no other can, so nothing is lost."""
    world = world_with_a_record(3)
    for broker in world.brokers.values():
        broker.crash()
        world.expire(broker.id)
    for broker in world.brokers.values():
        broker.start()
    world.elect_controller()
    world.check()
    assert (world.state.leader, world.state.leader_epoch, set(world.state.isr)) == (A, 1, {A})
    heal_and_settle(world, committed=[0])


def a_leader_whose_session_has_ended_puts_a_member_out() -> None:
    """Its ISR change waits for the next session, and a member that it would keep has lost its disk."""
    world = world_with_a_record(3)
    world.produce(A)
    replicate(world, B)
    world.advance(MAX_LAG_MS + 1)
    replicate(world, B)
    world.shrink(A)
    assert world.brokers[A].partition.isr.leaving
    world.expire(A)
    world.brokers[B].crash()
    world.brokers[B].wipe()
    world.work_off(A)
    world.check()
    assert world.truth.acknowledged_end == 1
    assert set(world.state.isr) == {A, B, C}
    world.brokers[B].start()
    run_controllers(world)
    deliver_requests(world, A, B, C)
    assert world.state.leader == C
    heal_and_settle(world)


def a_joiner_loses_its_disk_before_anybody_notices() -> None:
    """It joins the ISR with its old broker epoch, and leaves when the controller sees the new one."""
    world = world_with_a_pending_expansion()
    world.brokers[C].crash()
    world.brokers[C].wipe()
    world.check()
    world.work_off(A)
    world.check()
    assert set(world.state.isr) == {A, B, C}
    world.brokers[C].start()
    run_controllers(world)
    assert set(world.state.isr) == {A, B}
    heal_and_settle(world)


def _accepts(world: World, broker: BrokerId, acks: int = -1) -> bool:
    """Whether a broker appends a produced record."""
    partition = world.brokers[broker].partition
    assert partition is not None
    before = partition.log_end_offset
    world.produce(broker, acks=acks)
    return bool(partition.log_end_offset > before)


def a_leader_that_does_not_hear_zookeeper() -> None:
    """It accepts acks=all only while all other members of the ISR fetch in its leader epoch."""
    with World(3) as world:
        replicate(world, B, C)
        world.doors[A] = Door.LOST
        world.brokers[A].replicas.fence.silent("ZooKeeper is silent")
        assert _accepts(world, A)
        assert not _accepts(world, A, acks=1)
        replicate(world, B, C)
        replicate(world, B, C)
        assert world.truth.acknowledged_end == 1
        # A is deposed and does not know it. The new leader and its followers no longer fetch from A.
        world.suspect(A)
        run_controllers(world)
        deliver_requests(world, B, C)
        assert world.state.leader != A
        world.advance(2 * MAX_LAG_MS)
        assert not _accepts(world, A)
        world.doors[A] = Door.OPEN
        world.brokers[A].replicas.fence.heard()
        heal_and_settle(world)


def a_leader_with_one_silent_follower_does_not_hear_zookeeper() -> None:
    """The leader cannot remove the silent follower from the ISR, and that follower may lead by now."""
    with World(3) as world:
        replicate(world, B, C)
        world.doors[A] = Door.LOST
        world.brokers[A].replicas.fence.silent("ZooKeeper is silent")
        world.advance(2 * MAX_LAG_MS)
        replicate(world, B)
        assert not _accepts(world, A)
        replicate(world, B, C)
        assert _accepts(world, A)
        world.doors[A] = Door.OPEN
        world.brokers[A].replicas.fence.heard()
        heal_and_settle(world)


def a_leader_alone_without_zookeeper() -> None:
    """It has no follower to confirm that it still leads."""
    with World(3, min_insync_replicas=1) as world:
        remove_from_isr(world, B, C)
        world.brokers[A].replicas.fence.silent("ZooKeeper is silent")
        assert not _accepts(world, A)
        world.brokers[A].replicas.fence.heard()
        assert _accepts(world, A)
        heal_and_settle(world)


def _depose_unnoticed(world: World) -> None:
    """The controller takes A for dead, elects another leader, and cannot reach A any more."""
    world.suspect(A)
    run_controllers(world)
    deliver_requests(world, B, C)
    assert world.state.leader not in (A, -1)


def _leads(world: World, broker: BrokerId) -> bool:
    partition = world.brokers[broker].partition
    return partition is not None and partition.is_leader


def a_leader_that_only_the_controller_cannot_reach() -> None:
    """It hears ZooKeeper and its clients. Its followers leave it, and it then asks ZooKeeper who leads."""
    with World(3, min_insync_replicas=1) as world:
        replicate(world, B, C)
        _depose_unnoticed(world)
        world.advance(MAX_LAG_MS + 1)
        assert not _accepts(world, A, acks=1)
        assert not _accepts(world, A, acks=0)
        assert world.brokers[A].replicas.doubt(world.tp) is not None
        world.shrink(A)
        world.work_off(A)
        assert not _leads(world, A)
        known = world.brokers[A].metadata.current.partitions_of(world.tp.topic)[world.tp.partition]
        assert (known.leader, known.leader_epoch) == (world.state.leader, world.state.leader_epoch)
        heal_and_settle(world)


def a_deposed_leader_that_changes_its_isr() -> None:
    """It has appended since, so its followers seem to lag, and its change of the ISR meets the new epoch."""
    with World(3, min_insync_replicas=1) as world:
        replicate(world, B, C)
        _depose_unnoticed(world)
        assert _accepts(world, A, acks=1)
        world.advance(MAX_LAG_MS + 1)
        world.shrink(A)
        world.work_off(A)
        assert not _leads(world, A)
        heal_and_settle(world)


def a_leader_whose_followers_are_silent() -> None:
    """It still leads: ZooKeeper confirms it again and again, and nobody leaves the ISR for being silent."""
    with World(3, min_insync_replicas=1) as world:
        replicate(world, B, C)
        for _ in range(6):
            world.advance(MAX_LAG_MS / 2 + 1)
            world.shrink(A)
            world.work_off(A)
            assert world.brokers[A].replicas.doubt(world.tp) is None
        assert set(world.state.isr) == {A, B, C}
        assert _accepts(world, A, acks=1)
        heal_and_settle(world)


def a_leader_that_is_alone_in_its_isr() -> None:
    """No other replica can be elected, so it needs no proof, also if the controller takes it for dead."""
    with World(3, min_insync_replicas=1) as world:
        remove_from_isr(world, B, C)
        world.suspect(A)
        run_controllers(world)
        assert world.state.leader == -1
        world.advance(10 * MAX_LAG_MS)
        world.shrink(A)
        world.work_off(A)
        assert _accepts(world, A, acks=1)
        assert world.brokers[A].replicas.doubt(world.tp) is None
        heal_and_settle(world)


HISTORIES_OF_SESSIONS: dict[Callable[[], None], tuple[Mutation, ...]] = {
    a_leader_that_does_not_hear_zookeeper: (
        mutations.without_zookeeper_no_confirmation_is_required,
        mutations.any_fetch_confirms_the_leader,
    ),
    a_leader_with_one_silent_follower_does_not_hear_zookeeper: (
        mutations.without_zookeeper_no_confirmation_is_required,
    ),
    a_leader_alone_without_zookeeper: (mutations.without_zookeeper_no_confirmation_is_required,),
    a_leader_that_only_the_controller_cannot_reach: (
        mutations.a_leader_needs_no_proof,
        mutations.a_deposed_leader_keeps_its_role,
    ),
    a_deposed_leader_that_changes_its_isr: (mutations.a_deposed_leader_keeps_its_role,),
    a_leader_whose_followers_are_silent: (mutations.only_followers_prove_a_leader,),
    a_leader_that_is_alone_in_its_isr: (),
    an_expiry_handled_after_the_next_registration: (mutations.an_ended_registration_continues,),
    all_members_of_the_isr_stop_at_once: (mutations.one_of_a_lost_isr_is_kept,),
    a_member_loses_its_disk_between_two_controllers: (mutations.broker_epochs_of_the_isr_are_not_compared,),
    a_leader_loses_its_tail_between_two_controllers: (mutations.broker_epochs_of_the_isr_are_not_compared,),
    all_restart_between_two_controllers: (),
    a_joiner_loses_its_disk_before_anybody_notices: (),
    a_leader_whose_session_has_ended_puts_a_member_out: (mutations.an_isr_is_written_in_any_session,),
}
