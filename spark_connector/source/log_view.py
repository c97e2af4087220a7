"""A cluster's topics, offsets and raw batches, through the blocking client.

The rest of the connector asks only a `LogView`, so that it can be tested against logs in memory. A view
belongs to the process and thread that opened it and holds connections: it is never pickled. A stream keeps
one for as long as its query runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from barnabas.common.backoff import Backoff
from barnabas.protocol.errors import BarnabasError, UnknownTopicOrPartitionError
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.spark_connector.idle_clients import IdleClients
from barnabas.spark_connector.options import SourceOptions

if TYPE_CHECKING:
    from barnabas.client.admin.blocking import Admin
    from barnabas.client.admin.peek import BatchSize
    from barnabas.client.config import AdminConfig, ClientConfig
    from barnabas.client.consumer.blocking_range_reader import RangeReader
    from barnabas.client.offsets import OffsetSpec

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Topic(NamedTuple):
    """A topic as it is when a read is planned."""

    topic_id: TopicId
    partitions: Sequence[int]


class LogView:
    """A view of the cluster that the options name. It connects at the first request.

    With isolation level read_committed, partitions end at their last stable offsets, and the batches of
    aborted transactions are not read. Requests for topics and offsets that fail with a retriable error are
    repeated, as the options `fetchOffset.*` say, until `default.api.timeout.ms` have passed.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin: Admin | None = None

    @cached_property
    def _config(self) -> AdminConfig:
        # Once for each view, because a stream asks several times a second.
        return self._options.admin_config

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def topics(self, topics: Iterable[str] | None) -> dict[str, Topic]:
        """These topics, or all that are not internal.

        Raises UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist.
        """
        names = None if topics is None else list(topics)
        return {
            name: Topic(topic.topic_id, [partition.partition for partition in topic.partitions])
            for name, topic in self._ask(lambda admin: admin.describe_topics(names)).items()
            if names is not None or not topic.is_internal
        }

    def log_start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still holds."""
        return self._offsets(dict.fromkeys(partitions, "earliest"))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each partition, with read_committed its last stable offset."""
        return self._offsets(dict.fromkeys(partitions, "latest"))

    def offsets_at(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset of each partition with this timestamp in ms or a later one; else None."""
        found = self._offsets(timestamps)
        return {tp: None if offset < 0 else offset for tp, offset in found.items()}

    def _offsets(self, specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        level = self._options.isolation_level
        listed = self._ask(lambda admin: admin.list_offsets(specs, isolation_level=level))
        return {tp: entry.offset for tp, entry in listed.items()}

    def read(
        self, partition: TopicPartition, start: int, end: int, topic_id: TopicId = NO_TOPIC_ID
    ) -> Iterator[memoryview]:
        """Whole batches that cover [start, end), several in one buffer; the first and last may reach beyond.

        Raises OFFSET_OUT_OF_RANGE when the partition no longer holds the start, and LogTruncated if the topic
        was made again since it had the id.
        """
        # Imported here and below, because a process that only pickles a reader needs no client.
        from barnabas.client.consumer.blocking_range_reader import RangeReader
        from barnabas.client.consumer.range_reader import DEFAULT_FETCH_BYTES

        options = self._options
        config, timeout_ms = options.read_config, options.poll_timeout_ms
        reader = _readers.take((config, timeout_ms), lambda: RangeReader(config, timeout_ms))
        try:
            yield from reader.read(
                partition,
                start,
                end,
                isolation_level=options.isolation_level,
                topic_id=topic_id,
                fetch_max_bytes=options.fetch_max_bytes or DEFAULT_FETCH_BYTES,
            )
        except BaseException:
            reader.close()
            raise
        _readers.give_back((config, timeout_ms), reader)

    def watch(self, topics: Collection[str]) -> None:
        """Keep the leaders of these topics, so that requests about them need no others."""
        self._ask(lambda admin: admin.watch_topics(topics))

    def wait_for_records(self, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> bool | None:
        """Wait for a record at these offsets or after them; False after the timeout, None if it is unknown.

        It never raises because of the state of the cluster.
        """
        return self._open_admin().wait_for_records(
            offsets, timeout_ms=timeout_ms, isolation_level=self._options.isolation_level
        )

    def batch_sizes(
        self, offsets: Mapping[TopicPartition, int], max_bytes: int
    ) -> dict[TopicPartition, list[BatchSize]]:
        """The record batches at these offsets, up to about `max_bytes` of each partition."""
        level = self._options.isolation_level
        return self._ask(lambda admin: admin.batch_sizes(offsets, max_bytes=max_bytes, isolation_level=level))

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int], timeout_ms: int) -> None:
        """Set the offsets of a group. Raises NON_EMPTY_GROUP while it has members."""
        self._open_admin().alter_group_offsets(group_id, offsets, timeout_ms=timeout_ms)

    def _ask(self, call: Callable[[Admin], T]) -> T:
        """Call with an open admin; again if that fails for the moment."""
        options = self._options
        pauses = Backoff(options.fetch_offset_retry_interval_ms, options.fetch_offset_retry_interval_ms)
        deadline = time.monotonic() + self._config.default_api_timeout_ms / 1000
        for retries_left in range(options.fetch_offset_num_retries, -1, -1):
            try:
                return call(self._open_admin())
            except BarnabasError as error:
                pause_s = pauses.failed(time.monotonic())
                if isinstance(error, UnknownTopicOrPartitionError) or not error.retriable:
                    raise
                if retries_left == 0 or time.monotonic() + pause_s > deadline:
                    raise
                logger.warning("%s; asking again in %.1f s, at most %d times", error, pause_s, retries_left)
                time.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    def _open_admin(self) -> Admin:
        if self._admin is None:
            from barnabas.client.admin.blocking import Admin

            self._admin = Admin(self._config)
        return self._admin


_readers: IdleClients[tuple[ClientConfig, int], RangeReader] = IdleClients()

OpenView = Callable[[SourceOptions], LogView]
"""Opens a view of the cluster that the options name.

A plain function, because Spark pickles it.
"""
