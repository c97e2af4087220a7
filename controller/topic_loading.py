"""`TopicLoader`: loads topics from ZooKeeper into the controller's context.

It watches the node of each topic that it has read, so that added partitions are noticed. Runs on the
controller's event thread; the watches add names to `_changed` on the client library's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from barnabas.controller.context import ControllerContext
from barnabas.controller.events import Event, Signal
from barnabas.controller.state_znodes import Leadership
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.zookeeper.controller_writer import ControllerWriter
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import TopicAssignment, random_uuid

log = logging.getLogger("barnabas.controller")


@dataclass(eq=False)
class TopicLoader:
    _context: ControllerContext
    _store: ClusterStore
    _writer: ControllerWriter
    _leadership: Leadership
    _put: Callable[[Event], None]
    """Adds an event to the controller's queue, from any thread."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _changed: set[str] = field(default_factory=set)
    """The topics whose nodes have changed since they were last read."""

    def load(self, topics: Collection[str]) -> list[TopicPartition]:
        """Take these topics into the context; returns their partitions.

        An unreadable topic, or one that changes while it gets its id, is loaded when its node has changed.
        Raises ControllerMoved.
        """
        readable: dict[str, TopicAssignment] = {}
        for topic, assignment in self._store.topic_assignments(sorted(topics), self._topic_changed).items():
            if isinstance(assignment, MalformedZnode):
                log.error("ignoring topic %s, which cannot be read: %s", topic, assignment)
            elif (with_id := self._with_id(topic, assignment)) is not None:
                self._context.unreadable_topics.discard(topic)
                readable[topic] = with_id
                continue
            self._context.unreadable_topics.add(topic)
        configs = self._store.topic_configs(readable)
        for topic, assignment in readable.items():
            self._context.assignments[topic] = dict(assignment.partitions)
            self._context.topic_ids[topic] = assignment.topic_id
            self._context.topic_configs[topic] = configs[topic]
        partitions = [tp for topic in readable for tp in self._context.partitions_of(topic)]
        self._leadership.read(partitions)
        return partitions

    def load_changed(self, also: Collection[str] = ()) -> list[TopicPartition]:
        """Load the added partitions of changed topics and of ``also``, and topics that have become readable.

        A topic that was removed by hand is forgotten; one that was created again is another topic. Returns
        the new partitions. Other changes of an assignment are ignored. Raises ControllerMoved.
        """
        with self._lock:
            changed, self._changed = self._changed.union(also), set()
        loaded = changed & self._context.assignments.keys()
        current = self._store.topic_assignments(sorted(loaded), self._topic_changed)
        for topic in sorted(loaded):
            if self._is_another(topic, current.get(topic)):
                self.forget(topic)
                current.pop(topic, None)
        # An unreadable topic may have been repaired.
        new = self.load(changed - self._context.assignments.keys())
        for topic, assignment in current.items():
            new += self._take_added(topic, assignment)
        return new

    def forget(self, topic: str) -> None:
        """A topic was removed by hand."""
        log.warning("topic %s was removed from ZooKeeper by hand", topic)
        if self._context.is_to_be_deleted(topic):
            # The request is cleared.
            self._put(Signal.TOPIC_DELETION)
        self._context.forget_topic(topic)

    def load_configs(self, topics: Collection[str]) -> None:
        for topic, config in self._store.topic_configs(topics).items():
            present = self._context.topic_configs.get(topic)
            if present is not None and config.zxid > present.zxid:
                self._context.topic_configs[topic] = config

    def _topic_changed(self, topic: str) -> None:
        with self._lock:
            self._changed.add(topic)
        self._put(Signal.PARTITION_MODIFICATIONS)

    def _take_added(self, topic: str, assignment: TopicAssignment | MalformedZnode) -> list[TopicPartition]:
        if isinstance(assignment, MalformedZnode):
            log.error("topic %s cannot be read any more and stays as it was: %s", topic, assignment)
            return []
        added = sorted(assignment.partitions.keys() - self._context.assignments[topic].keys())
        if not added or assignment.topic_id != self._context.topic_ids[topic]:
            return []
        if self._context.is_to_be_deleted(topic):
            log.warning("topic %s is being deleted: partitions %s are not created", topic, added)
            return []
        log.info("topic %s: new partitions %s", topic, added)
        for index in added:
            self._context.assignments[topic][index] = assignment.partitions[index]
        return [TopicPartition(topic, index) for index in added]

    def _is_another(self, topic: str, assignment: TopicAssignment | MalformedZnode | None) -> bool:
        """Whether a known topic is gone or has another id; a tool may have dropped a missing id."""
        if isinstance(assignment, MalformedZnode):
            return False
        return assignment is None or assignment.topic_id not in (NO_TOPIC_ID, self._context.topic_ids[topic])

    def _with_id(self, topic: str, assignment: TopicAssignment) -> TopicAssignment | None:
        """The topic with an id; None if it has changed meanwhile: then its watch triggers a reload."""
        if assignment.topic_id != NO_TOPIC_ID:
            return assignment
        with_id = replace(assignment, topic_id=TopicId(random_uuid()))
        return with_id if self._writer.set_topic_assignment(topic, with_id) else None
