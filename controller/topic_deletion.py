"""The deletion of topics: from the request in ZooKeeper to the last file of the last replica.

A topic is deleted when every replica has confirmed that its files are gone. A replica that cannot confirm
(its broker is down, or its disk failed) makes the topic ineligible for now; the deletion continues when the
broker returns. Meanwhile no leader is elected for it and its name stays taken. Runs on the controller's event
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Protocol

from barnabas.controller.context import ControllerContext, PartitionState, Replica, ReplicaState
from barnabas.controller.partition_state import PartitionStateMachine
from barnabas.controller.replica_state import ReplicaStateMachine
from barnabas.controller.request_batch import RequestBatch

log = logging.getLogger("barnabas.controller")


class TopicRemover(Protocol):
    """What a deletion writes; `ControllerWriter` is one."""

    def delete_topic(self, topic: str) -> None: ...

    def clear_deletion_requests(self, topics: Iterable[str]) -> None: ...


class TopicDeletion:
    """See the module. With `is_enabled` false, requests are cleared and nothing is deleted."""

    def __init__(
        self,
        context: ControllerContext,
        remover: TopicRemover,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        batch: RequestBatch,
        *,
        is_enabled: bool,
    ) -> None:
        self._context = context
        self._remover = remover
        self._partitions = partitions
        self._replicas = replicas
        self._batch = batch
        self._is_enabled = is_enabled

    def request(self, topics: Collection[str]) -> None:
        """Take up the requests that stand in ZooKeeper; those for unknown topics are cleared."""
        if not topics:
            return
        if not self._is_enabled:
            log.warning("delete.topic.enable is false: cleared the requests to delete %s", sorted(topics))
            self._remover.clear_deletion_requests(topics)
            return
        unknown = [topic for topic in topics if topic not in self._context.assignments]
        if unknown:
            log.warning("cleared the requests to delete topics that do not exist: %s", sorted(unknown))
            self._remover.clear_deletion_requests(unknown)
        fresh = set(topics) - set(unknown) - self._context.topics_to_delete
        if fresh:
            log.info("deletion of %s requested", sorted(fresh))
            self._context.topics_to_delete |= fresh
            self._mark_ineligible(fresh)

    def resume(self) -> None:
        """Do for each topic whatever can be done next."""
        for topic in sorted(self._context.topics_to_delete):
            states = {self._context.replica_state(r) for r in self._context.replicas_of_topic(topic)}
            if states <= {ReplicaState.DELETION_SUCCESSFUL}:
                self._complete(topic)
            elif ReplicaState.DELETION_STARTED in states:
                continue
            elif topic not in self._context.topics_ineligible_for_deletion:
                self._start(topic)

    def replicas_gone(self, replicas: Collection[Replica]) -> None:
        """These brokers have removed their replicas."""
        started = self._being_deleted(replicas)
        self._replicas.move(started, ReplicaState.DELETION_SUCCESSFUL)

    def replicas_failed(self, replicas: Collection[Replica]) -> None:
        """These replicas cannot be removed now; their topics wait until their brokers return."""
        started = self._being_deleted(replicas)
        self._replicas.move(started, ReplicaState.DELETION_INELIGIBLE)
        topics = {replica.tp.topic for replica in replicas} & self._context.topics_to_delete
        for topic in topics - self._context.topics_ineligible_for_deletion:
            log.warning("deletion of %s waits: a replica cannot be reached or failed", topic)
        self._context.topics_ineligible_for_deletion |= topics

    def brokers_returned(self, topics: Collection[str]) -> None:
        """A broker that hosts these topics is back: try again, unless others are still missing."""
        waiting = self._context.topics_ineligible_for_deletion & set(topics)
        self._context.topics_ineligible_for_deletion -= waiting
        self._mark_ineligible(waiting)

    def _mark_ineligible(self, topics: Collection[str]) -> None:
        live = self._context.live_or_shutting_down
        for topic in topics:
            missing = sorted({replica.broker for replica in self._context.replicas_of_topic(topic)} - live)
            if missing:
                log.warning("deletion of %s waits for brokers %s", topic, missing)
                self._context.topics_ineligible_for_deletion.add(topic)

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
        left = [
            replica
            for replica in self._context.replicas_of_topic(topic)
            if self._context.replica_state(replica) is not ReplicaState.DELETION_SUCCESSFUL
        ]
        self._replicas.move(left, ReplicaState.OFFLINE)
        self._replicas.move(left, ReplicaState.DELETION_STARTED)

    def _complete(self, topic: str) -> None:
        replicas = self._context.replicas_of_topic(topic)
        self._replicas.move(replicas, ReplicaState.NON_EXISTENT)
        self._remover.delete_topic(topic)
        self._context.forget_topic(topic)
        log.info("topic %s is deleted", topic)
