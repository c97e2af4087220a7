"""The clients without asyncio: the same names, methods and errors, for programs of threads.

Each client has one background thread with an event loop, on which the asyncio client runs. Calls are passed
to it, except that `Producer.send` appends in the caller's thread, under a lock; only a new batch wakes the
loop. All clients may be used from several threads, a consumer by one at a time. After a fork, clients of the
parent raise an error in the child, which must make its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from barnabas.client.admin import admin as _admin
from barnabas.client.cluster import Cluster
from barnabas.client.config import AdminConfig, BootstrapServers, ClientConfig
from barnabas.client.consumer.blocking import Consumer
from barnabas.client.consumer.range_reader import DEFAULT_FETCH_BYTES, DEFAULT_STALL_TIMEOUT_MS
from barnabas.client.consumer.range_reader import read_range as _read_range
from barnabas.client.loop_thread import LoopThread, start_on
from barnabas.client.metadata import TopicInfo
from barnabas.client.offsets import ListedOffset, OffsetAndMetadata, OffsetSpec, OffsetToCommit
from barnabas.client.producer.blocking import Producer, RecordFuture
from barnabas.protocol.ids import TopicPartition

__all__ = ["Admin", "Consumer", "Producer", "RecordFuture", "read_range"]


class Admin:
    """`barnabas.client.Admin` for threads; connects when it is made."""

    def __init__(self, config: AdminConfig | None = None, **settings: Any) -> None:
        self._admin = _admin.Admin(config, **settings)
        self.config = self._admin.config
        self._thread = LoopThread("barnabas-admin")
        start_on(self._thread, self._admin.start)

    def __del__(self) -> None:
        thread: LoopThread | None = getattr(self, "_thread", None)
        if thread is not None:
            thread.end_unclosed(self, self._admin.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect and end the thread. Idempotent."""
        if self._thread.closed_reason is None:
            self._thread.call(self._admin.close)
            self._thread.stop("the admin client is closed")

    def create_topics(
        self,
        topics: Iterable[_admin.NewTopic] | _admin.NewTopic,
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
    ) -> dict[str, _admin.CreatedTopic]:
        return self._thread.call(
            lambda: self._admin.create_topics(topics, timeout_ms=timeout_ms, validate_only=validate_only)
        )

    def delete_topics(self, names: Iterable[str] | str, *, timeout_ms: int | None = None) -> None:
        self._thread.call(lambda: self._admin.delete_topics(names, timeout_ms=timeout_ms))

    def create_partitions(
        self,
        topics: Mapping[str, int | _admin.NewPartitions],
        *,
        timeout_ms: int | None = None,
        validate_only: bool = False,
    ) -> None:
        self._thread.call(
            lambda: self._admin.create_partitions(topics, timeout_ms=timeout_ms, validate_only=validate_only)
        )

    def describe_configs(
        self,
        resources: Iterable[_admin.ConfigResource] | _admin.ConfigResource,
        names: Iterable[str] | None = None,
        *,
        include_documentation: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[_admin.ConfigResource, dict[str, _admin.ConfigEntry]]:
        return self._thread.call(
            lambda: self._admin.describe_configs(
                resources, names, include_documentation=include_documentation, timeout_ms=timeout_ms
            )
        )

    def alter_configs(
        self,
        changes: Mapping[_admin.ConfigResource, Mapping[str, _admin.ConfigChange]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        self._thread.call(
            lambda: self._admin.alter_configs(changes, validate_only=validate_only, timeout_ms=timeout_ms)
        )

    def list_topics(self, *, include_internal: bool = False) -> list[str]:
        return self._thread.call(lambda: self._admin.list_topics(include_internal=include_internal))

    def describe_topics(self, names: Iterable[str] | str | None = None) -> dict[str, TopicInfo]:
        return self._thread.call(lambda: self._admin.describe_topics(names))

    def describe_cluster(self) -> _admin.ClusterDescription:
        return self._thread.call(self._admin.describe_cluster)

    def list_offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, ListedOffset]:
        return self._thread.call(lambda: self._admin.list_offsets(specs, timeout_ms=timeout_ms))

    def list_groups(
        self, *, states: Iterable[str] = (), timeout_ms: int | None = None
    ) -> list[_admin.GroupListing]:
        return self._thread.call(lambda: self._admin.list_groups(states=states, timeout_ms=timeout_ms))

    def describe_groups(
        self, group_ids: Iterable[str] | str, *, timeout_ms: int | None = None
    ) -> dict[str, _admin.GroupDescription]:
        return self._thread.call(lambda: self._admin.describe_groups(group_ids, timeout_ms=timeout_ms))

    def delete_groups(self, group_ids: Iterable[str] | str, *, timeout_ms: int | None = None) -> None:
        self._thread.call(lambda: self._admin.delete_groups(group_ids, timeout_ms=timeout_ms))

    def remove_members(
        self, group_id: str, group_instance_ids: Iterable[str], *, timeout_ms: int | None = None
    ) -> None:
        self._thread.call(
            lambda: self._admin.remove_members(group_id, group_instance_ids, timeout_ms=timeout_ms)
        )

    def group_offsets(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return self._thread.call(
            lambda: self._admin.group_offsets(group_id, partitions, timeout_ms=timeout_ms)
        )

    def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetToCommit],
        *,
        timeout_ms: int | None = None,
    ) -> None:
        self._thread.call(lambda: self._admin.alter_group_offsets(group_id, offsets, timeout_ms=timeout_ms))

    def delete_group_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], *, timeout_ms: int | None = None
    ) -> None:
        self._thread.call(
            lambda: self._admin.delete_group_offsets(group_id, partitions, timeout_ms=timeout_ms)
        )

    def describe_replicas(self, topics: Iterable[str] | None = None) -> list[_admin.BrokerReplicas]:
        return self._thread.call(lambda: self._admin.describe_replicas(topics))


def read_range(
    bootstrap_servers: BootstrapServers,
    tp: TopicPartition,
    start_offset: int,
    end_offset: int,
    *,
    fetch_max_bytes: int = DEFAULT_FETCH_BYTES,
    stall_timeout_ms: int = DEFAULT_STALL_TIMEOUT_MS,
    reuse_buffers: bool = False,
    **client_config: Any,
) -> Iterator[memoryview]:
    """As `range_reader.read_range`, with a connection of its own, made at the first step."""
    config = ClientConfig.of({"bootstrap_servers": bootstrap_servers, **client_config})
    thread = LoopThread("barnabas-range-reader")
    cluster: Cluster | None = None
    try:
        cluster = thread.call(lambda: _start_cluster(config))
        pieces = _read_range(
            cluster,
            TopicPartition(*tp),
            start_offset,
            end_offset,
            fetch_max_bytes=fetch_max_bytes,
            stall_timeout_ms=stall_timeout_ms,
            reuse_buffers=reuse_buffers,
        )
        while (piece := thread.call(lambda: _next_or_none(pieces))) is not None:
            yield piece
    finally:
        if thread.closed_reason is None:
            if cluster is not None:
                thread.loop.call_soon_threadsafe(cluster.close)
            thread.stop("the range reader is closed")


async def _start_cluster(config: ClientConfig) -> Cluster:
    cluster = Cluster(config)
    try:
        await cluster.start()
    except BaseException:
        cluster.close()
        raise
    return cluster


async def _next_or_none(pieces: Any) -> memoryview | None:
    found: memoryview | None = await anext(pieces, None)
    return found
