"""The controller's handling of events, one by one, over a cluster in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barnabas.controller import events
from barnabas.controller.context import PartitionState, Replica, ReplicaState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerEpoch, BrokerId, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    LEADER_DURING_DELETE,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.errors import ControllerMoved
from barnabas.zookeeper.znodes import MalformedZnode, TopicAssignment
from tests.support.controller_fakes import Cluster, assigned, state

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def cluster_with_topic(**settings: object) -> Cluster:
    cluster = Cluster(1, 2, 3, **settings)
    cluster.zookeeper.add_topic("t", {0: (1, 2, 3), 1: (2, 3, 1)}, min_insync_replicas="2")
    cluster.elect()
    return cluster


def suspect(cluster: Cluster, broker: int) -> events.BrokerSuspected:
    return events.BrokerSuspected(cluster.writer.epoch, BrokerId(broker), cluster.epoch_of(broker))


def returned(cluster: Cluster, broker: int) -> events.BrokerReturned:
    return events.BrokerReturned(cluster.writer.epoch, BrokerId(broker), cluster.epoch_of(broker))


def die(cluster: Cluster, *brokers: int) -> None:
    cluster.zookeeper.unregister(*brokers)
    cluster.term.handle(events.BrokerChange())


def register(cluster: Cluster, broker: int) -> None:
    cluster.zookeeper.register(broker)
    cluster.term.handle(events.BrokerChange())


def answer_stops(cluster: Cluster, *brokers: int, error: ErrorCode = ErrorCode.NONE) -> None:
    """Let brokers answer the StopReplica requests that they got."""
    for broker in brokers:
        for request in cluster.channels.stops(broker):
            cluster.term.handle(
                events.StopReplicaAnswered(
                    cluster.writer.epoch,
                    BrokerId(broker),
                    cluster.epoch_of(broker),
                    request,
                    StopReplicaResponse(error_code=int(error)),
                )
            )


def request_deletion(cluster: Cluster, *topics: str) -> None:
    """Forgets the requests that were sent before."""
    cluster.channels.forget()
    cluster.zookeeper.deletions += topics
    cluster.term.handle(events.DeletionRequested())


@pytest.fixture
def cluster() -> Cluster:
    return cluster_with_topic()


def test_an_unreadable_topic_is_loaded_when_its_node_is_repaired(cluster: Cluster) -> None:
    whole = cluster.zookeeper.assignments["t"]
    cluster.zookeeper.assignments["t"] = MalformedZnode("not JSON")
    cluster.elect()
    assert T0 not in cluster.channels.leadership(1)
    cluster.zookeeper.assignments["t"] = whole
    cluster.zookeeper.touch("t")
    assert cluster.put == [events.AssignmentChange()]
    cluster.term.handle(events.AssignmentChange())
    assert cluster.channels.leadership(1)[T0].leader == 1
    assert cluster.channels.metadata(3)[T1].leader == 2
    assert cluster.term.context.unreadable_topics == set()


def test_a_topic_that_grows_while_it_gets_its_id_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(1, 2, 3)
    cluster.zookeeper.add_topic("t", {0: (1, 2, 3)})
    old = cluster.zookeeper.assignments["t"]
    assert isinstance(old, TopicAssignment)
    cluster.zookeeper.assignments["t"] = replace(old, topic_id=NO_TOPIC_ID)
    write = ControllerWriter.set_topic_assignment

    def too_late(self: ControllerWriter, name: str, topic: TopicAssignment) -> bool:
        monkeypatch.setattr(ControllerWriter, "set_topic_assignment", write)
        cluster.zookeeper.grow("t", {1: (2, 3, 1)})
        return write(self, name, topic)

    monkeypatch.setattr(ControllerWriter, "set_topic_assignment", too_late)
    cluster.elect()
    assert cluster.put == [events.AssignmentChange()]
    cluster.term.handle(events.AssignmentChange())
    grown = cluster.zookeeper.assignments["t"]
    assert isinstance(grown, TopicAssignment)
    assert (sorted(grown.partitions), grown.topic_id == NO_TOPIC_ID) == ([0, 1], False)
    assert sorted(cluster.channels.leadership(2)) == [T0, T1]


def restart(cluster: Cluster, *brokers: int) -> None:
    """The brokers register again; the controller, if there is one, gets no event."""
    cluster.zookeeper.unregister(*brokers)
    cluster.zookeeper.register(*brokers)


def test_a_leader_that_restarted_before_a_takeover_is_replaced_and_a_follower_leaves_the_isr(
    cluster: Cluster,
) -> None:
    restart(cluster, 1)
    cluster.elect()
    assert cluster.zookeeper.states[T0] == state(2, (2, 3), epoch=1, version=1, controller_epoch=2)
    assert cluster.zookeeper.states[T1] == state(2, (2, 3), epoch=1, version=1, controller_epoch=2)
    for broker in (1, 2, 3):
        told = cluster.channels.leadership(broker)[T0]
        assert (told.leader, told.leader_epoch, told.isr) == (2, 1, [2, 3])
        told = cluster.channels.leadership(broker)[T1]
        assert (told.leader, told.leader_epoch, told.isr) == (2, 1, [2, 3])
        assert cluster.channels.metadata(broker)[T1].isr == [2, 3]
    # That happens once: another takeover changes nothing.
    cluster.elect()
    assert cluster.zookeeper.states[T0].leader_epoch == 1


def test_if_all_restarted_before_a_takeover_the_first_leads_and_the_others_rejoin(cluster: Cluster) -> None:
    restart(cluster, 1, 2, 3)
    cluster.elect()
    assert cluster.zookeeper.states[T0] == state(1, (1,), epoch=1, version=1, controller_epoch=2)
    assert cluster.zookeeper.states[T1] == state(2, (2,), epoch=1, version=1, controller_epoch=2)
    assert cluster.zookeeper.states[T0].broker_epochs == {1: cluster.epoch_of(1)}


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    cluster = Cluster(2, 3)
    cluster.elect()
    cluster.zookeeper.add_topic("t", {0: (1, 2, 3)}, min_insync_replicas="2")
    cluster.term.handle(events.TopicChange())
    assert cluster.zookeeper.states[T0] == state(2, (2, 3))
    told = cluster.channels.leadership(2)[T0]
    assert (told.leader, told.is_new, told.isr, told.replicas) == (2, True, [2, 3], [1, 2, 3])
    [request] = [
        r for r in cluster.channels.requests(3) if isinstance(r, LeaderAndIsrRequest) and r.topic_states
    ]
    assert [(c.name, c.value) for c in request.topic_states[0].configs] == [("min.insync.replicas", "2")]
    assert request.topic_states[0].topic_id == cluster.zookeeper.assignments["t"].topic_id
    assert cluster.channels.metadata(3)[T0].offline_replicas == [1]


def test_a_partition_without_live_replicas_gets_its_first_leader_when_one_comes() -> None:
    cluster = Cluster(3)
    cluster.elect()
    cluster.zookeeper.add_topic("t", {0: (1, 2)})
    cluster.term.handle(events.TopicChange())
    assert T0 not in cluster.zookeeper.states
    assert cluster.term.offline_partitions_count == 1
    register(cluster, 2)
    assert cluster.zookeeper.states[T0] == state(2, (2,))
    assert cluster.channels.leadership(2)[T0].is_new
    assert cluster.term.offline_partitions_count == 0


def test_failover_announces_the_brokers_first_and_then_all_leadership(cluster: Cluster) -> None:
    cluster.elect()
    kinds = [type(request) for request in cluster.channels.requests(2)]
    assert kinds == [UpdateMetadataRequest, LeaderAndIsrRequest, UpdateMetadataRequest]
    first, leadership, metadata = cluster.channels.requests(2)
    assert [broker.broker_id for broker in first.live_brokers] == [1, 2, 3]
    assert first.topic_states == []
    assert leadership.broker_epoch == cluster.epoch_of(2)
    assert leadership.is_full
    assert set(cluster.channels.leadership(2)) == {T0, T1}
    assert metadata.is_full
    assert cluster.zookeeper.states[T0] == state(1, (1, 2, 3))


def test_failover_moves_leaders_that_died_with_the_former_controller(cluster: Cluster) -> None:
    cluster.zookeeper.unregister(1)
    cluster.elect()
    assert cluster.zookeeper.states[T0] == state(2, (2, 3), epoch=1, version=1, controller_epoch=2)
    assert cluster.zookeeper.states[T1] == state(2, (2, 3), epoch=1, version=1, controller_epoch=2)
    assert cluster.channels.leadership(3)[T0].leader == 2


def test_a_dead_broker_loses_its_leaders_and_leaves_every_isr(cluster: Cluster) -> None:
    cluster.channels.forget()
    die(cluster, 1)
    assert cluster.zookeeper.states[T0] == state(2, (2, 3), epoch=1, version=1)
    assert cluster.zookeeper.states[T1] == state(2, (2, 3), epoch=1, version=1)
    for broker in (2, 3):
        assert {tp: s.leader for tp, s in cluster.channels.leadership(broker).items()} == {T0: 2, T1: 2}
    last = cluster.channels.requests(3)[-1]
    assert isinstance(last, UpdateMetadataRequest)
    assert [broker.broker_id for broker in last.live_brokers] == [2, 3]
    assert cluster.term.live_brokers == (2, 3)


def test_the_last_member_of_an_isr_is_kept_and_leads_again_when_it_returns(cluster: Cluster) -> None:
    cluster.zookeeper.shrink_isr(T0, 1)
    die(cluster, 1)
    assert cluster.zookeeper.states[T0].leader == -1
    assert cluster.zookeeper.states[T0].isr == (1,)
    assert cluster.term.offline_partitions_count == 1
    register(cluster, 1)
    assert (cluster.zookeeper.states[T0].leader, cluster.zookeeper.states[T0].isr) == (1, (1,))
    assert cluster.term.offline_partitions_count == 0


@pytest.mark.parametrize(("setting", "override"), [(True, None), (False, "true")])
def test_a_replica_out_of_sync_leads_only_where_that_is_allowed(setting: bool, override: str | None) -> None:
    cluster = Cluster(1, 2, unclean_leader_election_enable=setting)
    config = {} if override is None else {"unclean_leader_election_enable": override}
    cluster.zookeeper.add_topic("t", {0: (1, 2)}, **config)
    cluster.elect()
    cluster.zookeeper.shrink_isr(T0, 1)
    die(cluster, 1)
    assert (cluster.zookeeper.states[T0].leader, cluster.zookeeper.states[T0].isr) == (2, (2,))


def test_a_topic_may_forbid_what_the_cluster_allows() -> None:
    cluster = Cluster(1, 2, unclean_leader_election_enable=True)
    cluster.zookeeper.add_topic("t", {0: (1, 2)}, unclean_leader_election_enable="false")
    cluster.elect()
    cluster.zookeeper.shrink_isr(T0, 1)
    die(cluster, 1)
    assert cluster.zookeeper.states[T0].leader == -1


def test_an_isr_that_its_leader_changed_meanwhile_is_read_again_before_the_election(cluster: Cluster) -> None:
    cluster.zookeeper.shrink_isr(T0, 1, 3)
    die(cluster, 1)
    assert cluster.zookeeper.states[T0] == state(3, (3,), epoch=1, version=2)


def test_a_suspected_broker_loses_its_leaders_while_its_registration_stands(cluster: Cluster) -> None:
    cluster.channels.forget()
    cluster.term.handle(suspect(cluster, 1))
    assert cluster.zookeeper.states[T0].leader == 2
    assert 1 not in cluster.term.live_brokers
    assert cluster.channels.requests(1) == []
    # Its session ends later: an ordinary failure, with nothing left to move.
    before = dict(cluster.zookeeper.states)
    die(cluster, 1)
    assert cluster.zookeeper.states == before


def test_a_wrongly_suspected_broker_gets_a_full_request(cluster: Cluster) -> None:
    cluster.term.handle(suspect(cluster, 1))
    cluster.channels.forget()
    cluster.term.handle(returned(cluster, 1))
    [full] = cluster.channels.full_requests(1)
    assert sum(len(topic.partition_states) for topic in full.topic_states) == 2
    assert cluster.zookeeper.states[T0].leader == 2
    assert cluster.term.live_brokers == (1, 2, 3)
    assert [b.broker_id for b in cluster.channels.requests(2)[-1].live_brokers] == [1, 2, 3]


def test_a_suspicion_of_an_earlier_registration_is_ignored(cluster: Cluster) -> None:
    stale = suspect(cluster, 1)
    register(cluster, 1)
    before = dict(cluster.zookeeper.states)
    cluster.term.handle(stale)
    cluster.term.handle(events.BrokerReturned(cluster.writer.epoch, BrokerId(1), BrokerEpoch(1)))
    assert cluster.zookeeper.states == before


def test_a_restart_faster_than_the_watch_is_detected_by_the_broker_epoch(cluster: Cluster) -> None:
    old = cluster.epoch_of(1)
    cluster.channels.forget()
    register(cluster, 1)
    assert cluster.channels.connected[BrokerId(1)][0] == cluster.epoch_of(1) > old
    assert cluster.zookeeper.states[T0].leader == 2
    assert 1 not in cluster.zookeeper.states[T0].isr
    [full] = cluster.channels.full_requests(1)
    assert full.broker_epoch == cluster.epoch_of(1)
    assert {t.topic_name: len(t.partition_states) for t in full.topic_states} == {"t": 2}


def test_a_broker_without_replicas_gets_an_empty_full_request(cluster: Cluster) -> None:
    register(cluster, 4)
    [full] = cluster.channels.full_requests(4)
    assert full.topic_states == []


def test_no_full_request_is_sent_while_a_topic_is_unreadable(cluster: Cluster) -> None:
    cluster.zookeeper.assignments["odd"] = MalformedZnode("/brokers/topics/odd holds b'?'")
    cluster.elect()
    register(cluster, 1)
    assert set(cluster.channels.leadership(1)) == {T0, T1}
    assert cluster.channels.full_requests(1) == []


@pytest.mark.parametrize("is_mended", [True, False])
def test_brokers_get_full_requests_once_every_topic_is_readable(is_mended: bool, cluster: Cluster) -> None:
    """A broker without replicas is fenced until then, and a log of an earlier topic blocks the next one."""
    cluster.zookeeper.assignments["odd"] = MalformedZnode("/brokers/topics/odd holds b'?'")
    cluster.elect()
    register(cluster, 4)
    assert cluster.channels.full_requests(4) == []
    if is_mended:
        cluster.zookeeper.assignments["odd"] = cluster.zookeeper.assignments["t"]
        cluster.zookeeper.touch("odd")
        cluster.term.handle(events.AssignmentChange())
    else:
        del cluster.zookeeper.assignments["odd"]
        cluster.term.handle(events.TopicChange())
    for broker in (1, 2, 3, 4):
        assert len(cluster.channels.full_requests(broker)) == 1


def test_a_topic_without_an_id_gets_one() -> None:
    cluster = Cluster(1)
    cluster.zookeeper.assignments["t"] = TopicAssignment(topic_id=NO_TOPIC_ID, partitions={0: assigned(1)})
    cluster.elect()
    named = cluster.zookeeper.assignments["t"]
    assert isinstance(named, TopicAssignment)
    assert named.topic_id != NO_TOPIC_ID
    assert cluster.term.context.topic_ids["t"] == named.topic_id


def shut_down(
    cluster: Cluster, broker: int, epoch: BrokerEpoch
) -> list[tuple[ErrorCode, list[TopicPartition]]]:
    answers: list[tuple[ErrorCode, list[TopicPartition]]] = []
    cluster.term.handle(
        events.ControlledShutdown(BrokerId(broker), epoch, lambda *answer: answers.append(answer))
    )
    return answers


def test_a_controlled_shutdown_moves_leaders_and_leaves_isrs(cluster: Cluster) -> None:
    cluster.channels.forget()
    assert shut_down(cluster, 1, cluster.epoch_of(1)) == [(ErrorCode.NONE, [])]
    for tp in (T0, T1):
        assert cluster.zookeeper.states[tp].leader == 2
        assert 1 not in cluster.zookeeper.states[tp].isr
    stopped = cluster.channels.stops(1)
    assert all(
        not one.delete_partition for r in stopped for t in r.topic_states for one in t.partition_states
    )
    # It lives until its registration goes, and no new topic is led by it.
    cluster.zookeeper.add_topic("u", {0: (1, 2)})
    cluster.term.handle(events.TopicChange())
    assert cluster.zookeeper.states[TopicPartition("u", 0)].leader == 2


def test_a_controlled_shutdown_names_what_nobody_else_can_lead(cluster: Cluster) -> None:
    cluster.zookeeper.shrink_isr(T0, 1)
    assert shut_down(cluster, 1, cluster.epoch_of(1)) == [(ErrorCode.NONE, [T0])]
    assert cluster.zookeeper.states[T0].leader == 1


@pytest.mark.parametrize(
    ("broker", "epoch", "expected"),
    [(1, 1, ErrorCode.STALE_BROKER_EPOCH), (9, 1, ErrorCode.BROKER_NOT_AVAILABLE)],
)
def test_a_controlled_shutdown_of_another_life_is_refused(
    broker: int, epoch: int, expected: ErrorCode, cluster: Cluster
) -> None:
    assert shut_down(cluster, broker, BrokerEpoch(epoch)) == [(expected, [])]
    assert cluster.term.live_brokers == (1, 2, 3)


def test_a_topic_is_gone_when_every_replica_has_said_so(cluster: Cluster) -> None:
    request_deletion(cluster, "t")
    assert cluster.channels.metadata(3)[T0].leader == LEADER_DURING_DELETE
    answer_stops(cluster, 1, 2)
    assert "t" in cluster.zookeeper.assignments
    answer_stops(cluster, 3)
    assert cluster.zookeeper.assignments == {}
    assert cluster.zookeeper.states == {}
    assert cluster.zookeeper.deletions == []
    assert cluster.term.context.partition_states == {}
    assert cluster.term.context.replica_states == {}


def test_a_late_answer_about_an_earlier_topic_of_the_name_deletes_nothing(cluster: Cluster) -> None:
    request_deletion(cluster, "t")
    (earlier,) = cluster.channels.stops(3)
    answer_stops(cluster, 1, 2, 3)
    cluster.zookeeper.add_topic("t", {0: (1, 2, 3)})
    cluster.term.handle(events.TopicChange())
    request_deletion(cluster, "t")
    answer_stops(cluster, 1, 2)
    # Sent twice after a failed link, it is answered twice.
    registration = (cluster.writer.epoch, BrokerId(3), cluster.epoch_of(3))
    answer = StopReplicaResponse(error_code=0)
    cluster.term.handle(events.StopReplicaAnswered(*registration, earlier, answer))
    assert "t" in cluster.zookeeper.assignments
    answer_stops(cluster, 3)
    assert "t" not in cluster.zookeeper.assignments


def test_a_deletion_waits_for_a_broker_that_is_down(cluster: Cluster) -> None:
    die(cluster, 3)
    request_deletion(cluster, "t")
    assert cluster.channels.stops(1) == []
    register(cluster, 3)
    answer_stops(cluster, 1, 2, 3)
    assert cluster.zookeeper.assignments == {}


def test_a_deletion_goes_on_when_a_broker_that_died_in_the_middle_is_back(cluster: Cluster) -> None:
    request_deletion(cluster, "t")
    answer_stops(cluster, 1)
    die(cluster, 3)
    answer_stops(cluster, 2)
    assert "t" in cluster.zookeeper.assignments
    cluster.channels.forget()
    register(cluster, 3)
    assert cluster.channels.stops(1) == []
    answer_stops(cluster, 3)
    assert cluster.zookeeper.assignments == {}


def test_a_deletion_goes_on_under_the_next_controller(cluster: Cluster) -> None:
    request_deletion(cluster, "t")
    cluster.elect()
    assert cluster.channels.leadership(1) == {}
    answer_stops(cluster, 1, 2, 3)
    assert cluster.zookeeper.assignments == {}


def test_a_deletion_continues_after_a_failed_link_dropped_its_request(cluster: Cluster) -> None:
    request_deletion(cluster, "t")
    answer_stops(cluster, 1, 3)
    cluster.channels.forget()
    cluster.term.handle(events.LinkFailed(cluster.writer.epoch, BrokerId(2), cluster.epoch_of(2)))
    answer_stops(cluster, 2)
    assert "t" not in cluster.zookeeper.assignments


def test_a_replica_that_cannot_be_removed_stops_the_deletion_until_its_broker_restarts(
    cluster: Cluster,
) -> None:
    request_deletion(cluster, "t")
    answer_stops(cluster, 1, 2)
    answer_stops(cluster, 3, error=ErrorCode.KAFKA_STORAGE_ERROR)
    assert "t" in cluster.zookeeper.assignments
    assert cluster.term.context.topics_ineligible_for_deletion == {"t"}
    cluster.channels.forget()
    register(cluster, 3)
    answer_stops(cluster, 3)
    assert cluster.zookeeper.assignments == {}


def test_deletion_requests_are_cleared_where_deletion_is_disabled() -> None:
    cluster = cluster_with_topic(delete_topic_enable=False)
    request_deletion(cluster, "t")
    assert cluster.zookeeper.deletions == []
    assert "t" in cluster.zookeeper.assignments
    assert cluster.channels.stops(1) == []


def test_a_request_to_delete_an_unknown_topic_is_cleared(cluster: Cluster) -> None:
    request_deletion(cluster, "nosuch")
    assert cluster.zookeeper.deletions == []


def test_a_topic_whose_creation_was_not_seen_yet_can_be_deleted(cluster: Cluster) -> None:
    cluster.zookeeper.add_topic("young", {0: (1, 2)})
    request_deletion(cluster, "young")
    answer_stops(cluster, 1, 2)
    assert "young" not in cluster.zookeeper.assignments


def test_a_topic_removed_by_hand_is_forgotten(cluster: Cluster) -> None:
    del cluster.zookeeper.assignments["t"]
    cluster.zookeeper.states.clear()
    cluster.term.handle(events.TopicChange())
    assert cluster.term.context.leadership == {}
    die(cluster, 1)
    assert cluster.zookeeper.states == {}


def test_isr_changes_of_leaders_are_passed_on_and_cleared(cluster: Cluster) -> None:
    cluster.channels.forget()
    cluster.zookeeper.shrink_isr(T0, 1, 2)
    cluster.zookeeper.notifications["isr_change_1"] = [T0, TopicPartition("nosuch", 7)]
    cluster.term.handle(events.IsrChangeNotified())
    assert cluster.channels.metadata(3)[T0].isr == [1, 2]
    assert cluster.channels.leadership(3) == {}
    assert cluster.zookeeper.notifications == {}


def answer_lost(cluster: Cluster, broker: int, *lost: TopicPartition) -> None:
    """A broker answers LeaderAndIsr: these are on a disk that failed."""
    answer_errors(cluster, broker, ErrorCode.KAFKA_STORAGE_ERROR, *lost)


def answer_errors(cluster: Cluster, broker: int, code: ErrorCode, *partitions: TopicPartition) -> None:
    errors = [
        PartitionError(topic_name=tp.topic, partition_index=tp.partition, error_code=int(code))
        for tp in partitions
    ]
    answer(cluster, broker, LeaderAndIsrResponse(error_code=0, partition_errors=errors))


def answer(cluster: Cluster, broker: int, response: LeaderAndIsrResponse) -> None:
    registration = (BrokerId(broker), cluster.epoch_of(broker))
    cluster.term.handle(events.LeaderAndIsrAnswered(cluster.writer.epoch, *registration, response))


def notify_disk_failure(cluster: Cluster, *brokers: int | None) -> None:
    for broker in brokers:
        name = f"log_dir_event_{len(cluster.zookeeper.failures)}"
        cluster.zookeeper.failures[name] = None if broker is None else BrokerId(broker)
    cluster.term.handle(events.LogDirFailureNotified())


def test_a_broker_that_lost_a_log_dir_gets_all_its_roles_again(cluster: Cluster) -> None:
    states = dict(cluster.zookeeper.states)
    cluster.channels.forget()
    notify_disk_failure(cluster, 1)
    assert set(cluster.channels.leadership(1)) == {T0, T1}
    assert cluster.channels.leadership(2) == {}
    assert cluster.zookeeper.failures == {}
    assert cluster.zookeeper.states == states
    answer_lost(cluster, 1, T0, T1)
    assert cluster.zookeeper.states[T0] == state(2, (2, 3), epoch=1, version=1)
    assert cluster.zookeeper.states[T1].isr == (2, 3)
    assert cluster.channels.metadata(3)[T0].offline_replicas == [1]


def test_a_notification_of_a_dead_broker_is_cleared_and_sends_nothing(cluster: Cluster) -> None:
    die(cluster, 1)
    cluster.channels.forget()
    notify_disk_failure(cluster, 1, 9, None)
    assert cluster.zookeeper.failures == {}
    assert cluster.channels.batches == []


def test_failed_replicas_get_their_roles_again_and_may_have_recovered(cluster: Cluster) -> None:
    answer_lost(cluster, 1, T0)
    cluster.channels.forget()
    notify_disk_failure(cluster, 1)
    assert set(cluster.channels.leadership(1)) == {T0, T1}
    answer_lost(cluster, 1, T1)
    assert cluster.zookeeper.states[T1].isr == (2, 3)
    # The answer does not name the first one: it is back, and may lead once it is in sync.
    cluster.zookeeper.shrink_isr(T0, 2, 3, 1)
    cluster.term.handle(events.IsrChangeNotified())
    die(cluster, 2, 3)
    assert cluster.zookeeper.states[T0].leader == 1


def test_a_leader_that_could_not_lead_for_a_while_leads_when_its_broker_asks_for_its_roles(
    cluster: Cluster,
) -> None:
    """It had no descriptors when it was elected, and no other replica is in sync."""
    die(cluster, 2, 3)
    assert cluster.zookeeper.states[T0].leader == 1
    answer_lost(cluster, 1, T0)
    assert cluster.zookeeper.states[T0].leader == -1
    notify_disk_failure(cluster, 1)
    assert cluster.zookeeper.states[T0].leader == 1
    assert cluster.channels.leadership(1)[T0].leader == 1


def test_a_failed_replica_stays_failed_when_its_broker_was_wrongly_suspected(cluster: Cluster) -> None:
    answer_lost(cluster, 1, T0)
    cluster.term.handle(suspect(cluster, 1))
    cluster.term.handle(returned(cluster, 1))
    answer_lost(cluster, 1, T0)
    states = cluster.term.context.replica_states
    assert states[Replica(T0, BrokerId(1))] is ReplicaState.OFFLINE
    assert states[Replica(T1, BrokerId(1))] is ReplicaState.ONLINE


def test_a_failed_replica_returns_when_its_broker_has_restarted(cluster: Cluster) -> None:
    answer_lost(cluster, 1, T0, T1)
    die(cluster, 1)
    cluster.zookeeper.register(1)
    cluster.channels.forget()
    cluster.term.handle(events.BrokerChange())
    assert set(cluster.channels.leadership(1)) == {T0, T1}
    cluster.zookeeper.shrink_isr(T0, 2, 3, 1)
    cluster.term.handle(events.IsrChangeNotified())
    die(cluster, 2, 3)
    assert cluster.zookeeper.states[T0].leader == 1


def test_a_new_controller_clears_the_notifications_and_sends_all_roles(cluster: Cluster) -> None:
    cluster.zookeeper.failures["log_dir_event_0"] = BrokerId(1)
    cluster.elect()
    assert cluster.zookeeper.failures == {}
    assert set(cluster.channels.leadership(1)) == {T0, T1}
    answer_lost(cluster, 1, T0)
    assert cluster.zookeeper.states[T0].leader == 2


def test_a_replica_whose_disk_failed_hands_its_leadership_over(cluster: Cluster) -> None:
    answer_lost(cluster, 1, T0)
    assert cluster.zookeeper.states[T0] == state(2, (2, 3), epoch=1, version=1)
    assert cluster.zookeeper.states[T1].isr == (2, 3, 1)
    die(cluster, 2)
    assert cluster.zookeeper.states[T0].leader == 3


def test_a_superseded_controller_stops_at_its_first_write(cluster: Cluster) -> None:
    old = cluster.term
    cluster.zookeeper.become_controller()
    cluster.zookeeper.unregister(1)
    with pytest.raises(ControllerMoved):
        old.handle(events.BrokerChange())
    assert cluster.zookeeper.states[T0].leader == 1


def test_a_state_of_a_newer_controller_raises(cluster: Cluster) -> None:
    cluster.zookeeper.states[T0] = state(3, (3,), epoch=9, version=9, controller_epoch=7)
    cluster.zookeeper.unregister(1)
    with pytest.raises(ControllerMoved):
        cluster.term.handle(events.BrokerChange())


def test_added_partitions_get_leaders_and_reach_every_broker() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.zookeeper.add_topic("t", {0: (1, 2)})
    term = cluster.elect()
    cluster.channels.forget()
    cluster.zookeeper.grow("t", {1: (2, 3), 2: (3, 1)})
    assert cluster.put == [events.AssignmentChange()]
    term.handle(events.AssignmentChange())
    first, second = TopicPartition("t", 1), TopicPartition("t", 2)
    assert (cluster.zookeeper.states[first].leader, cluster.zookeeper.states[second].leader) == (2, 3)
    assert cluster.channels.leadership(3).keys() == {first, second}
    assert cluster.channels.leadership(3)[first].is_new
    assert cluster.channels.metadata(1).keys() == {first, second}
    cluster.channels.forget()
    # The node is watched again; what is no growth changes nothing.
    cluster.zookeeper.touch("t")
    term.handle(events.AssignmentChange())
    assert cluster.channels.batches == []
    cluster.zookeeper.grow("t", {3: (1, 2)})
    term.handle(events.AssignmentChange())
    assert cluster.channels.leadership(2).keys() == {TopicPartition("t", 3)}


def test_a_topic_that_is_being_deleted_gets_no_partitions() -> None:
    cluster = Cluster(1, 2)
    cluster.zookeeper.add_topic("t", {0: (1, 2)})
    term = cluster.elect()
    cluster.zookeeper.deletions = ["t"]
    term.handle(events.DeletionRequested())
    cluster.zookeeper.grow("t", {1: (1, 2)})
    term.handle(events.AssignmentChange())
    assert TopicPartition("t", 1) not in cluster.zookeeper.states
    assert TopicPartition("t", 1) not in term.context.partition_states


def test_a_leaderless_partition_gets_a_leader_when_unclean_elections_are_allowed_for_its_topic() -> None:
    cluster = Cluster(1, 2)
    cluster.zookeeper.add_topic("t", {0: (1, 2)})
    cluster.zookeeper.add_topic("other", {0: (1, 2)})
    for name in ("t", "other"):
        cluster.zookeeper.states[TopicPartition(name, 0)] = state(1, [1])
    cluster.zookeeper.unregister(1)
    term = cluster.elect()
    assert term.offline_partitions_count == 2
    cluster.zookeeper.configure("t", unclean_leader_election_enable="true")
    term.handle(events.TopicConfigChange(frozenset({"t", "unknown"})))
    assert cluster.zookeeper.states[TopicPartition("t", 0)].leader == 2
    assert term.offline_partitions_count == 1
    term.handle(events.UncleanElectionChange(is_enabled=True))
    assert cluster.zookeeper.states[TopicPartition("other", 0)].leader == 2


def test_settings_are_sent_with_the_zxid_of_their_write() -> None:
    cluster = Cluster(1)
    cluster.zookeeper.add_topic("t", {0: (1,)}, retention_ms="5")
    term = cluster.elect()
    cluster.zookeeper.configure("t", retention_ms="6")
    term.handle(events.TopicConfigChange(frozenset({"t"})))
    cluster.channels.forget()
    cluster.zookeeper.grow("t", {1: (1,)})
    term.handle(events.AssignmentChange())
    [request] = [one for one in cluster.channels.requests(1) if isinstance(one, LeaderAndIsrRequest)]
    [topic] = request.topic_states
    assert [(config.name, config.value) for config in topic.configs] == [("retention.ms", "6")]
    assert topic.config_zxid == cluster.zookeeper.configs["t"].zxid


def test_a_broker_without_an_address_may_not_lead(cluster: Cluster) -> None:
    deaf = cluster.zookeeper.registrations[BrokerId(2)]
    cluster.zookeeper.unregister(2)
    cluster.term.handle(events.BrokerChange())
    cluster.zookeeper.registrations[BrokerId(2)] = replace(
        deaf, listeners=(deaf.listeners[0]._replace(name="OTHER"),), broker_epoch=BrokerEpoch(999)
    )
    cluster.term.handle(events.BrokerChange())
    assert cluster.term.live_brokers == (1, 3)
    # Nor under the next controller.
    assert cluster.elect().live_brokers == (1, 3)


def test_a_new_controller_sends_full_requests_to_registered_brokers(cluster: Cluster) -> None:
    for broker in (1, 2, 3):
        [full] = cluster.channels.full_requests(broker)
        assert sum(len(topic.partition_states) for topic in full.topic_states) == 2
    # Also a broker without replicas: it may wait for the first request to its new registration.
    cluster.zookeeper.register(4)
    cluster.elect()
    [full] = cluster.channels.full_requests(4)
    assert full.topic_states == []


def test_a_broker_that_has_the_log_of_another_topic_is_sent_everything_once(cluster: Cluster) -> None:
    cluster.channels.forget()
    for _ in range(3):
        answer_errors(cluster, 2, ErrorCode.INCONSISTENT_TOPIC_ID, T0)
    assert len(cluster.channels.full_requests(2)) == 1
    assert cluster.channels.full_requests(1) == []
    cluster.zookeeper.unregister(2)
    cluster.term.handle(events.BrokerChange())
    register(cluster, 2)
    cluster.channels.forget()
    # Another life of the broker may set the log aside.
    answer_errors(cluster, 2, ErrorCode.INCONSISTENT_TOPIC_ID, T0)
    assert len(cluster.channels.full_requests(2)) == 1


@pytest.mark.parametrize(
    ("code", "event"),
    [
        (ErrorCode.STALE_CONTROLLER_EPOCH, events.ControllerChange()),
        (ErrorCode.STALE_BROKER_EPOCH, events.BrokerChange()),
    ],
)
def test_after_a_stale_epoch_the_znodes_are_read_again(
    cluster: Cluster, code: ErrorCode, event: events.Event
) -> None:
    answer(cluster, 2, LeaderAndIsrResponse(error_code=int(code)))
    assert cluster.put == [event]


def test_an_election_returns_an_outcome_for_each_partition(cluster: Cluster) -> None:
    cluster.zookeeper.shrink_isr(T0, 1)
    partitions = cluster.term._partitions
    cluster.term.context.suspected.add(BrokerId(1))
    cluster.term.context.suspected.add(BrokerId(2))
    partitions.move([T0, T1], PartitionState.OFFLINE)
    assert partitions.trigger_online() == {
        T0: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        T1: ErrorCode.NONE,
    }
    assert cluster.zookeeper.states[T1].leader == 3
