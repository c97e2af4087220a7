"""What the planner of a stream asks a cluster beyond a `LogView`: news, sizes, and a group's offsets.

One view, with its connections, is kept for as long as the query runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.options import SourceOptions
from barnabas.spark_connector.source.log_view import LogView

if TYPE_CHECKING:
    from barnabas.client.admin.peek import BatchSize


class StreamView(LogView):
    """A `LogView` for a program that looks again and again."""

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


OpenStreamView = Callable[[SourceOptions], StreamView]
"""Opens a view. A plain function, because Spark pickles it."""
