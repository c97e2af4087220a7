"""Reading ranges of offsets, for programs of threads: `range_reader.read_range` on a thread of its own.

A `RangeReader` keeps its connections from one range to the next. One thread at a time may use it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Unpack

from barnabas.client.cluster import Cluster
from barnabas.client.config import BootstrapServers, ClientConfig, ConnectionSettings
from barnabas.client.consumer.range_reader import DEFAULT_STALL_TIMEOUT_MS, RangeOptions
from barnabas.client.consumer.range_reader import read_range as _read_range
from barnabas.client.errors import NoBrokerReachable
from barnabas.client.loop_thread import ClientThread
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition


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
        self, tp: TopicPartition, start_offset: int, end_offset: int, **options: Unpack[RangeOptions]
    ) -> Iterator[memoryview]:
        """As `range_reader.read_range`.

        If no broker is reachable for ``stall_timeout_ms``, it raises NoBrokerReachable.
        """
        cluster = self._thread.call(lambda: self._connect(tp, options.get("topic_id", NO_TOPIC_ID)))
        pieces = _read_range(
            cluster, tp, start_offset, end_offset, stall_timeout_ms=self._stall_timeout_ms, **options
        )
        while (piece := self._thread.call(lambda: _next_or_none(pieces))) is not None:
            yield piece

    async def _connect(self, tp: TopicPartition, topic_id: TopicId) -> Cluster:
        """The cluster; another one if it is from before the topic was made again or got this partition."""
        if self._cluster is not None:
            cache = self._cluster.cache
            known = cache.topic_id(tp.topic)
            is_another = NO_TOPIC_ID not in (known, topic_id) and known != topic_id
            if is_another or cache.no_such_partition(tp) is not None:
                self._cluster.close()
                self._cluster = None
        retries = self._config.make_retries(self._stall_timeout_ms)
        while self._cluster is None:
            cluster = Cluster(self._config)
            try:
                await cluster.start()
            except NoBrokerReachable as error:
                await retries.wait_after(error)
            else:
                self._cluster = cluster
        return self._cluster

    def close(self) -> None:
        """Disconnect and end the thread. Idempotent."""
        if self._thread.closed_reason is None:
            if self._cluster is not None:
                self._thread.loop.call_soon_threadsafe(self._cluster.close)
            self._thread.stop("the range reader is closed")


class RangeSettings(RangeOptions, ConnectionSettings, total=False):
    """The options of `RangeReader.read`, and of its connections."""


def read_range(
    bootstrap_servers: BootstrapServers,
    tp: TopicPartition,
    start_offset: int,
    end_offset: int,
    *,
    stall_timeout_ms: int = DEFAULT_STALL_TIMEOUT_MS,
    **settings: Unpack[RangeSettings],
) -> Iterator[memoryview]:
    """As `RangeReader.read`, with connections of its own."""
    given: dict[str, Any] = dict(settings)
    options = {name: given.pop(name) for name in RangeOptions.__annotations__ if name in given}
    config = ClientConfig.of({"bootstrap_servers": bootstrap_servers, **given})
    reader = RangeReader(config, stall_timeout_ms)
    try:
        yield from reader.read(TopicPartition(*tp), start_offset, end_offset, **options)
    finally:
        reader.close()


async def _next_or_none(pieces: AsyncIterator[memoryview]) -> memoryview | None:
    return await anext(pieces, None)
