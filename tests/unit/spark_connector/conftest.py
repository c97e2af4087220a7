"""A cluster view over logs in memory."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import pytest

from barnabas.client.errors import LogTruncated
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.protocol.record_batch import Buffer, iter_batches, parse_header
from barnabas.protocol.records import decode_records
from barnabas.spark_connector.options import SourceOptions
from barnabas.spark_connector.source.log_view import LogView, Topic
from tests.support.batches import build_batch


class MemoryView(LogView):
    """Batches in memory, which a test writes.

    `retention` maps a partition to offsets to which its log start moves, one with each read of it.
    """

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, list[memoryview]] = {}
        self.starts: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.retention: dict[TopicPartition, list[int]] = {}
        self.internal: set[str] = set()
        self.opened: list[SourceOptions] = []
        self.is_open = False
        self.topic_id = TopicId(uuid.uuid4())
        """Of all topics; another one makes them other topics."""

    def __call__(self, options: SourceOptions) -> Self:
        self.opened.append(options)
        return self

    def __enter__(self) -> Self:
        self.is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False

    def write(
        self, topic: str, partition: int, values: Sequence[bytes | None], batch_records: int = 3
    ) -> None:
        """Append records with keys k0, k1, … by their offset, all committed."""
        tp = TopicPartition(topic, partition)
        self.append(tp)
        for first in range(0, len(values), batch_records):
            base = self.committed[tp]
            part = values[first : first + batch_records]
            pairs = [(b"k%d" % (base + index), value) for index, value in enumerate(part)]
            self.append(tp, build_batch(pairs, base_offset=base, timestamp_ms=1000 + base))

    def append(self, tp: TopicPartition, *batches: Buffer) -> None:
        """Append batches, committed; without any, the log exists and is empty."""
        log = self.logs.setdefault(tp, [])
        self.starts.setdefault(tp, 0)
        self.committed.setdefault(tp, 0)
        for batch in batches:
            log.append(memoryview(batch))
            self.committed[tp] = parse_header(batch).next_offset

    def topics(self, topics: Iterable[str] | None) -> dict[str, Topic]:
        existing: dict[str, list[int]] = {}
        for tp in sorted(self.logs):
            existing.setdefault(tp.topic, []).append(tp.partition)
        names = [name for name in existing if name not in self.internal] if topics is None else topics
        return {name: Topic(self.topic_id, existing[name]) for name in names}

    def log_start_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.starts[tp] for tp in partitions}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.committed[tp] for tp in partitions}

    def offsets_at(self, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return {tp: self._first_since(tp, timestamp) for tp, timestamp in timestamps.items()}

    def _first_since(self, tp: TopicPartition, timestamp_ms: int) -> int | None:
        for batch in self.logs[tp]:
            for record in decode_records(batch):
                if record.timestamp_ms >= timestamp_ms and record.offset >= self.starts[tp]:
                    return record.offset
        return None

    def read(
        self, partition: TopicPartition, start: int, end: int, topic_id: TopicId = NO_TOPIC_ID
    ) -> Iterator[memoryview]:
        if topic_id != self.topic_id:
            raise LogTruncated(f"{partition} was made again", None)
        for batch in self.logs[partition]:
            header = parse_header(batch)
            if header.next_offset <= start or header.base_offset >= end:
                continue
            if header.base_offset < self.starts[partition] or start < self.starts[partition]:
                raise api_error(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {start} is gone")
            yield batch
            start = header.next_offset
            if self.retention.get(partition):
                self._move_start(partition, self.retention[partition].pop(0))

    def _move_start(self, partition: TopicPartition, offset: int) -> None:
        self.starts[partition] = offset
        self.logs[partition] = [
            batch
            for batch in self.logs[partition]
            if any(header.next_offset > offset for _, header in iter_batches(batch))
        ]


@pytest.fixture
def view() -> MemoryView:
    return MemoryView()


@pytest.fixture
def numbered() -> Callable[[int], list[bytes | None]]:
    """Values v0, v1, … ."""
    return lambda count: [b"v%d" % index for index in range(count)]
