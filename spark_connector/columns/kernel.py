"""The loops of the bulk decoder, written for numba: record bytes in, columns out.

Two steps. `scan` checks the records and stores the positions of their parts; `gather` copies one column of
bytes together. Nothing is trusted: every read is bounded by the end of its record and every record by
the end of its batch, and `gather` gets only positions that `scan` has checked.

Nothing imports this module but `make_loops`, which compiles it into `loops.ll`: run `make loops` after a
change. `loops` has the signatures.

Source: https://kafka.apache.org/documentation/#record.
"""

# The compiler's decorators and type objects have no types of their own.
# mypy: disable-error-code="untyped-decorator, no-untyped-call"
# The names in capitals are the constants of the tables.
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import Any, Final

from numba import int64, njit, types, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from barnabas.spark_connector.columns.layout import *

_MIN_BODY_BYTES: Final = 6
_MIN_HEADER_BYTES: Final = 2
_MAX_SHIFT: Final = 63
_TWO_BYTES: Final = 1 << 14

_intrinsic: Any = intrinsic
# Errors of arithmetic give values, not exceptions, and everything is inlined: the machine code calls nothing.
loop = njit(forceinline=True, error_model="numpy")


@loop
def _long_varint(data: Any, position: Any, end: Any) -> Any:
    """A number of any length and the position after it; -1 when it is cut short or exceeds 64 bits."""
    folded = uint64(0)
    shift = 0
    while position < end:
        byte = uint64(data[position])
        position += 1
        if shift == _MAX_SHIFT and byte > 1:
            break
        folded |= (byte & uint64(0x7F)) << uint64(shift)
        if byte < 128:
            return int64(folded >> uint64(1)) ^ -int64(folded & uint64(1)), position
        shift += 7
    return int64(0), int64(-1)


@loop
def _varint(data: Any, position: Any, end: Any) -> Any:
    """`_long_varint` with a short cut for the numbers of one or two bytes that most are."""
    value = int64(0)
    following = int64(-1)
    if end - position >= 2:
        value = int64(data[position])
        following = position + 1
        if value >= 128:
            value += (int64(data[following]) << 7) - 128
            following += 1
    if following < 0 or value >= _TWO_BYTES:
        value, following = _long_varint(data, position, end)
    else:
        value = (value >> 1) ^ -(value & 1)
    return value, following


@loop
def _span(data: Any, position: Any, end: Any) -> Any:
    """Bytes with their length before them: (length or -1 for null, start, position after it).

    The position is -1 when they do not fit before the end.
    """
    length, start = _varint(data, position, end)
    following = int64(-1)
    if start >= 0 and length >= -1 and length <= end - start:
        following = start + max(length, int64(0))
    return length, start, following


@loop
def _skip_headers(data: Any, position: Any, end: Any, count: Any) -> Any:
    """Check the headers of a record; the position after them, or -1 if they are malformed."""
    # A header takes at least two bytes, so a huge count cannot cause a huge loop.
    if count < 0 or count > (end - position) // _MIN_HEADER_BYTES:
        return int64(-1)
    for _ in range(count):
        name_length, _, position = _span(data, position, end)
        if position < 0 or name_length < 0:
            return int64(-1)
        _, _, position = _span(data, position, end)
        if position < 0:
            return int64(-1)
    return position


@loop
def _scan_record(data: Any, record: Any, batch_end: Any, fields: Any, row: Any) -> Any:
    """Store the parts of one record in a column of the table; returns (failure, position after it).

    Offset and timestamp are stored as deltas.
    """
    failure = int64(OK)
    length, position = _varint(data, record, batch_end)
    end = position + length
    if position < 0 or length < _MIN_BODY_BYTES or length > batch_end - position:
        failure = int64(BAD_LENGTH)
    else:
        # One byte of attributes, unused in magic 2, comes first.
        fields[TIMESTAMP, row], position = _varint(data, position + 1, end)
        if position < 0:
            failure = int64(BAD_TIMESTAMP)
    if failure == OK:
        fields[OFFSET, row], position = _varint(data, position, end)
        if position < 0:
            failure = int64(BAD_DELTA)
    if failure == OK:
        fields[KEY_LENGTH, row], fields[KEY_START, row], position = _span(data, position, end)
        if position < 0:
            failure = int64(BAD_KEY)
    if failure == OK:
        fields[VALUE_LENGTH, row], fields[VALUE_START, row], position = _span(data, position, end)
        if position < 0:
            failure = int64(BAD_VALUE)
    if failure == OK:
        count, position = _varint(data, position, end)
        fields[HEADER_COUNT, row] = count
        fields[HEADERS_START, row] = position
        if position >= 0 and count != 0:
            position = _skip_headers(data, position, end, count)
        if position < 0:
            failure = int64(BAD_HEADERS)
        elif position != end:
            failure = int64(BAD_END)
    return failure, end


@loop
def _scan_batch(
    data: Any, batches: Any, batch: Any, first_offset: Any, end_offset: Any, fields: Any, state: Any
) -> Any:
    position = batches[batch, BATCH_START]
    batch_end = batches[batch, BATCH_END]
    base_offset = batches[batch, BATCH_BASE_OFFSET]
    last_delta = batches[batch, BATCH_LAST_DELTA]
    base_timestamp = batches[batch, BATCH_TIMESTAMP]
    timestamp_type = batches[batch, BATCH_TIMESTAMP_TYPE]
    row = state[FOUND_ROWS]
    headers = int64(0)
    previous_delta = int64(-1)
    for _ in range(batches[batch, BATCH_RECORD_COUNT]):
        state[FAILED_AT] = position
        failure, position = _scan_record(data, position, batch_end, fields, row)
        if failure != OK:
            return failure
        delta = fields[OFFSET, row]
        if delta <= previous_delta or delta > last_delta:
            return int64(BAD_DELTA)
        previous_delta = delta
        time_delta = fields[TIMESTAMP, row]
        timestamp = base_timestamp
        if timestamp_type == 0:
            timestamp += time_delta
            # The sum of two numbers of one sign has that sign, or it overflowed.
            if (base_timestamp ^ timestamp) & (time_delta ^ timestamp) < 0:
                return int64(BAD_TIMESTAMP)
        offset = base_offset + delta
        if offset >= first_offset and offset < end_offset:
            fields[OFFSET, row] = offset
            fields[TIMESTAMP, row] = timestamp
            fields[TIMESTAMP_TYPE, row] = timestamp_type
            headers += fields[HEADER_COUNT, row]
            row += 1
    if position != batch_end:
        state[FAILED_AT] = position
        return int64(BAD_REST)
    state[FOUND_ROWS] = row
    state[FOUND_HEADERS] += headers
    return int64(OK)


@loop
def scan(data: Any, batches: Any, first_offset: Any, end_offset: Any, fields: Any, state: Any) -> Any:
    """Append the records of the batches with offsets in [first_offset, end_offset) to the field table.

    `data` holds the uncompressed records and `batches` (int64, one row per batch) the position and the header
    of each batch; `fields` (int64, FIELDS rows) has a column for every record that a header counts.
    Returns OK, or the index of a text in `FAILURES`, with FAILED_BATCH and FAILED_AT in the state.
    """
    for batch in range(batches.shape[0]):
        state[FAILED_BATCH] = batch
        failure = _scan_batch(data, batches, batch, first_offset, end_offset, fields, state)
        if failure != OK:
            return failure
    return int64(OK)


@loop
def scan_headers(data: Any, starts: Any, counts: Any, end: Any, headers: Any, first_header: Any) -> Any:
    """Store the positions of the headers' parts, from column `first_header` on; returns the next column.

    Starts and counts come from `scan`; `end` is the end of the data.
    """
    header = first_header
    for row in range(starts.shape[0]):
        position = starts[row]
        for _ in range(counts[row]):
            headers[NAME_LENGTH, header], headers[NAME_START, header], position = _span(data, position, end)
            value_length, value_start, position = _span(data, position, end)
            headers[HEADER_VALUE_LENGTH, header] = value_length
            headers[HEADER_VALUE_START, header] = value_start
            header += 1
    return header


@_intrinsic
def copy_bytes(typing_context: Any, source: Any, start: Any, target: Any, at: Any, length: Any) -> Any:
    """memcpy between arrays of bytes: four times as fast as a loop. The caller has checked the bounds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source_type, _, target_type, _, _ = signature.args
        source_data = context.make_array(source_type)(context, builder, arguments[0]).data
        target_data = context.make_array(target_type)(context, builder, arguments[2]).data
        cgutils.raw_memcpy(
            builder,
            builder.gep(target_data, [arguments[3]]),
            builder.gep(source_data, [arguments[1]]),
            arguments[4],
            1,
        )
        return context.get_dummy_value()

    return types.void(source, int64, target, int64, int64), generate


@loop
def gather(data: Any, starts: Any, lengths: Any, out: Any, ends: Any, valid: Any, at: Any) -> Any:
    """Copy rows of bytes one after another into `out` from byte `at` on; returns the byte after the last.

    `ends` gets the end of each row and `valid` 0 for a null (length -1) and 1 otherwise. `out` has room for
    the sum of the lengths.
    """
    for row in range(starts.shape[0]):
        length = lengths[row]
        valid[row] = length >= 0
        if length > 0:
            copy_bytes(data, starts[row], out, at, length)
            at += length
        ends[row] = at
    return at
