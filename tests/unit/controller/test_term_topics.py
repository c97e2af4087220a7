"""The controller's handling of topics: first leaders, added partitions, settings and deletions."""

import contextlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from barnabas.controller import events
from barnabas.controller.context import Replica, ReplicaState
from barnabas.controller.events import Signal
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerId, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    LEADER_DURING_DELETE,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from barnabas.zookeeper import admin_requests, paths
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.errors import ControllerMoved
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import TopicAssignment
from tests.support.controller_fakes import T0, T1, Cluster, make_cluster, roles, state


def request_deletion(cluster: Cluster, *topics: str) -> None:
    """Also drops the requests that were sent before."""
    cluster.channels.forget()
    cluster.zookeeper.deletions += topics
    cluster.handle(Signal.TOPIC_DELETION)


def answer_stops(cluster: Cluster, *brokers: int, error: ErrorCode = ErrorCode.NONE) -> None:
    """Let brokers answer the StopReplica requests that they got."""
    for broker in brokers:
        for request in cluster.channels.stops(broker):
            errors = [
                PartitionError(
                    topic_name=topic.topic_name,
                    partition_index=partition.partition_index,
                    error_code=int(error),
                )
                for topic in request.topic_states
                for partition in topic.partition_states
            ]
            response = StopReplicaResponse(error_code=0, partition_errors=errors)
            cluster.handle(cluster.event(events.StopReplicaAnswered, broker, request, response))


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
    # Until then the brokers must not take it for deleted.
    [_, full] = [sent for sent in cluster.channels.requests(2) if isinstance(sent, UpdateMetadataRequest)]
    assert (full.is_full, full.topic_states, full.unreadable_topics) == (True, [], ["t"])
    assert cluster.put == [Signal.PARTITION_MODIFICATIONS]
    cluster.handle(Signal.PARTITION_MODIFICATIONS)
    grown = cluster.zookeeper.assignments["t"]
    assert isinstance(grown, TopicAssignment)
    assert (sorted(grown.partitions), grown.topic_id == NO_TOPIC_ID) == ([0, 1], False)
    assert sorted(cluster.channels.leadership(2)) == [T0, T1]


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    cluster = Cluster(2, 3)
    cluster.elect()
    cluster.channels.forget()
    cluster.zookeeper.add_topic("t", {0: (1, 2, 3)}, min_insync_replicas="2")
    cluster.handle(Signal.TOPIC_CHANGE)
    assert cluster.states[T0] == state(2, (2, 3))
    assert cluster.channels.full_requests(2) == []
    sent = cluster.channels.leadership(2)[T0]
    assert (sent.leader, sent.is_new, sent.isr, sent.replicas) == (2, True, [2, 3], [1, 2, 3])
    [request] = [r for r in cluster.channels.requests(3) if isinstance(r, LeaderAndIsrRequest)]
    assert [(c.name, c.value) for c in request.topic_states[0].configs] == [("min.insync.replicas", "2")]
    assert request.topic_states[0].topic_id == cluster.zookeeper.assignments["t"].topic_id
    assert cluster.channels.metadata(3)[T0].offline_replicas == [1]
    assert cluster.term.context.replica_state(Replica(T0, BrokerId(1))) is ReplicaState.OFFLINE


def test_a_partition_without_live_replicas_gets_its_first_leader_when_one_comes() -> None:
    cluster = Cluster(3)
    cluster.elect()
    cluster.zookeeper.add_topic("t", {0: (1, 2)})
    cluster.handle(Signal.TOPIC_CHANGE)
    assert T0 not in cluster.states
    assert cluster.term.offline_partitions_count == 1
    # The others of its topic do not wait for it.
    cluster.zookeeper.add_topic("u", {0: (1, 2), 1: (3,)})
    cluster.handle(Signal.TOPIC_CHANGE)
    assert cluster.states[TopicPartition("u", 1)].leader == 3
    cluster.restart(2)
    assert cluster.states[T0] == state(2, (2,))
    assert cluster.channels.leadership(2)[T0].is_new
    assert cluster.term.offline_partitions_count == 0


def test_added_partitions_get_leaders_and_reach_every_broker() -> None:
    cluster = Cluster(1, 2, 3)
    cluster.zookeeper.add_topic("t", {0: (1, 2)})
    cluster.elect()
    cluster.channels.forget()
    cluster.zookeeper.grow("t", {1: (2, 3), 2: (3, 1)})
    assert cluster.put == [Signal.PARTITION_MODIFICATIONS]
    cluster.handle(Signal.PARTITION_MODIFICATIONS)
    first, second = TopicPartition("t", 1), TopicPartition("t", 2)
    assert (cluster.states[first].leader, cluster.states[second].leader) == (2, 3)
    assert cluster.channels.leadership(3).keys() == {first, second}
    assert cluster.channels.leadership(3)[first].is_new
    assert cluster.channels.metadata(1).keys() == {first, second}
    cluster.channels.forget()
    # The node is watched again; a write that adds no partition changes nothing.
    cluster.zookeeper.touch("t")
    assert cluster.put.pop() == Signal.PARTITION_MODIFICATIONS
    cluster.handle(Signal.PARTITION_MODIFICATIONS)
    assert cluster.channels.batches == []


def test_a_topic_that_is_being_deleted_gets_no_partitions() -> None:
    cluster = Cluster(1, 2)
    cluster.zookeeper.add_topic("t", {0: (1, 2)})
    term = cluster.elect()
    cluster.zookeeper.deletions = ["t"]
    cluster.handle(Signal.TOPIC_DELETION)
    cluster.zookeeper.grow("t", {1: (1, 2)})
    cluster.handle(Signal.PARTITION_MODIFICATIONS)
    assert TopicPartition("t", 1) not in cluster.states
    assert TopicPartition("t", 1) not in term.context.partition_states


def test_a_leaderless_partition_gets_a_leader_when_unclean_elections_are_allowed_for_its_topic() -> None:
    cluster = Cluster(1, 2)
    cluster.zookeeper.add_topic("t", {0: (1, 2)})
    cluster.zookeeper.add_topic("other", {0: (1, 2)})
    for name in ("t", "other"):
        cluster.states[TopicPartition(name, 0)] = state(1, [1])
    cluster.zookeeper.unregister(1)
    term = cluster.elect()
    assert term.offline_partitions_count == 2
    cluster.zookeeper.configure("t", unclean_leader_election_enable="true")
    cluster.handle(events.TopicConfigChange(frozenset({"t", "unknown"})))
    assert cluster.states[TopicPartition("t", 0)].leader == 2
    assert term.offline_partitions_count == 1
    cluster.term.settings = replace(cluster.settings, unclean_leader_election_enable=True)
    cluster.handle(Signal.UNCLEAN_LEADER_ELECTION_ENABLE)
    assert cluster.states[TopicPartition("other", 0)].leader == 2


def test_settings_are_sent_with_the_zxid_of_their_write() -> None:
    cluster = Cluster(1)
    cluster.zookeeper.add_topic("t", {0: (1,)}, retention_ms="5")
    cluster.elect()
    cluster.zookeeper.configure("t", retention_ms="6")
    cluster.handle(events.TopicConfigChange(frozenset({"t"})))
    cluster.channels.forget()
    cluster.zookeeper.grow("t", {1: (1,)})
    cluster.handle(Signal.PARTITION_MODIFICATIONS)
    [request] = [r for r in cluster.channels.requests(1) if isinstance(r, LeaderAndIsrRequest)]
    [topic] = request.topic_states
    assert [(config.name, config.value) for config in topic.configs] == [("retention.ms", "6")]
    assert topic.config_zxid == cluster.zookeeper.configs["t"].zxid


def test_a_topic_that_cannot_be_read_any_more_stays_as_it_was(cluster: Cluster) -> None:
    cluster.channels.forget()
    cluster.zookeeper.assignments["t"] = MalformedZnode("odd")
    cluster.deliver_watches()
    assert cluster.channels.batches == []
    cluster.die(1)
    assert cluster.states[T0].leader == 2


def test_a_topic_removed_by_hand_is_forgotten(cluster: Cluster) -> None:
    del cluster.zookeeper.assignments["t"]
    cluster.states.clear()
    cluster.handle(Signal.TOPIC_CHANGE)
    assert cluster.term.context.leadership == {}
    cluster.die(1)
    assert cluster.states == {}


def test_a_topic_is_deleted_when_every_replica_has_confirmed(cluster: Cluster) -> None:
    request_deletion(cluster, "t")
    assert cluster.channels.metadata(3)[T0].leader == LEADER_DURING_DELETE
    answer_stops(cluster, 1, 2)
    assert "t" in cluster.zookeeper.assignments
    answer_stops(cluster, 3)
    assert cluster.zookeeper.assignments == {}
    assert cluster.states == {}
    assert cluster.zookeeper.deletions == []
    context = cluster.term.context
    assert context.partition_states == context.replica_states == context.assignments == {}


def test_a_late_answer_about_an_earlier_topic_of_the_name_deletes_nothing(cluster: Cluster) -> None:
    request_deletion(cluster, "t")
    (earlier,) = cluster.channels.stops(3)
    answer_stops(cluster, 1, 2, 3)
    cluster.zookeeper.add_topic("t", {0: (1, 2, 3)})
    cluster.handle(Signal.TOPIC_CHANGE)
    request_deletion(cluster, "t")
    answer_stops(cluster, 1, 2)
    # Sent twice after a failed link, it is answered twice.
    cluster.handle(cluster.event(events.StopReplicaAnswered, 3, earlier, StopReplicaResponse(error_code=0)))
    assert "t" in cluster.zookeeper.assignments
    answer_stops(cluster, 3)
    assert "t" not in cluster.zookeeper.assignments


def test_a_deletion_begins_at_once_and_ends_when_a_broker_that_was_down_is_back(cluster: Cluster) -> None:
    cluster.die(3)
    request_deletion(cluster, "t")
    # Otherwise the markers of a transaction would wait for the leader that is dead.
    assert cluster.channels.metadata(1)[T0].leader == LEADER_DURING_DELETE
    answer_stops(cluster, 1, 2)
    assert "t" in cluster.zookeeper.assignments
    cluster.channels.forget()
    cluster.restart(3)
    assert cluster.channels.stops(1) == []
    answer_stops(cluster, 3)
    assert cluster.zookeeper.assignments == {}


def test_a_deletion_ends_with_the_last_of_two_brokers_that_were_down(cluster: Cluster) -> None:
    cluster.die(2)
    cluster.die(3)
    request_deletion(cluster, "t")
    cluster.restart(2)
    answer_stops(cluster, 1, 2)
    assert "t" in cluster.zookeeper.assignments
    cluster.channels.forget()
    cluster.restart(3)
    answer_stops(cluster, 3)
    assert cluster.zookeeper.assignments == {}


def test_the_deletion_of_an_unreadable_topic_is_given_up_with_its_controller(
    cluster: Cluster,
) -> None:
    cluster.die(3)
    request_deletion(cluster, "t")
    answer_stops(cluster, 1, 2)
    node = cluster.zookeeper.server.nodes[paths.topic("t")].data
    cluster.zookeeper.put(paths.topic("t"), b"{")
    cluster.elect()
    assert cluster.zookeeper.deletions == []
    cluster.zookeeper.put(paths.topic("t"), node)
    cluster.deliver_watches()
    assert not cluster.term.context.is_to_be_deleted("t")
    request_deletion(cluster, "t")
    cluster.restart(3)
    answer_stops(cluster, 1, 2, 3)
    assert (cluster.zookeeper.assignments, cluster.zookeeper.deletions) == ({}, [])


def test_the_request_to_delete_a_topic_that_is_removed_by_hand_is_cleared(cluster: Cluster) -> None:
    cluster.die(3)
    cluster.zookeeper.deletions += ["t"]
    cluster.deliver_watches()
    cluster.zookeeper.server.delete_all(paths.topic("t"))
    cluster.run_watches()
    cluster.deliver_watches()
    assert cluster.zookeeper.deletions == []


def test_a_role_that_fails_late_ends_no_deletion(cluster: Cluster) -> None:
    request_deletion(cluster, "t")
    error = PartitionError(topic_name="t", partition_index=0, error_code=int(ErrorCode.KAFKA_STORAGE_ERROR))
    failed = LeaderAndIsrResponse(error_code=0, partition_errors=[error])
    cluster.handle(cluster.event(events.LeaderAndIsrAnswered, 2, roles(T0), failed))
    answer_stops(cluster, 1, 2, 3)
    assert cluster.zookeeper.assignments == {}


def ask_for_roles(cluster: Cluster) -> None:
    """Broker 3 could not delete its replica for a passing reason, and asks for its roles."""
    answer_stops(cluster, 3, error=ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.channels.forget()
    cluster.zookeeper.failures["log_dir_event_0"] = BrokerId(3)
    cluster.handle(Signal.LOG_DIR_EVENT_NOTIFICATION)


def fail_link(cluster: Cluster) -> None:
    cluster.channels.forget()
    cluster.handle(cluster.event(events.LinkFailed, 3))


def return_after(fault: Callable[[Cluster], None]) -> Callable[[Cluster], None]:
    def act(cluster: Cluster) -> None:
        fault(cluster)
        assert cluster.term.context.topics_ineligible_for_deletion == {"t"}
        cluster.channels.forget()
        cluster.restart(3)

    return act


@pytest.mark.parametrize(
    "interruption",
    [
        return_after(lambda cluster: cluster.die(3)),
        return_after(lambda cluster: answer_stops(cluster, 3, error=ErrorCode.KAFKA_STORAGE_ERROR)),
        ask_for_roles,
        fail_link,
    ],
    ids=["its broker dies", "its disk fails", "its broker asks for its roles", "its link fails"],
)
def test_a_deletion_continues_with_the_last_replica_after(
    cluster: Cluster, interruption: Callable[[Cluster], None]
) -> None:
    request_deletion(cluster, "t")
    answer_stops(cluster, 1, 2)
    interruption(cluster)
    assert "t" in cluster.zookeeper.assignments
    assert cluster.channels.stops(1) == []
    answer_stops(cluster, 3)
    assert cluster.zookeeper.assignments == {}


def test_a_deletion_continues_under_the_next_controller(cluster: Cluster) -> None:
    request_deletion(cluster, "t")
    cluster.elect()
    assert cluster.channels.leadership(1) == {}
    answer_stops(cluster, 1, 2, 3)
    assert cluster.zookeeper.assignments == {}


@pytest.mark.parametrize("writes", range(9))
def test_a_controller_that_ends_within_the_removal_of_a_topic_leaves_nothing_for_ever(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    cluster.zookeeper.configure("t", **{"retention.ms": "5"})
    request_deletion(cluster, "t")
    answer_stops(cluster, 1, 2)
    write, left = cluster.writer._fenced_all, itertools.repeat(None, writes)

    def write_unless_ended(operations: Any) -> Any:
        for _ in left:
            return write(operations)
        raise ControllerMoved("another controller was elected")

    monkeypatch.setattr(cluster.writer, "_fenced_all", write_unless_ended)
    with contextlib.suppress(ControllerMoved):
        answer_stops(cluster, 3)
    cluster.elect()
    answer_stops(cluster, 1, 2, 3)
    assert cluster.zookeeper.assignments == {}
    assert cluster.zookeeper.deletions == []
    assert paths.topic_config("t") not in cluster.zookeeper.server.nodes


def test_deletion_requests_are_cleared_where_deletion_is_disabled() -> None:
    cluster = make_cluster(delete_topic_enable=False)
    request_deletion(cluster, "t")
    assert cluster.zookeeper.deletions == []
    assert "t" in cluster.zookeeper.assignments
    assert cluster.channels.stops(1) == []


def test_a_request_to_delete_an_unknown_topic_is_cleared(cluster: Cluster) -> None:
    request_deletion(cluster, "nosuch")
    assert cluster.zookeeper.deletions == []


@pytest.mark.parametrize("is_before_takeover", [True, False])
def test_a_request_by_id_does_not_delete_a_topic_that_was_made_in_place_of_that_one(
    cluster: Cluster, is_before_takeover: bool
) -> None:
    earlier = cluster.zookeeper.assignments["t"]
    assert isinstance(earlier, TopicAssignment)
    request_deletion(cluster, "t")
    answer_stops(cluster, 1, 2, 3)
    cluster.zookeeper.add_topic("t", {0: (1, 2, 3)})
    cluster.zookeeper.put(paths.delete_topic("t"), admin_requests.encode_deletion(earlier.topic_id))
    cluster.channels.forget()
    if is_before_takeover:
        cluster.elect()
    cluster.handle(Signal.TOPIC_DELETION)
    assert cluster.channels.stops(1) == []
    assert "t" in cluster.zookeeper.assignments
    assert cluster.zookeeper.deletions == []


@pytest.mark.parametrize("data", [b"", b"null", b"{", b'{"topic_id": 5}', b"the id of the topic"])
def test_a_request_without_an_id_deletes_the_topic_of_the_name(cluster: Cluster, data: bytes) -> None:
    """Kafka's tools write no data; others may write anything."""
    topic = cluster.zookeeper.assignments["t"]
    assert isinstance(topic, TopicAssignment)
    written = admin_requests.encode_deletion(topic.topic_id) if data.startswith(b"the id") else data
    cluster.zookeeper.put(paths.delete_topic("t"), written)
    cluster.handle(Signal.TOPIC_DELETION)
    answer_stops(cluster, 1, 2, 3)
    assert "t" not in cluster.zookeeper.assignments


def test_a_topic_whose_creation_was_not_seen_yet_can_be_deleted(cluster: Cluster) -> None:
    cluster.zookeeper.add_topic("new", {0: (1, 2)})
    request_deletion(cluster, "new")
    answer_stops(cluster, 1, 2)
    assert "new" not in cluster.zookeeper.assignments


def test_a_leader_that_restarted_gets_no_role_while_its_topic_is_removed_by_hand(cluster: Cluster) -> None:
    """Its election cannot be written, and its disk may be empty: it must not lead in the former epoch."""
    cluster.elect()
    assert cluster.states[T0].leader == 1
    cluster.channels.forget()
    del cluster.zookeeper.assignments["t"]
    cluster.restart(1)
    assert T0 not in cluster.channels.leadership(1)


def test_a_recreated_topic_may_be_garbled_before_it_is_loaded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ClusterStore.topic_assignments

    def garbling(self: ClusterStore, topics: Iterable[str], *watch: Any) -> Any:
        found = read(self, topics, *watch)
        if found:
            monkeypatch.setattr(ClusterStore, "topic_assignments", read)
            cluster.zookeeper.put(paths.topic("t"), b"{")
        return found

    del cluster.zookeeper.assignments["t"]
    cluster.zookeeper.add_topic("t", {0: (1, 2, 3), 1: (1, 2, 3)})
    monkeypatch.setattr(ClusterStore, "topic_assignments", garbling)
    cluster.handle(Signal.PARTITION_MODIFICATIONS)
    assert (cluster.term.context.assignments, cluster.term.context.unreadable_topics) == ({}, {"t"})


def test_the_logs_of_a_topic_removed_by_hand_survive_the_deletion_of_its_successor(cluster: Cluster) -> None:
    cluster.elect()
    del cluster.zookeeper.assignments["t"]
    cluster.zookeeper.add_topic("t", {0: (1, 2, 3)})
    successor = cluster.zookeeper.assignments["t"]
    assert isinstance(successor, TopicAssignment)
    # The request is the first that the controller hears of it.
    request_deletion(cluster, "t")
    stopped = {topic.topic_id for stop in cluster.channels.stops(3) for topic in stop.topic_states}
    assert stopped == {successor.topic_id}
