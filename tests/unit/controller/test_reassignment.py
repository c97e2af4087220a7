"""Reassignments step by step, over a cluster in memory; their rules as pure functions."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller import events
from barnabas.controller.context import Replica, ReplicaState
from barnabas.controller.events import Signal
from barnabas.controller.leader_choice import elect_for_reassignment
from barnabas.controller.reassignment import Target
from barnabas.controller.term import ControllerTerm
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from barnabas.zookeeper import admin_requests, paths
from barnabas.zookeeper.errors import ControllerMoved, ZooKeeperUnavailable
from barnabas.zookeeper.znodes import ReplicaAssignment, TopicAssignment
from tests.support.controller_fakes import Cluster, assigned, roles

P0, P1 = TopicPartition("moved", 0), TopicPartition("moved", 1)
UNKNOWN = TopicPartition("none", 7)
IDS = st.lists(st.integers(1, 6).map(BrokerId), min_size=1, max_size=5, unique=True)


@pytest.fixture
def cluster() -> Cluster:
    """Five brokers; `P0` is on 1 and 2, `P1` on 2 and 3."""
    cluster = Cluster(1, 2, 3, 4, 5)
    cluster.zookeeper.add_topic("moved", {0: (1, 2), 1: (2, 3)})
    cluster.elect()
    return cluster


def alter(
    cluster: Cluster, targets: dict[TopicPartition, Target], *, may_change_factor: bool = True
) -> dict[TopicPartition, ErrorCode]:
    """Ask for reassignments; returns the outcomes."""
    codes: dict[TopicPartition, ErrorCode] = {}

    def act(term: ControllerTerm) -> None:
        outcomes = term.reassignments.alter(targets, may_change_factor=may_change_factor)
        codes.update((tp, ErrorCode.NONE if error is None else error.code) for tp, error in outcomes.items())

    cluster.ask(act)
    cluster.deliver_watches()
    return codes


def move(cluster: Cluster, *target: int, tp: TopicPartition = P0) -> None:
    assert alter(cluster, {tp: target}) == {tp: ErrorCode.NONE}


def under_way(cluster: Cluster) -> set[TopicPartition]:
    return set(cluster.term.reassignments.under_way())


def stored(cluster: Cluster, tp: TopicPartition = P0) -> ReplicaAssignment:
    assignment: ReplicaAssignment = cluster.zookeeper.assignments[tp.topic].partitions[tp.partition]
    return assignment


def deleted(cluster: Cluster, broker: int) -> set[int]:
    """The partitions of the topic whose replicas a broker was asked to delete."""
    return {
        partition.partition_index
        for request in cluster.channels.requests(broker)
        if isinstance(request, StopReplicaRequest)
        for topic in request.topic_states
        for partition in topic.partition_states
        if partition.delete_partition
    }


def told(cluster: Cluster, broker: int) -> list[tuple[list[int], list[int], list[int]]]:
    """The replicas of `P0`, the added and the removed ones, in each state that a broker got."""
    return [
        (partition.replicas, partition.adding_replicas, partition.removing_replicas)
        for request in cluster.channels.requests(broker)
        if isinstance(request, LeaderAndIsrRequest)
        for topic in request.topic_states
        for partition in topic.partition_states
        if (topic.topic_name, partition.partition_index) == P0
    ]


def changing(
    replicas: tuple[int, ...], adding: tuple[int, ...], removing: tuple[int, ...]
) -> ReplicaAssignment:
    return ReplicaAssignment(*(tuple(map(BrokerId, ids)) for ids in (replicas, adding, removing)))


# The rules


@given(IDS, IDS, IDS)
def test_an_assignment_changes_from_its_origin_to_its_last_target(
    origin: list[BrokerId], first: list[BrokerId], target: list[BrokerId]
) -> None:
    changed = ReplicaAssignment(tuple(origin)).changed_to(first).changed_to(target)
    assert (set(changed.origin), changed.target) == (set(origin), tuple(target))
    assert set(changed.replicas) == {*origin, *target}
    assert not set(changed.adding) & set(changed.removing)
    cancelled = changed.changed_to(changed.origin)
    assert not cancelled.is_changing
    assert set(cancelled.replicas) == set(origin)


class Compared(int):
    """A broker id that counts how often it is compared."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_the_work_of_a_change_grows_with_its_replicas_alone() -> None:
    """A client may name 131,072 brokers that do not exist, and the controller's thread looks at them."""
    target = [BrokerId(Compared(number)) for number in range(10, 1_010)]
    changed = ReplicaAssignment((BrokerId(1), BrokerId(2))).changed_to(target)
    assert (len(changed.adding), changed.removing) == (1_000, (1, 2))
    assert Compared.count < 10_000


@given(IDS, IDS, st.data())
def test_an_election_for_a_reassignment_keeps_whole_replicas(
    origin: list[BrokerId], target: list[BrokerId], data: st.DataObject
) -> None:
    assignment = ReplicaAssignment(tuple(origin)).changed_to(target)
    members = st.lists(st.sampled_from(assignment.replicas), min_size=1, unique=True)
    isr, live = data.draw(members), data.draw(members)
    leader = data.draw(st.sampled_from([*assignment.replicas, BrokerId(-1)]))
    election = elect_for_reassignment(assignment, leader, isr, live)
    if election is None:
        assert not set(isr) & set(live) & set(assignment.target)
        return
    assert election.leader in live
    assert election.leader in election.isr
    assert set(election.isr) <= set(isr)
    if set(target) <= set(isr) and assignment.is_changing:
        assert set(election.isr) == set(target)
    else:
        assert set(election.isr) == set(isr)
    if leader in election.isr and leader in live:
        assert election.leader == leader


# The steps


def test_the_added_replicas_follow_in_a_new_epoch(cluster: Cluster) -> None:
    before = cluster.states[P0]
    move(cluster, 4, 5)
    assert stored(cluster) == changing((4, 5, 1, 2), (4, 5), (1, 2))
    assert under_way(cluster) == {P0}
    after = cluster.states[P0]
    assert (after.leader, after.isr, after.leader_epoch) == (1, (1, 2), before.leader_epoch + 1)
    for broker in (1, 2, 4, 5):
        sent = cluster.channels.leadership(broker)[P0]
        assert (sent.leader, sent.leader_epoch) == (1, after.leader_epoch)
        assert sent.replicas == [4, 5, 1, 2]
        assert sent.is_new == (broker in (4, 5))
        assert cluster.channels.metadata(broker)[P0].replicas == [4, 5, 1, 2]
        assert cluster.term.context.replica_state(Replica(P0, BrokerId(broker))) is ReplicaState.ONLINE


def test_a_reassignment_ends_when_its_whole_target_is_in_sync(cluster: Cluster) -> None:
    move(cluster, 4, 5)
    cluster.rejoin(P0, 1, 2, 4)
    assert stored(cluster).is_changing
    before = cluster.states[P0]
    cluster.rejoin(P0, 1, 2, 4, 5)
    assert stored(cluster) == assigned(4, 5)
    assert under_way(cluster) == set()
    after = cluster.states[P0]
    assert (after.leader, after.isr, after.leader_epoch) == (4, (4, 5), before.leader_epoch + 1)
    assert after.broker_epochs == {broker: cluster.epoch_of(broker) for broker in (4, 5)}
    for broker in (4, 5):
        sent = cluster.channels.leadership(broker)[P0]
        assert (sent.leader, sent.isr, sent.replicas) == (4, [4, 5], [4, 5])
        assert deleted(cluster, broker) == set()
    for broker in (1, 2):
        assert deleted(cluster, broker) == {0}
    for broker in (1, 2, 3, 4, 5):
        assert cluster.channels.metadata(broker)[P0].replicas == [4, 5]


def test_the_replicas_know_the_added_and_the_removed_ones_until_the_end(cluster: Cluster) -> None:
    move(cluster, 4, 1)
    assert told(cluster, 1)[-1] == told(cluster, 4)[-1] == ([4, 1, 2], [4], [2])
    cluster.rejoin(P0, 1, 2, 4)
    assert told(cluster, 1)[-1] == told(cluster, 4)[-1] == ([4, 1], [], [])
    assert deleted(cluster, 2) == {0}
    # A leader within the target leads on.
    assert cluster.states[P0].leader == 1


def test_what_needs_no_copy_is_done_at_once(cluster: Cluster) -> None:
    """Another order of the replicas, and the removal of one while the others are in sync."""
    move(cluster, 2, 1)
    assert stored(cluster) == assigned(2, 1)
    assert cluster.states[P0].leader == 1
    assert cluster.channels.metadata(3)[P0].replicas == [2, 1]
    move(cluster, 2)
    assert stored(cluster) == assigned(2)
    assert under_way(cluster) == set()
    assert (cluster.states[P0].leader, cluster.states[P0].isr) == (2, (2,))
    assert deleted(cluster, 1) == {0}
    # The removed one may be added again.
    move(cluster, 2, 1)
    assert cluster.channels.leadership(1)[P0].is_new
    cluster.rejoin(P0, 2, 1)
    assert stored(cluster) == assigned(2, 1)


def answer_stop(cluster: Cluster, broker: int, request: StopReplicaRequest, code: ErrorCode) -> None:
    """A broker answers the same for each replica of a StopReplica."""
    errors = [
        PartitionError(topic_name=t.topic_name, partition_index=p.partition_index, error_code=int(code))
        for t in request.topic_states
        for p in t.partition_states
    ]
    response = StopReplicaResponse(error_code=0, partition_errors=errors)
    cluster.handle(cluster.event(events.StopReplicaAnswered, broker, request, response))


def deleted_for_its_roles(cluster: Cluster, broker: int) -> set[TopicId]:
    """The topic ids in the deletions that a broker is sent when it asks for its roles."""
    cluster.channels.forget()
    cluster.zookeeper.failures["log_dir_event_0"] = BrokerId(broker)
    cluster.handle(Signal.LOG_DIR_EVENT_NOTIFICATION)
    return {
        TopicId(topic.topic_id)
        for request in cluster.channels.stops(broker)
        for topic in request.topic_states
        if any(partition.delete_partition for partition in topic.partition_states)
    }


def test_a_removed_replica_that_its_broker_cannot_delete_is_deleted_when_it_asks_for_its_roles(
    cluster: Cluster,
) -> None:
    topic_id = cluster.term.context.topic_ids[P0.topic]
    move(cluster, 1)
    (request,) = cluster.channels.stops(2)
    answer_stop(cluster, 2, request, ErrorCode.KAFKA_STORAGE_ERROR)
    # The first of these requests may be lost.
    assert deleted_for_its_roles(cluster, 2) == deleted_for_its_roles(cluster, 2) == {topic_id}
    answer_stop(cluster, 2, request, ErrorCode.NONE)
    assert deleted_for_its_roles(cluster, 2) == set()
    # It is a replica again before it is deleted.
    answer_stop(cluster, 2, request, ErrorCode.KAFKA_STORAGE_ERROR)
    move(cluster, 1, 2)
    # The logs of a topic that is removed by hand stay.
    cluster.zookeeper.server.delete_all(paths.topic(P0.topic))
    cluster.run_watches()
    cluster.deliver_watches()
    assert deleted_for_its_roles(cluster, 2) == set()


@pytest.mark.parametrize("is_refused_first", [True, False])
@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_removed_replica_is_deleted_although_its_topic_is_deleted_meanwhile(
    cluster: Cluster, is_refused_first: bool, is_made_again: bool
) -> None:
    topic_id = cluster.term.context.topic_ids[P0.topic]
    move(cluster, 1)
    (request,) = cluster.channels.stops(2)
    if is_refused_first:
        answer_stop(cluster, 2, request, ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.channels.forget()
    cluster.zookeeper.deletions = [P0.topic]
    cluster.deliver_watches()
    for broker in (1, 2, 3):
        answer_stop(cluster, broker, *cluster.channels.stops(broker), ErrorCode.NONE)
    assert P0.topic not in cluster.zookeeper.assignments
    if not is_refused_first:
        answer_stop(cluster, 2, request, ErrorCode.KAFKA_STORAGE_ERROR)
    if is_made_again:
        cluster.zookeeper.add_topic(P0.topic, {0: (1, 2)})
        cluster.deliver_watches()
    assert deleted_for_its_roles(cluster, 2) == {topic_id}
    assert is_made_again == (P0 in cluster.channels.leadership(2))
    (again,) = cluster.channels.stops(2)
    answer_stop(cluster, 2, again, ErrorCode.NONE)
    assert deleted_for_its_roles(cluster, 2) == set()


def test_a_removal_waits_until_the_remaining_replicas_are_in_sync(cluster: Cluster) -> None:
    cluster.zookeeper.shrink_isr(P0, 1)
    cluster.elect()
    move(cluster, 2)
    assert cluster.states[P0].isr == (1,)
    assert deleted(cluster, 1) == set()
    cluster.rejoin(P0, 1, 2)
    assert cluster.states[P0].isr == (2,)
    assert deleted(cluster, 1) == {0}


# Changes of mind


def test_a_cancelled_reassignment_drops_the_added_replicas(cluster: Cluster) -> None:
    move(cluster, 4, 5)
    cluster.rejoin(P0, 1, 2, 4)
    assert alter(cluster, {P0: None}) == {P0: ErrorCode.NONE}
    assert stored(cluster) == assigned(1, 2)
    assert under_way(cluster) == set()
    assert (cluster.states[P0].leader, cluster.states[P0].isr) == (1, (1, 2))
    for broker in (4, 5):
        assert deleted(cluster, broker) == {0}
    assert deleted(cluster, 1) == set()
    assert told(cluster, 1)[-1] == ([1, 2], [], [])


def test_a_cancelled_reassignment_leaves_no_added_replica_in_an_isr_that_grew_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has not reported it yet, and the controller ends once it has written the assignment."""
    move(cluster, 4, 5)
    cluster.zookeeper.shrink_isr(P0, 1, 2, 4)
    write = cluster.writer.set_topic_assignments

    def end_after(topics: Mapping[str, TopicAssignment]) -> None:
        write(topics)
        raise ControllerMoved("moved")

    monkeypatch.setattr(cluster.writer, "set_topic_assignments", end_after)
    with pytest.raises(ControllerMoved):
        alter(cluster, {P0: None})
    assert stored(cluster) == assigned(1, 2)
    assert cluster.states[P0].isr == (1, 2)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_reassignment_is_not_cancelled_if_only_added_replicas_have_all_records(
    cluster: Cluster, is_noticed: bool
) -> None:
    """Nor if the controller does not know yet that the others have left the ISR."""
    move(cluster, 4, 5)
    cluster.rejoin(P0, 1, 2, 4)
    cluster.die(1)
    assert cluster.states[P0].leader == 4
    if is_noticed:
        cluster.rejoin(P0, 4)
    else:
        cluster.zookeeper.shrink_isr(P0, 4)
    assert alter(cluster, {P0: None}) == {P0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert set(cluster.states[P0].isr) == {4}
    assert stored(cluster).is_changing
    assert deleted(cluster, 4) == set()


def test_another_target_replaces_a_reassignment(cluster: Cluster) -> None:
    move(cluster, 4, 5)
    cluster.rejoin(P0, 1, 2, 4)
    move(cluster, 3, 5)
    assert set(stored(cluster).replicas) == {1, 2, 3, 5}
    assert (stored(cluster).target, set(cluster.states[P0].isr)) == ((3, 5), {1, 2})
    assert deleted(cluster, 4) == {0}
    cluster.rejoin(P0, 1, 2, 3, 5)
    assert stored(cluster) == assigned(3, 5)
    assert deleted(cluster, 5) == set()


# Other events meanwhile


def test_the_next_controller_goes_on(cluster: Cluster) -> None:
    move(cluster, 4, 5)
    before = cluster.states[P0]
    cluster.elect()
    assert under_way(cluster) == {P0}
    # The former controller may have died before it told the leader of the added replicas.
    assert cluster.states[P0].leader_epoch == before.leader_epoch + 1
    assert cluster.channels.leadership(4)[P0].replicas == [4, 5, 1, 2]
    cluster.rejoin(P0, 1, 2, 4, 5)
    assert stored(cluster) == assigned(4, 5)


def test_a_controller_that_ended_before_the_last_write_is_followed_by_one_that_deletes_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    move(cluster, 4, 5)

    def fail(topics: object) -> None:
        raise ControllerMoved("moved")

    monkeypatch.setattr(cluster.writer, "set_topic_assignments", fail)
    with pytest.raises(ControllerMoved):
        cluster.rejoin(P0, 1, 2, 4, 5)
    assert stored(cluster).is_changing
    assert cluster.states[P0].isr == (4, 5)
    cluster.elect()
    assert stored(cluster) == assigned(4, 5)
    assert deleted(cluster, 1) == deleted(cluster, 2) == {0}


def test_a_dead_broker_may_stay_or_be_replaced_but_not_be_added(cluster: Cluster) -> None:
    cluster.die(1)
    cluster.rejoin(P0, 2)
    assert alter(cluster, {P1: (3, 1)}) == {P1: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    move(cluster, 1, 2, 4)
    move(cluster, 4, 2)
    cluster.rejoin(P0, 2, 4)
    assert stored(cluster) == assigned(4, 2)
    assert (cluster.states[P0].leader, set(cluster.states[P0].isr)) == (2, {2, 4})
    # When it returns, a full request omits the partition, so the broker sets the log aside.
    cluster.channels.batches.clear()
    cluster.restart(1)
    assert P0 not in cluster.channels.leadership(1)


def fail_the_disk(cluster: Cluster) -> None:
    error = PartitionError(
        topic_name=P0.topic, partition_index=0, error_code=int(ErrorCode.KAFKA_STORAGE_ERROR)
    )
    response = LeaderAndIsrResponse(error_code=0, partition_errors=[error])
    cluster.handle(cluster.event(events.LeaderAndIsrAnswered, 1, roles(P0), response))


def test_a_replica_in_place_of_one_that_had_failed_is_another(cluster: Cluster) -> None:
    fail_the_disk(cluster)
    move(cluster, 2, 4)
    cluster.rejoin(P0, 2, 4)
    move(cluster, 2, 1)
    cluster.rejoin(P0, 2, 4, 1)
    assert stored(cluster) == assigned(2, 1)


def stop_the_leader(cluster: Cluster) -> None:
    cluster.ask(lambda term: term.shut_down(BrokerId(1), cluster.epoch_of(1), lambda code, remaining: None))


@pytest.mark.parametrize(
    "lead_elsewhere",
    [lambda cluster: cluster.die(1), fail_the_disk, stop_the_leader],
    ids=["its broker dies", "its disk fails", "its broker stops"],
)
def test_a_reassignment_ends_though_its_leader_did_not_say_that_the_target_is_in_sync(
    cluster: Cluster, lead_elsewhere: Callable[[Cluster], None]
) -> None:
    """A leader writes the ISRs of a round, and notifies the controller after that."""
    move(cluster, 3, 4)
    cluster.zookeeper.shrink_isr(P0, 1, 2, 3, 4)
    lead_elsewhere(cluster)
    assert cluster.states[P0].leader in (3, 4)
    assert stored(cluster) == assigned(3, 4)
    assert 0 in deleted(cluster, 2)
    assert under_way(cluster) == set()


def test_a_topic_is_deleted_during_a_reassignment(cluster: Cluster) -> None:
    move(cluster, 4, 5)
    cluster.zookeeper.deletions = ["moved"]
    cluster.deliver_watches()
    for broker in (1, 2, 4, 5):
        assert 0 in deleted(cluster, broker)
    assert alter(cluster, {P0: (1, 2)}) == {P0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    cluster.handle(Signal.ISR_CHANGE_NOTIFICATION)


def test_a_leader_that_a_former_controller_dropped_from_the_replicas_is_replaced(cluster: Cluster) -> None:
    topic = cluster.zookeeper.assignments["moved"]
    partitions = {**topic.partitions, 0: assigned(2, 4)}
    cluster.zookeeper.assignments["moved"] = replace(topic, partitions=partitions)
    cluster.elect()
    assert (cluster.states[P0].leader, cluster.states[P0].isr) == (2, (2,))


def test_a_reassignment_is_refused_if_its_topic_has_just_gone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.store, "topic_assignments", lambda topics: {})
    assert alter(cluster, {P0: (2, 4)}) == {P0: ErrorCode.REQUEST_TIMED_OUT}
    assert under_way(cluster) == set()
    assert stored(cluster) == assigned(1, 2)
    for broker in (1, 2):
        assert cluster.channels.leadership(broker)[P0].replicas == [1, 2]
    (stop,) = cluster.channels.stops(4)
    assert [state.delete_partition for state in stop.topic_states[0].partition_states] == [True]


def test_a_controller_ends_if_others_change_a_topic_again_and_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.writer, "set_topic_assignments", lambda topics: [])
    with pytest.raises(ZooKeeperUnavailable, match=r"'moved'. are changed by others again and again"):
        alter(cluster, {P0: (2, 4)})


# Bad input


def test_each_bad_target_is_refused(cluster: Cluster) -> None:
    targets: dict[TopicPartition, Target] = {P0: None, P1: (), UNKNOWN: (1,)}
    assert alter(cluster, targets) == {
        P0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        P1: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        UNKNOWN: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    for target in ((1, 1), (9,), (1, -1), (2, 9)):
        assert alter(cluster, {P0: target}) == {P0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}
    assert stored(cluster) == assigned(1, 2)
    assert cluster.states[P0].leader_epoch == 0


def test_the_number_of_replicas_is_that_of_the_target_while_partitions_move(cluster: Cluster) -> None:
    move(cluster, 3, 4, 5)
    assert stored(cluster).replicas == (3, 4, 5, 1, 2)
    for target, outcome in (((4, 5), ErrorCode.INVALID_REPLICATION_FACTOR), ((1, 4, 5), ErrorCode.NONE)):
        assert alter(cluster, {P0: target}, may_change_factor=False) == {P0: outcome}
    assert alter(cluster, {P0: None}, may_change_factor=False) == {P0: ErrorCode.NONE}


# Requests in ZooKeeper


@pytest.mark.parametrize("is_before_takeover", [True, False])
def test_a_request_in_zookeeper_stays_until_it_is_done(cluster: Cluster, is_before_takeover: bool) -> None:
    targets = {P0: (4, 5), P1: (4,), UNKNOWN: (1,)}
    cluster.zookeeper.put(paths.REASSIGNMENTS, admin_requests.encode_reassignments(targets))
    if is_before_takeover:
        cluster.elect()
    cluster.deliver_watches()
    assert under_way(cluster) == {P0, P1}

    def left() -> set[TopicPartition]:
        node = cluster.zookeeper.server.nodes.get(paths.REASSIGNMENTS)
        return set() if node is None else set(admin_requests.decode_reassignments(node.data))

    assert left() == {P0, P1}
    epoch = cluster.states[P0].leader_epoch
    cluster.rejoin(P1, 2, 3, 4)
    assert left() == {P0}
    assert cluster.states[P0].leader_epoch == epoch
    cluster.rejoin(P0, 1, 2, 4, 5)
    assert paths.REASSIGNMENTS not in cluster.zookeeper.server.nodes
    # The next request is noticed, too.
    cluster.zookeeper.put(paths.REASSIGNMENTS, admin_requests.encode_reassignments({P0: (1,)}))
    cluster.deliver_watches()
    assert under_way(cluster) == {P0}


def test_a_request_in_zookeeper_ends_with_the_deletion_of_its_topic(cluster: Cluster) -> None:
    """The deletion waits for a dead broker; the next request need not."""
    cluster.zookeeper.put(paths.REASSIGNMENTS, admin_requests.encode_reassignments({P0: (4, 5)}))
    cluster.deliver_watches()
    assert under_way(cluster) == {P0}
    cluster.die(3)
    cluster.zookeeper.deletions = ["moved"]
    cluster.deliver_watches()
    assert under_way(cluster) == set()
    assert paths.REASSIGNMENTS not in cluster.zookeeper.server.nodes


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"partitions": 1}',
        b'{"partitions": [{"topic": "moved", "partition": 0}]}',
        b'{"partitions": [{"topic": "moved", "partition": 0, "replicas": 4}]}',
        b'{"partitions": [{"topic": "moved", "partition": 0, "replicas": ["x"]}]}',
        b'{"partitions": [{"topic": "moved", "partition": 0, "replicas": [4]},'
        b' {"topic": "moved", "partition": 0, "replicas": [5]}]}',
    ],
)
def test_a_request_that_cannot_be_read_is_removed(
    cluster: Cluster, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.zookeeper.put(paths.REASSIGNMENTS, data)
    cluster.deliver_watches()
    assert paths.REASSIGNMENTS not in cluster.zookeeper.server.nodes
    assert "expected JSON with" in caplog.text
    assert under_way(cluster) == set()
    assert stored(cluster) == assigned(1, 2)


def test_a_request_with_bad_targets_is_reported_and_removed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    targets = {P0: (4, 4), P1: (9,), UNKNOWN: (1,)}
    cluster.zookeeper.put(paths.REASSIGNMENTS, admin_requests.encode_reassignments(targets))
    cluster.deliver_watches()
    assert paths.REASSIGNMENTS not in cluster.zookeeper.server.nodes
    for problem in ("named twice: [4, 4]", "brokers [9] are not alive", "there is no partition none-7"):
        assert problem in caplog.text
