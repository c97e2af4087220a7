"""A controller over a simulated ZooKeeper, without threads or sockets: the store and its writes are real."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from barnabas.controller.events import Event, PreemptableEvent, Signal
from barnabas.controller.failover import on_controller_failover
from barnabas.controller.failure_detector import Address, ConnectResult, FailureDetector
from barnabas.controller.partition_state import ElectionFigures
from barnabas.controller.request_batch import BrokerBatch
from barnabas.controller.term import ControllerTerm
from barnabas.protocol.ids import (
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages.inter_broker import (
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from barnabas.zookeeper import paths, znodes
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.session import SessionEvent, Threads
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import (
    AdvertisedListener,
    BrokerRegistration,
    LeadershipState,
    ReplicaAssignment,
    StoredConfig,
    TopicAssignment,
)
from tests.support.defaults import controller_settings
from tests.support.zookeeper import Kind, Node, Operation, SimZooKeeper, parent_of
from tests.support.zookeeper_client import Door, SimKazooClient

GARBLED = b"{"
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
K = TypeVar("K")
V = TypeVar("V")


def assigned(*replicas: int) -> ReplicaAssignment:
    return ReplicaAssignment(tuple(map(BrokerId, replicas)))


class NoThreads(Threads):
    """Starts no thread and never waits: waiting for an event that is not set lets the time pass."""

    def __init__(self) -> None:
        self.time_s = 1_000.0
        self.client: SimKazooClient | None = None

    def start(self, thread: threading.Thread) -> None:
        return

    def now_s(self) -> float:
        return self.time_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if self.client is not None:
            self.client.poll()
        if not event.is_set():
            self.time_s += timeout_s
        return event.is_set()


class View(MutableMapping[K, V], Generic[K, V]):
    """A part of the znodes as a dict, for changes by hand. A value is read from and written to one node."""

    def __init__(
        self,
        zookeeper: Znodes,
        keys: Callable[[], Iterable[K]],
        path_of: Callable[[K], str],
        decode: Callable[[str, Node, K], V],
        encode: Callable[[V], bytes],
    ) -> None:
        self._zookeeper = zookeeper
        self._keys = keys
        self._path_of = path_of
        self._decode = decode
        self._decoded: dict[str, tuple[Node, int, V]] = {}
        self._encode = encode

    def __iter__(self) -> Iterator[K]:
        return iter([key for key in self._keys() if self._path_of(key) in self._zookeeper.server.nodes])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, key: K) -> V:
        path = self._path_of(key)
        if path not in self._zookeeper.server.nodes:
            raise KeyError(key)
        node = self._zookeeper.server.nodes[path]
        cached = self._decoded.get(path)
        if cached is not None and cached[0] is node and cached[1] == node.mzxid:
            return cached[2]
        value = self._decode(path, node, key)
        self._decoded[path] = (node, node.mzxid, value)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        data = GARBLED if value is None or isinstance(value, MalformedZnode) else self._encode(value)
        self._zookeeper.put(self._path_of(key), data)
        if isinstance(value, LeadershipState):
            self._zookeeper.server.nodes[self._path_of(key)].version = value.partition_epoch

    def __delitem__(self, key: K) -> None:
        self._zookeeper.server.delete_all(self._path_of(key))


class Znodes:
    """The znodes of a cluster, which a test reads and changes by hand."""

    def __init__(self) -> None:
        self.server = SimZooKeeper()
        self.on_change: Callable[[], None] = lambda: None
        """Called after a change by hand."""
        self._hand = self.server.open_session()
        self._sessions: dict[BrokerId, int] = {}
        for path in paths.PERSISTENT:
            self._make(path)
        self.registrations: View[BrokerId, BrokerRegistration] = View(
            self,
            lambda: [BrokerId(int(name)) for name in self.server.children(paths.BROKER_IDS)],
            paths.broker_id,
            lambda path, node, broker: znodes.decode_broker(path, node.data, broker, node.czxid),
            znodes.encode_broker,
        )
        self.assignments: View[str, Any] = View(
            self, lambda: self.server.children(paths.TOPICS), paths.topic, _decode_topic, znodes.encode_topic
        )
        self.states: View[TopicPartition, LeadershipState] = View(
            self,
            self._partitions,
            paths.leadership,
            lambda path, node, tp: znodes.decode_leadership(path, node.data, node.version),
            znodes.encode_leadership,
        )
        self.configs: View[str, StoredConfig] = View(
            self,
            lambda: self.server.children(paths.TOPIC_CONFIGS),
            paths.topic_config,
            lambda path, node, name: StoredConfig(
                znodes.decode_config(path, node.data), node.mzxid, node.version
            ),
            lambda config: znodes.encode_config(config.values),
        )
        self.notifications: View[str, list[TopicPartition]] = View(
            self,
            lambda: self.server.children(paths.ISR_CHANGES),
            lambda name: f"{paths.ISR_CHANGES}/{name}",
            lambda path, node, name: znodes.decode_partitions(path, node.data),
            znodes.encode_partitions,
        )
        self.failures: View[str, BrokerId | None] = View(
            self,
            lambda: self.server.children(paths.LOG_DIR_EVENTS),
            lambda name: f"{paths.LOG_DIR_EVENTS}/{name}",
            lambda path, node, name: znodes.decode_log_dir_event(path, node.data),
            lambda broker: znodes.encode_log_dir_event(broker or BrokerId(0)),
        )

    def open_store(
        self, threads: NoThreads | None = None, listener: Callable[[SessionEvent], None] | None = None
    ) -> ClusterStore:
        """The store of a process, connected."""
        threads = threads or NoThreads()

        def make_client(**arguments: Any) -> Any:
            threads.client = SimKazooClient(self.server, lambda: Door.OPEN, **arguments)
            return threads.client

        def fail(error: BaseException) -> None:
            raise error

        store = ClusterStore(
            "simulated",
            session_timeout_ms=6_000,
            connection_timeout_ms=6_000,
            on_session_event=listener,
            on_fatal=fail,
            make_client=make_client,
            threads=threads,
        )
        store.start()
        return store

    def put(self, path: str, data: bytes) -> None:
        """Write a node, with the nodes above it if they are missing."""
        if path in self.server.nodes:
            self.server.write(self._hand, Operation(Kind.SET, path, data))
        else:
            self._make(parent_of(path))
            self.server.write(self._hand, Operation(Kind.CREATE, path, data))
        self.on_change()

    def _make(self, path: str) -> None:
        if path not in self.server.nodes:
            self._make(parent_of(path))
            self.server.write(self._hand, Operation(Kind.CREATE, path))

    def register(self, *brokers: int) -> None:
        for broker in map(BrokerId, brokers):
            if broker in self.registrations:
                self.unregister(broker)
            self.registrations[broker] = BrokerRegistration(
                broker_id=broker,
                listeners=(AdvertisedListener("PLAINTEXT", "localhost", 9000 + broker),),
                timestamp_ms=0,
            )

    def unregister(self, *brokers: int) -> None:
        for broker in brokers:
            del self.registrations[BrokerId(broker)]

    def add_topic(self, name: str, replicas: Mapping[int, Iterable[int]], **config: str) -> None:
        self.configure(name, **config)
        self.assignments[name] = TopicAssignment(
            topic_id=TopicId(uuid.uuid4()),
            partitions={index: assigned(*brokers) for index, brokers in replicas.items()},
        )

    def configure(self, name: str, **config: str) -> None:
        self.configs[name] = StoredConfig({key.replace("_", "."): value for key, value in config.items()})

    def grow(self, name: str, replicas: Mapping[int, Iterable[int]]) -> None:
        former = self.assignments[name]
        more = {index: assigned(*brokers) for index, brokers in replicas.items()}
        self.assignments[name] = replace(former, partitions={**former.partitions, **more})

    def touch(self, name: str) -> None:
        """Write a topic's node without a change."""
        self.put(paths.topic(name), self.server.node(paths.topic(name)).data)

    def shrink_isr(self, tp: TopicPartition, *isr: int) -> None:
        """Change an ISR, as the leader does."""
        state = self.states[tp]
        self.states[tp] = replace(
            state, isr=tuple(map(BrokerId, isr)), partition_epoch=state.partition_epoch + 1
        )

    @property
    def deletions(self) -> list[str]:
        """The requested deletions of topics."""
        return self.server.children(paths.DELETE_TOPICS)

    @deletions.setter
    def deletions(self, topics: Iterable[str]) -> None:
        for topic in topics:
            if topic not in self.server.children(paths.DELETE_TOPICS):
                self.put(paths.delete_topic(topic), b"")

    @property
    def epoch(self) -> ControllerEpoch:
        return ControllerEpoch(json.loads(self.server.data(paths.CONTROLLER_EPOCH) or b"0"))

    @epoch.setter
    def epoch(self, epoch: ControllerEpoch) -> None:
        self.put(paths.CONTROLLER_EPOCH, znodes.encode_epoch(epoch))

    def take_over(self, broker: int) -> None:
        """Another process becomes controller, without a new epoch."""
        self.remove_controller()
        self.put(paths.CONTROLLER, znodes.encode_controller(BrokerId(broker), 0))

    def remove_controller(self) -> None:
        if paths.CONTROLLER in self.server.nodes:
            self.server.delete_all(paths.CONTROLLER)

    def become_controller(self, store: ClusterStore | None = None) -> Any:
        """Elect a controller in place of any other; returns its writer."""
        self.remove_controller()
        return (store or self.open_store()).election.run(BrokerId(0))

    def _partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, int(index))
            for topic in self.server.children(paths.TOPICS)
            for index in self.server.children(paths.topic_partitions(topic))
        ]


def _decode_topic(path: str, node: Node, name: str) -> TopicAssignment | MalformedZnode:
    try:
        return znodes.decode_topic(path, node.data, node.version)
    except MalformedZnode as error:
        return error


class FakeChannels:
    """Records the batches for each broker."""

    def __init__(self, epoch: ControllerEpoch) -> None:
        self.epoch = epoch
        self.connected: dict[BrokerId, tuple[BrokerEpoch, Endpoint]] = {}
        self.suspected: set[BrokerId] = set()
        self.batches: list[tuple[BrokerId, BrokerBatch]] = []
        self.is_stopped = False

    def add_broker(
        self, broker: BrokerId, broker_epoch: BrokerEpoch, endpoint: Endpoint, *, is_suspected: bool
    ) -> None:
        self.connected[broker] = (broker_epoch, endpoint)
        self.suspected = self.suspected | {broker} if is_suspected else self.suspected - {broker}

    def remove_broker(self, broker: BrokerId) -> None:
        self.connected.pop(broker, None)

    def send(self, broker: BrokerId, batch: BrokerBatch) -> None:
        assert broker in self.connected, f"broker {broker} gets a batch although it is not connected"
        self.batches.append((broker, batch))

    def when_answered(self, done: Callable[[], None]) -> None:
        done()

    def stop(self) -> None:
        self.is_stopped = True

    def requests(self, broker: int) -> list[Any]:
        return [
            request
            for to, batch in self.batches
            if to == broker
            for request in batch.requests(BrokerId(0), self.epoch, self.connected[to][0])
        ]

    def leadership(self, broker: int) -> dict[TopicPartition, Any]:
        """The last LeaderAndIsr of each partition that was sent to the broker."""
        return {
            TopicPartition(topic.topic_name, state.partition_index): state
            for request in self.requests(broker)
            if isinstance(request, LeaderAndIsrRequest)
            for topic in request.topic_states
            for state in topic.partition_states
        }

    def metadata(self, broker: int) -> dict[TopicPartition, Any]:
        """The last UpdateMetadata of each partition that was sent to the broker."""
        return {
            TopicPartition(topic.topic_name, state.partition_index): state
            for request in self.requests(broker)
            if isinstance(request, UpdateMetadataRequest)
            for topic in request.topic_states
            for state in topic.partition_states
        }

    def full_requests(self, broker: int) -> list[LeaderAndIsrRequest]:
        return [r for r in self.requests(broker) if isinstance(r, LeaderAndIsrRequest) and r.is_full]

    def stops(self, broker: int) -> list[StopReplicaRequest]:
        return [request for request in self.requests(broker) if isinstance(request, StopReplicaRequest)]

    def forget(self) -> None:
        self.batches.clear()


class Cluster:
    """A controller term over simulated znodes; `elect` begins another."""

    def __init__(self, *brokers: int, **settings: Any) -> None:
        self.zookeeper = Znodes()
        self.zookeeper.on_change = self.run_watches
        self.settings = controller_settings(**settings)
        self._client: SimKazooClient | None = None
        self._put: list[Event] = []
        self.elections = ElectionFigures()
        self.zookeeper.register(*brokers)

    def elect(self) -> ControllerTerm:
        self.run_watches()
        self._put.clear()
        threads = NoThreads()
        self.store = self.zookeeper.open_store(threads)
        self._client = threads.client
        self.writer = self.zookeeper.become_controller(self.store)
        self.channels = FakeChannels(self.writer.epoch)
        self.term = ControllerTerm(
            self.store,
            self.writer,
            cast(Any, self.channels),
            self.settings,
            self._put.append,
            figures=self.elections,
        )
        on_controller_failover(self.term)
        return self.term

    @property
    def put(self) -> list[Event]:
        """The events that the term and its watches have queued."""
        self.run_watches()
        return self._put

    @property
    def states(self) -> View[TopicPartition, LeadershipState]:
        """The partition states in ZooKeeper."""
        return self.zookeeper.states

    def handle(self, event: Event) -> None:
        self.term.handle(event)

    def ask(self, act: Callable[[ControllerTerm], None]) -> None:
        """Act for a caller, as an event does."""
        self.handle(PreemptableEvent("asked", act, lambda *_: None))

    def event(self, kind: Callable[..., Event], broker: int, *arguments: object) -> Event:
        """An event of the link to the present registration of a broker."""
        return kind(self.writer.epoch, BrokerId(broker), self.epoch_of(broker), *arguments)

    def die(self, *brokers: int) -> None:
        self.zookeeper.unregister(*brokers)
        self.handle(Signal.BROKER_CHANGE)

    def restart(self, broker: int) -> None:
        """Register, also in place of an earlier registration."""
        self.zookeeper.register(broker)
        self.handle(Signal.BROKER_CHANGE)

    def deliver_watches(self) -> None:
        """Handle all events that the term and its watches have queued."""
        while events := self.put:
            event = events.pop(0)
            self.handle(event)

    def rejoin(self, tp: TopicPartition, *isr: int) -> None:
        """A leader adds members to its ISR, and notifies the controller."""
        former, members = self.states[tp], tuple(map(BrokerId, isr))
        epochs = {**former.broker_epochs, **{broker: self.epoch_of(broker) for broker in members}}
        self.states[tp] = replace(
            former, isr=members, broker_epochs=epochs, partition_epoch=former.partition_epoch + 1
        )
        self.zookeeper.notifications["isr_change_0000000001"] = [tp]
        self.deliver_watches()

    def run_watches(self) -> None:
        while self._client is not None and self._client.run_callback():
            continue

    def epoch_of(self, broker: int) -> BrokerEpoch:
        return self.zookeeper.registrations[BrokerId(broker)].broker_epoch


def make_cluster(**settings: Any) -> Cluster:
    """A cluster of three brokers with the partitions `T0` and `T1` on all of them."""
    cluster = Cluster(1, 2, 3, **settings)
    cluster.zookeeper.add_topic("t", {0: (1, 2, 3), 1: (2, 3, 1)}, min_insync_replicas="2")
    cluster.elect()
    return cluster


def state(
    leader: int, isr: Iterable[int], *, epoch: int = 0, version: int = 0, controller_epoch: int = 1
) -> LeadershipState:
    return LeadershipState(
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        isr=tuple(map(BrokerId, isr)),
        controller_epoch=ControllerEpoch(controller_epoch),
        partition_epoch=version,
    )


def roles(*partitions: TopicPartition) -> LeaderAndIsrRequest:
    """A request that names a role in each partition."""
    topics = [
        LeaderAndIsrTopic(
            topic_name=tp.topic, topic_id=NO_TOPIC_ID, partition_states=[leader_and_isr(tp.partition)]
        )
        for tp in partitions
    ]
    return LeaderAndIsrRequest(
        controller_id=0, controller_epoch=1, broker_epoch=1, topic_states=topics, live_brokers=[]
    )


def leader_and_isr(partition: int, *, epoch: int = 0, is_new: bool = False) -> LeaderAndIsrPartition:
    """A partition that broker 1 leads, as its only replica."""
    return LeaderAndIsrPartition(
        partition_index=partition,
        controller_epoch=1,
        leader=1,
        leader_epoch=epoch,
        isr=[1],
        partition_epoch=epoch,
        replicas=[1],
        is_new=is_new,
    )


def batch_of(partition: int, **arguments: Any) -> BrokerBatch:
    """A LeaderAndIsr for a partition of topic t, and an UpdateMetadata."""
    tp = TopicPartition("t", partition)
    return BrokerBatch(leader_and_isr={tp: leader_and_isr(partition)}, has_metadata=True, **arguments)


class CountingDetector(FailureDetector):
    """Counts the connections and the failed attempts."""

    attempts = 0
    connections = 0

    def connected(self, broker: BrokerId, broker_epoch: BrokerEpoch, address: Address | None = None) -> None:
        self.connections += address is not None
        super().connected(broker, broker_epoch, address)

    def attempted(
        self, broker: BrokerId, broker_epoch: BrokerEpoch, result: ConnectResult, began_s: float | None = None
    ) -> bool:
        self.attempts += 1
        return super().attempted(broker, broker_epoch, result, began_s)
