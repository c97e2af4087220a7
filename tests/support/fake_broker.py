"""A small cluster in this process that speaks the native protocol, for the tests of the clients.

    async with FakeCluster(2) as cluster:                       # brokers 1 and 2
        cluster.add_topic("t", 2, leaders=[1, 2])
        cluster.partition("t", 0).append(build_batch(…))        # then: await cluster.notify()
        cluster.move_leader("t", 0, 2)                          # in a new leader epoch
        gate = cluster.brokers[1].gate(ApiKey.FETCH)            # fetches block until gate.set()
        cluster.brokers[1].script(ApiKey.PRODUCE, answer)       # answers the next request, or aborts
        cluster.brokers[1].drop_connections()                   # or: await cluster.brokers[1].stop()
        cluster.requests(ApiKey.FETCH)                          # all requests received so far
        FakeCoordinator(cluster)                                # the cluster has groups

It keeps records in memory and follows the rules that a client can observe: leaders, epochs, offsets, high
watermarks, sequence numbers. The answers of one connection leave in order.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from barnabas.protocol import codec_msgpack
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.frames import BufferPool, FrameReceiver
from barnabas.protocol.messages.configs import (
    AlterConfigsResourceResponse,
    ConfigResourceType,
    ConfigSource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsResponse,
)
from barnabas.protocol.messages.fetch import (
    FetchPartition,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
)
from barnabas.protocol.messages.leader_epoch import (
    LeaderEpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from barnabas.protocol.messages.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from barnabas.protocol.messages.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)
from barnabas.protocol.messages.produce import (
    InitProducerIdResponse,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from barnabas.protocol.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsResponse,
)
from barnabas.protocol.record_batch import (
    BatchHeader,
    check_produced_batch,
    iter_batches,
    parse_header,
    stamp,
)
from barnabas.protocol.records import decode_records
from barnabas.protocol.schema import ApiKey

Answer = Callable[[Any], Any]


@dataclass
class FakePartition:
    """The log of a partition as a list of batches; ``high_watermark`` None is its end."""

    leader: int
    leader_epoch: int = 0
    log_start_offset: int = 0
    batches: list[bytes] = field(default_factory=list)
    log_end_offset: int = 0
    high_watermark: int | None = None

    @property
    def visible_end(self) -> int:
        return self.log_end_offset if self.high_watermark is None else self.high_watermark

    def append(self, records: memoryview) -> int:
        """Append a batch and return its base offset, the first one for a batch that was sent before."""
        data = bytearray(records)
        header = check_produced_batch(data)
        if header.producer_id >= 0 and (known := self._known(header)) is not None:
            return known
        base = self.log_end_offset
        stamp(data, 0, base, self.leader_epoch)
        self.batches.append(bytes(data))
        self.log_end_offset = base + header.record_count
        return base

    def _known(self, header: BatchHeader) -> int | None:
        """Kafka's rules for sequence numbers. Raises OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH."""
        written = [parse_header(batch) for batch in self.batches]
        mine = [found for found in written if found.producer_id == header.producer_id]
        if not mine:
            return None
        last = mine[-1]
        if header.producer_epoch < last.producer_epoch:
            raise api_error(ErrorCode.INVALID_PRODUCER_EPOCH)
        if header.producer_epoch > last.producer_epoch:
            expected = 0
        else:
            for found in mine[-5:]:
                same = (found.base_sequence, found.record_count, found.producer_epoch)
                if same == (header.base_sequence, header.record_count, header.producer_epoch):
                    return found.base_offset
            expected = (last.base_sequence + last.record_count) % (1 << 31)
        if header.base_sequence != expected:
            raise api_error(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        return None

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """The largest epoch not above this one and where it ends; -1, -1 without such an epoch."""
        headers = [parse_header(batch) for batch in self.batches]
        known = [
            header.partition_leader_epoch for header in headers if header.partition_leader_epoch <= epoch
        ]
        if epoch == self.leader_epoch:
            return epoch, self.log_end_offset
        if not known:
            return -1, -1
        later = [header.base_offset for header in headers if header.partition_leader_epoch > epoch]
        return max(known), min(later, default=self.log_end_offset)

    def truncate(self, end_offset: int) -> None:
        """Lose the batches from an offset on, as an unclean election does."""
        self.batches = [batch for batch in self.batches if parse_header(batch).base_offset < end_offset]
        self.log_end_offset = end_offset

    def values(self) -> list[bytes | None]:
        return [record.value for batch in self.batches for record in decode_records(batch)]


class FakeCluster:
    """Brokers, topics and faults; see the module."""

    def __init__(self, brokers: int = 1) -> None:
        self.brokers = {node_id: FakeBroker(self, node_id) for node_id in range(1, brokers + 1)}
        self.topics: dict[str, list[FakePartition]] = {}
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.controller_id = 1
        self.hidden_nodes: set[int] = set()
        self.creates_topics = False
        """Whether metadata requests create topics, as with `auto.create.topics.enable`."""
        self.max_batch_bytes = 1 << 30
        self.too_large = ErrorCode.MESSAGE_TOO_LARGE
        self.metadata_override: Answer | None = None
        self.changed = asyncio.Condition()
        self.producer_ids = 0
        self.first_epoch = 0
        self.more_handlers: dict[int, Callable[[FakeBroker, Any], Awaitable[Any]]] = {}
        """The handlers of other fakes, by api."""

    def add_topic(self, name: str, partitions: int = 1, leaders: list[int] | None = None) -> None:
        ids = list(self.brokers)
        leaders = leaders or [ids[index % len(ids)] for index in range(partitions)]
        self.topics[name] = [FakePartition(leader) for leader in leaders]
        self.topic_ids[name] = uuid.uuid4()

    def partition(self, topic: str, partition: int = 0) -> FakePartition:
        return self.topics[topic][partition]

    def move_leader(self, topic: str, partition: int, leader: int) -> None:
        moved = self.topics[topic][partition]
        moved.leader = leader
        moved.leader_epoch += 1

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    def requests(self, api: ApiKey) -> list[Any]:
        return [body for broker in self.brokers.values() for key, body in broker.received if key == api]

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def __aenter__(self) -> FakeCluster:
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            await broker.stop()

    def metadata(self, request: Any) -> MetadataResponse:
        if self.metadata_override is not None:
            return self.metadata_override(request)
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        if self.creates_topics and request.allow_auto_topic_creation:
            for name in names:
                if name not in self.topics:
                    self.add_topic(name)
        return MetadataResponse(
            brokers=[
                MetadataBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
                for node_id, broker in self.brokers.items()
                if node_id not in self.hidden_nodes
            ],
            cluster_id="fake",
            controller_id=self.controller_id,
            topics=[self._metadata_topic(name) for name in names],
        )

    def _metadata_topic(self, name: str) -> MetadataTopic:
        if name not in self.topics:
            return MetadataTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                name=name,
                topic_id=uuid.UUID(int=0),
                partitions=[],
            )
        return MetadataTopic(
            error_code=0,
            name=name,
            topic_id=self.topic_ids[name],
            partitions=[
                MetadataPartition(
                    error_code=0 if partition.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                    partition_index=index,
                    leader_id=partition.leader,
                    leader_epoch=partition.leader_epoch,
                    replica_nodes=list(self.brokers),
                    isr_nodes=list(self.brokers),
                )
                for index, partition in enumerate(self.topics[name])
            ],
        )


class FakeBroker:
    """One broker. ``scripted[api]`` holds answers for the next requests of that kind, before the usual ones.

    A scripted answer is a function of the request that returns a response, or raises ConnectionResetError to
    have the connection aborted. ``gates[api]`` is an event that must be set before such requests are handled.
    """

    def __init__(self, cluster: FakeCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.port = 0
        self.received: list[tuple[int, Any]] = []
        self.scripted: dict[int, list[Answer]] = {}
        self.gates: dict[int, asyncio.Event] = {}
        self.connections: set[_FakeConnection] = set()
        self.connections_made = 0
        self.on_produce: Callable[[FakeBroker, Any], Any] = lambda broker, body: None
        """May answer a produce request in place of the broker; see `scripted`."""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _FakeConnection(self), "127.0.0.1", self.port)
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

    async def handle(self, api: int, body: Any) -> Any:
        self.received.append((api, body))
        await self.cluster.notify()
        if (gate := self.gates.get(api)) is not None:
            await gate.wait()
        if answers := self.scripted.get(api):
            return answers.pop(0)(body)
        if (other := self.cluster.more_handlers.get(api)) is not None:
            return await other(self, body)
        handlers: dict[int, Callable[[Any], Awaitable[Any]]] = {
            ApiKey.METADATA: self._metadata,
            ApiKey.PRODUCE: self._produce,
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.FETCH: self._fetch,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
            ApiKey.CREATE_TOPICS: self._create_topics,
            ApiKey.DELETE_TOPICS: self._delete_topics,
            ApiKey.CREATE_PARTITIONS: self._create_partitions,
            ApiKey.DESCRIBE_CONFIGS: self._describe_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self._alter_configs,
        }
        return await handlers[api](body)

    async def _metadata(self, body: Any) -> Any:
        return self.cluster.metadata(body)

    async def _produce(self, body: Any) -> Any:
        if (answer := self.on_produce(self, body)) is not None:
            return answer
        topics = []
        for topic in body.topic_data:
            answers = []
            for data in topic.partition_data:
                code, base = self._append(topic.name, data.index, data.records)
                answers.append(PartitionProduceResponse(index=data.index, error_code=code, base_offset=base))
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=answers))
        await self.cluster.notify()
        return ProduceResponse(responses=topics)

    def _append(self, topic: str, index: int, records: Any) -> tuple[int, int]:
        if topic not in self.cluster.topics:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
        partition = self.cluster.partition(topic, index)
        if partition.leader != self.node_id:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if len(records) > self.cluster.max_batch_bytes:
            return self.cluster.too_large, -1
        try:
            return 0, partition.append(records)
        except ApiError as error:
            return error.code, -1

    async def _init_producer_id(self, body: Any) -> Any:
        self.cluster.producer_ids += 1
        return InitProducerIdResponse(
            error_code=0, producer_id=self.cluster.producer_ids, producer_epoch=self.cluster.first_epoch
        )

    async def _fetch(self, body: Any) -> Any:
        deadline = asyncio.get_running_loop().time() + body.max_wait_ms / 1000
        while True:
            topics, size, failed = [], 0, False
            for topic in body.topics:
                answers = []
                for asked in topic.partitions:
                    answer = self._read(topic.topic, asked)
                    size += len(answer.records or b"")
                    failed = failed or bool(answer.error_code)
                    answers.append(answer)
                topics.append(FetchTopicResponse(topic=topic.topic, partitions=answers))
            left = deadline - asyncio.get_running_loop().time()
            if size >= body.min_bytes or failed or left <= 0:
                return FetchResponse(responses=topics)
            try:
                async with asyncio.timeout(left), self.cluster.changed:
                    await self.cluster.changed.wait()
            except TimeoutError:
                continue

    def _read(self, topic: str, asked: FetchPartition) -> FetchPartitionResponse:
        if topic not in self.cluster.topics:
            return FetchPartitionResponse(
                partition_index=asked.partition, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, records=b""
            )
        partition = self.cluster.partition(topic, asked.partition)
        code, records = 0, b""
        if partition.leader != self.node_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif 0 <= asked.current_leader_epoch < partition.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        elif not partition.log_start_offset <= asked.fetch_offset <= partition.log_end_offset:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        else:
            for batch in partition.batches:
                _, header = next(iter_batches(batch))
                if header.next_offset <= asked.fetch_offset or header.next_offset > partition.visible_end:
                    continue
                if records and len(records) + len(batch) > asked.partition_max_bytes:
                    # As a real broker: the records that fit, with the last batch cut short.
                    records += batch[: asked.partition_max_bytes - len(records)]
                    break
                records += batch
        return FetchPartitionResponse(
            partition_index=asked.partition,
            error_code=code,
            high_watermark=partition.visible_end,
            last_stable_offset=partition.visible_end,
            log_start_offset=partition.log_start_offset,
            records=records,
        )

    async def _epoch_ends(self, body: Any) -> Any:
        topics = []
        for topic in body.topics:
            answers = [self._epoch_end(topic.topic, asked) for asked in topic.partitions]
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        return OffsetForLeaderEpochResponse(topics=topics)

    def _epoch_end(self, topic: str, asked: OffsetForLeaderPartition) -> LeaderEpochEndOffset:
        partition = self.cluster.partition(topic, asked.partition)
        if partition.leader != self.node_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return LeaderEpochEndOffset(error_code=code, partition=asked.partition)
        epoch, end = partition.epoch_end(asked.leader_epoch)
        return LeaderEpochEndOffset(
            error_code=0, partition=asked.partition, leader_epoch=epoch, end_offset=end
        )

    async def _list_offsets(self, body: Any) -> Any:
        topics = []
        for topic in body.topics:
            answers = [self._list_offset(topic.name, asked) for asked in topic.partitions]
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return ListOffsetsResponse(topics=topics)

    def _list_offset(self, topic: str, asked: Any) -> ListOffsetsPartitionResponse:
        answer = ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=0)
        partition = self.cluster.partition(topic, asked.partition_index)
        answer.leader_epoch = partition.leader_epoch
        if partition.leader != self.node_id:
            answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif asked.timestamp == EARLIEST_TIMESTAMP:
            answer.offset = partition.log_start_offset
        elif asked.timestamp == LATEST_TIMESTAMP:
            answer.offset = partition.visible_end
        else:
            records = [record for batch in partition.batches for record in decode_records(batch)]
            for record in records:
                if record.timestamp_ms >= asked.timestamp:
                    answer.offset, answer.timestamp = record.offset, record.timestamp_ms
                    break
        return answer

    async def _create_topics(self, body: Any) -> Any:
        results = []
        for topic in body.topics:
            result = CreatableTopicResult(name=topic.name, topic_id=uuid.UUID(int=0), error_code=0)
            if self.node_id != self.cluster.controller_id:
                result.error_code = ErrorCode.NOT_CONTROLLER
            elif topic.name in self.cluster.topics:
                result.error_code = ErrorCode.TOPIC_ALREADY_EXISTS
                result.error_message = f"topic {topic.name!r} exists"
            else:
                if not body.validate_only:
                    self.cluster.add_topic(topic.name, max(1, topic.num_partitions))
                    result.topic_id = self.cluster.topic_ids[topic.name]
                result.num_partitions = topic.num_partitions
                result.replication_factor = topic.replication_factor
            results.append(result)
        return CreateTopicsResponse(topics=results)

    async def _create_partitions(self, body: Any) -> Any:
        results = []
        for topic in body.topics:
            result = CreatePartitionsTopicResult(name=topic.name, error_code=0)
            known = self.cluster.topics.get(topic.name)
            if known is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif len(known) >= topic.count:
                result.error_code = ErrorCode.INVALID_PARTITIONS
                result.error_message = f"topic {topic.name!r} has {len(known)} partitions already"
            else:
                self.cluster.add_topic(topic.name, topic.count)
            results.append(result)
        return CreatePartitionsResponse(results=results)

    async def _describe_configs(self, body: Any) -> Any:
        results = []
        for asked in body.resources:
            result = DescribeConfigsResult(
                error_code=self._config_error(asked),
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
            for name, value in self.cluster.configs.get(asked.resource_name, {}).items():
                entry = DescribeConfigsResourceResult(
                    name=name, value=value, config_source=ConfigSource.DYNAMIC_TOPIC_CONFIG
                )
                result.configs.append(entry)
            results.append(result)
        return DescribeConfigsResponse(results=results)

    async def _alter_configs(self, body: Any) -> Any:
        return IncrementalAlterConfigsResponse(
            responses=[
                AlterConfigsResourceResponse(
                    error_code=self._config_error(asked),
                    resource_type=asked.resource_type,
                    resource_name=asked.resource_name,
                )
                for asked in body.resources
            ]
        )

    def _config_error(self, asked: Any) -> int:
        is_topic = asked.resource_type == ConfigResourceType.TOPIC
        unknown = is_topic and asked.resource_name not in self.cluster.topics
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if unknown else 0

    async def _delete_topics(self, body: Any) -> Any:
        results = []
        for topic in body.topics:
            result = DeletableTopicResult(name=topic.name, topic_id=uuid.UUID(int=0), error_code=0)
            if self.node_id != self.cluster.controller_id:
                result.error_code = ErrorCode.NOT_CONTROLLER
            elif self.cluster.topics.pop(topic.name, None) is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            results.append(result)
        return DeleteTopicsResponse(responses=results)


class _FakeConnection(asyncio.BufferedProtocol):
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._receiver = FrameReceiver(BufferPool())
        self._transport: Any = None
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._broker.connections.add(self)
        self._broker.connections_made += 1
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self._receiver.buffer_updated(nbytes):
            self._queue.put_nowait(codec_msgpack.decode_request(frame.view))

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker.connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        self._transport.abort()

    async def _serve(self) -> None:
        while True:
            head = await self._queue.get()
            try:
                response = await self._broker.handle(head.api_key, head.body)
            except ConnectionResetError:
                self.abort()
                return
            if head.api_key == ApiKey.PRODUCE and head.body.acks == 0:
                continue
            self._transport.writelines(codec_msgpack.encode_response(head.correlation_id, response))
