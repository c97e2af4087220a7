"""`TopicLoader`: loads topics from ZooKeeper into the controller's context.

It watches the node of each topic that it has read, so that added partitions are seen. Runs on the
controller's event thread; the watches put names into `touched` from the client library's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import replace

from barnabas.controller.context import ControllerContext
from barnabas.controller.reign_store import ReignStore, ReignWriter
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.zookeeper.errors import ControllerMoved
from barnabas.zookeeper.znodes import MalformedZnode, TopicAssignment, random_uuid

log = logging.getLogger("barnabas.controller")


class _TouchedNames:
    """Names from watches, until they are taken all at once. Any thread; ``added`` must not block."""

    def __init__(self, added: Callable[[], None]) -> None:
        self._added = added
        self._lock = threading.Lock()
        self._names: set[str] = set()

    def add(self, name: str) -> None:
        with self._lock:
            self._names.add(name)
        self._added()

    def take(self) -> set[str]:
        """All names since the last call."""
        with self._lock:
            names, self._names = self._names, set()
            return names


class TopicLoader:
    """See the module. ``touched`` is called when a node has changed and `load_added` may find more."""

    def __init__(
        self,
        context: ControllerContext,
        store: ReignStore,
        writer: ReignWriter,
        touched: Callable[[], None],
    ) -> None:
        self._context = context
        self._store = store
        self._writer = writer
        self._touched = _TouchedNames(touched)

    def load(self, topics: Collection[str]) -> list[TopicPartition]:
        """Take these topics with all that is known of them into the context; returns their partitions.

        One that cannot be read is reported and left alone. Raises ControllerMoved.
        """
        readable: dict[str, TopicAssignment] = {}
        for topic, found in self._store.topic_assignments(topics, self._touched.add).items():
            if isinstance(found, MalformedZnode):
                log.error("ignoring topic %s, which cannot be read: %s", topic, found)
                self._context.unreadable_topics.add(topic)
                continue
            named = self._with_id(topic, found)
            if named is None:
                self._context.unreadable_topics.add(topic)
                continue
            self._context.unreadable_topics.discard(topic)
            readable[topic] = named
        configs = self._store.topic_configs(readable)
        for topic, assignment in readable.items():
            self._context.assignments[topic] = dict(assignment.partitions)
            self._context.topic_ids[topic] = assignment.topic_id
            self._context.topic_configs[topic] = configs[topic]
        partitions = [tp for topic in readable for tp in self._context.partitions_of(topic)]
        self._load_states(partitions)
        return partitions

    def load_added(self) -> list[TopicPartition]:
        """Load the added partitions of known topics, and topics that have become readable.

        A topic that was removed by hand is forgotten; one that was created again is another topic. Returns
        the new partitions. Other changes of an assignment are ignored. Raises ControllerMoved.
        """
        touched = self._touched.take()
        known = touched & self._context.assignments.keys()
        # An unreadable topic may have been repaired.
        fresh = self.load(touched & self._context.unreadable_topics)
        current = self._store.topic_assignments(known, self._touched.add)
        replaced = {topic for topic in known if self._is_another(topic, current.get(topic))}
        for topic in sorted(replaced):
            log.warning("topic %s was removed from ZooKeeper by hand", topic)
            self._context.forget_topic(topic)
        fresh += self.load(replaced & current.keys())
        for topic, found in current.items():
            if topic in replaced:
                continue
            if isinstance(found, MalformedZnode):
                log.error("topic %s cannot be read any more and stays as it was: %s", topic, found)
                continue
            added = sorted(found.partitions.keys() - self._context.assignments[topic].keys())
            if not added or found.topic_id != self._context.topic_ids[topic]:
                continue
            if self._context.is_to_be_deleted(topic):
                log.warning("topic %s is being deleted: partitions %s are not made", topic, added)
                continue
            log.info("topic %s: new partitions %s", topic, added)
            for index in added:
                self._context.assignments[topic][index] = found.partitions[index]
                fresh.append(TopicPartition(topic, index))
        self._load_states([tp for tp in fresh if tp not in self._context.leadership])
        return fresh

    def load_configs(self, topics: Collection[str]) -> None:
        """Take over the settings of known topics as they are now."""
        for topic, found in self._store.topic_configs(topics).items():
            known = self._context.topic_configs.get(topic)
            if known is not None and found.zxid > known.zxid:
                self._context.topic_configs[topic] = found

    def _load_states(self, partitions: Collection[TopicPartition]) -> None:
        states = self._store.partition_states(partitions)
        for tp, state in states.items():
            if state.controller_epoch > self._writer.epoch:
                raise ControllerMoved(f"{tp} was written by controller epoch {state.controller_epoch}")
        self._context.leadership.update(states)

    def _is_another(self, topic: str, found: TopicAssignment | MalformedZnode | None) -> bool:
        """Whether a known topic is gone or has another id; a missing id may have been dropped by a tool."""
        if isinstance(found, MalformedZnode):
            return False
        return found is None or found.topic_id not in (NO_TOPIC_ID, self._context.topic_ids[topic])

    def _with_id(self, topic: str, found: TopicAssignment) -> TopicAssignment | None:
        """The topic with an id; None if it has changed meanwhile, after which its watch reloads it."""
        if found.topic_id != NO_TOPIC_ID:
            return found
        named = replace(found, topic_id=TopicId(random_uuid()))
        return named if self._writer.set_topic_assignment(topic, named) else None
