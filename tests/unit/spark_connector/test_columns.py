"""The bulk decoder: both engines against `protocol.records`, and against damaged bytes."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration
from barnabas.protocol.record_batch import (
    HEADER,
    HEADER_BYTES,
    TimestampType,
    iter_batches,
    parse_header,
    stamp_log_append_time,
    write_crc,
)
from barnabas.protocol.records import Record, decode_records
from barnabas.protocol.varint import encode_varint
from barnabas.spark_connector.columns import loops
from barnabas.spark_connector.columns.arrow import DECODED, RecordColumns
from barnabas.spark_connector.columns.decode import SMALL_GROUP_BYTES, SMALL_GROUP_ROWS, BulkDecoder, Engine
from tests.support.batches import build_batch
from tests.support.gaps import keeping
from tests.support.soak import searched

Row = tuple[int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@pytest.fixture(scope="module", params=["compiled", "python"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.param


def rows_of(columns: RecordColumns) -> list[Row]:
    """The columns as rows: offset, timestamp, timestamp type, key, value, headers."""
    names = ("offset", "timestamp", "timestampType", "key", "value")
    headers = (
        tuple((header["key"], header["value"]) for header in row or ())
        for row in columns.arrays["headers"].to_pylist()
    )
    rows = list(zip(*(columns.arrays[name].to_pylist() for name in names), headers, strict=True))
    assert len(rows) == columns.row_count
    for name, array in columns.arrays.items():
        assert array.type == DECODED[name]
        array.validate(full=True)
    return rows


def expected_rows(data: bytes, first: int = 0, end: int = 1 << 62) -> list[Row]:
    rows: list[Row] = []
    for position, header in iter_batches(data):
        if header.is_control:
            continue
        for record in decode_records(memoryview(data)[position:]):
            if first <= record.offset < end:
                rows.append((record[0], record[1], int(header.timestamp_type), *record[2:]))
    return rows


def decode_all(data: bytes, engine: Engine, **options: Any) -> list[Row]:
    return [
        row
        for group in BulkDecoder(DECODED, engine=engine, **options).decode([data])
        for row in rows_of(group)
    ]


def batch_of(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    is_control: bool = False,
) -> bytes:
    builder = RecordBatchBuilder(max_bytes=1 << 30, compression=compression)
    for record in records:
        builder.append(record.key, record.value, record.headers, record.timestamp_ms)
    return bytes(builder.build(base_offset=base_offset, timestamp_type=timestamp_type, is_control=is_control))


def with_records(data: bytes, count: int, *, last_delta: int | None = None, base_timestamp: int = 0) -> bytes:
    """A batch with a good CRC around any bytes."""
    batch = bytearray(HEADER_BYTES) + data
    delta = count - 1 if last_delta is None else last_delta
    HEADER.pack_into(batch, 0, 0, len(batch) - 12, 0, 2, 0, 0, delta, base_timestamp, 0, -1, -1, -1, count)
    write_crc(batch)
    return bytes(batch)


def record_bytes(*numbers: int) -> bytes:
    """A record of these numbers after its attributes, with its length before it."""
    body = b"\0" + b"".join(map(encode_varint, numbers))
    return encode_varint(len(body)) + body


maybe_bytes = st.none() | st.binary(max_size=200)
records = st.builds(
    Record,
    offset=st.just(0),
    timestamp_ms=st.integers(-1, 1 << 45),
    key=maybe_bytes,
    value=maybe_bytes,
    headers=st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3).map(tuple),
)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Some batches with rising base offsets, and gaps between and within them as after a compaction."""
    parts = []
    base_offset = draw(st.integers(0, 1 << 40))
    for _ in range(draw(st.integers(0, 4))):
        content = draw(st.lists(records, min_size=1, max_size=20))
        batch = batch_of(
            content,
            base_offset=base_offset,
            compression=draw(st.sampled_from(Compression)),
            timestamp_type=draw(st.sampled_from(TimestampType)),
            is_control=draw(st.integers(0, 9)) == 0,
        )
        if draw(st.booleans()):
            kept = draw(st.sets(st.integers(base_offset, base_offset + len(content) - 1)))
            horizon = draw(st.none() | st.integers(0, 1 << 45))
            batch = bytes(keeping(batch, kept, delete_horizon_ms=horizon))
        parts.append(batch)
        base_offset += len(content) + draw(st.integers(0, 5))
    return b"".join(parts)


@given(data=logs(), group_rows=st.sampled_from([1, 7, 1000]))
@settings(max_examples=searched(60, usual=25), deadline=None)
def test_any_log_decodes_as_one_by_one(engine: Engine, data: bytes, group_rows: int) -> None:
    assert decode_all(data, engine, group_rows=group_rows) == expected_rows(data)


@given(data=logs(), cut=st.tuples(st.integers(-5, 90), st.integers(-5, 90)))
@settings(max_examples=searched(60, usual=25), deadline=None)
def test_records_outside_the_range_are_cut(engine: Engine, data: bytes, cut: tuple[int, int]) -> None:
    base = parse_header(data).base_offset if data else 0
    first, end = base + min(cut), base + max(cut)
    assert decode_all(data, engine, first_offset=first, end_offset=end) == expected_rows(data, first, end)


@given(data=st.data())
@settings(max_examples=searched(150, usual=60), deadline=None)
def test_damaged_records_with_a_good_crc_are_refused_or_read_alike(
    engine: Engine, data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, 4))
    content = data.draw(st.lists(records, min_size=count, max_size=count))
    damaged = bytearray(batch_of(content)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    del damaged[data.draw(st.integers(0, len(damaged))) :]
    batch = with_records(bytes(damaged), count)
    try:
        expected = expected_rows(batch)
    except ApiError:
        with pytest.raises(ApiError) as raised:
            decode_all(batch, engine)
        assert raised.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    else:
        assert decode_all(batch, engine) == expected


@given(data=st.data())
@settings(max_examples=searched(60, usual=25), deadline=None)
def test_any_flipped_bit_or_cut_is_refused(engine: Engine, data: st.DataObject) -> None:
    batch = bytearray(build_batch([(b"k", b"v" * 50)] * 5))
    if data.draw(st.booleans()):
        del batch[data.draw(st.integers(1, len(batch) - 1)) :]
    else:
        # The fields before the magic are outside the CRC: base offset, length and leader epoch.
        at = data.draw(st.integers(16, len(batch) - 1))
        batch[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ApiError):
        decode_all(bytes(batch), engine)


@pytest.mark.parametrize(
    ("data", "count", "base_timestamp"),
    [
        (record_bytes(0, 0, -2, -1, 0), 1, 0),
        (record_bytes(0, 0, 99, -1, 0), 1, 0),
        (record_bytes(0, 0, -1, 1 << 62, 0), 1, 0),
        (record_bytes(0, 0, -1, -1, -1), 1, 0),
        (record_bytes(0, 0, -1, -1, 1 << 40), 1, 0),
        (record_bytes(0, 0, -1, -1, 1, -1, -1), 1, 0),
        (record_bytes(0, 0, -1, -1, 1, 0, 5), 1, 0),
        (record_bytes(0, 1, -1, -1, 0), 1, 0),
        (record_bytes(0, -1, -1, -1, 0), 1, 0),
        (record_bytes(0, 0, -1, -1, 0) * 2, 2, 0),
        (record_bytes(0, 0, -1, -1, 0) * 2, 1, 0),
        (record_bytes(0, 0, -1, -1, 0, 0), 1, 0),
        (record_bytes(0, 0, -1, -1), 1, 0),
        (record_bytes(1, 0, -1, -1, 0), 1, (1 << 63) - 1),
        (record_bytes(-1, 0, -1, -1, 0), 1, -(1 << 63)),
        (encode_varint(-1) + b"\0" * 20, 1, 0),
        (b"\xff" * 12, 1, 0),
        (b"\x0c\0" + b"\xff" * 10, 1, 0),
        (b"", 1, 0),
        (b"\0" * 7, (1 << 31) - 1, 0),
    ],
    ids=str,
)
def test_impossible_records_are_refused(engine: Engine, data: bytes, count: int, base_timestamp: int) -> None:
    batch = with_records(data, count, base_timestamp=base_timestamp)
    with pytest.raises(ApiError) as raised:
        decode_all(batch, engine)
    assert raised.value.code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)


@pytest.mark.parametrize("names", [[b"\xff"], [b"\xc3", b"\xa9"], [b"a", b"\xe2\x82"], [b"\xa9"]])
def test_bytes_of_a_header_name_that_are_no_utf8_are_replaced(engine: Engine, names: list[bytes]) -> None:
    """Kafka takes them from producers, so they must not stop a job."""
    headers = b"".join(encode_varint(len(name)) + name + encode_varint(-1) for name in names)
    body = b"\0" + b"".join(map(encode_varint, (0, 0, -1, -1, len(names)))) + headers
    batch = with_records(encode_varint(len(body)) + body, 1)
    (columns,) = BulkDecoder(["headers"], engine=engine).decode([batch])
    (row,) = columns.arrays["headers"].to_pylist()
    assert [header["key"] for header in row] == [name.decode(errors="replace") for name in names]


def test_columns_that_were_not_requested_are_not_built(engine: Engine) -> None:
    batch = bytes(build_batch([(b"k", b"v")] * 3))
    (columns,) = BulkDecoder(["value"], engine=engine).decode([batch])
    assert list(columns.arrays) == ["value"]
    assert columns.arrays["value"].to_pylist() == [b"v"] * 3


def test_groups_join_batches_across_buffers_up_to_their_limits(engine: Engine) -> None:
    buffers = [bytes(build_batch([(None, b"v")] * 4, base_offset=4 * index)) for index in range(10)]
    decoder = BulkDecoder(["offset"], engine=engine, group_rows=10)
    counts = [group.row_count for group in decoder.decode(buffers)]
    assert counts == [8] * 5
    assert decoder.next_offset == 40
    decoder = BulkDecoder(["offset"], engine=engine, group_bytes=3 * len(buffers[0]))
    assert [group.row_count for group in decoder.decode([b"".join(buffers)])] == [12, 12, 12, 4]


def test_groups_are_bounded_by_the_decompressed_size_of_their_batches(engine: Engine) -> None:
    packed = [
        bytes(build_batch([(None, bytes(10_000))] * 4, base_offset=4 * index, compression=Compression.ZSTD))
        for index in range(10)
    ]
    assert sum(map(len, packed)) < 50_000
    decoder = BulkDecoder(DECODED, engine=engine, group_bytes=100_000)
    assert [group.row_count for group in decoder.decode(packed)] == [8] * 5


def test_a_batch_larger_than_a_group_comes_alone_and_whole(engine: Engine) -> None:
    buffers = [bytes(build_batch([(None, b"v")] * count, base_offset=10**count)) for count in (1, 9, 2)]
    decoder = BulkDecoder(["offset"], engine=engine, group_rows=5)
    with pytest.raises(ApiError, match="base offset"):
        list(decoder.decode(buffers))
    decoder = BulkDecoder(["offset"], engine=engine, group_rows=5)
    assert [group.row_count for group in decoder.decode(buffers[:2])] == [1, 9]


def test_a_batch_with_a_lower_base_offset_is_refused(engine: Engine) -> None:
    batch = bytes(build_batch([(None, b"v")] * 4, base_offset=10))
    with pytest.raises(ApiError, match=r"base offset 10 .* where 14"):
        decode_all(batch * 2, engine)


def test_log_append_time_takes_the_brokers_time_for_all_records(engine: Engine) -> None:
    batch = build_batch([(None, b"a"), (None, b"b")], timestamp_ms=5)
    stamp_log_append_time(batch, 0, parse_header(batch), 1234)
    assert [row[1:3] for row in decode_all(bytes(batch), engine)] == [(1234, 1), (1234, 1)]


def test_a_batch_that_decompresses_beyond_the_limit_is_refused(engine: Engine) -> None:
    batch = bytes(build_batch([(None, bytes(100_000))], compression=Compression.ZSTD))
    with pytest.raises(ApiError, match="decompress"):
        decode_all(batch, engine, max_batch_bytes=50_000)


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidConfiguration, match="'fast' is unknown"):
        BulkDecoder(DECODED, engine="fast")
    with pytest.raises(InvalidConfiguration, match="0 rows"):
        BulkDecoder(DECODED, group_rows=0)


@pytest.mark.parametrize(
    ("records", "is_small"),
    [
        ([(b"k", b"v")] * SMALL_GROUP_ROWS, True),
        ([(b"k", b"v")] * (SMALL_GROUP_ROWS + 1), False),
        ([(b"k", bytes(SMALL_GROUP_BYTES))], False),
    ],
)
def test_without_llvmlite_the_python_engine_decodes_and_only_larger_groups_cause_a_warning(
    records: list[tuple[bytes, bytes]],
    is_small: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def absent() -> None:
        raise ImportError("No module named 'llvmlite'")

    monkeypatch.setattr(loops, "load_loops", absent)
    batch = bytes(build_batch(records))
    decoder = BulkDecoder(DECODED)
    assert [row for group in decoder.decode([batch]) for row in rows_of(group)] == expected_rows(batch)
    assert ("one by one" in caplog.text) is not is_small
    with pytest.raises(ImportError):
        BulkDecoder(DECODED, engine="compiled")
