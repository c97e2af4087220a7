"""The controller's handling of events about brokers, over a cluster in memory."""

from dataclasses import replace

import pytest

from barnabas.controller import events, term
from barnabas.controller.context import Replica, ReplicaState
from barnabas.controller.events import Signal
from barnabas.controller.leader_choice import ElectionKind
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_BROKER, NO_LEADER_EPOCH, BrokerEpoch, BrokerId, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    UpdateMetadataRequest,
)
from barnabas.zookeeper import paths
from barnabas.zookeeper.errors import ControllerMoved
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.requests import Watch
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import AdvertisedListener
from tests.support.controller_fakes import T0, T1, Cluster, make_cluster, roles, state


@pytest.mark.parametrize("is_back", [True, False], ids=["restarted", "died"])
def test_a_broker_that_went_before_a_takeover_loses_its_leaders_and_leaves_the_isr(
    cluster: Cluster, is_back: bool
) -> None:
    cluster.zookeeper.unregister(1)
    if is_back:
        cluster.zookeeper.register(1)
    cluster.elect()
    for tp in (T0, T1):
        assert cluster.states[tp] == state(2, (2, 3), epoch=1, version=1, controller_epoch=2)
        for broker in (1, 2, 3) if is_back else (2, 3):
            sent = cluster.channels.leadership(broker)[tp]
            assert (sent.leader, sent.leader_epoch, sent.isr) == (2, 1, [2, 3])
            assert cluster.channels.metadata(broker)[tp].isr == [2, 3]
    # That happens once: another takeover changes nothing.
    cluster.elect()
    assert cluster.states[T0].leader_epoch == 1


def test_if_all_restarted_before_a_takeover_the_first_leads_and_the_others_rejoin(cluster: Cluster) -> None:
    cluster.zookeeper.register(1, 2, 3)
    cluster.elect()
    assert cluster.states[T0] == state(1, (1,), epoch=1, version=1, controller_epoch=2)
    assert cluster.states[T1] == state(2, (2,), epoch=1, version=1, controller_epoch=2)
    assert cluster.states[T0].broker_epochs == {1: cluster.epoch_of(1)}


def test_failover_begins_to_connect_before_it_reads_the_topics(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS and SASL take round trips, and so does the read of all topics."""
    read, connected = ClusterStore.topics, []

    def topics(store: ClusterStore, watch: Watch | None = None) -> list[str]:
        connected.append(set(cluster.channels.connected))
        return read(store, watch)

    monkeypatch.setattr(ClusterStore, "topics", topics)
    cluster.elect()
    assert connected == [{1, 2, 3}]


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
    assert cluster.states[T0] == state(1, (1, 2, 3))


def test_a_dead_broker_loses_its_leaders_and_leaves_every_isr(cluster: Cluster) -> None:
    cluster.channels.forget()
    cluster.die(1)
    assert cluster.states[T0] == state(2, (2, 3), epoch=1, version=1)
    assert cluster.states[T1] == state(2, (2, 3), epoch=1, version=1)
    for broker in (2, 3):
        assert {tp: s.leader for tp, s in cluster.channels.leadership(broker).items()} == {T0: 2, T1: 2}
    last = cluster.channels.requests(3)[-1]
    assert isinstance(last, UpdateMetadataRequest)
    assert [broker.broker_id for broker in last.live_brokers] == [2, 3]
    assert cluster.term.live_racks.keys() == {2, 3}
    assert 1 not in cluster.channels.connected


def roles_sent(cluster: Cluster, broker: int) -> list[dict[TopicPartition, tuple[int, list[int]]]]:
    """Leader and ISR of each partition in each LeaderAndIsr that was sent to a broker."""
    return [
        {
            TopicPartition(topic.topic_name, role.partition_index): (role.leader, role.isr)
            for topic in request.topic_states
            for role in topic.partition_states
        }
        for request in cluster.channels.requests(broker)
        if isinstance(request, LeaderAndIsrRequest)
    ]


def test_new_leaders_are_sent_with_the_isrs_unless_these_are_many(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers with acks=all wait for both, but the ISRs of many partitions take a while."""
    cluster.channels.forget()
    cluster.die(1)
    assert roles_sent(cluster, 2) == [{T0: (2, [2, 3]), T1: (2, [2, 3])}]
    cluster.zookeeper.unregister(2)
    cluster.elect()
    assert roles_sent(cluster, 3) == [{T0: (3, [3]), T1: (3, [3])}]
    monkeypatch.setattr(term, "_FEW_REPLICAS", 1)
    many = make_cluster()
    many.channels.forget()
    many.die(1)
    assert roles_sent(many, 2) == [{T0: (2, [2, 3])}, {T1: (2, [2, 3])}]
    many = make_cluster()
    many.zookeeper.unregister(1)
    many.elect()
    assert roles_sent(many, 2) == [{T0: (2, [2, 3]), T1: (2, [2, 3, 1])}, {T1: (2, [2, 3])}]


def test_the_last_member_of_an_isr_is_kept_and_leads_again_when_it_returns(cluster: Cluster) -> None:
    cluster.zookeeper.shrink_isr(T0, 1)
    cluster.die(1)
    assert cluster.states[T0].leader == -1
    assert cluster.states[T0].isr == (1,)
    assert cluster.term.offline_partitions_count == 1
    cluster.restart(1)
    assert (cluster.states[T0].leader, cluster.states[T0].isr) == (1, (1,))
    assert cluster.term.offline_partitions_count == 0


@pytest.mark.parametrize(
    ("setting", "override", "leader", "isr"),
    [(True, None, 2, (2,)), (False, "true", 2, (2,)), (True, "false", -1, (1,))],
)
def test_a_replica_out_of_sync_leads_only_where_that_is_allowed(
    setting: bool, override: str | None, leader: int, isr: tuple[int, ...]
) -> None:
    cluster = Cluster(1, 2, unclean_leader_election_enable=setting)
    config = {} if override is None else {"unclean_leader_election_enable": override}
    cluster.zookeeper.add_topic("t", {0: (1, 2)}, **config)
    cluster.elect()
    cluster.zookeeper.shrink_isr(T0, 1)
    cluster.die(1)
    assert (cluster.states[T0].leader, cluster.states[T0].isr) == (leader, isr)


def test_a_replica_out_of_sync_leads_only_once_the_session_of_a_suspected_leader_has_ended() -> None:
    """If the suspicion is wrong, that one continues alone, and all that it acknowledges would be lost."""
    cluster = Cluster(1, 2, 3, 4, unclean_leader_election_enable=True)
    cluster.zookeeper.add_topic("t", {0: (1, 2), 1: (3, 4)})
    cluster.elect()
    cluster.zookeeper.shrink_isr(T0, 1)
    cluster.handle(cluster.event(events.BrokerSuspected, 1))
    assert (cluster.states[T0].leader, cluster.states[T0].isr) == (-1, (1,))
    cluster.handle(cluster.event(events.BrokerReturned, 1))
    assert cluster.states[T0].leader == 1
    cluster.handle(cluster.event(events.BrokerSuspected, 1))
    cluster.die(1)
    assert (cluster.states[T0].leader, cluster.states[T0].isr) == (2, (2,))
    # A replica whose disk has failed does not lead any more.
    cluster.die(4)
    answer_failed(cluster, 3, T1)
    cluster.handle(cluster.event(events.BrokerSuspected, 3))
    assert cluster.states[T1].isr == (3,)
    cluster.restart(4)
    assert cluster.states[T1].leader == 4


def test_an_isr_that_its_leader_changed_meanwhile_is_read_again_before_the_election(cluster: Cluster) -> None:
    cluster.zookeeper.shrink_isr(T0, 1, 3)
    cluster.die(1)
    assert cluster.states[T0] == state(3, (3,), epoch=1, version=2)


def test_a_suspected_broker_loses_its_leaders_while_it_is_still_registered(cluster: Cluster) -> None:
    cluster.channels.forget()
    cluster.handle(cluster.event(events.BrokerSuspected, 1))
    assert cluster.states[T0].leader == 2
    assert 1 not in cluster.term.live_racks
    assert cluster.channels.requests(1) == []
    # Its session ends later: an ordinary failure, with nothing left to move.
    before = dict(cluster.states)
    cluster.die(1)
    assert cluster.states == before
    cluster.restart(1)
    assert cluster.term.live_racks.keys() == {1, 2, 3}


def test_other_addresses_of_a_broker_reach_all_brokers(cluster: Cluster) -> None:
    cluster.channels.forget()
    before = dict(cluster.states)
    registered = cluster.zookeeper.registrations[BrokerId(1)]
    added = AdvertisedListener("CLIENTS", "elsewhere", 9)
    cluster.zookeeper.registrations[BrokerId(1)] = replace(
        registered, listeners=(*registered.listeners, added)
    )
    assert cluster.zookeeper.registrations[BrokerId(1)].broker_epoch == registered.broker_epoch
    cluster.handle(Signal.BROKER_CHANGE)
    for broker in (1, 2, 3):
        [update] = cluster.channels.requests(broker)
        endpoints = [
            (e.listener, e.host) for b in update.live_brokers for e in b.endpoints if b.broker_id == 1
        ]
        assert endpoints == [("PLAINTEXT", "localhost"), ("CLIENTS", "elsewhere")]
    assert cluster.states == before
    cluster.channels.forget()
    cluster.handle(Signal.BROKER_CHANGE)
    assert cluster.channels.requests(2) == []


def test_a_wrongly_suspected_broker_gets_a_full_request(cluster: Cluster) -> None:
    cluster.handle(cluster.event(events.BrokerSuspected, 1))
    cluster.channels.forget()
    cluster.handle(cluster.event(events.BrokerReturned, 1))
    [full] = cluster.channels.full_requests(1)
    assert sum(len(topic.partition_states) for topic in full.topic_states) == 2
    assert cluster.states[T0].leader == 2
    assert cluster.term.live_racks.keys() == {1, 2, 3}
    assert [b.broker_id for b in cluster.channels.requests(2)[-1].live_brokers] == [1, 2, 3]


def test_a_suspicion_of_an_earlier_registration_is_ignored(cluster: Cluster) -> None:
    stale = cluster.event(events.BrokerSuspected, 1)
    cluster.restart(1)
    before = dict(cluster.states)
    cluster.handle(stale)
    cluster.handle(events.BrokerReturned(cluster.writer.epoch, BrokerId(1), BrokerEpoch(1)))
    assert cluster.states == before


def test_a_restart_faster_than_the_watch_is_detected_by_the_broker_epoch(cluster: Cluster) -> None:
    old = cluster.epoch_of(1)
    cluster.channels.forget()
    cluster.restart(1)
    assert cluster.channels.connected[BrokerId(1)][0] == cluster.epoch_of(1) > old
    assert cluster.states[T0].leader == 2
    assert 1 not in cluster.states[T0].isr
    [full] = cluster.channels.full_requests(1)
    assert full.broker_epoch == cluster.epoch_of(1)
    assert {t.topic_name: len(t.partition_states) for t in full.topic_states} == {"t": 2}


def test_a_partition_without_a_readable_state_is_named_without_a_leader(cluster: Cluster) -> None:
    """Else the brokers would take it for deleted."""
    cluster.zookeeper.server.nodes[paths.leadership(T1)].data = b"?"
    cluster.elect()
    sent = cluster.channels.metadata(1)[T1]
    assert (sent.leader, sent.leader_epoch, sorted(sent.replicas)) == (NO_BROKER, NO_LEADER_EPOCH, [1, 2, 3])


def test_a_repaired_state_is_read_again_for_an_election(cluster: Cluster) -> None:
    """It is not watched. Until then the partition is offline, and its logs are set aside."""
    node = cluster.zookeeper.server.nodes[paths.leadership(T1)]
    whole, node.data = node.data, b"?"
    cluster.elect()
    assert T1 not in cluster.channels.leadership(2)
    cluster.zookeeper.put(paths.leadership(T1), whole)
    cluster.deliver_watches()
    assert T1 not in cluster.channels.leadership(2)
    cluster.ask(lambda term: term.elect(ElectionKind.PREFERRED, [T1], lambda code, outcomes: None))
    sent = cluster.channels.leadership(2)[T1]
    assert (sent.leader, sent.leader_epoch, sent.is_new) == (2, 1, False)


def unreadable_topics(cluster: Cluster, broker: int) -> list[list[str] | None]:
    """As listed in each UpdateMetadata that was sent to the broker."""
    sent = cluster.channels.requests(broker)
    return [update.unreadable_topics for update in sent if isinstance(update, UpdateMetadataRequest)]


def test_an_unreadable_topic_is_gone_until_it_is_repaired(cluster: Cluster) -> None:
    """Its logs are set aside by a full request, and used again. Its markers wait, because it is listed."""
    cluster.zookeeper.assignments["odd"] = MalformedZnode("/brokers/topics/odd holds b'?'")
    cluster.elect()
    [full] = cluster.channels.full_requests(1)
    assert {topic.topic_name for topic in full.topic_states} == {"t"}
    assert unreadable_topics(cluster, 1) == [["odd"], ["odd"]]
    cluster.channels.forget()
    cluster.zookeeper.assignments["odd"] = cluster.zookeeper.assignments["t"]
    cluster.zookeeper.touch("odd")
    cluster.handle(Signal.PARTITION_MODIFICATIONS)
    assert {tp.topic for tp in cluster.channels.leadership(1)} == {"odd"}
    assert unreadable_topics(cluster, 1) == [[]]


def test_brokers_know_that_an_unreadable_topic_was_removed(cluster: Cluster) -> None:
    """Its markers would wait until the next change of something else."""
    cluster.zookeeper.assignments["odd"] = MalformedZnode("/brokers/topics/odd holds b'?'")
    cluster.elect()
    cluster.channels.forget()
    del cluster.zookeeper.assignments["odd"]
    cluster.handle(Signal.TOPIC_CHANGE)
    assert unreadable_topics(cluster, 1) == [[]]
    cluster.channels.forget()
    cluster.handle(Signal.TOPIC_CHANGE)
    assert unreadable_topics(cluster, 1) == []


def shut_down(
    cluster: Cluster, broker: int, epoch: BrokerEpoch
) -> list[tuple[ErrorCode, list[TopicPartition]]]:
    answers: list[tuple[ErrorCode, list[TopicPartition]]] = []
    cluster.ask(
        lambda term: term.shut_down(
            BrokerId(broker), epoch, lambda code, left: answers.append((code, list(left)))
        )
    )
    return answers


def test_a_controlled_shutdown_moves_leaders_and_leaves_isrs(cluster: Cluster) -> None:
    cluster.channels.forget()
    assert shut_down(cluster, 1, cluster.epoch_of(1)) == [(ErrorCode.NONE, [])]
    for tp in (T0, T1):
        assert cluster.states[tp].leader == 2
        assert 1 not in cluster.states[tp].isr
    stopped = [
        (state.partition_index, state.delete_partition)
        for request in cluster.channels.stops(1)
        for topic in request.topic_states
        for state in topic.partition_states
    ]
    assert sorted(stopped) == [(0, False), (1, False)]
    # It is alive until its registration is gone, but leads no new topic.
    cluster.zookeeper.add_topic("u", {0: (1, 2)})
    cluster.handle(Signal.TOPIC_CHANGE)
    assert cluster.states[TopicPartition("u", 0)].leader == 2
    cluster.restart(1)
    assert cluster.term.live_racks.keys() == {1, 2, 3}


def test_a_controlled_shutdown_names_partitions_that_no_other_broker_can_lead(cluster: Cluster) -> None:
    """Except those with one replica: for them nothing can be done."""
    cluster.zookeeper.add_topic("single", {0: (1,)})
    cluster.handle(Signal.TOPIC_CHANGE)
    cluster.zookeeper.shrink_isr(T0, 1)
    assert shut_down(cluster, 1, cluster.epoch_of(1)) == [(ErrorCode.NONE, [T0])]
    assert cluster.states[T0].leader == 1


@pytest.mark.parametrize(
    ("broker", "epoch", "expected"),
    [(1, 1, ErrorCode.STALE_BROKER_EPOCH), (9, 1, ErrorCode.BROKER_NOT_AVAILABLE)],
)
def test_a_controlled_shutdown_of_another_registration_is_refused(
    broker: int, epoch: int, expected: ErrorCode, cluster: Cluster
) -> None:
    assert shut_down(cluster, broker, BrokerEpoch(epoch)) == [(expected, [])]
    assert cluster.term.live_racks.keys() == {1, 2, 3}


def test_isr_changes_of_leaders_are_passed_on_and_cleared(cluster: Cluster) -> None:
    cluster.channels.forget()
    cluster.zookeeper.shrink_isr(T0, 1, 2)
    cluster.zookeeper.notifications["isr_change_1"] = [T0, TopicPartition("nosuch", 7)]
    cluster.handle(Signal.ISR_CHANGE_NOTIFICATION)
    assert cluster.channels.metadata(3)[T0].isr == [1, 2]
    assert cluster.channels.leadership(3) == {}
    assert cluster.zookeeper.notifications == {}


def answer_failed(cluster: Cluster, broker: int, *failed: TopicPartition) -> None:
    """A broker answers LeaderAndIsr: the disk of these replicas has failed."""
    answer_errors(cluster, broker, ErrorCode.KAFKA_STORAGE_ERROR, *failed)


def answer_errors(cluster: Cluster, broker: int, code: ErrorCode, *partitions: TopicPartition) -> None:
    errors = [
        PartitionError(topic_name=tp.topic, partition_index=tp.partition, error_code=int(code))
        for tp in partitions
    ]
    answer(cluster, broker, LeaderAndIsrResponse(error_code=0, partition_errors=errors), *partitions)


def answer(cluster: Cluster, broker: int, response: LeaderAndIsrResponse, *named: TopicPartition) -> None:
    """Answer a request that named these roles."""
    cluster.handle(cluster.event(events.LeaderAndIsrAnswered, broker, roles(*named), response))


def notify_disk_failure(cluster: Cluster, *brokers: int | None) -> None:
    for broker in brokers:
        name = f"log_dir_event_{len(cluster.zookeeper.failures)}"
        cluster.zookeeper.failures[name] = None if broker is None else BrokerId(broker)
    cluster.handle(Signal.LOG_DIR_EVENT_NOTIFICATION)


def test_a_replica_that_takes_a_newer_role_has_failed_no_longer(cluster: Cluster) -> None:
    """It asks for its roles before the controller has the answer that it could not take the former one."""
    notify_disk_failure(cluster, 1)
    answer_failed(cluster, 1, T0)
    assert 1 not in cluster.states[T0].isr
    answer(cluster, 1, LeaderAndIsrResponse(error_code=0), T0)
    cluster.rejoin(T0, 2, 3, 1)
    cluster.die(2)
    cluster.die(3)
    assert (cluster.states[T0].leader, cluster.states[T0].isr) == (1, (1,))


def test_a_broker_that_lost_a_log_dir_gets_all_its_roles_again(cluster: Cluster) -> None:
    states = dict(cluster.states)
    cluster.channels.forget()
    notify_disk_failure(cluster, 1)
    assert set(cluster.channels.leadership(1)) == {T0, T1}
    assert cluster.channels.leadership(2) == {}
    assert cluster.zookeeper.failures == {}
    assert cluster.states == states
    answer_failed(cluster, 1, T0, T1)
    assert cluster.states[T0] == state(2, (2, 3), epoch=1, version=1)
    assert cluster.states[T1].isr == (2, 3)
    assert cluster.channels.metadata(3)[T0].offline_replicas == [1]
    # They stay failed when another broker dies.
    cluster.die(3)
    assert cluster.channels.metadata(2)[T0].offline_replicas == [1, 3]


def test_a_notification_of_a_dead_broker_is_cleared_and_sends_nothing(cluster: Cluster) -> None:
    cluster.die(1)
    cluster.channels.forget()
    notify_disk_failure(cluster, 1, 9, None)
    assert cluster.zookeeper.failures == {}
    assert cluster.channels.batches == []


def test_failed_replicas_get_their_roles_again_and_may_have_recovered(cluster: Cluster) -> None:
    answer_failed(cluster, 1, T0)
    cluster.channels.forget()
    notify_disk_failure(cluster, 1)
    assert set(cluster.channels.leadership(1)) == {T0, T1}
    answer_failed(cluster, 1, T1)
    assert cluster.states[T1].isr == (2, 3)
    # The answer does not name the first one: it is back, and may lead once it is in sync.
    cluster.zookeeper.shrink_isr(T0, 2, 3, 1)
    cluster.handle(Signal.ISR_CHANGE_NOTIFICATION)
    cluster.die(2, 3)
    assert cluster.states[T0].leader == 1


def test_a_failed_replica_that_its_leader_adds_late_leaves_the_isr_again(cluster: Cluster) -> None:
    """It fetched up to the leader's end just before its disk failed, and the partition gets no records."""
    answer_failed(cluster, 1, T0)
    assert cluster.states[T0].isr == (2, 3)
    cluster.zookeeper.shrink_isr(T0, 2, 3, 1)
    cluster.zookeeper.notifications["isr_change_1"] = [T0]
    cluster.channels.forget()
    cluster.handle(Signal.ISR_CHANGE_NOTIFICATION)
    assert cluster.states[T0].isr == (2, 3)
    assert cluster.channels.leadership(2)[T0].isr == [2, 3]


def test_a_leader_that_could_not_lead_for_a_while_leads_when_its_broker_asks_for_its_roles(
    cluster: Cluster,
) -> None:
    """It had no descriptors when it was elected, and no other replica is in sync."""
    cluster.die(2, 3)
    assert cluster.states[T0].leader == 1
    answer_failed(cluster, 1, T0)
    assert cluster.states[T0].leader == -1
    notify_disk_failure(cluster, 1)
    assert cluster.states[T0].leader == 1
    assert cluster.channels.leadership(1)[T0].leader == 1


def test_a_failed_replica_stays_failed_when_its_broker_was_wrongly_suspected(cluster: Cluster) -> None:
    answer_failed(cluster, 1, T0)
    cluster.handle(cluster.event(events.BrokerSuspected, 1))
    cluster.handle(cluster.event(events.BrokerReturned, 1))
    answer_failed(cluster, 1, T0)
    states = cluster.term.context.replica_states
    assert states[Replica(T0, BrokerId(1))] is ReplicaState.OFFLINE
    assert states[Replica(T1, BrokerId(1))] is ReplicaState.ONLINE


def test_a_failed_replica_returns_when_its_broker_has_restarted(cluster: Cluster) -> None:
    answer_failed(cluster, 1, T0, T1)
    cluster.die(1)
    cluster.zookeeper.register(1)
    cluster.channels.forget()
    cluster.handle(Signal.BROKER_CHANGE)
    assert set(cluster.channels.leadership(1)) == {T0, T1}
    cluster.zookeeper.shrink_isr(T0, 2, 3, 1)
    cluster.handle(Signal.ISR_CHANGE_NOTIFICATION)
    cluster.die(2, 3)
    assert cluster.states[T0].leader == 1


def test_a_new_controller_clears_the_notifications_and_sends_all_roles(cluster: Cluster) -> None:
    cluster.zookeeper.failures["log_dir_event_0"] = BrokerId(1)
    cluster.zookeeper.notifications["isr_change_1"] = [T0]
    cluster.elect()
    assert cluster.zookeeper.failures == cluster.zookeeper.notifications == {}
    assert set(cluster.channels.leadership(1)) == {T0, T1}
    answer_failed(cluster, 1, T0)
    assert cluster.states[T0].leader == 2


def test_a_state_of_a_newer_controller_raises(cluster: Cluster) -> None:
    cluster.states[T0] = state(3, (3,), epoch=9, version=9, controller_epoch=7)
    cluster.zookeeper.unregister(1)
    with pytest.raises(ControllerMoved):
        cluster.handle(Signal.BROKER_CHANGE)


def test_a_broker_without_an_address_may_not_lead(cluster: Cluster) -> None:
    former = cluster.zookeeper.registrations[BrokerId(2)]
    cluster.zookeeper.unregister(2)
    cluster.handle(Signal.BROKER_CHANGE)
    cluster.zookeeper.registrations[BrokerId(2)] = replace(
        former, listeners=(former.listeners[0]._replace(name="OTHER"),), broker_epoch=BrokerEpoch(999)
    )
    cluster.handle(Signal.BROKER_CHANGE)
    assert cluster.term.live_racks.keys() == {1, 3}
    # Nor under the next controller.
    assert cluster.elect().live_racks.keys() == {1, 3}


def test_a_broker_without_replicas_gets_full_requests_too(cluster: Cluster) -> None:
    """It may wait for the first request to its new registration."""
    cluster.restart(4)
    for _ in range(2):
        [full] = cluster.channels.full_requests(4)
        assert full.topic_states == []
        cluster.elect()


@pytest.mark.parametrize(
    ("code", "event"),
    [
        (ErrorCode.STALE_CONTROLLER_EPOCH, Signal.REELECT),
        (ErrorCode.STALE_BROKER_EPOCH, Signal.BROKER_CHANGE),
    ],
)
def test_after_a_stale_epoch_the_znodes_are_read_again(
    cluster: Cluster, code: ErrorCode, event: events.Event
) -> None:
    answer(cluster, 2, LeaderAndIsrResponse(error_code=int(code)))
    assert cluster.put == [event]
