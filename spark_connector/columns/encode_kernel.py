"""The loops of the bulk encoder, written for numba: columns in, record bytes of many partitions out.

Two steps. `plan_rows` chooses the partition of each row and the batch that it joins, and computes the exact
sizes; `write_rows` writes each record to its place. In between the caller fixes the place of each batch in
the output, so that no batch is copied while it grows. Both go on where they stopped: a group of batches may
come from several Arrow batches, or from a part of one.

The positions in the row and header tables lie within the data that they belong to, which the caller has
checked. Nothing imports this module but `make_loops`: run `make loops` after a change.

Sources: https://kafka.apache.org/documentation/#record; murmur2 as in `client.producer.partitioners`.
"""

# The compiler's decorators and type objects have no types of their own.
# mypy: disable-error-code="untyped-decorator, no-untyped-call"
# The names in capitals are the constants of the tables.
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import Any, Final

from numba import int64, uint8, uint32, uint64

from barnabas.protocol.record_batch import HEADER_BYTES
from barnabas.spark_connector.columns.encode_layout import *
from barnabas.spark_connector.columns.kernel import copy_bytes, loop
from barnabas.spark_connector.columns.layout import (
    HEADER_VALUE_LENGTH,
    HEADER_VALUE_START,
    NAME_LENGTH,
    NAME_START,
)

_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C
_SIGN_BIT_CLEARED: Final = 0x7FFFFFFF


@loop
def _folded(value: Any) -> Any:
    return uint64((value << 1) ^ (value >> 63))


@loop
def _varint_size(value: Any) -> Any:
    folded = _folded(value)
    size = int64(1)
    while folded > 127:
        folded >>= uint64(7)
        size += 1
    return size


@loop
def _span_size(length: Any) -> Any:
    """The size of bytes with their length before them; -1 is null."""
    return _varint_size(length) + max(length, int64(0))


@loop
def _put_varint(out: Any, position: Any, value: Any) -> Any:
    folded = _folded(value)
    while folded > 127:
        out[position] = uint8((folded & uint64(127)) | uint64(128))
        position += 1
        folded >>= uint64(7)
    out[position] = uint8(folded)
    return position + 1


@loop
def _put_span(out: Any, position: Any, data: Any, start: Any, length: Any) -> Any:
    position = _put_varint(out, position, length)
    if length > 0:
        copy_bytes(data, start, out, position, length)
        position += length
    return position


@loop
def _murmur2(data: Any, start: Any, length: Any) -> Any:
    h = uint32(_SEED) ^ uint32(length)
    whole = start + (length & ~3)
    for at in range(start, whole, 4):
        k = (
            uint32(data[at])
            | (uint32(data[at + 1]) << uint32(8))
            | (uint32(data[at + 2]) << uint32(16))
            | (uint32(data[at + 3]) << uint32(24))
        )
        k = uint32(k * uint32(_M))
        k = uint32((k ^ (k >> uint32(24))) * uint32(_M))
        h = uint32(uint32(h * uint32(_M)) ^ k)
    rest = length & 3
    if rest:
        tail = uint32(0)
        for index in range(rest):
            tail |= uint32(uint32(data[whole + index]) << uint32(8 * index))
        h = uint32(uint32(h ^ tail) * uint32(_M))
    h = uint32((h ^ (h >> uint32(13))) * uint32(_M))
    return uint32(h ^ (h >> uint32(15)))


@loop
def _fixed_size(rows: Any, headers: Any, row: Any) -> Any:
    """The length of a record's body without its two deltas."""
    count = rows[HEADER_COUNT, row]
    size = 1 + _span_size(rows[KEY_LENGTH, row]) + _span_size(rows[VALUE_LENGTH, row]) + _varint_size(count)
    first = rows[HEADERS_START, row]
    for header in range(first, first + count):
        size += _span_size(headers[NAME_LENGTH, header]) + _span_size(headers[HEADER_VALUE_LENGTH, header])
    return size


@loop
def _body_length(rows: Any, row: Any, fixed: Any, batches: Any, batch: Any) -> Any:
    """The length of a record's body as the next one of an open batch."""
    delta = rows[TIMESTAMP, row] - batches[BATCH_BASE_TIMESTAMP, batch]
    return fixed + _varint_size(delta) + _varint_size(batches[BATCH_RECORD_COUNT, batch])


@loop
def _joins(rows: Any, row: Any, fixed: Any, batches: Any, batch: Any, max_batch_bytes: Any) -> Any:
    """Whether there is an open batch that has room for a record."""
    fits = False
    if batch >= 0:
        body = _body_length(rows, row, fixed, batches, batch)
        fits = batches[BATCH_SIZE, batch] + _varint_size(body) + body <= max_batch_bytes
    return fits


@loop
def _sticky_slot(topics: Any, candidates: Any, topic: Any) -> Any:
    """The slot that gets the rows without a key now."""
    partition = candidates[topics[FIRST_CANDIDATE, topic] + topics[STICKY, topic]]
    return topics[FIRST_SLOT, topic] + partition


@loop
def _chosen_slot(key_data: Any, rows: Any, row: Any, topics: Any, candidates: Any) -> Any:
    """The slot of a row, or -1 if it names a partition that does not exist."""
    topic = rows[TOPIC, row]
    count = topics[PARTITION_COUNT, topic]
    partition = rows[PARTITION, row]
    slot = int64(-1)
    if partition >= 0:
        if partition < count:
            slot = topics[FIRST_SLOT, topic] + partition
    elif rows[KEY_LENGTH, row] >= 0:
        hashed = _murmur2(key_data, rows[KEY_START, row], rows[KEY_LENGTH, row])
        slot = topics[FIRST_SLOT, topic] + int64(hashed & uint32(_SIGN_BIT_CLEARED)) % count
    else:
        slot = _sticky_slot(topics, candidates, topic)
    return slot


@loop
def _open_batch(rows: Any, row: Any, topics: Any, slot: Any, batches: Any, batch: Any) -> Any:
    """Begin a batch with the timestamp of its first row."""
    topic = rows[TOPIC, row]
    batches[BATCH_TOPIC, batch] = topic
    batches[BATCH_PARTITION, batch] = slot - topics[FIRST_SLOT, topic]
    batches[BATCH_SIZE, batch] = HEADER_BYTES
    batches[BATCH_RECORD_COUNT, batch] = 0
    batches[BATCH_BASE_TIMESTAMP, batch] = rows[TIMESTAMP, row]
    batches[BATCH_MAX_TIMESTAMP, batch] = rows[TIMESTAMP, row]
    batches[BATCH_WRITTEN, batch] = 0


@loop
def plan_rows(
    key_data: Any,
    rows: Any,
    headers: Any,
    topics: Any,
    candidates: Any,
    open_batches: Any,
    batches: Any,
    max_batch_bytes: Any,
    max_record_bytes: Any,
    max_group_bytes: Any,
    state: Any,
) -> Any:
    """Give the rows from NEXT_ROW on their batches; returns an outcome.

    `open_batches` has for each slot the column in `batches` of its open batch, or -1. A row that would make a
    batch exceed `max_batch_bytes` begins the next one; its record may be as large as `max_record_bytes`,
    counted with a header of its own. The group is full once it has `max_group_bytes`.
    """
    for row in range(state[NEXT_ROW], rows.shape[1]):
        state[NEXT_ROW] = row
        if state[PLANNED_BYTES] >= max_group_bytes:
            return int64(GROUP_FULL)
        if state[BATCH_COUNT] >= batches.shape[1]:
            return int64(TABLE_FULL)
        slot = _chosen_slot(key_data, rows, row, topics, candidates)
        if slot < 0:
            return int64(NO_SUCH_PARTITION)
        fixed = _fixed_size(rows, headers, row)
        alone = HEADER_BYTES + _varint_size(fixed + 2) + fixed + 2
        if alone > max_record_bytes:
            state[FAILED_SIZE] = alone
            return int64(RECORD_TOO_LARGE)
        batch = open_batches[slot]
        fits = _joins(rows, row, fixed, batches, batch, max_batch_bytes)
        if not fits and batch >= 0 and rows[PARTITION, row] < 0 and rows[KEY_LENGTH, row] < 0:
            # Rows without a key go on to the next partition, where rows with a key may have begun a batch.
            topic = rows[TOPIC, row]
            open_batches[slot] = -1
            topics[STICKY, topic] = (topics[STICKY, topic] + 1) % topics[CANDIDATE_COUNT, topic]
            slot = _sticky_slot(topics, candidates, topic)
            batch = open_batches[slot]
            fits = _joins(rows, row, fixed, batches, batch, max_batch_bytes)
        if not fits:
            batch = state[BATCH_COUNT]
            state[BATCH_COUNT] = batch + 1
            state[PLANNED_BYTES] += HEADER_BYTES
            open_batches[slot] = batch
            _open_batch(rows, row, topics, slot, batches, batch)
        body = _body_length(rows, row, fixed, batches, batch)
        added = _varint_size(body) + body
        rows[BATCH, row] = batch
        rows[BODY_LENGTH, row] = body
        batches[BATCH_SIZE, batch] += added
        batches[BATCH_RECORD_COUNT, batch] += 1
        batches[BATCH_MAX_TIMESTAMP, batch] = max(batches[BATCH_MAX_TIMESTAMP, batch], rows[TIMESTAMP, row])
        state[PLANNED_BYTES] += added
    state[NEXT_ROW] = rows.shape[1]
    return int64(OK)


@loop
def write_rows(
    key_data: Any,
    value_data: Any,
    name_data: Any,
    header_value_data: Any,
    rows: Any,
    headers: Any,
    batches: Any,
    first_row: Any,
    end_row: Any,
    out: Any,
) -> Any:
    """Write the records of planned rows to the positions of their batches in `out`; returns OK.

    Before the first row of a group, BATCH_POSITION is where the records of each batch begin, and `out` has
    room for the size of each.
    """
    for row in range(first_row, end_row):
        batch = rows[BATCH, row]
        position = _put_varint(out, batches[BATCH_POSITION, batch], rows[BODY_LENGTH, row])
        # The attributes, unused in magic 2.
        out[position] = uint8(0)
        delta = rows[TIMESTAMP, row] - batches[BATCH_BASE_TIMESTAMP, batch]
        position = _put_varint(out, position + 1, delta)
        position = _put_varint(out, position, batches[BATCH_WRITTEN, batch])
        position = _put_span(out, position, key_data, rows[KEY_START, row], rows[KEY_LENGTH, row])
        position = _put_span(out, position, value_data, rows[VALUE_START, row], rows[VALUE_LENGTH, row])
        count = rows[HEADER_COUNT, row]
        position = _put_varint(out, position, count)
        first = rows[HEADERS_START, row]
        for header in range(first, first + count):
            start, length = headers[NAME_START, header], headers[NAME_LENGTH, header]
            position = _put_span(out, position, name_data, start, length)
            start, length = headers[HEADER_VALUE_START, header], headers[HEADER_VALUE_LENGTH, header]
            position = _put_span(out, position, header_value_data, start, length)
        batches[BATCH_POSITION, batch] = position
        batches[BATCH_WRITTEN, batch] += 1
    return int64(OK)
