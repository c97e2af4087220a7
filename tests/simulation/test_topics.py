"""Topics that are created and removed, step by step; `tests.simulation.chaos` does so at random."""

from collections.abc import Sequence
from typing import Any

import pytest

from barnabas.controller.topic_admin import TopicAdmin
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.topics import CreatableReplicaAssignment, CreatableTopic
from tests.simulation.steps import A, B, C, deliver_requests, replicate, run_controllers
from tests.simulation.topics import Topics
from tests.simulation.world import MAX_LAG_MS, World

TP = TopicPartition("a", 0)


def _create(world: World, *replicas: BrokerId) -> list[ErrorCode]:
    """Create a topic of one partition through the controller."""
    assigned = CreatableReplicaAssignment(partition_index=0, broker_ids=[int(one) for one in replicas])

    def ask(admin: TopicAdmin) -> Sequence[Any]:
        return admin.create_topics([CreatableTopic(name=TP.topic, assignments=[assigned])])

    assert world.controller is not None
    return world.ask(world.hosts[world.controller.broker_id], ask)


def _removed_by_hand() -> World:
    """A topic with one record on brokers 1 and 2 is gone; only the controller knows of it."""
    world = World(3)
    topics = Topics(world)
    assert _create(world, A, B) == [ErrorCode.NONE]
    world.settle()
    world.produce(A, tp=TP)
    world.settle()
    topics.hide(TP.topic)
    run_controllers(world)
    return world


def test_a_topic_removed_and_created_again_between_two_reads_gets_a_leader() -> None:
    world = World(3)
    topics = Topics(world)
    assert _create(world, A, B) == [ErrorCode.NONE]
    world.settle()
    topics.hide(TP.topic)
    assert _create(world, A, B) == [ErrorCode.NONE]
    world.settle()


def test_a_broker_with_the_log_of_a_removed_topic_leads_the_new_one() -> None:
    world = _removed_by_hand()
    assert _create(world, A, B) == [ErrorCode.NONE]
    world.settle()
    (old,) = [truth for truth in world.truths.values() if truth.is_hidden]
    assert len(old.committed) == 1


def test_waiting_requests_about_the_old_topic_are_not_sent_for_the_new_one() -> None:
    world = World(3)
    topics = Topics(world)
    assert _create(world, A, B) == [ErrorCode.NONE]
    # Broker 2 has no request of the controller yet; the new topic has no replica there.
    run_controllers(world)
    topics.hide(TP.topic)
    run_controllers(world)
    assert _create(world, A, C) == [ErrorCode.NONE]
    world.settle()
    (new,) = [truth for truth in world.truths.values() if truth.tp == TP and not truth.is_hidden]
    assert new.partition(world.brokers[B]) is None


def test_a_follower_of_the_new_topic_fetches_no_records_of_the_old_one() -> None:
    world = _removed_by_hand()
    # Broker 2 sets its log aside when it returns; broker 1 still leads the old topic, in the same epoch.
    world.brokers[B].crash()
    world.expire(B)
    world.brokers[B].start()
    run_controllers(world)
    deliver_requests(world, B)
    assert _create(world, A, B) == [ErrorCode.NONE]
    run_controllers(world)
    deliver_requests(world, B)
    (new,) = [truth for truth in world.truths.values() if truth.tp == TP and not truth.is_hidden]
    assert new.partition(world.brokers[B]) is not None
    replicate(world, B)
    kept = new.view(world.brokers[B])
    assert kept is not None
    assert kept.log.log_end_offset == 0
    world.settle()


@pytest.mark.parametrize("is_garbled", [False, True], ids=["readable", "unreadable"])
@pytest.mark.parametrize("replicas", [(A, B), (B, A)], ids=["the same leader", "another leader"])
def test_a_leader_of_the_old_topic_changes_no_isr_of_the_new_one(
    replicas: tuple[BrokerId, ...], is_garbled: bool
) -> None:
    """The new znodes have the versions of the old ones."""
    world = World(3)
    topics = Topics(world)
    assert _create(world, A, B) == [ErrorCode.NONE]
    world.settle()
    world.produce(A, tp=TP)
    world.check()
    topics.hide(TP.topic)
    run_controllers(world)
    assert _create(world, *replicas) == [ErrorCode.NONE]
    run_controllers(world)
    if is_garbled:
        topics.garble(TP.topic)
    before = world.state_of(TP)
    # Broker 1 does not know the new topic, and broker 2 does not fetch.
    world.advance(MAX_LAG_MS + 1)
    world.shrink(A)
    world.work_off(A)
    world.check()
    assert world.state_of(TP) == before
    assert topics.heal()
    world.settle()


def test_an_isr_change_waits_until_the_topic_can_be_read() -> None:
    world = World(3)
    topics = Topics(world)
    assert _create(world, A, B) == [ErrorCode.NONE]
    world.settle()
    topics.garble(TP.topic)
    world.produce(A, tp=TP)
    world.advance(MAX_LAG_MS + 1)
    world.shrink(A)
    world.work_off(A)
    assert world.state_of(TP).isr == (A, B)
    topics.mend(TP.topic)
    world.work_off(A)
    assert world.state_of(TP).isr == (A,)
    world.settle()
