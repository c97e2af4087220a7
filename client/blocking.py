"""The clients without asyncio: the same names, methods and errors, for programs of threads.

Each client has one background thread with an event loop, on which the asyncio client runs. Calls are passed
to it, except that `Producer.send` appends in the caller's thread, under a lock; only a new batch wakes the
loop. All clients may be used from several threads, a consumer by one at a time. After a fork, clients of the
parent raise an error in the child, which must make its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Unpack

from barnabas.client.admin.admin import Admin as _Admin
from barnabas.client.cluster import Cluster
from barnabas.client.config import (
    AdminConfig,
    AdminSettings,
    BootstrapServers,
    ClientConfig,
    ConnectionSettings,
)
from barnabas.client.consumer.blocking import Consumer
from barnabas.client.consumer.range_reader import DEFAULT_FETCH_BYTES, DEFAULT_STALL_TIMEOUT_MS
from barnabas.client.consumer.range_reader import read_range as _read_range
from barnabas.client.errors import NoBrokerReachable
from barnabas.client.isolation import IsolationLevel
from barnabas.client.loop_thread import BlockingClient, ClientThread, hop
from barnabas.client.metadata import MetadataCache
from barnabas.client.producer.blocking import Producer, RecordFuture
from barnabas.protocol.backoff import Retries
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition

__all__ = ["Admin", "Consumer", "Producer", "RangeReader", "RecordFuture", "read_range"]


class Admin(BlockingClient[_Admin]):
    """`barnabas.client.Admin` for threads; connects when it is made."""

    def __init__(self, config: AdminConfig | None = None, **settings: Unpack[AdminSettings]) -> None:
        super().__init__(_Admin(config, **settings))
        self.config = self._client.config

    def __del__(self) -> None:
        thread: ClientThread | None = getattr(self, "_thread", None)
        if thread is not None:
            thread.end_unclosed(self, self._client.close)

    create_topics = hop(_Admin.create_topics)
    delete_topics = hop(_Admin.delete_topics)
    create_partitions = hop(_Admin.create_partitions)
    elect_leaders = hop(_Admin.elect_leaders)
    alter_partition_reassignments = hop(_Admin.alter_partition_reassignments)
    list_partition_reassignments = hop(_Admin.list_partition_reassignments)
    list_topics = hop(_Admin.list_topics)
    describe_topics = hop(_Admin.describe_topics)
    describe_cluster = hop(_Admin.describe_cluster)
    describe_replicas = hop(_Admin.describe_replicas)
    describe_log_dirs = hop(_Admin.describe_log_dirs)
    alter_replica_log_dirs = hop(_Admin.alter_replica_log_dirs)
    list_offsets = hop(_Admin.list_offsets)
    watch_topics = hop(_Admin.watch_topics)
    wait_for_records = hop(_Admin.wait_for_records)
    batch_sizes = hop(_Admin.batch_sizes)
    describe_configs = hop(_Admin.describe_configs)
    alter_configs = hop(_Admin.alter_configs)
    describe_features = hop(_Admin.describe_features)
    update_features = hop(_Admin.update_features)
    list_groups = hop(_Admin.list_groups)
    describe_groups = hop(_Admin.describe_groups)
    delete_groups = hop(_Admin.delete_groups)
    remove_members = hop(_Admin.remove_members)
    group_offsets = hop(_Admin.group_offsets)
    alter_group_offsets = hop(_Admin.alter_group_offsets)
    delete_group_offsets = hop(_Admin.delete_group_offsets)
    list_transactions = hop(_Admin.list_transactions)
    describe_transactions = hop(_Admin.describe_transactions)
    describe_producers = hop(_Admin.describe_producers)
    find_hanging_transactions = hop(_Admin.find_hanging_transactions)
    abort_transaction = hop(_Admin.abort_transaction)
    fence_producers = hop(_Admin.fence_producers)
    complete_transaction = hop(_Admin.complete_transaction)


class RangeReader:
    """Reads ranges of offsets, one after another, over connections that it makes at the first step.

    For the use of one thread. Close it, also after an error and when a range is left before its end.
    """

    def __init__(self, config: ClientConfig, stall_timeout_ms: int = DEFAULT_STALL_TIMEOUT_MS) -> None:
        self._config = config
        self._stall_timeout_ms = stall_timeout_ms
        self._thread = ClientThread("barnabas-range-reader")
        self._cluster: Cluster | None = None

    def read(
        self,
        tp: TopicPartition,
        start_offset: int,
        end_offset: int,
        *,
        fetch_max_bytes: int = DEFAULT_FETCH_BYTES,
        reuse_buffers: bool = False,
        isolation_level: str = "read_uncommitted",
        topic_id: TopicId = NO_TOPIC_ID,
    ) -> Iterator[memoryview]:
        """As `range_reader.read_range`.

        If no broker is reachable for ``stall_timeout_ms``, it raises NoBrokerReachable.
        """
        isolation = IsolationLevel.parse(isolation_level)
        cluster = self._thread.call(lambda: self._connect(tp, topic_id))
        pieces = _read_range(
            cluster,
            tp,
            start_offset,
            end_offset,
            fetch_max_bytes=fetch_max_bytes,
            stall_timeout_ms=self._stall_timeout_ms,
            reuse_buffers=reuse_buffers,
            isolation_level=isolation,
            topic_id=topic_id,
        )
        while (piece := self._thread.call(lambda: _next_or_none(pieces))) is not None:
            yield piece

    async def _connect(self, tp: TopicPartition, topic_id: TopicId) -> Cluster:
        if self._cluster is not None and _is_outdated(self._cluster.cache, tp, topic_id):
            self._cluster.close()
            self._cluster = None
        if self._cluster is None:
            retries = self._config.make_retries(self._stall_timeout_ms)
            self._cluster = await _start_cluster(self._config, retries)
        return self._cluster

    def close(self) -> None:
        """Disconnect and end the thread. Idempotent."""
        if self._thread.closed_reason is None:
            if self._cluster is not None:
                self._thread.loop.call_soon_threadsafe(self._cluster.close)
            self._thread.stop("the range reader is closed")


def read_range(
    bootstrap_servers: BootstrapServers,
    tp: TopicPartition,
    start_offset: int,
    end_offset: int,
    *,
    fetch_max_bytes: int = DEFAULT_FETCH_BYTES,
    stall_timeout_ms: int = DEFAULT_STALL_TIMEOUT_MS,
    reuse_buffers: bool = False,
    isolation_level: str = "read_uncommitted",
    topic_id: TopicId = NO_TOPIC_ID,
    **client_settings: Unpack[ConnectionSettings],
) -> Iterator[memoryview]:
    """As `RangeReader.read`, with connections of its own."""
    config = ClientConfig.of({"bootstrap_servers": bootstrap_servers, **client_settings})
    reader = RangeReader(config, stall_timeout_ms)
    try:
        yield from reader.read(
            TopicPartition(*tp),
            start_offset,
            end_offset,
            fetch_max_bytes=fetch_max_bytes,
            reuse_buffers=reuse_buffers,
            isolation_level=isolation_level,
            topic_id=topic_id,
        )
    finally:
        reader.close()


def _is_outdated(cache: MetadataCache, tp: TopicPartition, topic_id: TopicId) -> bool:
    """Whether what an earlier range learnt is from before the topic was made again or got this partition."""
    known = cache.topic_id(tp.topic)
    is_another = NO_TOPIC_ID not in (known, topic_id) and known != topic_id
    return is_another or cache.no_such_partition(tp) is not None


async def _start_cluster(config: ClientConfig, retries: Retries) -> Cluster:
    while True:
        cluster = Cluster(config)
        try:
            await cluster.start()
        except NoBrokerReachable as error:
            await retries.wait_after(error)
        else:
            return cluster


async def _next_or_none(pieces: AsyncIterator[memoryview]) -> memoryview | None:
    return await anext(pieces, None)
