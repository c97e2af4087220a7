"""A cluster in the test's own event loop, for the tests of clients: real handlers, replicas, logs and groups.

    async with FakeCluster(2) as cluster:                       # brokers 1 and 2
        cluster.add_topic("t", 2, leaders=[1, 2])
        cluster.partition("t", 0).append(build_batch(…))
        cluster.move_leader("t", 0, 2)                          # in a new leader epoch
        gate = cluster.brokers[1].gate(ApiKey.FETCH)            # fetches block until gate.set()
        cluster.brokers[1].script(ApiKey.PRODUCE, answer)       # answers the next request, or aborts
        cluster.intercept[ApiKey.FETCH] = answer_or_none        # sees every request of a kind
        cluster.brokers[1].drop_connections()                   # or: await cluster.brokers[1].stop()
        cluster.requests(ApiKey.FETCH)                          # all requests received so far
        Coordinator(cluster).kick("g", member_id)               # looks at groups and disturbs them

Each broker is a `Serving` with a socket. Only the controller and replication are fake: all brokers share
one set of logs, so a new leader has every record at once, and the test decides who leads. The answers of one
connection leave in order. The brokers' clock stops while the loop is held up, because the clients that must
send heartbeats run on the same loop.
"""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from barnabas.broker.handlers.dispatcher import lane_of
from barnabas.broker.log.appending import ProducedBatches
from barnabas.broker.log.producer_state import AppendOrigin
from barnabas.broker.network.request import Buffers, Peer, Request
from barnabas.broker.replication.partition import Partition
from barnabas.protocol import codec_kafka, codec_msgpack
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.frames import BufferPool, Frame, FrameReceiver
from barnabas.protocol.ids import NO_BROKER_EPOCH, BrokerId, Offset, TopicId, TopicPartition
from barnabas.protocol.messages.api_versions import ApiVersionsResponse
from barnabas.protocol.messages.inter_broker import (
    LEADER_DURING_DELETE,
    BrokerListener,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from barnabas.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    DeletableTopicResult,
    DeleteTopicState,
)
from barnabas.protocol.record_batch import iter_batches
from barnabas.protocol.records import decode_records
from barnabas.protocol.schema import ApiKey, Buffer
from barnabas.protocol.topic_names import OFFSETS_TOPIC
from barnabas.zookeeper.configs import Entity
from tests.support.building import state
from tests.support.gaps import follow
from tests.support.grouping import run_once
from tests.support.memory_folder import MEMORY
from tests.support.serving import EXTERNAL, Serving, open_logs, run_rest

Answer = Callable[[Any], Any]

_TICK_S = 0.005
_LONGEST_STEP_MS = 20.0
_EVERYTHING = 1 << 30
_SETTINGS = {
    "fetch_max_bytes": _EVERYTHING,
    "group_min_session_timeout_ms": 1,
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 1,
}


class FakePartition:
    """One partition: its log, which all brokers share, and the replica that leads."""

    def __init__(self, cluster: FakeCluster, tp: TopicPartition, leader: int) -> None:
        self.tp = tp
        self.leader = leader
        self.leader_epoch = 0
        self.isr = [leader]
        self._cluster = cluster

    @property
    def replica(self) -> Partition:
        return self._cluster.brokers[self.leader].replicas.partition(self.tp)

    @property
    def log(self) -> Any:
        return self._cluster.logs.get(self.tp)

    @property
    def log_end_offset(self) -> int:
        offset: int = self.log.log_end_offset
        return offset

    @property
    def batches(self) -> list[bytes]:
        log = self.log
        start, end = log.log_start_offset, log.log_end_offset
        batches: list[bytes] = []
        while start < end:
            view = log.read(start, _EVERYTHING, upper_bound_offset=end, min_one_batch=True).records
            for position, header in iter_batches(view):
                batches.append(bytes(view[position : position + header.size_bytes]))
                start = header.next_offset
        return batches

    def values(self) -> list[bytes | None]:
        return [record.value for batch in self.batches for record in decode_records(batch)]

    def append(self, records: Buffer) -> int:
        """Append batches as they are, and return the first base offset."""
        view = memoryview(bytearray(records))
        appended = self.replica.append_as_leader(
            ProducedBatches(view, list(iter_batches(view))),
            require_all=False,
            now_ms=0,
            wall_clock_ms=0,
            origin=AppendOrigin.COORDINATOR,
        )
        self.wake_consumers()
        return appended.base_offset

    def append_compacted(self, batches: Sequence[Buffer]) -> None:
        """Append batches with their own offsets, after gaps, as a compaction leaves them in the log."""
        follow(self.log, batches)
        self.replica.advance_high_watermark(0)
        self.wake_consumers()

    def wake_consumers(self) -> None:
        replicas = self._cluster.brokers[self.leader].replicas
        replicas._high_watermark_moved(self.tp)
        replicas.wake_followers()

    def follow(self, follower: int, offset: int) -> None:
        """A follower in the ISR has the records before an offset; the high watermark may rise."""
        self.replica.follower_fetched(
            BrokerId(follower),
            current_leader_epoch=-1,
            broker_epoch=NO_BROKER_EPOCH,
            registered_broker_epoch=None,
            fetch_offset=Offset(offset),
            log_start_offset=self.log.log_start_offset,
            leader_log_end_offset=Offset(self.log_end_offset),
            now_ms=0,
        )
        self._cluster.brokers[self.leader].replicas.deletions.check(self.tp)
        self.wake_consumers()

    def delete_records(self, before: int) -> None:
        self.replica.delete_records(before)

    def truncate(self, end_offset: int) -> None:
        """Lose the records from an offset on, as an unclean election does; the leader must change next."""
        self.log.truncate_to(end_offset)
        # Each broker truncates the log that they share.
        for broker in self._cluster.brokers.values():
            replica = broker.replicas.partition(self.tp)
            replica._set_high_watermark(min(replica.high_watermark, Offset(self.log_end_offset)))

    def damage(self, batch: int) -> None:
        """Change the last byte of a batch on disk."""
        size_before = sum(map(len, self.batches[: batch + 1]))
        with open(self.log.segments[-1].file.path, "r+b") as file:
            file.seek(size_before - 1)
            (last,) = file.read(1)
            file.seek(size_before - 1)
            file.write(bytes([last ^ 0xFF]))


class FakeCluster:
    """Brokers, topics and faults; see the module."""

    def __init__(self, brokers: int = 1) -> None:
        self._cleanup = ExitStack()
        temporary = tempfile.TemporaryDirectory(prefix="barnabas-", dir=MEMORY)
        folder = Path(self._cleanup.enter_context(temporary))
        self.logs = open_logs(folder / "data")
        self._cleanup.callback(self.logs.close, 0)
        self.now_ms = time.monotonic() * 1000
        self.topics: dict[str, list[FakePartition]] = {}
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.configs: dict[Entity, Mapping[str, str]] = {}
        self.controller_id = 1
        self.coordinator_id = 1
        """The broker that will coordinate the groups; see `Coordinator.move`."""
        self.hidden_nodes: set[int] = set()
        self.intercept: dict[int, Callable[[FakeBroker, Any], Any]] = {}
        """May answer requests in place of the brokers, or see them and return None; plain or async."""
        self.brokers: dict[int, FakeBroker] = {}
        for node_id in range(1, brokers + 1):
            self.brokers[node_id] = FakeBroker(self, node_id, folder)
        self._ticking: asyncio.Task[None] | None = None

    # Topics, as the controller manages them

    @property
    def creates_topics(self) -> bool:
        """Whether metadata requests create topics, as with `auto.create.topics.enable`."""
        return self.brokers[1].serving.auto_topics.is_enabled

    @creates_topics.setter
    def creates_topics(self, is_enabled: bool) -> None:
        for broker in self.brokers.values():
            broker.serving.auto_topics.is_enabled = is_enabled

    def add_topic(self, name: str, partitions: int = 1, leaders: list[int] | None = None) -> None:
        """Create a topic, in place of an earlier one with its name."""
        if name in self.topics:
            self.delete_topic(name)
        self.topics[name] = []
        self.topic_ids[name] = uuid.uuid4()
        self.grow_topic(name, partitions if leaders is None else len(leaders), leaders)

    def grow_topic(self, name: str, count: int, leaders: list[int] | None = None) -> None:
        nodes = list(self.brokers)
        for index in range(len(self.topics[name]), count):
            leader = nodes[index % len(nodes)] if leaders is None else leaders[index]
            partition = FakePartition(self, TopicPartition(name, index), leader)
            self.topics[name].append(partition)
            self._give_roles(partition)
        self._publish(name)

    def delete_topic(self, name: str) -> None:
        gone = self.topics.pop(name)
        topic_id = self.topic_ids[name]
        for broker in self.brokers.values():
            for partition in gone:
                broker.serving.managed.stop_replica(
                    partition.leader_epoch + 1, delete=True, name=partition.tp, topic_id=topic_id
                )
            self._update_metadata(
                broker, name, [_metadata_of(partition, [], LEADER_DURING_DELETE) for partition in gone]
            )

    def partition(self, topic: str, partition: int = 0) -> FakePartition:
        return self.topics[topic][partition]

    def move_leader(self, topic: str, partition: int, leader: int) -> None:
        """Elect a leader, or none (-1), in a new leader epoch."""
        moved = self.topics[topic][partition]
        moved.leader, moved.isr = leader, [leader]
        moved.leader_epoch += 1
        self._give_roles(moved)
        self._publish(topic)

    def set_isr(self, topic: str, partition: int, isr: list[int]) -> None:
        changed = self.topics[topic][partition]
        changed.isr = isr
        changed.leader_epoch += 1
        self._give_roles(changed)
        self._publish(topic)

    def configure_logs(self, topic: str, **changes: Any) -> None:
        """Change settings of a topic's logs, such as ``max_message_bytes``."""
        for partition in self.topics[topic]:
            partition.log.config = replace(partition.log.config, **changes)

    def hide(self, node_id: int) -> None:
        """Have the metadata lack a broker, as after the end of its session."""
        self.hidden_nodes.add(node_id)
        self._publish()

    def set_controller(self, node_id: int) -> None:
        self.controller_id = node_id
        self._publish()

    def _give_roles(self, partition: FakePartition) -> None:
        tp = partition.tp
        role = state(partition.leader, partition.leader_epoch, partition.isr, list(self.brokers))
        role.partition_index = tp.partition
        for broker in self.brokers.values():
            codes = broker.serving.managed.tell(
                role, topic=tp.topic, topic_id=self.topic_ids[tp.topic], live=list(self.brokers)
            )
            assert not any(codes), codes
            broker.settle()

    def _publish(self, *names: str) -> None:
        for broker in self.brokers.values():
            for name in names:
                states = [
                    _metadata_of(partition, list(self.brokers), partition.leader)
                    for partition in self.topics[name]
                ]
                self._update_metadata(broker, name, states)
            if not names:
                self._update_metadata(broker)

    def _update_metadata(
        self, broker: FakeBroker, name: str = "", states: Sequence[UpdateMetadataPartition] = ()
    ) -> None:
        topic_states = []
        if states:
            topic_states.append(
                UpdateMetadataTopic(
                    topic_name=name, topic_id=self.topic_ids[name], partition_states=list(states)
                )
            )
        request = UpdateMetadataRequest(
            controller_id=self.controller_id,
            controller_epoch=1,
            broker_epoch=0,
            topic_states=topic_states,
            live_brokers=[
                UpdateMetadataBroker(
                    broker_id=node_id,
                    broker_epoch=1,
                    endpoints=[BrokerListener(listener=EXTERNAL, host="127.0.0.1", port=node.port)],
                )
                for node_id, node in self.brokers.items()
                if node_id not in self.hidden_nodes
            ],
            # A controller's first one is; without it a broker keeps requests for metadata waiting.
            is_full=not broker.serving.managed.metadata.current.updates,
        )
        broker.serving.controller.is_active = broker.node_id == self.controller_id
        broker.serving.managed.metadata.update(request)
        broker.settle()

    # The cluster as a whole

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    def requests(self, api: ApiKey) -> list[Any]:
        return [body for broker in self.brokers.values() for key, body in broker.received if key == api]

    async def __aenter__(self) -> FakeCluster:
        for broker in self.brokers.values():
            await broker.start()
        self._publish()
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.wait((self._ticking,))
        for broker in self.brokers.values():
            await broker.stop()
        self._cleanup.close()

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        before = loop.time()
        while True:
            await asyncio.sleep(_TICK_S)
            after = loop.time()
            self.now_ms += min((after - before) * 1000, _LONGEST_STEP_MS)
            before = after
            for broker in self.brokers.values():
                broker.serving.managed.reaper.expire_due(self.now_ms)
                broker.settle()


def _metadata_of(partition: FakePartition, replicas: list[int], leader: int) -> UpdateMetadataPartition:
    return UpdateMetadataPartition(
        partition_index=partition.tp.partition,
        controller_epoch=1,
        leader=leader,
        leader_epoch=partition.leader_epoch,
        isr=replicas,
        partition_epoch=0,
        replicas=replicas,
    )


class _FakeTopicAdmin:
    """The controller's `TopicAdmin`, for topics of a fake cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def create_topics(
        self, topics: Sequence[CreatableTopic], *, validate_only: bool = False, charge: Any = None
    ) -> list[CreatableTopicResult]:
        cluster = self._cluster
        results = []
        for topic in topics:
            result = CreatableTopicResult(name=topic.name, error_code=0)
            if topic.name in cluster.topics:
                result.error_code = ErrorCode.TOPIC_ALREADY_EXISTS
                result.error_message = f"topic {topic.name!r} exists"
            else:
                result.num_partitions = max(1, topic.num_partitions)
                result.replication_factor = topic.replication_factor
                if not validate_only:
                    cluster.add_topic(topic.name, result.num_partitions)
                    result.topic_id = cluster.topic_ids[topic.name]
            results.append(result)
        return results

    def create_partitions(
        self, topics: Sequence[CreatePartitionsTopic], *, validate_only: bool = False, charge: Any = None
    ) -> list[tuple[CreatePartitionsTopicResult, TopicId, int]]:
        cluster = self._cluster
        results = []
        for topic in topics:
            result = CreatePartitionsTopicResult(name=topic.name, error_code=0)
            present = len(cluster.topics.get(topic.name, ()))
            if not present:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif present >= topic.count:
                result.error_code = ErrorCode.INVALID_PARTITIONS
                result.error_message = f"topic {topic.name!r} has {present} partitions already"
            elif not validate_only:
                cluster.grow_topic(topic.name, topic.count)
            results.append(
                (result, TopicId(cluster.topic_ids.get(topic.name, uuid.UUID(int=0))), topic.count)
            )
        return results

    def delete_topics(
        self, topics: Sequence[DeleteTopicState], *, charge: Any = None
    ) -> list[DeletableTopicResult]:
        results = []
        for topic in topics:
            name = topic.name or ""
            result = DeletableTopicResult(name=name, error_code=0)
            if name in self._cluster.topics:
                result.topic_id = self._cluster.topic_ids[name]
                self._cluster.delete_topic(name)
            else:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(result)
        return results


class FakeBroker:
    """One broker. ``scripted[api]`` holds answers for the next requests of that kind, before the real ones.

    A scripted answer is a function of the request that returns a response, or raises ConnectionResetError to
    have the connection aborted. ``gates[api]`` is an event that must be set before such requests are handled.
    """

    def __init__(self, cluster: FakeCluster, node_id: int, folder: Path) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.port = 0
        self.received: list[tuple[int, Any]] = []
        self.is_kafka = False
        """It closes native connections, as brokers of other software do, and says nothing of our protocol."""
        self.is_silent = False
        """With ``is_kafka``, it ignores native requests, and closes nothing."""
        self.versions: set[tuple[int, int]] = set()
        """The API and version of all requests of Kafka's protocol."""
        self.scripted: dict[int, list[Answer]] = {}
        self.gates: dict[int, asyncio.Event] = {}
        self.connections: set[_Connection] = set()
        self.connections_made = 0
        self.serving = Serving(
            folder / "data",
            lambda: cluster.now_ms,
            broker_id=BrokerId(node_id),
            logs=cluster.logs,
            topics=_FakeTopicAdmin(cluster),
            auto_create=self._auto_create,
            **cast(dict[str, Any], _SETTINGS),
        )
        self.serving.auto_topics.is_enabled = False
        self.serving.configs.stored = cluster.configs
        self.replicas = self.serving.managed.manager
        self._server: asyncio.Server | None = None

    def _auto_create(self, names: Sequence[str]) -> dict[str, ErrorCode]:
        for name in names:
            if name == OFFSETS_TOPIC:
                self.cluster.add_topic(name, leaders=[self.cluster.coordinator_id])
            else:
                self.cluster.add_topic(name)
        return {}

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self.drop_connections()
            await self._server.wait_closed()
            self._server = None

    def drop_connections(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def script(self, api: ApiKey, *answers: Answer) -> None:
        self.scripted.setdefault(api, []).extend(answers)

    def gate(self, api: ApiKey) -> asyncio.Event:
        self.gates[api] = asyncio.Event()
        return self.gates[api]

    def call(self, body: Any) -> Any:
        """Have the real handler serve a request, which it must answer at once."""
        answer = self.serving.call(body)
        self.settle()
        return answer

    def settle(self) -> None:
        """Do the work that a broker does on other threads."""
        while run_once(self.serving.groups):
            pass
        self.replicas.wake_followers()

    async def intercepted(self, api: int, body: Any) -> Any:
        """The answer of a script or an interceptor; None if the real handler has to answer."""
        self.received.append((api, body))
        if (gate := self.gates.get(api)) is not None:
            await gate.wait()
        if answers := self.scripted.get(api):
            return answers.pop(0)(body)
        if (intercept := self.cluster.intercept.get(api)) is not None:
            answer = intercept(self, body)
            return await answer if inspect.isawaitable(answer) else answer
        if self.is_kafka and api == ApiKey.API_VERSIONS:
            answer = self.call(body)
            keys = [version for version in answer.api_keys if version.max_version >= 0]
            return ApiVersionsResponse(error_code=0, api_keys=keys)
        return None


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._receiver = FrameReceiver(BufferPool())
        self._transport: Any = None
        self._queue: asyncio.Queue[bytearray] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._broker.connections.add(self)
        self._broker.connections_made += 1
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self._receiver.buffer_updated(nbytes):
            self._queue.put_nowait(bytearray(frame.view))
            frame.release()

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker.connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        self._transport.abort()

    async def _serve(self) -> None:
        broker = self._broker
        while True:
            payload = await self._queue.get()
            view = memoryview(bytes(payload))
            is_native = codec_msgpack.is_native(view)
            if is_native and broker.is_kafka:
                if broker.is_silent:
                    continue
                self.abort()
                return
            head = (codec_msgpack if is_native else codec_kafka).decode_request(view)
            if head.api_version is not None:
                broker.versions.add((head.api_key, head.api_version))
            try:
                response = await broker.intercepted(head.api_key, head.body)
            except ConnectionResetError:
                self.abort()
                return
            if response is None:
                buffers = await self._handled(payload)
            elif head.api_key == ApiKey.PRODUCE and head.body.acks == 0:
                buffers = ()
            elif head.api_version is not None:
                buffers = codec_kafka.encode_response(
                    head.api_key, head.api_version, head.correlation_id, response
                )
            else:
                buffers = codec_msgpack.encode_response(head.correlation_id, response)
            self._transport.writelines(buffers)

    async def _handled(self, payload: bytearray) -> Buffers:
        """The answer of the real handler."""
        answered: asyncio.Future[Buffers] = asyncio.get_running_loop().create_future()

        def answer(request: Request, buffers: Buffers, close_reason: str) -> None:
            assert not close_reason, close_reason
            if not answered.done():
                answered.set_result([bytes(buffer) for buffer in buffers])

        def resume(request: Request) -> None:
            request.is_paused = False
            run_rest(request)

        frame = Frame(memoryview(payload))
        peer = Peer("client", "127.0.0.1", EXTERNAL, 0)
        request = Request(frame, peer, lane_of(frame.view), 0, answer, resume)
        broker = self._broker
        broker.serving.dispatch(request)
        run_rest(request)
        broker.settle()
        return await answered
