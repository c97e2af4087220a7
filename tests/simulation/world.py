"""A cluster without threads, sockets, disks or clocks: the real rules, driven step by step.

The replica managers are real, with their partitions, ISR changes, disk failures and purgatories; so are the
handlers of Fetch and of the controller's requests, the fetchers' decisions, the logs, and the session, store,
registration and controller of each process (`tests.simulation.member`). The network, ZooKeeper, time and the
faults of disks are simulated. Nothing happens by itself: the caller of a `World` chooses every step, so the
same steps always give the same history.
"""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.handlers import fetch as fetch_handler
from barnabas.controller.controller import Controller
from barnabas.controller.topic_admin import TopicAdmin, TopicSettings
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, Offset, TopicId, TopicPartition
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.protocol.messages.produce import PartitionProduceResponse
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.znodes import LeadershipState, ReplicaAssignment, TopicAssignment
from tests.simulation.broker import SimBroker
from tests.simulation.channels import SimChannels
from tests.simulation.disk import (
    SMALL_INDEX_BYTES,
    decode,
    encode,
    encode_batch,
    is_tombstone,
    new_folder,
)
from tests.simulation.log_transactions import seen_by_a_client
from tests.simulation.member import SESSION_TIMEOUT_MS
from tests.simulation.requests import SimRequest
from tests.simulation.settings import Settings
from tests.simulation.truth import Records, Truth, Violation
from tests.support.defaults import make_config
from tests.support.zookeeper import SimZooKeeper
from tests.support.zookeeper_client import Door

if TYPE_CHECKING:
    from tests.simulation.topics import Topics

TOPIC_ID = TopicId(uuid.UUID(int=7))
TP = TopicPartition("t", 0)
MAX_LAG_MS = 1_000
_DELETE_RETENTION_MS = 200
_MAX_MESSAGES = 48
ROUNDS = 400


_decode_topic = lru_cache(znodes.decode_topic)
_config = lru_cache(make_config)

OPEN_WORLDS: list[World] = []
"""The worlds that must still be closed."""


@dataclass(slots=True, eq=False)
class Message:
    """A message in flight to one process; `act` is its arrival."""

    source: BrokerId
    target: BrokerId
    target_life: int
    act: Callable[[], None]


class World:
    """A whole cluster, with one partition that has a replica on every broker.

    With `is_controller_apart` the first controller is a separate broker, number 0, without replicas. With
    `has_settings` the settings of topics may change.
    """

    max_lag_ms = MAX_LAG_MS
    is_stepped = True
    """Whether a caller chooses every step, and no check is made by time."""

    def __init__(
        self,
        broker_count: int = 3,
        min_insync_replicas: int = 2,
        *,
        tp: TopicPartition = TP,
        segment_bytes: int = 1 << 20,
        is_controller_apart: bool = True,
        is_compacted: bool = False,
        is_min_isr_strict: bool = False,
        has_settings: bool = False,
        pushes: bool = False,
    ) -> None:
        ids = [BrokerId(number) for number in range(1, broker_count + 1)]
        all_ids = [BrokerId(0), *ids] if is_controller_apart else ids
        self.tp = tp
        self.folder = new_folder()
        self.is_compacted = is_compacted
        """Whether the records have keys, and replicas may clean their logs."""
        self._settings = {
            "min_insync_replicas": min_insync_replicas,
            "min_insync_replicas_strict": is_min_isr_strict,
            "log_segment_bytes": segment_bytes,
            "log_index_size_max_bytes": SMALL_INDEX_BYTES,
            "log_cleanup_policy": "compact" if is_compacted else "delete",
            "log_cleaner_delete_retention_ms": _DELETE_RETENTION_MS,
        }
        self.pushes = pushes
        """Whether followers subscribe to what their leaders push."""
        self.has_transactions = False
        """Whether stable offsets are checked too."""
        self.now_ms = 0.0
        self.min_insync_replicas = min_insync_replicas
        self.is_min_isr_strict = is_min_isr_strict
        self.zookeeper = SimZooKeeper(lambda: self.now_ms)
        self.doors = dict.fromkeys(all_ids, Door.OPEN)
        self.channels: list[SimChannels] = []
        """The channels of every process that believes it is the controller, the latest last."""
        self.messages: list[Message] = []
        self.held_back: list[Message] = []
        """Delayed messages, until a step lets them go."""
        self.cut: set[frozenset[BrokerId]] = set()
        self.origins: dict[int | bytes | None, tuple[TopicId, int]] = {}
        """Record value → the topic and the partition that it was written to."""
        self.sent_again_to: frozenset[TopicPartition] = frozenset()
        """Partitions whose writers do not notice that the topic was deleted and created again."""
        self.truth = Truth(self, tp, TOPIC_ID)
        self.truths = {(TOPIC_ID, tp.partition): self.truth}
        """The truths of all partitions whose records must be kept."""
        self.past_truths: list[Truth] = []
        """The truths of partitions whose records may be deleted by now."""
        self.topics: Topics | None = None
        """The judge of topic changes, in worlds that have them."""
        self.settings = Settings(self) if has_settings else None
        """The judge of settings, in worlds where they change."""
        self.next_value = 0
        self._states: dict[TopicPartition, tuple[bytes, int, LeadershipState]] = {}
        OPEN_WORLDS.append(self)
        self.hosts: dict[BrokerId, SimBroker] = {}
        for broker in all_ids:
            self.hosts[broker] = SimBroker(self, broker)
        self.brokers = {broker: self.hosts[broker] for broker in ids}
        while self.control():
            continue
        self._create_topic(ids)
        self.settle()

    def settings_of(self, broker: BrokerId) -> dict[str, object]:
        """The settings that a broker starts with, with underscores."""
        return {"broker_id": broker, **self._settings}

    def config_of(self, broker: BrokerId) -> BrokerConfig:
        return _config(**self.settings_of(broker))

    def overrides_of(self, topic: str) -> Mapping[str, str]:
        """The settings that a topic of this world is created with."""
        return {}

    def started(self, broker: SimBroker) -> None:
        """A process has started; a hook for worlds whose brokers have more parts."""

    def min_insync_replicas_of(self, broker: SimBroker, topic: str) -> int:
        """How many replicas a leader needs in sync, by the settings that it must use now."""
        if self.settings is None:
            return self.min_insync_replicas
        settings = self.settings.in_force(broker, topic)
        least = 1 if settings is None else settings["min.insync.replicas"]
        assert isinstance(least, int)
        return least

    def acknowledged_alone(self, leader: SimBroker, tp: TopicPartition) -> None:
        """A leader has acknowledged without its followers; a hook for worlds with a judge of leaders."""

    def close(self) -> None:
        """Close and delete the disks; the views of their logs stay."""
        if self in OPEN_WORLDS:
            OPEN_WORLDS.remove(self)
            for host in self.hosts.values():
                host.disk.close()
            shutil.rmtree(self.folder)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _create_topic(self, replicas: list[BrokerId]) -> None:
        topic = TopicAssignment(
            topic_id=TOPIC_ID, partitions={self.tp.partition: ReplicaAssignment(tuple(replicas))}
        )
        controller = self.controller
        if controller is None or not controller.writer.create_topic(
            self.tp.topic, topic, self.overrides_of(self.tp.topic)
        ):
            raise AssertionError("no controller could create the topic")

    # Controllers

    @property
    def controller(self) -> Controller | None:
        """The controller of the process that owns ``/controller``, once it has taken over."""
        node = self.zookeeper.nodes.get(paths.CONTROLLER)
        for host in self.hosts.values():
            member = host.member
            if node is not None and host.is_up and member.client.session == node.owner:
                return member.controller if member.controller.is_active else None
        return None

    @property
    def controller_epoch(self) -> int:
        """The number of controller elections."""
        return int(self.zookeeper.data(paths.CONTROLLER_EPOCH) or 0)

    def elect_controller(self) -> None:
        """Restart the controller's process: the next controller has seen no earlier event."""
        controller = self.controller
        if controller is not None:
            host = self.hosts[controller.broker_id]
            host.crash()
            self.expire(host.id)
            host.start()
        while self.control():
            continue

    def depose_controller(self) -> None:
        """Delete ``/controller``: the first process to create it is the next controller."""
        if paths.CONTROLLER in self.zookeeper.nodes:
            self.zookeeper.delete_all(paths.CONTROLLER)

    def control(self) -> bool:
        """Take one ready step of each process; False without any."""
        done = False
        for host in self.hosts.values():
            if host.can_act:
                host.member.connection()
                done = host.member.work_off() or done
        return done

    def deliver_control(self, channels: SimChannels, broker: BrokerId) -> bool:
        """Deliver the next request to a broker, and its answer; False if nothing was sent."""
        if not self.hosts[broker].can_act or not channels.send_next(broker):
            return False
        if channels.links[broker].under_way is not None:
            before = len(self.messages)
            self.deliver(before - 1)
            if len(self.messages) >= before:
                self.deliver(len(self.messages) - 1)
        return True

    def suspect(self, broker: BrokerId) -> None:
        """The controllers' connections to a broker are reset and its port refuses, or seems to."""
        for channels in self.channels:
            channels.suspect(broker)

    def clear_suspicion(self, broker: BrokerId) -> None:
        for channels in self.channels:
            channels.clear_suspicion(broker)

    def expire(self, broker: BrokerId) -> None:
        """The session of a broker ends in ZooKeeper; its process learns of it when it polls."""
        self.zookeeper.expire(self.hosts[broker].member.client.session)

    def registered_epoch(self, broker: BrokerId) -> int | None:
        """The czxid of a broker's registration."""
        node = self.zookeeper.nodes.get(paths.broker_id(broker))
        return None if node is None else node.czxid

    def is_registered(self, broker: BrokerId) -> bool:
        return paths.broker_id(broker) in self.zookeeper.nodes

    def move_leadership(self, broker: BrokerId, tp: TopicPartition | None = None) -> None:
        """Elect another member of the ISR; the old leader stays in sync, as after a preferred election."""
        controller: Any = self.controller
        term, tp = controller._term, tp or self.tp
        former = self.state_of(tp)
        state = former.with_leader(broker, former.isr, term.epoch, former.broker_epochs)
        term.context.leadership.update(term.writer.update_leadership({tp: state}).written)
        term.batch.add_leader_and_isr(term.context.replicas_of(tp), tp)
        term.flush()

    def shut_down(self, broker: BrokerId) -> None:
        """SIGTERM: the leaderships move away, then the process shuts down cleanly."""
        host, controller = self.hosts[broker], self.controller
        if controller is not None:
            epoch = host.replicas.roles.broker_epoch
            controller.controlled_shutdown(broker, epoch, lambda code, remaining: None)
            while self.control():
                self.check()
        host.stop()

    # The network

    def send(self, source: BrokerId, target: BrokerId, act: Callable[[], None]) -> Message:
        message = Message(source, target, self.hosts[target].life, act)
        self.messages.append(message)
        del self.messages[:-_MAX_MESSAGES]
        return message

    def deliver(self, index: int = 0) -> bool:
        """One message arrives, or is lost because the link is cut or its target process has ended."""
        if not self.messages:
            return False
        message = self.messages.pop(index)
        target = self.hosts[message.target]
        is_cut = frozenset((message.source, message.target)) in self.cut
        if target.is_up and target.life == message.target_life and not is_cut:
            if target.is_paused:
                self.messages.append(message)
                return False
            message.act()
        return True

    # Following

    def fetch(self, broker: BrokerId, *, max_wait_ms: int = 0, max_bytes: int = 1 << 20) -> bool:
        """Run the fetchers' thread of a broker once; returns whether it sent a fetch."""
        follower = self.brokers[broker]
        return follower.can_act and follower.fetchers.step(max_wait_ms=max_wait_ms, max_bytes=max_bytes)

    # Clients

    def produce(
        self,
        broker: BrokerId,
        count: int = 1,
        acks: int = -1,
        timeout_ms: int = 3_000,
        *,
        is_one_batch: bool = False,
        tp: TopicPartition | None = None,
    ) -> None:
        """Send some records to a broker that may believe it leads."""
        target = self.brokers[broker]
        if not target.can_act:
            return
        tp = tp or self.tp
        truth = self.truth_of(target, tp)
        values = list(range(self.next_value, self.next_value + count))
        self.next_value += count
        if (place := self.place_of(target, tp)) is not None:
            self.origins |= dict.fromkeys(values, place)

        def answer(outcomes: list[PartitionProduceResponse]) -> None:
            if outcomes[0].error_code == ErrorCode.NONE and acks == -1 and truth is not None:
                least = self.min_insync_replicas_of(target, tp.topic)
                truth.acknowledged(Offset(outcomes[0].base_offset), written, least)
            elif outcomes[0].error_code == ErrorCode.NONE:
                self.acknowledged_alone(target, tp)

        written = [None if self.is_compacted and is_tombstone(value) else value for value in values]
        timestamp_ms = 0 if self.settings is None else target.wall_ms()
        records = (encode_batch if is_one_batch else encode)(
            *values, has_keys=self.is_compacted, timestamp_ms=timestamp_ms
        )
        target.replicas.append(acks, timeout_ms, [(tp, records)], answer)
        target.replicas.wake_followers()

    def consume(
        self,
        broker: BrokerId,
        offset: int,
        tp: TopicPartition | None = None,
        *,
        is_read_committed: bool = False,
    ) -> tuple[int, Records] | None:
        """A consumer reads from a broker that may follow, or believe that it leads.

        Returns the next offset to read from and the records that the consumer shows, or None after an error.
        """
        target = self.brokers[broker]
        if not target.can_act:
            return None
        tp = tp or self.tp
        truth, place = self.truth_of(target, tp), self.place_of(target, tp)
        # In a compacted topic a consumer reads a batch at a time, else all batches of a segment.
        max_bytes = 1 if self.is_compacted else 1 << 20
        partition = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        body = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            isolation_level=int(is_read_committed),
            topics=[FetchTopic(topic=tp.topic, partitions=[partition])],
            # So that followers answer too.
            rack_id="rack",
        )
        answers: list[FetchResponse] = []
        fetch_handler.handle(target.services, SimRequest(body, answers.append))
        if not answers or not answers[0].responses:
            raise Violation(f"a fetch of {tp} from {offset} that does not wait gets {answers}")
        data = answers[0].responses[0].partitions[0]
        if data.error_code != ErrorCode.NONE or not isinstance(data.records, memoryview):
            return None
        records = decode(data.records)
        for at, entry in records:
            origin = self.origins.get(entry.value, place) if isinstance(entry.value, int) else place
            if origin != place:
                raise Violation(f"a consumer of {tp} {place} saw {entry} of {origin} at {at}")
        end = data.last_stable_offset if is_read_committed else data.high_watermark
        next_offset = records[-1][0] + 1 if records else end
        aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()]
        if truth is not None:
            truth.consumed(offset, next_offset, records)
        if truth is not None and is_read_committed:
            truth.consumed_committed(end, records, aborted)
        return next_offset, seen_by_a_client(records, aborted) if is_read_committed else records

    def ask(self, host: SimBroker, ask: Callable[[TopicAdmin], Sequence[Any]]) -> list[ErrorCode]:
        """A client requests topic changes; returns the error of each topic."""
        admin = TopicAdmin(
            host.member.store,
            host.member.controller,
            settings=TopicSettings(num_partitions=1, default_replication_factor=1, delete_topic_enable=True),
            validate_config=lambda config: None,
            rng=random.Random(0),
        )
        return [ErrorCode(result.error_code) for result in ask(admin)]

    # Time and threads

    def advance(self, ms: float) -> None:
        """Time passes, and due requests and sessions expire."""
        self.pass_time(ms)
        self.zookeeper.expire_silent(SESSION_TIMEOUT_MS)
        for host in self.hosts.values():
            if host.can_act:
                host.reaper.expire_due(int(host.now_ms()))
                host.member.time_passes()

    def pass_time(self, ms: float) -> None:
        """Time passes, and nothing expires yet."""
        self.now_ms += ms

    def work_off(self, broker: BrokerId) -> None:
        """Run the threads of a broker that wait for ZooKeeper once."""
        if self.hosts[broker].can_act:
            replicas = self.hosts[broker].replicas
            replicas.isr_changes.work_off()
            if replicas.disk_failures._noted or self.is_stepped:
                # Check first, so that the committed records are known before a disk goes offline.
                self.check()
            replicas.disk_failures.work_off()

    def shrink(self, broker: BrokerId) -> None:
        if self.brokers[broker].can_act:
            self.brokers[broker].replicas.shrink_isrs()

    # Questions

    @property
    def state(self) -> LeadershipState:
        """The leader and the ISR in ZooKeeper."""
        return self.state_of(self.tp)

    def state_of(self, tp: TopicPartition) -> LeadershipState:
        path = paths.leadership(tp)
        node = self.zookeeper.node(path)
        data, version, state = self._states.get(tp, (b"", -1, None))
        if state is None or data is not node.data or version != node.version:
            state = znodes.decode_leadership(path, node.data, node.version)
            self._states[tp] = (node.data, node.version, state)
        return state

    def has_state(self, tp: TopicPartition) -> bool:
        return paths.leadership(tp) in self.zookeeper.nodes

    def assignment_of(self, tp: TopicPartition) -> ReplicaAssignment:
        path = paths.topic(tp.topic)
        return _decode_topic(path, self.zookeeper.node(path).data).partitions[tp.partition]

    def replicas_of(self, tp: TopicPartition) -> tuple[BrokerId, ...]:
        """The replicas in ZooKeeper's assignment."""
        return self.assignment_of(tp).replicas

    def truth_of(self, broker: SimBroker, tp: TopicPartition) -> Truth | None:
        """The truth of the topic whose partition a broker has under this name now."""
        place = self.place_of(broker, tp)
        return None if place is None else self.truths.get(place)

    def place_of(self, broker: SimBroker, tp: TopicPartition) -> tuple[TopicId, int] | None:
        """The topic id and the partition index that a broker has under this name now."""
        partition = broker.partition_of(tp)
        topic_id = None if partition is None else partition.log.topic_id
        return None if topic_id is None else (topic_id, tp.partition)

    def add_truth(self, tp: TopicPartition, topic_id: TopicId) -> None:
        """From now on the records of this partition must be kept."""
        if (topic_id, tp.partition) not in self.truths:
            self.truths[topic_id, tp.partition] = Truth(self, tp, topic_id)

    def drop_truths(self, topic_id: TopicId) -> None:
        """From now on the records of this topic may be deleted."""
        for key in [key for key in self.truths if key[0] == topic_id]:
            self.past_truths.append(self.truths.pop(key))

    @property
    def all_truths(self) -> list[Truth]:
        """The truths of all partitions, also of deleted ones."""
        return [*self.truths.values(), *self.past_truths]

    def disk_has_lost(self, broker: BrokerId) -> None:
        """A broker has lost all or some of its data."""
        for truth in self.truths.values():
            truth.disk_has_lost(broker)

    def check(self) -> None:
        """Raises Violation if a promise is broken."""
        if self.topics is not None:
            self.topics.check()
        if self.settings is not None:
            self.settings.check()
        for truth in self.truths.values():
            truth.check()
        for broker in self.brokers.values():
            # A broker survives the failure of a replica; here it is a finding.
            if broker.is_up and (failed := broker.replicas.roles.failed.reasons()):
                raise Violation(f"replicas of broker {broker.id} failed: {failed}")

    @property
    def is_whole(self) -> bool:
        """Whether every replica has all records and is in sync, and all deletions are complete."""
        is_settled = self.topics is None or self.topics.is_settled
        is_settled = is_settled and (self.settings is None or self.settings.is_settled)
        return is_settled and all(truth.is_whole for truth in self.truths.values())

    # Coming to rest

    def settle(self) -> None:
        """The cluster works until nothing changes any more; raises if that takes too many turns."""
        for _ in range(ROUNDS):
            self.take_turns()
            if self.is_whole and self.is_idle:
                return
        raise AssertionError(f"the cluster does not come to rest:\n{self.describe()}")

    def take_turns(self, may_shrink: Callable[[SimBroker], bool] = lambda broker: True) -> None:
        """All processes do their pending work, and a little time passes."""
        while self.control():
            pass
        for channels in list(self.channels):
            for host in self.hosts:
                while self.deliver_control(channels, host):
                    pass
        for name, broker in self.brokers.items():
            self.fetch(name)
            self.work_off(name)
            if may_shrink(broker):
                self.shrink(name)
        while self.deliver():
            pass
        self.advance(20)
        self.check()

    @property
    def is_idle(self) -> bool:
        """Whether there is a controller, and no process has anything to do or to send."""
        is_busy = any(host.member.is_busy for host in self.hosts.values() if host.can_act)
        return (
            self.controller is not None
            and not is_busy
            and not any(
                self.hosts[broker].can_act and link.has_something
                for channels in self.channels
                if self.hosts[channels.source].can_act
                for broker, link in channels.links.items()
            )
        )

    def describe(self) -> str:
        registered = [host for host in self.hosts if self.is_registered(host)]
        lines = [f"ZooKeeper: registered {registered}", *map(self._describe, self.truths.values())]
        if self.topics is not None:
            lines.append(self.topics.describe())
        return "\n".join(lines)

    def _describe(self, truth: Truth) -> str:
        lines = [f"{truth.tp}: {truth.state if truth.has_state else None}"]
        for broker in self.brokers.values():
            partition, view = truth.partition(broker), truth.view(broker)
            epochs = () if view is None or partition is None else view.log.epoch_cache.entries
            lines.append(
                f"broker {broker.id} (up {broker.is_up}): "
                f"{partition.view() if partition else view and view.log} epochs "
                f"{[tuple(entry) for entry in epochs]}"
            )
        return "\n".join(lines)
