"""A cluster without threads, sockets, disks or clocks: the real rules, driven step by step.

Real are: replica managers with their partitions, ISR changes, disk failures and purgatories, the handlers of
Fetch and of the controller's requests, the fetchers' decisions, the logs, and the controller's whole reign.
Simulated are the network, ZooKeeper, time, and what befalls a disk. Nothing happens by itself: whoever drives
a `World` says what comes next, so the same steps always give the same history.
"""

from __future__ import annotations

import random
import shutil
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from barnabas.broker.handlers import fetch as fetch_handler
from barnabas.broker.handlers import inter_broker
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
from barnabas.controller import events
from barnabas.controller.controller_writer import ControllerMoved
from barnabas.controller.reign import ControllerSettings, Reign
from barnabas.controller.request_batch import BrokerBatch
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    Offset,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.protocol.messages.inter_broker import LeaderAndIsrRequest, UpdateMetadataRequest
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
from tests.simulation.requests import SimRequest
from tests.simulation.truth import Truth, Violation
from tests.simulation.zookeeper import LISTENER, Door, SimIsrStore, SimWriter, SimZooKeeper

TOPIC_ID = TopicId(uuid.UUID(int=7))
TP = TopicPartition("t", 0)
MAX_LAG_MS = 1_000
_MAX_MESSAGES = 48
_ROUNDS = 400


def raise_it(error: BaseException) -> None:
    raise error


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
        return next(iter(self.replicas.partitions()), None) if self.is_up else None

    def now_ms(self) -> float:
        """By its own clock."""
        here, world = self._clock_set_ms
        return here + (self._world.now_ms - world) * self._clock_factor

    def set_clock(self, factor: float) -> None:
        """From now on its clock goes so much faster than the world's."""
        self._clock_set_ms = (self.now_ms(), self._world.now_ms)
        self._clock_factor = factor

    def start(self) -> None:
        """A new process: register."""
        world = self._world
        self.life += 1
        self.metadata = MetadataCache()
        self.fetchers = SimFetchers(world, self)
        self.reaper = Reaper(on_fatal=raise_it, clock_ms=lambda: int(self.now_ms()))
        self.replicas = ReplicaManager(
            self.id,
            self.logs,
            self.metadata,
            SimIsrStore(world.zookeeper, self.id),
            self.reaper,
            topic_settings=SimTopicSettings(world.min_insync_replicas),
            make_fetchers=lambda manager: self.fetchers,
            max_lag_ms=MAX_LAG_MS,
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
        self.replicas.begin_life(world.zookeeper.register(self.id))

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
        if power_loss is None:
            self.disk.reopen()
        else:
            self.disk.lose_power(power_loss)

    def stop(self) -> None:
        """The process ends in good order."""
        self.replicas.checkpoint_high_watermarks()
        self.is_up = self.is_paused = False
        self.disk.stop_cleanly()

    def wipe(self) -> None:
        """The disk of a dead broker is replaced by an empty one."""
        self.disk.wipe()

    def rejoin(self) -> None:
        """Hear that the session has expired, and register anew."""
        self.replicas.end_life("the session has expired")
        self.replicas.begin_life(self._world.zookeeper.register(self.id))


@dataclass(slots=True)
class Message:
    """Something on its way to one process; `act` is its arrival."""

    source: BrokerId
    target: BrokerId
    target_life: int
    act: Callable[[], None]


@dataclass(slots=True)
class Link:
    broker_epoch: BrokerEpoch
    is_suspected: bool = False
    waiting: deque[BrokerBatch] = field(default_factory=deque)


class SimChannels:
    """What one reign has to tell the brokers, in order for each; the world delivers it."""

    def __init__(self, epoch: ControllerEpoch) -> None:
        self.epoch = epoch
        self.links: dict[BrokerId, Link] = {}

    def add_broker(self, broker: BrokerId, broker_epoch: BrokerEpoch, endpoint: Endpoint) -> None:
        self.links[broker] = Link(broker_epoch)

    def remove_broker(self, broker: BrokerId) -> None:
        self.links.pop(broker, None)

    def send(self, broker: BrokerId, batch: BrokerBatch) -> None:
        link = self.links.get(broker)
        if link is None or link.is_suspected:
            return
        if not link.waiting or not link.waiting[-1].merge(batch):
            link.waiting.append(batch)

    def when_told(self, done: Callable[[], None]) -> None:
        done()

    def stop(self) -> None:
        """What is on its way may still arrive."""


class World:
    """All of it, with one partition that has a replica on every broker."""

    def __init__(
        self,
        broker_count: int = 3,
        min_insync_replicas: int = 2,
        *,
        tp: TopicPartition = TP,
        segment_bytes: int = 1 << 20,
    ) -> None:
        ids = [BrokerId(number) for number in range(1, broker_count + 1)]
        self.tp = tp
        self.folder = new_folder()
        self.log_config = LogConfig(segment_bytes=segment_bytes, segment_index_bytes=SMALL_INDEX_BYTES)
        self.now_ms = 0.0
        self.min_insync_replicas = min_insync_replicas
        self.zookeeper = SimZooKeeper(tp.topic, TOPIC_ID, ids)
        self.brokers = {broker: SimBroker(self, broker) for broker in ids}
        self.messages: list[Message] = []
        self.cut: set[frozenset[BrokerId]] = set()
        self.truth = Truth(self)
        self.events: deque[events.Event] = deque()
        self.channels: list[SimChannels] = []
        self.next_value = 0
        OPEN_WORLDS.append(self)
        self.elect_controller()
        self.settle()

    def close(self) -> None:
        """Let go of the disks; what was seen of them stays."""
        if self in OPEN_WORLDS:
            OPEN_WORLDS.remove(self)
            for broker in self.brokers.values():
                broker.disk.close()
            shutil.rmtree(self.folder)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The controller

    def elect_controller(self) -> None:
        """A new controller; what the one before had sent may still arrive."""
        writer = SimWriter(self.zookeeper)
        channels = SimChannels(writer.epoch)
        self.channels = [*self.channels[-2:], channels]
        self.events.clear()
        settings = ControllerSettings(inter_broker_listener_name=LISTENER)
        self.reign = Reign(self.zookeeper, writer, channels, settings, self.put)
        self.reign.start()

    def put(self, event: events.Event) -> None:
        if event not in self.events:
            self.events.append(event)

    def control(self) -> bool:
        """The controller handles one event; False when there is none."""
        if not self.events:
            return False
        try:
            self.reign.handle(self.events.popleft())
        except ControllerMoved:
            # Watches of former reigns put their events into the same queue; the writes are refused.
            return True
        return True

    def deliver_control(self, channels: SimChannels, broker: BrokerId, *, is_repeated: bool = False) -> bool:
        """Carry the next batch to a broker; repeated when its answer is lost. False when nothing arrived."""
        link, target = channels.links.get(broker), self.brokers[broker]
        if link is None or not link.waiting or not target.can_act:
            return False
        for request in link.waiting[0].requests(BrokerId(0), channels.epoch, link.broker_epoch):
            answers: list[Any] = []
            sim_request: Any = SimRequest(request, answers.append)
            if isinstance(request, LeaderAndIsrRequest):
                inter_broker.handle_leader_and_isr(target.services, sim_request)
                answered = events.LeaderAndIsrAnswered(channels.epoch, broker, link.broker_epoch, answers[0])
                if channels is self.channels[-1]:
                    self.events.append(answered)
            elif isinstance(request, UpdateMetadataRequest):
                inter_broker.handle_update_metadata(target.services, sim_request)
            else:
                inter_broker.handle_stop_replica(target.services, sim_request)
        if not is_repeated:
            link.waiting.popleft()
        return True

    def suspect(self, broker: BrokerId) -> None:
        """The controller's connection to a broker is reset and its port refuses, or so it seems."""
        channels = self.channels[-1]
        link = channels.links.get(broker)
        if link is not None and not link.is_suspected:
            link.is_suspected = True
            link.waiting.clear()
            self.events.append(events.BrokerSuspected(channels.epoch, broker, link.broker_epoch))

    def clear_suspicion(self, broker: BrokerId) -> None:
        channels = self.channels[-1]
        link = channels.links.get(broker)
        if link is not None and link.is_suspected:
            link.is_suspected = False
            self.events.append(events.BrokerReturned(channels.epoch, broker, link.broker_epoch))

    def move_leadership(self, broker: BrokerId) -> None:
        """Another member of the ISR leads and the one before stays in sync, as after a preferred election."""
        reign: Any = self.reign
        wanted = self.state.with_leader(broker, self.state.isr, reign.epoch, self.state.broker_epochs)
        reign.context.leadership.update(reign._writer.update_partition_states({TP: wanted}).written)
        reign._batch.add_leader_and_isr(reign.context.live_brokers, TP)
        reign._flush()

    def shut_down(self, broker: BrokerId) -> None:
        """SIGTERM: the leaderships move away, then the process ends in good order."""
        epoch = self.zookeeper.registrations[broker].broker_epoch
        self.events.append(events.ControlledShutdown(broker, epoch, lambda code, remaining: None))
        while self.control():
            self.check()
        self.brokers[broker].stop()
        self.zookeeper.unregister(broker)

    # The network

    def send(self, source: BrokerId, target: BrokerId, act: Callable[[], None]) -> None:
        self.messages.append(Message(source, target, self.brokers[target].life, act))
        del self.messages[:-_MAX_MESSAGES]

    def deliver(self, index: int = 0) -> bool:
        """One message arrives, or is lost because the link is cut or its process is gone."""
        if not self.messages:
            return False
        message = self.messages.pop(index)
        target = self.brokers[message.target]
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
    ) -> None:
        """Some records to whoever may think that it leads."""
        target = self.brokers[broker]
        if not target.can_act:
            return
        values = list(range(self.next_value, self.next_value + count))
        self.next_value += count

        def answer(outcomes: list[AppendOutcome]) -> None:
            if outcomes[0].error == ErrorCode.NONE and acks == -1:
                self.truth.acknowledged(Offset(outcomes[0].base_offset), values)

        records = memoryview(encode_batch(*values)) if is_one_batch else encode(*values)
        target.replicas.append(acks, timeout_ms, [(self.tp, records)], answer)
        target.replicas.wake_followers()

    def consume(self, broker: BrokerId, offset: int) -> None:
        """A consumer reads from whoever may think that it leads."""
        target = self.brokers[broker]
        if not target.can_act:
            return
        asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        body = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic=self.tp.topic, partitions=[asked])]
        )
        answers: list[FetchResponse] = []
        fetch_handler.handle(target.services, SimRequest(body, answers.append))
        found = answers[0].responses[0].partitions[0]
        if found.error_code == ErrorCode.NONE and isinstance(found.records, memoryview):
            self.truth.consumed(decode(found.records))

    # Time, and what hangs on it

    def advance(self, ms: float) -> None:
        """Time goes by; what is due expires."""
        self.pass_time(ms)
        for broker in self.brokers.values():
            if broker.can_act:
                broker.reaper.expire_due(int(broker.now_ms()))

    def pass_time(self, ms: float) -> None:
        """Time goes by while everybody is at work."""
        self.now_ms += ms

    def work_off(self, broker: BrokerId) -> None:
        """The threads of a broker that wait for ZooKeeper have their turn."""
        if self.brokers[broker].can_act:
            self.brokers[broker].replicas.isr_changes.work_off()
            self.brokers[broker].replicas.disk_failures.work_off()

    def shrink(self, broker: BrokerId) -> None:
        if self.brokers[broker].can_act:
            self.brokers[broker].replicas.shrink_isrs()

    # Questions

    @property
    def state(self) -> Any:
        """Who leads, with which ISR, as ZooKeeper has it."""
        return self.zookeeper.states[self.tp]

    def check(self) -> None:
        """Raises Violation when an invariant is broken."""
        self.truth.check()
        for broker in self.brokers.values():
            # A broker would contain what this raises; here it is a finding.
            if broker.is_up and (failed := broker.replicas.failed.reasons()):
                raise Violation(f"replicas of broker {broker.id} failed: {failed}")

    @property
    def is_whole(self) -> bool:
        """Whether every replica has everything and all are in sync."""
        if set(self.state.isr) != set(self.brokers) or self.state.leader not in self.brokers:
            return False
        marks = set()
        for broker in self.brokers.values():
            partition = broker.partition
            if partition is None or partition.leader_epoch != self.state.leader_epoch:
                return False
            marks |= {partition.high_watermark, partition.log_end_offset}
        return len(marks) == 1

    # Coming to rest

    def settle(self) -> None:
        """Let everything take its ordinary course until nothing changes any more, or raise."""
        for _ in range(_ROUNDS):
            while self.control():
                pass
            for channels in self.channels:
                for broker in self.brokers:
                    while self.deliver_control(channels, broker):
                        pass
            for broker in self.brokers:
                self.fetch(broker)
                self.work_off(broker)
                self.shrink(broker)
            while self.deliver():
                pass
            self.advance(20)
            self.check()
            if self.is_whole and not self.events:
                return
        raise AssertionError(f"the cluster does not come to rest:\n{self.describe()}")

    def heal(self) -> None:
        """All faults end."""
        self.cut.clear()
        for broker in self.brokers.values():
            self.zookeeper.doors[broker.id] = Door.OPEN
            broker.is_paused = False
            if not broker.is_up:
                broker.start()
            elif broker.disk.has_failed:
                broker.crash()
                broker.start()
            elif broker.id not in self.zookeeper.registrations:
                broker.rejoin()
            broker.disk.slow_ms = 0.0
            self.clear_suspicion(broker.id)
            # Whatever was lost on the way times out.
            broker.fetchers.lose_answers()

    def describe(self) -> str:
        lines = [f"ZooKeeper: {self.state}, registered {sorted(self.zookeeper.registrations)}"]
        for broker in self.brokers.values():
            epochs = broker.log.epoch_cache.entries if broker.log is not None else ()
            lines.append(
                f"broker {broker.id} (up {broker.is_up}): "
                f"{broker.partition.view() if broker.partition else broker.log} epochs "
                f"{[tuple(entry) for entry in epochs]}"
            )
        return "\n".join(lines)
