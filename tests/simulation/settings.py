"""The settings of topics that change in a world, and the promises about them.

The truth is what was written to ZooKeeper. A broker knows for each topic the settings of one such write, and
never goes back to an earlier one; all its replicas of the topic use them. Once it has handled all that
ZooKeeper has told it, no write that was notified is later than that. Retention deletes what the settings of
that moment permit, and nothing else; a segment grows up to its size of that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kazoo.protocol.states import EventType

from barnabas.broker.config.dynamic import ConfigLayers
from barnabas.broker.config.load import usable_topic_config
from barnabas.broker.config.topic_config import TOPIC_SETTINGS, SettingValue
from barnabas.broker.log.log import Log
from barnabas.broker.log.retention import SegmentAge
from barnabas.protocol.ids import TopicPartition
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.configs import ALL_BROKERS, Entity
from tests.simulation.truth import Violation
from tests.support.zookeeper import Change

if TYPE_CHECKING:
    from tests.simulation.broker import SimBroker
    from tests.simulation.world import World

_MOST_RECORDS_OF_A_BATCH: Final = 3


class Active(NamedTuple):
    """The last segment of a log, and how large it may be."""

    base_offset: int
    size: int
    segment_bytes: int


class Settings:
    """A world has one at most, which sees the changes of ZooKeeper from its creation on."""

    def __init__(self, world: World) -> None:
        self.changes = 0
        self.deleted_segments = 0
        self._world = world
        self._written: dict[str, dict[int, Mapping[str, SettingValue]]] = {}
        """Topic name → zxid of a write → the settings that it left."""
        self._notified: dict[str, int] = {}
        """Topic name → zxid of the last write with a notification."""
        self._defaults: list[Mapping[str, str]] = [{}]
        """All settings that all brokers have ever had, the present ones last."""
        self._in_force: dict[tuple[object, str, int], Mapping[str, SettingValue]] = {}
        self._known: dict[tuple[int, int, str], int] = {}
        """Broker, its process and topic name → zxid of the settings that it knew at the last check."""
        self._heard_ms: dict[tuple[int, int], float] = {}
        """Broker and its process → when it had last read all that ZooKeeper has told it."""
        self._active: dict[tuple[int, TopicPartition], Active] = {}
        world.zookeeper.listeners[self] = self._hear

    def _hear(self, change: Change) -> None:
        if change.is_of_children or change.kind == EventType.DELETED:
            return
        node = self._world.zookeeper.node(change.path)
        match change.path.split("/")[1:]:
            case ["config", "topics", name]:
                texts = znodes.decode_config(change.path, node.data)
                self._written.setdefault(name, {})[node.mzxid] = usable_topic_config(texts)[0]
            case ["config", "changes", _]:
                kind, _, name = znodes.decode_config_change(change.path, node.data).partition("/")
                if kind == "topics":
                    self._notified[name] = node.mzxid
            case ["brokers", "topics", name] if change.kind == EventType.CREATED:
                # Brokers get its settings with their replicas.
                self._notified.pop(name, None)
            case _ if change.path == ALL_BROKERS.path:
                self._defaults.append(znodes.decode_config(change.path, node.data))

    # Questions

    def in_force(self, broker: SimBroker, topic: str) -> Mapping[str, SettingValue] | None:
        """The settings of a topic that a broker must use now: those of the write that it knows.

        None if it knows none, as after the deletion of a topic in whose place an earlier one is restored.
        """
        layers, zxid = self._layers(broker), _zxid_of(broker, topic)
        if zxid is None:
            return None
        key = (*layers.all_brokers.items(),), topic, zxid
        if key not in self._in_force:
            overrides = {} if zxid < 0 else self._written[topic][zxid]
            defaults = layers.topic_defaults()
            self._in_force[key] = {name: defaults.value(name) for name in TOPIC_SETTINGS} | dict(overrides)
        return self._in_force[key]

    def _layers(self, broker: SimBroker) -> ConfigLayers:
        live = broker.member.live
        assert live is not None
        return live._layers

    def behind(self, broker: SimBroker, *, is_at_rest: bool = False) -> str | None:
        """Which settings a broker has not read yet, in words; None if it knows all of them.

        At rest it also knows the settings that come with its replicas, without a notification.
        """
        if dict(self._layers(broker).all_brokers) != dict(self._defaults[-1]):
            return f"broker {broker.id} does not know {self._defaults[-1]} of all brokers"
        for truth in self._world.truths.values():
            topic = truth.tp.topic
            if truth.partition(broker) is None or truth.is_hidden:
                continue
            node = self._world.zookeeper.nodes.get(paths.topic_config(topic))
            due = node.mzxid if is_at_rest and node is not None else self._notified.get(topic, -1)
            known = _zxid_of(broker, topic)
            if (is_at_rest and known is None) or (known is not None and known < due):
                return f"broker {broker.id} has the settings of {truth.tp} of zxid {known}, due is {due}"
        return None

    @property
    def is_settled(self) -> bool:
        """Whether all live brokers know the present settings."""
        brokers = [broker for broker in self._world.brokers.values() if broker.can_act]
        return all(self.behind(broker, is_at_rest=True) is None for broker in brokers)

    def expect(self, entity: Entity, name: str, value: int | None) -> None:
        """A client was told that a setting has been changed a moment ago."""
        texts = znodes.decode_config(entity.path, self._world.zookeeper.node(entity.path).data)
        if texts.get(name) != (None if value is None else str(value)):
            raise Violation(f"{name} of {entity.name} was set to {value}, and is {texts}")
        self.changes += 1

    def notices_ms(self) -> float:
        """The time by which notifications are old.

        It stands still for a process that does not read. A process that lives reads within the lifetime of a
        notification, which is 15 minutes, or its session ends, and the next one reads all settings.
        """
        times = [
            self._heard_ms.get((host.id, host.life), 0.0)
            for host in self._world.hosts.values()
            if host.is_up and host.member.client.session in self._world.zookeeper.sessions
        ]
        return min(times, default=self._world.now_ms)

    # Checks

    def check(self) -> None:
        for host in self._world.hosts.values():
            if host.can_act and host.member.has_heard_all:
                self._heard_ms[host.id, host.life] = self._world.now_ms
        for broker in self._world.brokers.values():
            if broker.is_up:
                self._check_known(broker)
                for truth in self._world.truths.values():
                    if (partition := truth.partition(broker)) is not None:
                        self._check_replica(broker, truth.tp, partition.min_insync_replicas)
                        self._check_active(broker, truth.tp, partition.log)
                if broker.can_act and broker.member.has_heard_all and (missed := self.behind(broker)):
                    raise Violation(missed)

    def _check_known(self, broker: SimBroker) -> None:
        layers = self._layers(broker)
        if layers.all_brokers not in self._defaults:
            raise Violation(f"broker {broker.id} has the settings {layers.all_brokers} of all brokers")
        for topic in self._written:
            key, zxid = (broker.id, broker.life, topic), _zxid_of(broker, topic)
            if zxid is None:
                self._known.pop(key, None)
                continue
            if zxid >= 0 and zxid not in self._written[topic]:
                raise Violation(f"broker {broker.id} has settings of {topic} of zxid {zxid}, where none is")
            if zxid < self._known.get(key, -1):
                raise Violation(f"broker {broker.id} goes back from {self._known[key]} to {zxid} of {topic}")
            self._known[key] = zxid

    def _check_replica(self, broker: SimBroker, tp: TopicPartition, min_insync_replicas: int) -> None:
        due = self.in_force(broker, tp.topic)
        if due is not None and min_insync_replicas != due["min.insync.replicas"]:
            raise Violation(f"{tp} of broker {broker.id} needs {min_insync_replicas} in sync, due are {due}")

    def _check_active(self, broker: SimBroker, tp: TopicPartition, log: Log) -> None:
        """Its records are within the size that was in force at this check or at the last one."""
        key, segment = (broker.id, tp), log.segments[-1]
        if (settings := self.in_force(broker, tp.topic)) is None:
            return
        due = settings["segment.bytes"]
        assert isinstance(due, int)
        before = self._active.get(key, Active(-1, 0, due))
        now = self._active[key] = Active(segment.base_offset, segment.size, due)
        is_a_batch = segment.next_offset - segment.base_offset <= _MOST_RECORDS_OF_A_BATCH
        has_grown = now.base_offset > before.base_offset or (
            now.base_offset == before.base_offset and now.size > before.size
        )
        if has_grown and not is_a_batch and now.size > max(due, before.segment_bytes):
            raise Violation(f"{tp} of broker {broker.id}: the segment {now} grew from {before}")

    # Retention

    def retain(self, broker: SimBroker) -> None:
        """A broker applies retention."""
        before = {
            log: [segment.age() for segment in log.segments]
            for partition in broker.replicas.partitions()
            for log in [partition.log]
        }
        ends = {log: broker.replicas.committed_ends(log.topic_partition) for log in before}
        starts = {log: log.log_start_offset for log in before}
        now_ms = broker.wall_ms()
        with broker.disk_errors():
            broker.replicas.retain(now_ms)
        if broker.disk.has_failed:
            return
        for log, ages in before.items():
            first = log.segments[0].base_offset
            gone = [age for age in ages if age.next_offset <= first]
            self.deleted_segments += len(gone)
            if (settings := self.in_force(broker, log.topic_partition.topic)) is None:
                continue
            mark = (ends[log] or (0, 0))[1]
            for at, age in enumerate(gone):
                rest_bytes = sum(each.size_bytes for each in ages[at + 1 :])
                if age.next_offset > mark or not _is_due(age, rest_bytes, now_ms, starts[log], settings):
                    raise Violation(f"broker {broker.id} deleted {age} of {log} with {settings}")
            kept = ages[len(gone) :]
            # The active segment may wait.
            if len(kept) > 1 and kept[0].next_offset <= mark and kept[0].size_bytes:
                rest_bytes = sum(each.size_bytes for each in kept[1:])
                if _is_due(kept[0], rest_bytes, now_ms, starts[log], settings):
                    raise Violation(f"broker {broker.id} kept {kept[0]} of {log} with {settings}")


def _zxid_of(broker: SimBroker, topic: str) -> int | None:
    """The zxid of the settings of a topic that a broker knows; -1 if ZooKeeper has none, None if unknown."""
    entry = broker.settings._by_topic.get(topic)
    return None if entry is None else entry.zxid


def _is_due(
    age: SegmentAge,
    rest_bytes: int,
    now_ms: int,
    log_start_offset: int,
    settings: Mapping[str, SettingValue],
) -> bool:
    """Whether retention may delete the oldest segment, beside which the log has so many bytes."""
    policy, most_ms, most_bytes = (
        settings[name] for name in ("cleanup.policy", "retention.ms", "retention.bytes")
    )
    assert isinstance(policy, tuple)
    assert isinstance(most_ms, int)
    assert isinstance(most_bytes, int)
    if age.next_offset <= log_start_offset:
        return True
    is_old = 0 <= most_ms < now_ms - age.largest_timestamp_ms
    return "delete" in policy and (is_old or 0 <= most_bytes <= rest_bytes)
