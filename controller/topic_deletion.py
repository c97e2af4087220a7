"""The deletion of topics, from the request in ZooKeeper to the last file of the last replica.

All living brokers hear of a deletion at once and delete their replicas. The topic is deleted when every
replica has confirmed that its files are gone. A replica that cannot confirm (its broker is down, or its disk
failed) makes the topic ineligible for now; the deletion continues when the broker returns or asks for its
roles again. Meanwhile no leader is elected for it, and no topic with its name can be created. Runs on the
controller's event thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from barnabas.controller.context import ControllerContext, PartitionState, Replica, ReplicaState
from barnabas.controller.events import StopReplicaAnswered
from barnabas.controller.partition_state import PartitionStateMachine
from barnabas.controller.replica_state import ReplicaStateMachine
from barnabas.controller.request_batch import RequestBatch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from barnabas.zookeeper.controller_writer import ControllerWriter

log = logging.getLogger("barnabas.controller")


@dataclass(eq=False)
class TopicDeletion:
    _context: ControllerContext
    _writer: ControllerWriter
    _partitions: PartitionStateMachine
    _replicas: ReplicaStateMachine
    _batch: RequestBatch
    _is_enabled: bool
    """If not, requests are cleared and nothing is deleted."""

    def request(self, topics: Mapping[str, TopicId]) -> None:
        """Begin the requested deletions; requests for unknown topics are cleared.

        `NO_TOPIC_ID` requests the deletion of any topic of the name.
        """
        if not topics:
            return
        if not self._is_enabled:
            log.warning("delete.topic.enable is false: cleared the requests to delete %s", sorted(topics))
            self._writer.clear_deletion_requests(topics)
            return
        ids = self._context.topic_ids
        unknown = [
            topic
            for topic, topic_id in topics.items()
            if topic not in ids or topic_id not in (NO_TOPIC_ID, ids[topic])
        ]
        if unknown:
            log.warning("cleared the requests to delete topics that do not exist: %s", sorted(unknown))
            self._writer.clear_deletion_requests(unknown)
        new = set(topics) - set(unknown) - self._context.topics_to_delete
        if new:
            log.info("deletion of %s requested", sorted(new))
            self._context.topics_to_delete |= new

    def resume(self) -> None:
        for topic in sorted(self._context.topics_to_delete):
            states = {self._context.replica_state(r) for r in self._context.replicas_of_topic(topic)}
            if states <= {ReplicaState.DELETION_SUCCESSFUL}:
                self._complete(topic)
            elif ReplicaState.DELETION_STARTED in states:
                continue
            elif topic not in self._context.topics_ineligible_for_deletion:
                self._start(topic)

    def answered(self, event: StopReplicaAnswered) -> None:
        """A broker has answered a request to delete replicas, of these topics or of moved partitions."""
        refused = {
            TopicPartition(error.topic_name, error.partition_index)
            for error in event.response.partition_errors
            if error.error_code != ErrorCode.NONE
        }
        deleted: list[Replica] = []
        failed: list[Replica] = []
        for topic in event.request.topic_states:
            topic_id = TopicId(topic.topic_id)
            for stopped in topic.partition_states:
                if not stopped.delete_partition:
                    continue
                replica = Replica(TopicPartition(topic.topic_name, stopped.partition_index), event.broker)
                is_failed = event.response.error_code != ErrorCode.NONE or replica.tp in refused
                self._context.refused_deletions.pop((replica, topic_id), None)
                if is_failed:
                    log.error("not deleted: %s, topic id %s", replica, topic_id)
                if self._is_assigned(replica, topic_id):
                    (failed if is_failed else deleted).append(replica)
                elif is_failed and topic_id != NO_TOPIC_ID:
                    self._context.refused_deletions[replica, topic_id] = None
        if deleted or failed:
            self.replicas_deleted(deleted)
            self.replicas_failed(failed)
            self.resume()

    def replicas_deleted(self, replicas: Collection[Replica]) -> None:
        started = self._being_deleted(replicas)
        self._replicas.move(started, ReplicaState.DELETION_SUCCESSFUL)

    def replicas_failed(self, replicas: Collection[Replica]) -> None:
        """These replicas cannot be deleted now; their topics wait until the brokers return."""
        started = self._being_deleted(replicas)
        self._replicas.move(started, ReplicaState.DELETION_INELIGIBLE)
        topics = {replica.tp.topic for replica in replicas} & self._context.topics_to_delete
        for topic in topics - self._context.topics_ineligible_for_deletion:
            log.warning("deletion of %s waits: a replica cannot be reached or failed", topic)
        self._context.topics_ineligible_for_deletion |= topics

    def retry(self, brokers: Collection[BrokerId]) -> None:
        """These brokers are back or ask for their roles."""
        for replica, topic_id in self._context.refused_deletions:
            if replica.broker in brokers and self._is_present(replica.tp.topic, topic_id):
                self._batch.add_stop_replica([replica], delete=True)
            elif replica.broker in brokers:
                self._batch.delete_former(replica, topic_id)
        topics = {replica.tp.topic for replica in self._context.replicas_on(brokers)}
        self._context.topics_ineligible_for_deletion -= topics
        self.resume()

    def _is_present(self, topic: str, topic_id: TopicId) -> bool:
        return self._context.topic_ids.get(topic) == topic_id

    def _is_assigned(self, replica: Replica, topic_id: TopicId) -> bool:
        """Whether the topic of this id has the replica; it may be being deleted."""
        is_present = self._is_present(replica.tp.topic, topic_id)
        return is_present and replica.broker in self._context.replicas_of(replica.tp)

    def _being_deleted(self, replicas: Collection[Replica]) -> list[Replica]:
        return [
            replica
            for replica in replicas
            if self._context.replica_state(replica) is ReplicaState.DELETION_STARTED
        ]

    def _start(self, topic: str) -> None:
        log.info("deleting topic %s", topic)
        partitions = self._context.partitions_of(topic)
        existing = [
            tp for tp in partitions if self._context.partition_state(tp) is not PartitionState.NON_EXISTENT
        ]
        self._partitions.move(existing, PartitionState.OFFLINE)
        self._partitions.move(existing, PartitionState.NON_EXISTENT)
        self._batch.add_metadata_for_all(partitions)
        undeleted = [
            replica
            for replica in self._context.replicas_of_topic(topic)
            if self._context.replica_state(replica) is not ReplicaState.DELETION_SUCCESSFUL
        ]
        live = self._context.live_or_shutting_down
        reachable = [replica for replica in undeleted if replica.broker in live]
        missing = [replica for replica in undeleted if replica.broker not in live]
        self._replicas.move(undeleted, ReplicaState.OFFLINE)
        self._replicas.move(reachable, ReplicaState.DELETION_STARTED)
        self._replicas.move(missing, ReplicaState.DELETION_INELIGIBLE)
        if missing:
            brokers = sorted({replica.broker for replica in missing})
            log.warning("deletion of %s waits for brokers %s", topic, brokers)
            self._context.topics_ineligible_for_deletion.add(topic)

    def _complete(self, topic: str) -> None:
        replicas = self._context.replicas_of_topic(topic)
        self._replicas.move(replicas, ReplicaState.NON_EXISTENT)
        self._writer.delete_topic(topic)
        self._context.forget_topic(topic)
        log.info("topic %s is deleted", topic)
