"""Known mistakes with created and deleted topics, each put into the code on purpose; see `mutations`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from barnabas.broker.log.log import Log
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.stray_logs import StrayLogs
from barnabas.broker.replication import fetch_wait
from barnabas.broker.replication.roles import RoleChanges
from barnabas.controller import topic_admin
from barnabas.controller.request_batch import BrokerBatch
from barnabas.controller.term import ControllerTerm
from barnabas.controller.topic_deletion import TopicDeletion
from barnabas.controller.topic_loading import TopicLoader
from barnabas.protocol.ids import NO_TOPIC_ID, TopicPartition
from barnabas.zookeeper.controller_writer import ControllerWriter
from tests.simulation.planted import SetAttr, found_in


@found_in("usual", 36)
def absence_is_taken_for_deletion(setattr_: SetAttr) -> None:
    """A log that a full LeaderAndIsr does not name is deleted, not set aside as a stray."""

    def deleting(self: LogManager, name: TopicPartition, now_ms: int) -> Path | None:
        self.delete(name, now_ms)
        return None

    setattr_(LogManager, "set_aside", deleting)


@found_in("usual", 36)
def a_topic_id_is_overwritten(setattr_: SetAttr) -> None:
    """A topic that is created again continues the log of the old one, in its folder."""

    def overwriting(self: Log, topic_id: Any) -> None:
        self._topic_id = topic_id

    partition_for = RoleChanges._partition_for

    def trusting(self: RoleChanges, name: TopicPartition, topic: Any, **flags: Any) -> Any:
        known = self._logs.get(name)
        if known is not None:
            known.assign_topic_id(topic.topic_id)
        return partition_for(self, name, topic, **flags)

    setattr_(Log, "assign_topic_id", overwriting)
    setattr_(RoleChanges, "_partition_for", trusting)


@found_in("usual", 36)
def a_stray_of_any_topic_is_taken_up(setattr_: SetAttr) -> None:
    """A log that was set aside is given to the next topic of that name."""

    def find(self: StrayLogs, partition: TopicPartition, topic_id: Any) -> Any:
        return next((stray for stray in self._strays.values() if stray.partition == partition), None)

    setattr_(StrayLogs, "_find", find)
    setattr_(Log, "assign_topic_id", lambda self, topic_id: setattr(self, "_topic_id", topic_id))


@found_in("usual", 9)
def growth_reassigns_all_partitions(setattr_: SetAttr) -> None:
    """The existing partitions get new replicas too."""
    added = topic_admin.added_partitions

    def dealing(name: str, current: Mapping[int, Any], *arguments: Any) -> dict[int, Any]:
        fresh = added(name, current, *arguments)
        (replicas,) = fresh.values()
        return fresh | dict.fromkeys(current, replicas)

    setattr_(topic_admin, "added_partitions", dealing)


@found_in("usual", 5)
def deletions_are_not_resumed(setattr_: SetAttr) -> None:
    """The next controller waits for another request to delete."""
    start = ControllerTerm.start

    def forgetting(self: ControllerTerm) -> None:
        request, self._deletion.request = self._deletion.request, lambda topics: None
        try:
            start(self)
        finally:
            self._deletion.request = request

    setattr_(ControllerTerm, "start", forgetting)


@found_in("usual", 5)
def the_request_to_delete_goes_first(setattr_: SetAttr) -> None:
    """The request is removed before the topic: if the controller dies in between, the topic stays."""

    def hasty(self: ControllerWriter, topic: str) -> None:
        self.clear_deletion_requests([topic])
        self._delete_tree(f"/brokers/topics/{topic}")

    setattr_(ControllerWriter, "delete_topic", hasty)


@found_in("usual", 11)
def a_failed_deletion_counts(setattr_: SetAttr) -> None:
    """A broker that could not remove its replica is not asked again."""
    setattr_(TopicDeletion, "replicas_failed", lambda self, replicas: self.replicas_deleted(replicas))


@found_in("usual", 11)
def stop_replica_names_no_topic_id(setattr_: SetAttr) -> None:
    """As in Kafka, a request to delete applies to any topic of that name."""
    stop = RoleChanges.stop_replicas

    def nameless(self: RoleChanges, request: Any) -> Any:
        for topic in request.topic_states:
            topic.topic_id = NO_TOPIC_ID
        return stop(self, request)

    setattr_(RoleChanges, "stop_replicas", nameless)


@found_in("usual", 36)
def a_recreated_topic_counts_as_the_old_one(setattr_: SetAttr) -> None:
    """Found in this code: a topic removed and created again between two reads never got a leader."""
    setattr_(TopicLoader, "_is_another", lambda self, topic, found: False)


@found_in("usual", 36)
def a_log_of_another_topic_is_kept(setattr_: SetAttr) -> None:
    """Found in this code: a broker with a log of the old topic refused the new one until it restarted."""
    answered = ControllerTerm._leader_and_isr_answered

    def deaf(self: ControllerTerm, event: Any) -> None:
        knows = self._is_complete_for
        self._is_complete_for = lambda broker: False
        try:
            answered(self, event)
        finally:
            self._is_complete_for = knows

    setattr_(ControllerTerm, "_leader_and_isr_answered", deaf)


def requests_are_merged_over_topic_ids(setattr_: SetAttr) -> None:
    """Found in this code: a waiting request about the old topic was sent for the new one."""
    setattr_(BrokerBatch, "_is_another", lambda self, topic, later: False)


@found_in("usual", 36)
def followers_fetch_by_name(setattr_: SetAttr) -> None:
    """Found in this code, as in Kafka before KIP-516: a leader of the old topic served the new one."""
    setattr_(fetch_wait, "find", lambda partition_of, item: partition_of(item.partition))
