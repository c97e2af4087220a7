"""The reader of keys agrees with the complete decoder of records, and refuses what contradicts itself."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.broker.compaction.record_keys import RecordKeys, read_keys, time_deltas
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.record_batch import HEADER_BYTES, parse_header
from barnabas.protocol.records import decode_fields
from barnabas.protocol.varint import encode_varint
from tests.support.batches import build_batch
from tests.support.compaction import NOW_MS, keyed_batch, map_key

KEY = st.one_of(st.none(), st.binary(max_size=4), st.integers(60, 66).map(bytes), st.just(bytes(9000)))
VALUE = st.one_of(
    st.none(), st.binary(max_size=4), st.sampled_from([56, 62, 127, 128, 8190, 20_000]).map(bytes)
)
TIME = st.one_of(st.integers(-70, 70), st.integers(-(1 << 40), 1 << 40))
RECORDS = st.lists(st.tuples(KEY, VALUE, TIME), min_size=1, max_size=8)
HEADERS = st.sampled_from([(), (("name", b"value"), ("other", None))])


def read(batch: bytes, prefix: bytes = b"") -> RecordKeys:
    header = parse_header(batch)
    start = len(prefix) + HEADER_BYTES
    return read_keys(prefix + batch, start, len(prefix) + len(batch), header)


@given(records=RECORDS, headers=HEADERS, prefix=st.binary(max_size=3))
@example(records=[(b"k", b"v", time) for time in (0, 128)], headers=(), prefix=b"")
@example(records=[(bytes(size), bytes(20_000), 0) for size in (63, 64)], headers=(), prefix=b"")
def test_it_reads_what_the_decoder_of_records_reads(
    records: list[tuple[bytes | None, bytes | None, int]],
    headers: tuple[tuple[str, bytes | None], ...],
    prefix: bytes,
) -> None:
    batch = keyed_batch(
        [(key, value) for key, value, _ in records],
        base_offset=1000,
        timestamps=[NOW_MS + time for _, _, time in records],
        headers=headers,
    )
    fields = decode_fields(batch)
    keys = read(batch, prefix)
    assert keys.keys == [key if key is None else map_key(key) for _, _, key, _, _ in fields]
    assert list(keys.offsets) == [offset for offset, *_ in fields]
    assert keys.keyless == [index for index, (_, _, key, _, _) in enumerate(fields) if key is None]
    assert keys.tombstones == [index for index, (*_, value, _) in enumerate(fields) if value is None]
    starts = [len(prefix) + HEADER_BYTES, *keys.ends[:-1]]
    base = parse_header(batch).base_timestamp
    assert [base + delta for delta in time_deltas(prefix + batch, starts)] == [time for _, time, *_ in fields]
    single = [prefix[:0] + (prefix + batch)[start:end] for start, end in zip(starts, keys.ends, strict=True)]
    assert b"".join(single) == batch[HEADER_BYTES:]


def test_offsets_of_a_batch_with_many_records_are_read() -> None:
    batch = build_batch([(b"%d" % number, b"v") for number in range(20_000)], base_offset=7)
    assert list(read(bytes(batch)).offsets) == list(range(7, 20_007))


def record(
    delta: bytes = b"\x00",
    key: bytes = b"\x02k",
    value: bytes = b"\x02v",
    rest: bytes = b"\x00",
    time_delta: bytes = b"\x00",
) -> bytes:
    body = b"\x00" + time_delta + delta + key + value + rest
    return encode_varint(len(body)) + body


def raw(*records: bytes, last_offset_delta: int | None = None) -> bytes:
    """A batch of hand-made records; its CRC is not right."""
    batch = build_batch([(b"k", b"v")] * len(records))
    header = parse_header(batch)
    assert header.record_count == len(records)
    if last_offset_delta is not None:
        batch[23:27] = last_offset_delta.to_bytes(4)
    return bytes(batch[:HEADER_BYTES]) + b"".join(records)


def test_gaps_between_offsets_are_read() -> None:
    last = record(encode_varint(300), time_delta=encode_varint(64))
    batch = raw(record(), record(encode_varint(5)), record(encode_varint(128)), last, last_offset_delta=400)
    found = read(batch)
    assert (list(found.offsets), found.keys) == ([0, 5, 128, 300], [b"k"] * 4)


def test_a_short_key_with_a_padded_length_is_the_same_key() -> None:
    padded, plain = record(key=b"\x82\x00k"), record(encode_varint(1))
    assert read(raw(padded, plain)).keys == [b"k", b"k"]


MALFORMED = {
    "a length of zero": b"\x00",
    "a negative length": b"\x01" + bytes(8),
    "a length beyond the batch": b"\x40" + record()[1:],
    "a key beyond its record": record(key=b"\x20k"),
    "a key that leaves no room for a value": encode_varint(5) + b"\x00\x00\x00\x02kk",
    "a key length below -1": record(key=b"\x03k"),
    "a negative offset delta": record(b"\x01"),
    "an endless varint": b"\x20" + b"\xff" * 20,
    "an endless timestamp": encode_varint(30) + b"\x00" + b"\x80" * 29,
    "a large value below -1": encode_varint(9000) + b"\x00\x00\x00\x02k\x03" + bytes(8994),
    "bytes after the last record": record() + b"\x00",
    "an offset beyond the batch": record(b"\x02"),
    "nothing": b"",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_records_are_refused(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(raw(MALFORMED[name]))
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_key_up_to_the_next_record_is_refused() -> None:
    with pytest.raises(ApiError, match="key length 1"):
        read(raw(encode_varint(5) + b"\x00\x00\x00\x02k", record(encode_varint(1))))


def test_offsets_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ApiError, match="offset delta 0"):
        read(raw(record(), record()))


@given(data=st.binary(min_size=1, max_size=60), count=st.integers(1, 5), after=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_and_never_beyond_their_end(
    data: bytes, count: int, after: bytes
) -> None:
    header = parse_header(build_batch([(None, None)]))._replace(record_count=count, last_offset_delta=1 << 20)
    try:
        keys = read_keys(data + after, 0, len(data), header)
    except ApiError as error:
        refused = error.code
    else:
        refused = ErrorCode.INVALID_RECORD
        assert len(keys.keys) == len(keys.ends) == count
        assert keys.ends[-1] == len(data)
        assert keys.ends == sorted(set(keys.ends))
    assert refused is ErrorCode.INVALID_RECORD
