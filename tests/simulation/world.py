"""A cluster without threads, sockets, disks or clocks: the real rules, driven step by step.

Real are: replica managers with their partitions, ISR changes, disk failures and purgatories, the handlers of
Fetch and of the controller's requests, the fetchers' decisions, the logs, and of each process its ZooKeeper
session, store, registration and controller (`tests.simulation.member`). Simulated are the network,
ZooKeeper, time, and what befalls a disk. Nothing happens by itself: whoever drives a `World` says what comes
next, so the same steps always give the same history.
"""

from __future__ import annotations

import random
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from barnabas.broker.handlers import fetch as fetch_handler
from barnabas.broker.handlers.fetch_session import FetchSessionCache
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_config import LogConfig
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.purgatory import Reaper
from barnabas.broker.replication.appending import AppendOutcome
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.controller import paths, znodes
from barnabas.controller.controller import Controller
from barnabas.controller.topics import TopicAdmin, TopicResult, TopicSettings
from barnabas.controller.znodes import LeadershipState, TopicAssignment
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId, Offset, TopicId, TopicPartition
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.simulation.channels import HANDLERS, SimChannels
from tests.simulation.disk import (
    SMALL_INDEX_BYTES,
    Disk,
    LogView,
    decode,
    encode,
    encode_batch,
    new_folder,
)
from tests.simulation.fetchers import SimFetchers
from tests.simulation.member import SESSION_TIMEOUT_MS, SimMember, raise_it
from tests.simulation.requests import LISTENER, SimRequest
from tests.simulation.truth import Truth, Violation
from tests.simulation.zookeeper import SimZooKeeper
from tests.simulation.zookeeper_client import Door

if TYPE_CHECKING:
    from tests.simulation.topics import Topics

TOPIC_ID = TopicId(uuid.UUID(int=7))
TP = TopicPartition("t", 0)
MAX_LAG_MS = 1_000
_MAX_MESSAGES = 48
_ROUNDS = 400


OPEN_WORLDS: list[World] = []
"""Those whose disks are to be let go of."""


class SimTopicSettings:
    """Every topic has the same settings."""

    def __init__(self, min_insync_replicas: int) -> None:
        self._settings = SimpleNamespace(min_insync_replicas=min_insync_replicas)

    def update(self, topic: str, overrides: Mapping[str, str], zxid: int = -1) -> bool:
        return False

    def of(self, topic: str) -> SimpleNamespace:
        return self._settings


class SimBroker:
    """One broker: its disk stays, its process comes and goes. `life` tells processes apart."""

    def __init__(self, world: World, broker_id: BrokerId) -> None:
        self.id = broker_id
        self.life = 0
        self.is_up = False
        self.is_paused = False
        self.is_lost = False
        """Down, and not to return before everybody else has."""
        self.disk = Disk(broker_id, world.folder / str(broker_id), lambda topic: world.log_config)
        self.disk.on_slow = world.pass_time
        self._world = world
        self._clock_factor = 1.0
        self._clock_set_ms = (0.0, 0.0)
        self.start()

    @property
    def can_act(self) -> bool:
        return self.is_up and not self.is_paused

    @property
    def logs(self) -> LogManager:
        return self.disk.logs

    @property
    def log(self) -> Log | None:
        return self.logs.get(self._world.tp)

    @property
    def view(self) -> LogView | None:
        """The records of its log, also while the process is gone or the disk has failed."""
        return self.disk.view(self._world.tp)

    @property
    def partition(self) -> Partition | None:
        return self.partition_of(self._world.tp)

    def partition_of(self, tp: TopicPartition, topic_id: TopicId | None = None) -> Partition | None:
        """Its replica, of that topic alone if one is named, while the process is up."""
        found = self.replicas._partitions.get(tp) if self.is_up else None
        if found is None or topic_id is None or found.log.topic_id == topic_id:
            return found
        return None

    def now_ms(self) -> float:
        """By its own clock."""
        here, world = self._clock_set_ms
        return here + (self._world.now_ms - world) * self._clock_factor

    def set_clock(self, factor: float) -> None:
        """From now on its clock goes so much faster than the world's."""
        self._clock_set_ms = (self.now_ms(), self._world.now_ms)
        self._clock_factor = factor

    def start(self) -> None:
        """A new process: register, stand for controller."""
        world = self._world
        self.life += 1
        # It waits for ZooKeeper as long as it has to.
        world.doors[self.id] = Door.OPEN
        self.member = SimMember(world, self.id)
        self.metadata = MetadataCache()
        self.fetchers = SimFetchers(world, self)
        self.reaper = Reaper(on_fatal=raise_it, clock_ms=lambda: int(self.now_ms()))
        self.replicas = ReplicaManager(
            self.id,
            self.logs,
            self.metadata,
            self.member.isr_store,
            self.reaper,
            topic_settings=SimTopicSettings(world.min_insync_replicas),
            make_fetchers=lambda manager: self.fetchers,
            max_lag_ms=world.max_lag_ms,
            on_fatal=raise_it,
            now_ms=self.now_ms,
        )
        self.services = SimpleNamespace(
            replicas=self.replicas,
            metadata=self.metadata,
            fetch_sessions=FetchSessionCache(
                10, self.replicas.listeners, self.replicas.consumer_purgatory.check_and_complete
            ),
            config=SimpleNamespace(inter_broker_listener_name=LISTENER, fetch_max_bytes=1 << 20),
        )
        self.is_up, self.is_paused = True, False
        world.started(self)
        self.member.start(self.replicas)

    @contextmanager
    def disk_errors(self) -> Iterator[None]:
        """What the disk refuses within is taken note of, as whoever does such work in a broker does."""
        try:
            yield
        except LogDirFailure as error:
            self.replicas.note_error(error)

    def crash(self, *, power_loss: random.Random | None = None) -> None:
        """The process is gone; with the power so is what was not flushed, all or a part of it."""
        self.is_up = self.is_paused = False
        self.member.vanish()
        if power_loss is None:
            self.disk.reopen()
        else:
            self._world.disk_has_lost(self.id)
            self.disk.lose_power(power_loss)

    def stop(self) -> None:
        """The process ends in good order."""
        self.replicas.checkpoint_high_watermarks()
        self.member.leave()
        self.is_up = self.is_paused = False
        self.disk.stop_cleanly()

    def wipe(self) -> None:
        """The disk of a dead broker is replaced by an empty one."""
        self._world.disk_has_lost(self.id)
        self.disk.wipe()

    def handle_control(self, request: Any, answer: Callable[[Any], None]) -> None:
        """A request of a controller arrives."""
        if self._world.topics is not None:
            # What is committed is seen before a log may be set aside.
            self._world.check()
        sim_request: Any = SimRequest(request, answer)
        HANDLERS[type(request)](self.services, sim_request)


@dataclass(slots=True, eq=False)
class Message:
    """Something on its way to one process; `act` is its arrival."""

    source: BrokerId
    target: BrokerId
    target_life: int
    act: Callable[[], None]


class World:
    """All of it, with one partition that has a replica on every broker.

    With `is_controller_apart` the first controller is a broker of its own, number 0, without replicas.
    """

    max_lag_ms = MAX_LAG_MS

    def __init__(
        self,
        broker_count: int = 3,
        min_insync_replicas: int = 2,
        *,
        tp: TopicPartition = TP,
        segment_bytes: int = 1 << 20,
        is_controller_apart: bool = True,
    ) -> None:
        ids = [BrokerId(number) for number in range(1, broker_count + 1)]
        all_ids = [BrokerId(0), *ids] if is_controller_apart else ids
        self.tp = tp
        self.folder = new_folder()
        self.log_config = LogConfig(segment_bytes=segment_bytes, segment_index_bytes=SMALL_INDEX_BYTES)
        self.now_ms = 0.0
        self.min_insync_replicas = min_insync_replicas
        self.zookeeper = SimZooKeeper(lambda: self.now_ms)
        self.doors = dict.fromkeys(all_ids, Door.OPEN)
        self.channels: list[SimChannels] = []
        """Of every process that takes itself for the controller, the latest last."""
        self.messages: list[Message] = []
        self.held_back: list[Message] = []
        """Messages that lie in some queue until somebody lets them go."""
        self.cut: set[frozenset[BrokerId]] = set()
        self.origins: dict[int | bytes | None, tuple[TopicId, int]] = {}
        """Of each record's value, the topic and the partition that it was written to."""
        self.truth = Truth(self, tp, TOPIC_ID)
        self.truths = {(TOPIC_ID, tp.partition): self.truth}
        """Of every partition whose records may not go."""
        self.past_truths: list[Truth] = []
        """Of those that may go by now."""
        self.topics: Topics | None = None
        """The judge of topics that come and go, where they do."""
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

    def started(self, broker: SimBroker) -> None:
        """A process has begun; for worlds whose brokers have more parts."""

    def close(self) -> None:
        """Let go of the disks; what was seen of them stays."""
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
        topic = TopicAssignment(topic_id=TOPIC_ID, replicas={self.tp.partition: tuple(replicas)})
        controller = self.controller
        if controller is None or not controller.writer.create_topic(self.tp.topic, topic, {}):
            raise AssertionError("nobody could create the topic")

    # Controllers

    @property
    def controller(self) -> Controller | None:
        """Of the broker that holds ``/controller``, once it has taken over."""
        node = self.zookeeper.nodes.get(paths.CONTROLLER)
        for host in self.hosts.values():
            member = host.member
            if node is not None and host.is_up and member.client.session == node.owner:
                return member.controller if member.controller.is_active else None
        return None

    @property
    def controller_epoch(self) -> int:
        """How often a controller was elected."""
        return int(self.zookeeper.data(paths.CONTROLLER_EPOCH) or 0)

    def elect_controller(self) -> None:
        """The controller's process starts anew: the next one has seen nothing of what came before."""
        controller = self.controller
        if controller is not None:
            host = self.hosts[controller.broker_id]
            host.crash()
            self.expire(host.id)
            host.start()
        while self.control():
            continue

    def depose_controller(self) -> None:
        """``/controller`` is deleted: whoever is quick is next."""
        if paths.CONTROLLER in self.zookeeper.nodes:
            self.zookeeper.delete_all(paths.CONTROLLER)

    def control(self) -> bool:
        """One step of each process that has something to work off; False when none has."""
        done = False
        for host in self.hosts.values():
            if host.can_act:
                host.member.connection()
                done = host.member.work_off() or done
        return done

    def deliver_control(self, channels: SimChannels, broker: BrokerId) -> bool:
        """Carry the next request to a broker, and its answer back. False when nothing arrived."""
        if not self.hosts[broker].can_act or not channels.send_next(broker):
            return False
        if channels.links[broker].under_way is not None:
            before = len(self.messages)
            self.deliver(before - 1)
            if len(self.messages) >= before:
                self.deliver(len(self.messages) - 1)
        return True

    def suspect(self, broker: BrokerId) -> None:
        """The controllers' connections to a broker are reset and its port refuses, or so it seems."""
        for channels in self.channels:
            channels.suspect(broker)

    def clear_suspicion(self, broker: BrokerId) -> None:
        for channels in self.channels:
            channels.clear_suspicion(broker)

    def expire(self, broker: BrokerId) -> None:
        """The session of a broker ends in ZooKeeper; its process hears of it when it looks."""
        self.zookeeper.expire(self.hosts[broker].member.client.session)

    def registered_epoch(self, broker: BrokerId) -> int | None:
        """The czxid of its registration."""
        node = self.zookeeper.nodes.get(paths.broker_id(broker))
        return None if node is None else node.czxid

    def is_registered(self, broker: BrokerId) -> bool:
        return paths.broker_id(broker) in self.zookeeper.nodes

    def move_leadership(self, broker: BrokerId) -> None:
        """Another member of the ISR leads and the one before stays in sync, as after a preferred election."""
        controller: Any = self.controller
        reign = controller._reign
        wanted = self.state.with_leader(broker, self.state.isr, reign.epoch, self.state.broker_epochs)
        reign.context.leadership.update(reign._writer.update_partition_states({self.tp: wanted}).written)
        reign._batch.add_leader_and_isr(reign.context.live_brokers, self.tp)
        reign._flush()

    def shut_down(self, broker: BrokerId) -> None:
        """SIGTERM: the leaderships move away, then the process ends in good order."""
        host, controller = self.hosts[broker], self.controller
        if controller is not None:
            epoch = host.replicas.broker_epoch
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
        """One message arrives, or is lost because the link is cut or its process is gone."""
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
        """The fetchers' thread of a broker has its turn; whether it sent a fetch."""
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
        """Some records to whoever may think that it leads."""
        target = self.brokers[broker]
        if not target.can_act:
            return
        tp = tp or self.tp
        truth = self.truth_of(target, tp)
        values = list(range(self.next_value, self.next_value + count))
        self.next_value += count
        if (place := self.place_of(target, tp)) is not None:
            self.origins |= dict.fromkeys(values, place)

        def answer(outcomes: list[AppendOutcome]) -> None:
            if outcomes[0].error == ErrorCode.NONE and acks == -1 and truth is not None:
                truth.acknowledged(Offset(outcomes[0].base_offset), values)

        records = memoryview(encode_batch(*values)) if is_one_batch else encode(*values)
        target.replicas.append(acks, timeout_ms, [(tp, records)], answer)
        target.replicas.wake_followers()

    def consume(self, broker: BrokerId, offset: int, tp: TopicPartition | None = None) -> None:
        """A consumer reads from whoever may think that it leads."""
        target = self.brokers[broker]
        if not target.can_act:
            return
        tp = tp or self.tp
        truth, place = self.truth_of(target, tp), self.place_of(target, tp)
        asked = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        body = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=tp.topic, partitions=[asked])]
        )
        answers: list[FetchResponse] = []
        fetch_handler.handle(target.services, SimRequest(body, answers.append))
        found = answers[0].responses[0].partitions[0]
        if found.error_code != ErrorCode.NONE or not isinstance(found.records, memoryview):
            return
        records = decode(found.records)
        for offset, entry in records:
            origin = place if entry.key is not None else self.origins.get(entry.value, place)
            if origin != place:
                raise Violation(f"a consumer of {tp} {place} saw {entry} of {origin} at {offset}")
        if truth is not None:
            truth.consumed(records)

    def ask(self, host: SimBroker, ask: Callable[[TopicAdmin], list[TopicResult]]) -> list[ErrorCode]:
        """A client wants topics changed; what it is told of each, or of all together."""
        admin = TopicAdmin(
            host.member.store,
            host.member.controller,
            settings=TopicSettings(),
            validate_config=lambda config: None,
            rng=random.Random(0),
        )
        try:
            return [result.error for result in ask(admin)]
        except ApiError as error:
            return [error.code]

    # Time, and what hangs on it

    def advance(self, ms: float) -> None:
        """Time goes by; what is due expires."""
        self.pass_time(ms)
        self.zookeeper.expire_silent(SESSION_TIMEOUT_MS)
        for host in self.hosts.values():
            if host.can_act:
                host.reaper.expire_due(int(host.now_ms()))
                host.member.time_passes()

    def pass_time(self, ms: float) -> None:
        """Time goes by while everybody is at work."""
        self.now_ms += ms

    def work_off(self, broker: BrokerId) -> None:
        """The threads of a broker that wait for ZooKeeper have their turn."""
        if self.hosts[broker].can_act:
            self.hosts[broker].replicas.isr_changes.work_off()
            # What it has committed is seen before a disk may go.
            self.check()
            self.hosts[broker].replicas.disk_failures.work_off()

    def shrink(self, broker: BrokerId) -> None:
        if self.brokers[broker].can_act:
            self.brokers[broker].replicas.shrink_isrs()

    # Questions

    @property
    def state(self) -> LeadershipState:
        """Who leads, with which ISR, as ZooKeeper has it."""
        return self.state_of(self.tp)

    def state_of(self, tp: TopicPartition) -> LeadershipState:
        path = paths.partition_state(tp)
        node = self.zookeeper.node(path)
        data, version, state = self._states.get(tp, (b"", -1, None))
        if state is None or data is not node.data or version != node.version:
            state = znodes.decode_partition_state(path, node.data, node.version)
            self._states[tp] = (node.data, node.version, state)
        return state

    def has_state(self, tp: TopicPartition) -> bool:
        return paths.partition_state(tp) in self.zookeeper.nodes

    def replicas_of(self, tp: TopicPartition) -> tuple[BrokerId, ...]:
        """As ZooKeeper has it."""
        path = paths.topic(tp.topic)
        return znodes.decode_topic(path, self.zookeeper.node(path).data).replicas[tp.partition]

    def truth_of(self, broker: SimBroker, tp: TopicPartition) -> Truth | None:
        """Of what a broker takes for that partition just now."""
        place = self.place_of(broker, tp)
        return None if place is None else self.truths.get(place)

    def place_of(self, broker: SimBroker, tp: TopicPartition) -> tuple[TopicId, int] | None:
        """Of which topic and partition a broker takes that for just now."""
        partition = broker.partition_of(tp)
        topic_id = None if partition is None else partition.log.topic_id
        return None if topic_id is None else (topic_id, tp.partition)

    def add_truth(self, tp: TopicPartition, topic_id: TopicId) -> None:
        """There is one more partition whose records may not go."""
        if (topic_id, tp.partition) not in self.truths:
            self.truths[topic_id, tp.partition] = Truth(self, tp, topic_id)

    def drop_truths(self, topic_id: TopicId) -> None:
        """The records of that topic may go from now on."""
        for key in [key for key in self.truths if key[0] == topic_id]:
            self.past_truths.append(self.truths.pop(key))

    @property
    def all_truths(self) -> list[Truth]:
        """Also of what is deleted."""
        return [*self.truths.values(), *self.past_truths]

    def disk_has_lost(self, broker: BrokerId) -> None:
        """What a broker had is gone, or not all of it is left."""
        for truth in self.truths.values():
            truth.disk_has_lost(broker)

    def check(self) -> None:
        """Raises Violation when an invariant is broken."""
        if self.topics is not None:
            self.topics.check()
        for truth in self.truths.values():
            truth.check()
        for broker in self.brokers.values():
            # A broker would contain what this raises; here it is a finding.
            if broker.is_up and (failed := broker.replicas.failed.reasons()):
                raise Violation(f"replicas of broker {broker.id} failed: {failed}")

    @property
    def is_whole(self) -> bool:
        """Whether every replica has everything and all are in sync, and what is deleted is gone."""
        is_settled = self.topics is None or self.topics.is_settled
        return is_settled and all(truth.is_whole for truth in self.truths.values())

    # Coming to rest

    def settle(self) -> None:
        """Let everything take its ordinary course until nothing changes any more, or raise."""
        for _ in range(_ROUNDS):
            self.take_turns()
            if self.is_whole and self.controller is not None and not self._is_anything_left:
                return
        raise AssertionError(f"the cluster does not come to rest:\n{self.describe()}")

    def take_turns(self, may_shrink: Callable[[SimBroker], bool] = lambda broker: True) -> None:
        """Everybody does what there is to do, and a little time goes by."""
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
    def _is_anything_left(self) -> bool:
        return any(host.member.is_busy for host in self.hosts.values() if host.can_act) or any(
            self.hosts[broker].can_act and link.has_something
            for channels in self.channels
            if self.hosts[channels.source].can_act
            for broker, link in channels.links.items()
        )

    def heal(self) -> None:
        """All faults end."""
        self.cut.clear()
        self.zookeeper.expire_silent(0)
        for host in self.hosts.values():
            self.doors[host.id] = Door.OPEN
            host.is_paused = False
            if not host.is_up and not host.is_lost:
                host.start()
            elif host.disk.has_failed:
                host.crash()
                host.start()
            host.disk.slow_ms = 0.0
            self.clear_suspicion(host.id)
            # Whatever was lost on the way times out.
            host.fetchers.lose_answers()
        self.messages += self.held_back
        self.held_back.clear()
        while self.deliver():
            continue
        for channels in self.channels:
            for broker in channels.links:
                channels.time_out(broker)
        if any(host.is_lost for host in self.hosts.values()):
            while self.control():
                self.check()
            for host in self.hosts.values():
                if host.is_lost:
                    host.is_lost = False
                    host.start()
        for _ in range(_ROUNDS):
            if self.topics is None or self.topics.heal():
                break
            self.take_turns()

    def describe(self) -> str:
        registered = [host for host in self.hosts if self.is_registered(host)]
        lines = [f"ZooKeeper: registered {registered}", *map(self._describe, self.truths.values())]
        if self.topics is not None:
            lines.append(self.topics.describe())
        return "\n".join(lines)

    def _describe(self, truth: Truth) -> str:
        lines = [f"{truth.tp}: {truth.state if self.has_state(truth.tp) else None}"]
        for broker in self.brokers.values():
            partition, view = truth.partition(broker), truth.view(broker)
            epochs = () if view is None or partition is None else view.log.epoch_cache.entries
            lines.append(
                f"broker {broker.id} (up {broker.is_up}): "
                f"{partition.view() if partition else view and view.log} epochs "
                f"{[tuple(entry) for entry in epochs]}"
            )
        return "\n".join(lines)
