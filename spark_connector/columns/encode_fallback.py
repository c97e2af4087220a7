"""The bulk encoder without the compiled loops: the rows one by one through `protocol.batch_builder`.

Ten times slower than them, and the reference that they are tested against. A group belongs to
one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from barnabas.client.producer.partitioners import partition_of_key
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.spark_connector.columns import Bytes
from barnabas.spark_connector.columns import encode_layout as layout
from barnabas.spark_connector.columns.encode import EncodedBatch, EncoderLimits, Topics
from barnabas.spark_connector.columns.rows import Rows

_Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


class _Batch(NamedTuple):
    topic: int
    partition: int
    builder: RecordBatchBuilder


class BuilderGroup:
    """A group that Python's builder encodes."""

    def __init__(self, topics: Topics, limits: EncoderLimits, compression: Compression) -> None:
        self._topics = topics
        self._limits = limits
        self._compression = compression
        self._batches: list[_Batch] = []
        self._open: dict[tuple[int, int], RecordBatchBuilder] = {}
        self._planned_bytes = 0
        self.failed_size = 0

    def add(self, rows: Rows, first_row: int) -> tuple[int, int]:
        table = rows.table
        columns = (layout.KEY_START, layout.KEY_LENGTH, layout.VALUE_START, layout.VALUE_LENGTH)
        for row in range(first_row, rows.row_count):
            if self._planned_bytes >= self._limits.group_bytes:
                return layout.GROUP_FULL, row
            topic, partition, timestamp_ms = (
                int(table[field, row]) for field in (layout.TOPIC, layout.PARTITION, layout.TIMESTAMP)
            )
            key_start, key_length, value_start, value_length = (int(table[field, row]) for field in columns)
            key = _bytes(rows.keys, key_start, key_length)
            value = _bytes(rows.values, value_start, value_length)
            record = (key, value, _headers(rows, row), timestamp_ms)
            count = int(self._topics.table[layout.PARTITION_COUNT, topic])
            if partition >= count:
                return layout.NO_SUCH_PARTITION, row
            if partition < 0 and key is not None:
                partition = partition_of_key(key, count)
            builder = self._make_builder()
            builder.append(*record)
            if builder.size_bytes > self._limits.record_bytes:
                self.failed_size = builder.size_bytes
                return layout.RECORD_TOO_LARGE, row
            if not self._append(topic, partition, record):
                if partition < 0:
                    partition = self._sticky(topic)
                self._open[topic, partition] = builder
                self._batches.append(_Batch(topic, partition, builder))
                self._planned_bytes += builder.size_bytes
        return layout.OK, rows.row_count

    def _append(self, topic: int, partition: int, record: _Record) -> bool:
        """Append to an open batch, if the record fits into one; -1 is any partition."""
        if partition >= 0:
            return self._append_to(self._open.get((topic, partition)), record)
        if self._append_to(self._open.get((topic, self._sticky(topic))), record):
            return True
        if self._open.pop((topic, self._sticky(topic)), None) is None:
            return False
        topics = self._topics.table
        topics[layout.STICKY, topic] += 1
        topics[layout.STICKY, topic] %= topics[layout.CANDIDATE_COUNT, topic]
        return self._append_to(self._open.get((topic, self._sticky(topic))), record)

    def _append_to(self, builder: RecordBatchBuilder | None, record: _Record) -> bool:
        if builder is None:
            return False
        size = builder.size_bytes
        is_appended = builder.append(*record) is not None
        self._planned_bytes += builder.size_bytes - size
        return is_appended

    def _sticky(self, topic: int) -> int:
        """The partition that gets the rows without a key now."""
        topics = self._topics.table
        place = topics[layout.FIRST_CANDIDATE, topic] + topics[layout.STICKY, topic]
        return int(self._topics.candidates[place])

    def _make_builder(self) -> RecordBatchBuilder:
        return RecordBatchBuilder(max_bytes=self._limits.batch_bytes, compression=self._compression)

    def take(self) -> Iterator[EncodedBatch]:
        batches, self._batches = self._batches, []
        self._open = {}
        self._planned_bytes = 0
        for topic, partition, builder in batches:
            yield EncodedBatch(self._topics.names[topic], partition, builder.build())


def _bytes(data: Bytes, start: int, length: int) -> bytes | None:
    return None if length < 0 else data[start : start + length].tobytes()


def _headers(rows: Rows, row: int) -> list[tuple[str, bytes | None]]:
    first = int(rows.table[layout.HEADERS_START, row])
    headers = []
    for header in range(first, first + int(rows.table[layout.HEADER_COUNT, row])):
        name_start, name_length, value_start, value_length = (int(field) for field in rows.headers[:, header])
        name = _bytes(rows.names, name_start, name_length) or b""
        headers.append((name.decode(errors="replace"), _bytes(rows.header_values, value_start, value_length)))
    return headers
