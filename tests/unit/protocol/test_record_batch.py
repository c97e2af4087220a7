"""Batch headers and records: golden bytes, round trips, and every way in which bytes can be wrong."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from barnabas.protocol import records as records_module
from barnabas.protocol.batch_builder import RecordBatchBuilder, build_marker
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.record_batch import (
    CONTROL_MASK,
    HEADER,
    HEADER_BYTES,
    MIN_RECORD_BYTES,
    BatchHeader,
    TimestampType,
    check_batch,
    check_produced_batch,
    checked_batches,
    iter_batches,
    parse_header,
    stamp_log_append_time,
    stamp_producer,
    write_crc,
)
from barnabas.protocol.records import (
    Headers,
    Marker,
    MarkerType,
    Record,
    decode_fields,
    decode_marker,
    decode_records,
    marker_of,
)
from tests.support.batches import build_batch, stamp
from tests.support.compiled import PURE_PYTHON_ONLY

Walk = Callable[[Any], Iterator[tuple[int, BatchHeader]]]

# One record, key "k", value "v", header h=1, timestamp 1000, base offset 5, leader epoch 3; each field
# written out by hand from the format's description. The CRC alone is computed (by another implementation).
GOLDEN = bytes.fromhex(
    "0000000000000005"  # base offset
    "0000003e"  # length: 74 - 12
    "00000003"  # leader epoch
    "02"  # magic
    "bc1d551f"  # crc
    "0000"  # attributes
    "00000000"  # last offset delta
    "00000000000003e8"  # base timestamp
    "00000000000003e8"  # max timestamp
    "ffffffffffffffff"  # producer id
    "ffff"  # producer epoch
    "ffffffff"  # base sequence
    "00000001"  # record count
    "18"  # record length 12
    "00"  # attributes
    "00"  # timestamp delta
    "00"  # offset delta
    "026b"  # key
    "0276"  # value
    "02"  # one header
    "0268"  # its name
    "0231"  # its value
)

FIELDS = st.none() | st.binary(max_size=200) | st.integers(0, 20_000).map(lambda size: b"z" * size)
HEADER_LISTS = st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=30)), max_size=4).map(
    tuple
)
RECORDS = st.lists(st.tuples(st.integers(-1, 1 << 45), FIELDS, FIELDS, HEADER_LISTS), min_size=1, max_size=8)


def refusal(data: bytes | bytearray) -> tuple[ErrorCode, str]:
    with pytest.raises(ApiError) as caught:
        decode_records(data)
    return caught.value.code, caught.value.text


def altered(batch: bytes | bytearray, **fields: int) -> bytearray:
    """The batch with header fields replaced and a CRC that fits."""
    out = bytearray(batch)
    HEADER.pack_into(out, 0, *parse_header(out)._replace(**fields))
    if "crc" not in fields:
        write_crc(out)
    return out


def with_records(raw: bytes, count: int, last_offset_delta: int | None = None, **fields: int) -> bytearray:
    """A batch whose records part is exactly these bytes, with a CRC that fits."""
    out = bytearray(build_batch([(None, b"v")])[:HEADER_BYTES]) + raw
    return altered(
        out,
        batch_length=len(out) - 12,
        record_count=count,
        last_offset_delta=count - 1 if last_offset_delta is None else last_offset_delta,
        **fields,
    )


def test_the_builder_writes_the_golden_bytes() -> None:
    builder = RecordBatchBuilder()
    assert builder.append(b"k", b"v", [("h", b"1")], 1000) == 0
    assert bytes(builder.build(base_offset=5, partition_leader_epoch=3)).hex() == GOLDEN.hex()
    assert builder.size_bytes == len(GOLDEN)


def test_the_golden_bytes_are_read() -> None:
    header = check_produced_batch(GOLDEN)
    assert (header.base_offset, header.partition_leader_epoch, header.size_bytes) == (5, 3, len(GOLDEN))
    assert (header.last_offset, header.next_offset, header.record_count) == (5, 6, 1)
    assert header.compression is Compression.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.is_transactional
    assert not header.is_control
    expected = [Record(5, 1000, b"k", b"v", (("h", b"1"),))]
    assert decode_records(GOLDEN) == expected
    assert refusal(altered(GOLDEN, crc=1))[0] is ErrorCode.CORRUPT_MESSAGE
    assert decode_records(altered(GOLDEN, crc=1), check_crc=False) == expected


# Around the largest number of two bytes, of which the builder has a table.
LARGE = [
    (0, b"k" * 8_192, b"v" * 8_192, (("h", b"1" * 8_192),)),
    (8_192, None, None, ()),
    *[(0, None, b"v" * size, ()) for size in range(8_180, 8_192)],
]


@example(LARGE, Compression.NONE, 0)
@settings(max_examples=60, deadline=None)
@given(RECORDS, st.sampled_from(list(Compression)), st.integers(0, 1 << 60))
def test_a_built_batch_is_decoded(
    records: list[tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]],
    compression: Compression,
    base_offset: int,
) -> None:
    builder = RecordBatchBuilder(max_bytes=1 << 30, compression=compression)
    for timestamp, key, value, headers in records:
        builder.append(key, value, headers, timestamp)
    batch = builder.build(base_offset=base_offset)
    header = check_produced_batch(batch)
    assert header.max_timestamp == max(record[0] for record in records)
    expected = [
        Record(base_offset + index, timestamp, key, value, headers)
        for index, (timestamp, key, value, headers) in enumerate(records)
    ]
    assert decode_records(memoryview(batch)) == expected
    assert decode_fields(bytes(batch) + b"what follows") == expected


@PURE_PYTHON_ONLY
def test_records_of_the_common_form_take_the_fast_way_and_all_sizes_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow: list[int] = []

    def decode_record(data: bytes, position: int, max_headers: int) -> Any:
        slow.append(position)
        return complete(data, position, max_headers)

    complete = records_module._decode_record
    monkeypatch.setattr(records_module, "_decode_record", decode_record)
    builder = RecordBatchBuilder(max_bytes=1 << 30)
    expected, uncommon = [], 0
    common_headers: list[Headers] = [(("h", b"1"),), (("ü" * 31 + "n", b"v" * 63),), (("", b""),)]
    other_headers: list[Headers] = [
        (("h", None),),
        (("n" * 64, b""),),
        (("h", b"v" * 64),),
        (("h", b""),) * 2,
    ]
    some_headers = itertools.cycle([*common_headers, *other_headers])
    values = [*range(8_170, 8_200), *range(200), *[index % 5 for index in range(8_200)]]
    for index, size in enumerate(values):
        key = None if index % 3 else b"k" * (index % 130)
        delta = index // 2 * 37 % 160 - 80 if index else 0
        headers = next(some_headers) if index % 500 == 499 else ()
        headers_size = sum(2 + len(name.encode()) + len(value or b"") for name, value in headers)
        builder.append(key, b"v" * size, headers, 5_000 + delta)
        expected.append(Record(7 + index, 5_000 + delta, key, b"v" * size, headers))
        key_size = len(key or b"")
        # Two bytes for the record's length and the value's, and for the offset delta; one for the others.
        total = key_size + size + headers_size + 7
        is_short = key_size < 64 and total < 8_192 and index < 8_192 and -64 <= delta < 64
        uncommon += headers in other_headers or not is_short
    assert decode_records(builder.build(base_offset=7)) == expected
    assert len(slow) == uncommon
    decode_records(build_batch([(b"the last", b"too")]))
    assert len(slow) == uncommon


def test_the_builder_refuses_a_record_above_its_limit_unless_it_is_the_first() -> None:
    builder = RecordBatchBuilder(max_bytes=200)
    assert builder.append(None, b"x" * 1000, None, 1) == 0
    assert builder.append(None, b"", None, 1) is None
    full = RecordBatchBuilder(max_bytes=HEADER_BYTES + 2 * 47)
    offsets = [full.append(None, b"x" * 40, None, 1) for _ in range(4)]
    assert offsets == [0, 1, None, None]
    assert len(full.build()) == full.size_bytes == full.max_bytes
    assert len(decode_records(full.build())) == full.record_count == 2


def test_an_empty_batch_cannot_be_built() -> None:
    with pytest.raises(ApiError, match="at least one record"):
        RecordBatchBuilder().build()


def test_stamping_changes_offsets_and_epoch_but_not_the_crc() -> None:
    batch = build_batch([(None, b"a"), (None, b"b")])
    crc = parse_header(batch).crc
    stamp(memoryview(batch), 0, 1 << 40, 9)
    header = check_produced_batch(batch)
    assert (header.base_offset, header.last_offset) == (1 << 40, (1 << 40) + 1)
    assert (header.partition_leader_epoch, header.crc) == (9, crc)


@pytest.mark.parametrize("is_transactional", [False, True])
def test_stamping_a_producer_gives_the_batch_that_was_built_with_it(is_transactional: bool) -> None:
    builder = RecordBatchBuilder()
    builder.append(b"k", b"v", None, 5)
    stamped = builder.build()
    stamp_producer(stamped, 1 << 40, 3, 17, is_transactional=is_transactional)
    built = builder.build(
        producer_id=1 << 40, producer_epoch=3, base_sequence=17, is_transactional=is_transactional
    )
    assert stamped == built
    header = check_produced_batch(built)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 40, 3, 17)
    assert (header.is_transactional, header.is_control) == (is_transactional, False)


def test_append_time_replaces_every_timestamp() -> None:
    builder = RecordBatchBuilder()
    builder.append(None, b"a", None, 10)
    builder.append(None, b"b", None, 20)
    batch = builder.build()
    stamp_log_append_time(batch, 0, check_batch(batch), 777)
    assert check_batch(batch).timestamp_type is TimestampType.LOG_APPEND_TIME
    assert builder.build(timestamp_type=TimestampType.LOG_APPEND_TIME)[21:23] == batch[21:23]
    assert [record.timestamp_ms for record in decode_records(batch)] == [777, 777]


@pytest.mark.parametrize("compression", list(Compression))
def test_every_prefix_of_a_batch_is_refused(compression: Compression) -> None:
    batch = build_batch([(b"key", b"value" * 9)] * 3, compression=compression)
    for cut in range(len(batch)):
        with pytest.raises(ApiError) as caught:
            check_batch(b"..." + batch[:cut], 3, origin=1_000)
        assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
        at_end = f"batch at byte 1003 ends at {1_003 + len(batch)}, the data at {1_003 + cut}"
        assert (f"{cut} are left" if cut < HEADER_BYTES else at_end) in caught.value.text
    with pytest.raises(ApiError, match="needs 61 bytes, 54 are left"):
        parse_header(GOLDEN, len(GOLDEN) - 54)


def test_every_flipped_bit_after_the_leader_epoch_is_detected() -> None:
    batch = build_batch([(b"key", b"value")], base_offset=3)
    for bit in range(16 * 8, len(batch) * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(ApiError):
            check_batch(damaged)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"magic": 1}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"magic": 3}, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        ({"batch_length": 48, "crc": 0}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": -1, "crc": 0}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 1 << 30, "crc": 0}, ErrorCode.INVALID_RECORD),
        ({"crc": 1}, ErrorCode.CORRUPT_MESSAGE),
        ({"attributes": 5}, ErrorCode.UNKNOWN_SERVER_ERROR),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 2}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 5}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
    ],
)
def test_a_produced_batch_with_a_wrong_header_is_refused(fields: dict[str, int], code: ErrorCode) -> None:
    with pytest.raises(ApiError) as caught:
        check_produced_batch(altered(build_batch([(None, b"v")]), **fields))
    assert caught.value.code is code


def test_a_replica_accepts_gaps_that_compaction_leaves_and_refuses_counts_beyond_the_offsets() -> None:
    batch = build_batch([(None, b"v")], base_offset=100)
    for count, delta in ((1, 5), (6, 5), (0, 5), (0, 0)):
        header = check_batch(altered(batch, record_count=count, last_offset_delta=delta))
        assert (header.last_offset, header.next_offset) == (100 + delta, 101 + delta)
    for count, delta in ((7, 5), (-1, 5), (0, -2), (1, -1)):
        with pytest.raises(ApiError, match=f"{count} records cannot end at offset delta {delta}") as caught:
            check_batch(altered(batch, record_count=count, last_offset_delta=delta))
        assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_batch_that_compaction_has_emptied_has_no_records_whatever_its_attributes() -> None:
    emptied = with_records(b"", 0, 5, attributes=Compression.ZSTD | CONTROL_MASK)
    assert [(at, header.size_bytes) for at, header in iter_batches(emptied)] == [(0, HEADER_BYTES)]
    assert decode_records(emptied) == []
    assert marker_of(emptied) is None
    assert refusal(with_records(b"\x00", 0, 5))[0] is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("walk", [iter_batches, checked_batches])
def test_batches_are_walked_and_a_last_one_cut_short_is_left_out(walk: Walk) -> None:
    first, second = build_batch([(None, b"1")]), build_batch([(None, b"2")] * 5, base_offset=1)
    both = bytes(first + second)
    for end in range(len(both) + 1):
        found = [position for position, _ in walk(memoryview(both)[:end])]
        expected = [0] * (end >= len(first)) + [len(first)] * (end >= len(both))
        assert found == expected


@pytest.mark.parametrize("walk", [iter_batches, checked_batches])
def test_walking_stops_loudly_at_an_impossible_length(walk: Walk) -> None:
    with pytest.raises(ApiError, match="length 0"):
        list(walk(bytes(100).replace(b"\x00" * 17, b"\x00" * 16 + b"\x02", 1)))


def test_a_checked_walk_names_a_damaged_batch_by_its_position_in_the_file() -> None:
    first = build_batch([(None, b"1")])
    walk = checked_batches(bytes(first) + bytes(altered(first, magic=1)), 1_000)
    assert next(walk) == (0, parse_header(first))
    with pytest.raises(ApiError, match=f"the batch at byte {1_000 + len(first)} has magic 1"):
        next(walk)


def test_an_unknown_compression_is_refused_when_it_is_asked_for() -> None:
    with pytest.raises(ApiError, match="compression 5 of a batch is unknown"):
        _ = parse_header(altered(GOLDEN, attributes=5)).compression


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ("18000000 026b 0276 02 0268 0231 00", "1 bytes follow the 1 records"),
        ("18000000 026b 0276 02 0268 02", "length 12"),
        ("16000000 026b 0276 02 0268 0231", "header value length 1"),
        ("1a000000 026b 0276 02 0268 0231 00 00", "end 14"),
        ("17000000 026b 0276 02 0268 0231", "length -12"),
        ("0a00 00 00 01 01 00 00", "length 5"),
        ("7e000000 026b 0276 02 0268 0231", "length 63"),
        ("feffffff0f 000000 026b 0276 02 0268 0231", "length 2147483647"),
        ("18000000 036b 0276 02 0268 0231", "key length -2"),
        ("18000000 7e6b 0276 02 0268 0231", "key length 63"),
        ("18000000 026b 0376 02 0268 0231", "value length -2"),
        ("18000000 026b 7e76 02 0268 0231", "value length 63"),
        ("18000000 026b 0276 ff02 68 0231", "header count -192"),
        ("18000000 026b 0276 06 0268 0231", "header count 3"),
        ("16000000 026b 0276 02 01 0231", "header name length -1"),
        ("18000000 026b 0276 02 0268 0331", "header value length -2"),
        ("ff" * 20, "64 bits"),
        ("", "0 bytes cannot hold 1 records"),
    ],
)
def test_record_bytes_that_contradict_themselves_are_refused_by_name(raw: str, named: str) -> None:
    batch = with_records(bytes.fromhex(raw.replace(" ", "")), 1)
    code, text = refusal(batch)
    assert code is ErrorCode.INVALID_RECORD
    assert named in text


def test_offsets_within_a_batch_must_rise_and_stay_inside_it() -> None:
    beyond = b"\x0c\x00\x00\x06\x01\x01\x00"
    assert "has offset 3, its batch ends at 0" in refusal(with_records(beyond, 1))[1]
    assert [record.offset for record in decode_records(with_records(beyond, 1, 3))] == [3]
    assert "impossible offset delta 3" in refusal(with_records(beyond * 2, 2, 9))[1]
    before = b"\x0c\x00\x00\x01\x01\x01\x00"
    assert "impossible offset delta -1" in refusal(with_records(before, 1))[1]


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_any_work() -> None:
    raw = decodable_records()
    most = len(raw) // MIN_RECORD_BYTES
    for count in (most + 1, (1 << 31) - 1):
        assert f"{len(raw)} bytes cannot hold {count} records" in refusal(with_records(raw, count))[1]


def decodable_records() -> bytes:
    """The bytes of records of several forms, each the likely victim of a shortcut in the hot loop."""
    builder = RecordBatchBuilder()
    forms: list[tuple[bytes | None, bytes | None, Any, int]] = [
        (None, None, None, 9),
        (b"k", b"v", [("h", b"1"), ("none", None)], 8),
        (None, b"v" * 70, None, 200),
        (b"k" * 70, b"", None, 9),
        # If its length were read from one byte, this key would swallow the value's length.
        (b"k" * 63, b"\x00", None, 9),
        (b"", None, None, 9),
    ]
    for key, value, headers, timestamp in forms:
        builder.append(key, value, headers, timestamp)
    return bytes(builder.build()[HEADER_BYTES:])


def outcome_of(batch: bytearray) -> object:
    """The records or the code; any other exception fails the test that calls this."""
    try:
        return decode_fields(batch)
    except ApiError as error:
        return error.code


def check_both_ways(raw: bytes, count: int, last_offset_delta: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = with_records(raw, count, last_offset_delta, base_offset=1_000)
    fast = outcome_of(batch)
    with monkeypatch.context() as patched:
        patched.setattr(records_module, "_append_common", lambda fields, data, start, header: start)
        assert outcome_of(batch) == fast
    assert fast is ErrorCode.INVALID_RECORD or (isinstance(fast, list) and len(fast) == count)


def test_the_fast_way_reads_what_the_complete_one_reads_for_any_changed_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = bytearray(decodable_records())
    for count in range(8):
        check_both_ways(bytes(raw), count, 20, monkeypatch)
    for place, kept in enumerate(raw):
        if kept in b"kv":
            continue
        for value in range(256):
            raw[place] = value
            check_both_ways(bytes(raw), 6, 20, monkeypatch)
        raw[place] = kept


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 12))
def test_any_bytes_at_all_end_in_records_or_in_a_named_error(raw: bytes, count: int) -> None:
    check_both_ways(raw, count, max(0, count - 1), pytest.MonkeyPatch())


def test_a_decompression_bomb_is_refused() -> None:
    batch = build_batch([(None, bytes(1 << 22))], compression=Compression.GZIP)
    with pytest.raises(ApiError, match="more than 100000 bytes"):
        decode_records(batch, max_bytes=100_000)


COMMIT_KEY = bytes.fromhex("00000001")
MARKER_VALUE = bytes.fromhex("000000000007")


@pytest.mark.parametrize(
    ("key", "value", "marker"),
    [
        ("00000000", MARKER_VALUE, Marker(MarkerType.ABORT, 7)),
        ("00000001", MARKER_VALUE, Marker(MarkerType.COMMIT, 7)),
        ("0001000100", MARKER_VALUE + b"more", Marker(MarkerType.COMMIT, 7)),
        ("00000002", b"", None),
        ("ffff0001", MARKER_VALUE, None),
    ],
    ids=["abort", "commit", "newer version", "leader change", "unknown version"],
)
def test_the_record_of_a_control_batch_is_a_marker(key: str, value: bytes, marker: Marker | None) -> None:
    assert decode_marker(bytes.fromhex(key), value) == marker


def test_a_control_batch_holds_the_marker_that_ends_its_producers_transaction() -> None:
    batch = build_marker(1 << 40, 3, MarkerType.COMMIT, 7, 1_000)
    header = check_batch(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (1 << 40, 3, -1)
    assert (header.is_transactional, header.is_control) == (True, True)
    assert decode_records(batch) == [Record(0, 1_000, COMMIT_KEY, MARKER_VALUE, ())]
    # The caller has checked the CRC.
    assert marker_of(altered(batch, crc=1)) == Marker(MarkerType.COMMIT, 7)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, MARKER_VALUE),
        (COMMIT_KEY[:3], MARKER_VALUE),
        (COMMIT_KEY, None),
        (COMMIT_KEY, MARKER_VALUE[:5]),
        (COMMIT_KEY, b"\xff" + MARKER_VALUE),
    ],
)
def test_a_marker_that_is_cut_short_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(ApiError) as caught:
        decode_marker(key, value)
    assert caught.value.code is ErrorCode.INVALID_RECORD
