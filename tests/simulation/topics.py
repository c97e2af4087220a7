"""Topics that are created and deleted in a world, and the promises about them.

Every change of ZooKeeper is seen when it is made. A promise begins with the write that creates a topic, and
ends with the request to delete it, which applies to the topic id of that moment. In between only a change by
hand may remove a part of the topic; the logs of a `hidden` topic must stay on the disks until it is restored.
A partition has its first replicas or those of a requested reassignment, or is changing between such sets, and
comes to rest on no other broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from kazoo.protocol.states import EventType

from barnabas.protocol.ids import NO_TOPIC_ID, BrokerId, TopicId, TopicPartition
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.znodes import ReplicaAssignment, TopicAssignment
from tests.simulation.truth import Truth, Violation
from tests.support.zookeeper import Change, Kind, Node, Operation

if TYPE_CHECKING:
    from tests.simulation.world import World

_REQUESTS: Final = (paths.PREFERRED_ELECTION, paths.REASSIGNMENTS)
_GARBLED: Final = b'{"version": 3, "partit'


class Topics:
    """A world has one at most, which sees the changes of ZooKeeper from its creation on."""

    def __init__(self, world: World) -> None:
        self.hidden: dict[str, dict[str, Node]] = {}
        """Topic name → path → node, for the nodes that were removed by hand."""
        self.garbled: dict[str, bytes] = {}
        """Topic name → data of its node before it was made unreadable by hand."""
        self.marked: set[TopicId] = set()
        """The topics whose deletion was requested."""
        self.counts = {"created": 0, "grown": 0, "deleted": 0}
        self.moved = 0
        """The number of reassignments that were completed or cancelled."""
        self._world = world
        self._ids: dict[str, TopicId] = {}
        self._replicas: dict[TopicId, dict[int, ReplicaAssignment]] = {}
        self._allowed: dict[tuple[TopicId, int], set[frozenset[BrokerId]]] = {}
        """The sets of replicas that a partition may have at rest."""
        self._requested: dict[TopicPartition, set[frozenset[BrokerId]]] = {}
        """All targets so far, by name: a request under ``/admin`` may wait until a topic is created again."""
        self._broken: list[str] = []
        self._is_by_hand = False
        world.topics = self
        world.zookeeper.listeners[self] = self._hear
        for name in world.zookeeper.children(paths.TOPICS):
            self._read(name)

    # Questions

    def names(self) -> list[str]:
        """The existing topics whose deletion was not requested."""
        return [name for name, topic_id in self._ids.items() if topic_id not in self.marked]

    def partitions_of(self, name: str) -> dict[int, ReplicaAssignment]:
        return self._replicas[self._ids[name]]

    def is_changing(self, tp: TopicPartition) -> bool:
        return self.partitions_of(tp.topic)[tp.partition].is_changing

    def allow(self, tp: TopicPartition, target: Iterable[BrokerId]) -> None:
        """From now on a reassignment to these replicas is expected."""
        replicas = frozenset(target)
        self._allowed[self._ids[tp.topic], tp.partition].add(replicas)
        self._requested.setdefault(tp, set()).add(replicas)

    @property
    def is_settled(self) -> bool:
        """Whether all deletions and reassignments are complete, in ZooKeeper and on every disk."""
        if self.garbled or any(path in self._world.zookeeper.nodes for path in _REQUESTS):
            return False
        if self._world.zookeeper.children(paths.DELETE_TOPICS):
            return False
        return not any(self.left_overs(self._world.hosts)) and not any(
            replicas.is_changing for name in self._ids for replicas in self.partitions_of(name).values()
        )

    def assigned_to(self, name: str) -> set[BrokerId]:
        """The brokers with replicas of a topic that may be marked for deletion; none if it is gone."""
        topic_id = self._ids.get(name)
        partitions = {} if topic_id is None else self._replicas[topic_id]
        return {broker for replicas in partitions.values() for broker in replicas.replicas}

    def assignments(self) -> Iterator[ReplicaAssignment]:
        """Those of all partitions, also of topics that are marked for deletion."""
        for topic_id in self._ids.values():
            yield from self._replicas[topic_id].values()

    def left_overs(self, brokers: Iterable[BrokerId]) -> Iterator[str]:
        """The logs on these brokers of topics that are deleted, and of partitions that have moved away."""
        deleted = self.marked.difference(self._ids.values())
        for host in (self._world.hosts[broker] for broker in brokers):
            logs = host.disk.logs
            for log in logs.all_logs():
                if log.topic_id in deleted or self._has_left(log.topic_partition, log.topic_id, host.id):
                    yield f"broker {host.id} has {log}"
            for stray in logs.strays.all():
                # A replica that was moved from a dead broker is set aside when that returns.
                if stray.topic_id in deleted and not self._has_left(stray.partition, stray.topic_id, host.id):
                    yield f"broker {host.id} has {stray}"

    def _has_left(self, tp: TopicPartition, topic_id: TopicId | None, broker: BrokerId) -> bool:
        """Whether a partition was reassigned to replicas without this broker."""
        replicas = self._replicas.get(topic_id or NO_TOPIC_ID, {}).get(tp.partition)
        return replicas is not None and broker not in replicas.replicas

    def check(self) -> None:
        """Raises Violation for the broken promises seen so far."""
        if self._broken:
            raise Violation("; ".join(self._broken))

    def describe(self) -> str:
        nodes = self._world.zookeeper.nodes
        asked = {path: nodes[path].data for path in (*_REQUESTS, paths.DELETE_TOPICS) if path in nodes}
        left = [*self._world.zookeeper.children(paths.DELETE_TOPICS), *self.left_overs(self._world.hosts)]
        assigned = {name: self.partitions_of(name) for name in self._ids}
        return f"topics {assigned}, hidden {list(self.hidden)}, requests {asked}, to be deleted: {left}"

    # By hand

    def hide(self, name: str) -> None:
        """Remove a topic from ZooKeeper by hand, all at once."""
        zookeeper, root = self._world.zookeeper, paths.topic(name)
        below = [path for path in zookeeper.nodes if path == root or path.startswith(f"{root}/")]
        self.hidden[name] = {path: zookeeper.nodes[path] for path in sorted(below, key=len)}
        for truth in self._truths_of(name):
            truth.hide()
        self._is_by_hand = True
        zookeeper.delete_all(root)
        self._is_by_hand = False
        del self._ids[name]

    def restore(self, name: str) -> None:
        """Put a removed topic back with its versions, unless the name is taken.

        Nothing is done before the controller has seen that the topic is gone.
        """
        zookeeper, controller = self._world.zookeeper, self._world.controller
        term = None if controller is None else controller._term
        if name not in self._ids and term is not None and name not in term.context.assignments:
            nodes = self.hidden.pop(name)
            session = zookeeper.open_session()
            zookeeper.transact(
                session, [Operation(Kind.CREATE, path, node.data) for path, node in nodes.items()]
            )
            for path, node in nodes.items():
                zookeeper.nodes[path].version = node.version
            zookeeper.expire(session)
            for truth in self._truths_of(name):
                truth.is_hidden = False

    def garble(self, name: str) -> None:
        """Make a topic's node unreadable by hand."""
        path = paths.topic(name)
        self.garbled[name] = self._world.zookeeper.node(path).data
        self._world.zookeeper.set_by_hand(path, _GARBLED)

    def mend(self, name: str) -> None:
        self._world.zookeeper.set_by_hand(paths.topic(name), self.garbled.pop(name))

    def heal(self) -> bool:
        """Undo the changes by hand; False if some must be tried again."""
        for name in list(self.garbled):
            self.mend(name)
        for name in list(self.hidden):
            self.restore(name)
        return all(name in self._ids for name in self.hidden)

    # Changes of ZooKeeper

    def _hear(self, change: Change) -> None:
        if change.is_of_children:
            return
        match change.path.split("/")[1:]:
            case ["brokers", "topics", name]:
                if change.kind == EventType.DELETED:
                    self._removed(name)
                else:
                    self._read(name)
            case ["brokers", "topics", name, "partitions", index, "state"] if (
                change.kind == EventType.DELETED
            ):
                self._require_mark(name, f"the state of {name}-{index}")
            case ["admin", "delete_topics", name]:
                if change.kind == EventType.CREATED:
                    self._mark(name)
                elif change.kind == EventType.DELETED and name in self._ids:
                    self._broken.append(f"the request to delete {name} is gone, the topic is not")

    def _read(self, name: str) -> None:
        path = paths.topic(name)
        try:
            topic = znodes.decode_topic(path, self._world.zookeeper.node(path).data)
        except MalformedZnode:
            return
        assigned = self._replicas.setdefault(topic.topic_id, {})
        if name not in self._ids:
            self._ids[name] = topic.topic_id
            self.counts["created"] += not assigned
        elif self._ids[name] != topic.topic_id:
            self._broken.append(f"{name} had the topic id {self._ids[name]}, now it has {topic.topic_id}")
        elif assigned and len(topic.partitions) > len(assigned):
            self.counts["grown"] += 1
        self._compare(name, assigned, topic)
        for index, replicas in topic.partitions.items():
            if index not in assigned:
                assigned[index] = replicas
                allowed = self._allowed[topic.topic_id, index] = {frozenset(replicas.replicas)}
                # A request by name, written by hand or queued at the controller while the former topic was
                # removed by hand, meets the next topic of the name.
                if paths.REASSIGNMENTS in self._world.zookeeper.nodes or name in self.hidden:
                    allowed |= self._requested.get(TopicPartition(name, index), set())
                if topic.topic_id not in self.marked:
                    self._world.add_truth(TopicPartition(name, index), topic.topic_id)

    def _compare(self, name: str, assigned: dict[int, ReplicaAssignment], topic: TopicAssignment) -> None:
        for index, former in assigned.items():
            replicas = topic.partitions.get(index)
            if replicas == former:
                continue
            allowed = self._allowed[topic.topic_id, index]
            if replicas is None or not {frozenset(replicas.origin), frozenset(replicas.target)} <= allowed:
                self._broken.append(f"{name}-{index} had the replicas {former}, now {replicas}")
            else:
                self.moved += not replicas.is_changing
                assigned[index] = replicas

    def _removed(self, name: str) -> None:
        self._require_mark(name, f"the topic {name}")
        if not self._is_by_hand:
            self._ids.pop(name, None)
            self.counts["deleted"] += 1

    def _require_mark(self, name: str, what: str) -> None:
        if not self._is_by_hand and self._ids.get(name) not in self.marked:
            self._broken.append(f"{what} was removed without a request")

    def _mark(self, name: str) -> None:
        """From now on the topic's records may be deleted; the records that remain must still be its own."""
        topic_id = self._ids.get(name)
        if topic_id is not None:
            self.marked.add(topic_id)
            self._world.drop_truths(topic_id)

    def _truths_of(self, name: str) -> list[Truth]:
        return [truth for truth in self._world.truths.values() if truth.tp.topic == name]
