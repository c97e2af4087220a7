"""A cluster's topics, offsets and raw batches, through the blocking client.

The rest of the connector asks only a `LogView`, so that it can be tested against logs in memory. A view
belongs to the process and thread that opened it and holds connections: it is never pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition

if TYPE_CHECKING:
    from barnabas.client import blocking


class Topic(NamedTuple):
    """A topic as it is when a read is planned."""

    topic_id: TopicId
    partitions: Sequence[int]


class LogView:
    """A view of the cluster of these bootstrap servers. It connects at the first request.

    With ``isolation_level`` read_committed, partitions end at their last stable offsets, and the batches of
    aborted transactions are not read.
    """

    def __init__(self, bootstrap_servers: str, isolation_level: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._isolation_level = isolation_level
        self._admin: blocking.Admin | None = None

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
            for name, topic in self._open_admin().describe_topics(names).items()
            if names is not None or not topic.is_internal
        }

    def log_start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that each partition still holds."""
        return self._offsets(dict.fromkeys(partitions, "earliest"))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each partition, with read_committed its last stable offset."""
        return self._offsets(dict.fromkeys(partitions, "latest"))

    def _offsets(self, specs: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        listed = self._open_admin().list_offsets(specs, isolation_level=self._isolation_level)
        return {tp: entry.offset for tp, entry in listed.items()}

    def read(
        self, partition: TopicPartition, start: int, end: int, topic_id: TopicId = NO_TOPIC_ID
    ) -> Iterator[memoryview]:
        """Whole batches that cover [start, end), several in one buffer; the first and last may reach beyond.

        Raises OFFSET_OUT_OF_RANGE when the partition no longer holds the start, and LogTruncated if the topic
        was made again since it had the id.
        """
        # Imported here and below, because Spark imports this package in every process that looks for sources.
        from barnabas.client.blocking import read_range

        return read_range(
            self._bootstrap_servers,
            partition,
            start,
            end,
            isolation_level=self._isolation_level,
            topic_id=topic_id,
        )

    def _open_admin(self) -> blocking.Admin:
        if self._admin is None:
            from barnabas.client import blocking

            self._admin = blocking.Admin(bootstrap_servers=self._bootstrap_servers)
        return self._admin


OpenView = Callable[[str, str], LogView]
"""Opens a view of the cluster of these bootstrap servers at an isolation level.

A plain function, because Spark pickles it.
"""
