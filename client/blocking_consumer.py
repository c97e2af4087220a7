"""The consumer for threads: fetches ahead on a thread of its own, hands out whole polls.

Guarantees are those of `barnabas.client.Consumer`. Iterating takes records from the last poll, one by one;
`position` counts what was really handed out. One thread at a time may use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from barnabas.client import consumer as _consumer
from barnabas.client.config import ConsumerConfig
from barnabas.client.errors import ClientClosed
from barnabas.client.fetched import ConsumerRecord
from barnabas.client.loop_thread import LoopThread, start_on
from barnabas.client.metadata import PartitionInfo
from barnabas.client.offsets import ListedOffset
from barnabas.protocol.ids import Offset, TopicPartition

T = TypeVar("T")
Partition = TopicPartition | tuple[str, int]

_ITERATION_POLL_MS = 1_000


class Consumer:
    """`barnabas.client.Consumer` for threads; connects when it is made."""

    def __init__(self, config: ConsumerConfig | None = None, **settings: Any) -> None:
        self.config = config if config is not None else ConsumerConfig.of(settings)
        self._thread = LoopThread("barnabas-consumer")
        self._consumer = self._thread.call(self._make)
        start_on(self._thread, self._consumer.start)
        self._left: deque[ConsumerRecord] = deque()

    async def _make(self) -> _consumer.Consumer:
        return _consumer.Consumer(self.config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect and end the thread. Idempotent."""
        if self._thread.closed_reason is None:
            self._thread.call(self._consumer.close)
            self._thread.stop("the consumer is closed")
            self._left.clear()

    def assign(self, partitions: Iterable[Partition]) -> None:
        wanted = [TopicPartition(*tp) for tp in partitions]
        self._do(lambda: self._consumer.assign(wanted))
        self._left = deque(record for record in self._left if record[:2] in wanted)

    def assignment(self) -> set[TopicPartition]:
        return self._do(self._consumer.assignment)

    def seek(self, partition: Partition, offset: int) -> None:
        self._do(lambda: self._consumer.seek(partition, offset))
        self._forget(partition)

    def seek_to_beginning(self, *partitions: Partition) -> None:
        self._do(lambda: self._consumer.seek_to_beginning(*partitions))
        self._forget(*(partitions or self.assignment()))

    def seek_to_end(self, *partitions: Partition) -> None:
        self._do(lambda: self._consumer.seek_to_end(*partitions))
        self._forget(*(partitions or self.assignment()))

    def pause(self, *partitions: Partition) -> None:
        """As `barnabas.client.Consumer.pause`; what was polled and not handed out is fetched again later."""
        for tp in partitions:
            first = self._first_left(tp)
            if first is not None:
                self.seek(tp, first.offset)
        self._do(lambda: self._consumer.pause(*partitions))

    def resume(self, *partitions: Partition) -> None:
        self._do(lambda: self._consumer.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        return self._do(self._consumer.paused)

    def position(self, partition: Partition, *, timeout_ms: int | None = None) -> Offset:
        first = self._first_left(partition)
        if first is not None:
            return first.offset
        return self._thread.call(lambda: self._consumer.position(partition, timeout_ms=timeout_ms))

    def high_watermark(self, partition: Partition) -> Offset | None:
        return self._do(lambda: self._consumer.high_watermark(partition))

    def lag(self, partition: Partition) -> int | None:
        known = self._do(lambda: self._consumer.lag(partition))
        left = sum(record[:2] == tuple(partition) for record in self._left)
        return None if known is None else known + left

    def poll(self, timeout_ms: int = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """As `barnabas.client.Consumer.poll`."""
        if self._left:
            limit = self.config.max_poll_records if max_records is None else max_records
            return [self._left.popleft() for _ in range(min(limit, len(self._left)))]
        return self._thread.call(lambda: self._consumer.poll(timeout_ms, max_records))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record, waiting for it as long as it takes. Raises as `poll`."""
        while not self._left:
            self._left.extend(self.poll(_ITERATION_POLL_MS))
        return self._left.popleft()

    def getone(self) -> ConsumerRecord:
        """As ``next``."""
        return self.__next__()

    def partitions_for(self, topic: str) -> list[PartitionInfo]:
        return self._thread.call(lambda: self._consumer.partitions_for(topic))

    def beginning_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, Offset]:
        return self._thread.call(lambda: self._consumer.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[TopicPartition, Offset]:
        return self._thread.call(lambda: self._consumer.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset | None]:
        return self._thread.call(lambda: self._consumer.offsets_for_times(timestamps_ms))

    def _do(self, work: Callable[[], T]) -> T:
        """Run a plain method of the consumer on its thread."""
        if self._thread.closed_reason is not None:
            raise ClientClosed(self._thread.closed_reason)

        async def run() -> T:
            return work()

        return self._thread.call(run)

    def _first_left(self, partition: Partition) -> ConsumerRecord | None:
        wanted = tuple(partition)
        return next((record for record in self._left if record[:2] == wanted), None)

    def _forget(self, *partitions: Partition) -> None:
        gone = {tuple(tp) for tp in partitions}
        self._left = deque(record for record in self._left if record[:2] not in gone)
