"""The walk over records accepts exactly what the reader of records reads, in any pieces."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.common import compiled_core
from barnabas.protocol import record_walk
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.record_batch import check_batch, parse_header, stamp_log_append_time
from barnabas.protocol.record_walk import RecordHead, iter_heads, walk_produced
from barnabas.protocol.records import Record, decode_records
from barnabas.protocol.varint import encode_varint
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.odd_batches import PLAIN, T0, batch, record

blobs = st.none() | st.binary(max_size=80) | st.sampled_from([b"b" * 200, b"c" * 8_191, b"d" * 9_000])
names = st.binary(max_size=8) | st.just(b"n" * 80)
times = st.integers(-300, 300) | st.integers(-(1 << 45), 1 << 45)
records = st.lists(
    st.tuples(blobs, blobs, st.lists(st.tuples(names, blobs), max_size=2), times), min_size=1, max_size=8
)
pieces = pytest.mark.parametrize("piece_bytes", [1, 100, 1 << 16])


Contents = list[tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]], int]]


def encoded(contents: Contents) -> bytes:
    return b"".join(
        record(delta, key=key, value=value, headers=headers, time=time)
        for delta, (key, value, headers, time) in enumerate(contents)
    )


@pieces
@settings(max_examples=40, deadline=None)
@given(contents=records, compression=st.sampled_from(Compression))
def test_records_of_every_form_are_walked_over(
    piece_bytes: int,
    contents: Contents,
    compression: Compression,
) -> None:
    sent = batch(encoded(contents), len(contents), compression=compression)
    header = parse_header(sent)
    before, record_walk.PIECE_BYTES = record_walk.PIECE_BYTES, piece_bytes
    try:
        walked = walk_produced(sent, header)
        heads = list(iter_heads(sent, header))
    finally:
        record_walk.PIECE_BYTES = before
    assert walked.max_timestamp == max(-1, *(T0 + time for *_, time in contents))
    assert walked.keyless == sum(key is None for key, *_ in contents)
    assert heads == [
        RecordHead(delta, T0 + time, key is not None) for delta, (key, _, _, time) in enumerate(contents)
    ]


def outcome(raw: bytes, count: int) -> ErrorCode | int:
    sent = batch(raw, count)
    try:
        return walk_produced(sent, parse_header(sent)).max_timestamp
    except ApiError as error:
        return error.code


def read(raw: bytes, count: int) -> list[Record] | None:
    try:
        return decode_records(batch(raw, count))
    except ApiError:
        return None


FORMS = [
    record(0),
    record(1, key=b"k", headers=[(b"a", b"1"), (b"b", None)]),
    record(2, value=None, time=5_000),
    record(3, key=b"k" * 70, value=b"v" * 9_000, time=-3),
    record(4, key=b"", value=b"", time=1 << 40),
    record(5, headers=[(b"n" * 70, b"v" * 70)]),
]


CHANGES = 1_000 if compiled_core.is_running() else 400
"""Python takes five times as long, and `make test` runs it beside the compiled module."""
ALIKE = {
    "no key": [record(delta, value=b"v" * 3, time=delta % 60) for delta in range(100)],
    "keys and long values": [record(delta, key=b"k" * 70, value=b"v" * 80, time=-1) for delta in range(90)],
    "tombstones": [record(delta, key=b"k", value=None, time=5) for delta in range(90)],
}


@pytest.mark.parametrize(
    ("forms", "piece_bytes"),
    [(FORMS, 1), (FORMS, 100), (FORMS, 1 << 16), *((alike, 1 << 16) for alike in ALIKE.values())],
)
def test_the_walk_and_the_reader_agree_about_changed_bytes(
    forms: list[bytes], piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are changed, cut and added; what the walk takes, the reader reads, and the other way round."""
    monkeypatch.setattr(record_walk, "PIECE_BYTES", piece_bytes)
    chosen = random.Random(29)
    raw = b"".join(forms)
    accepted = 0
    for _ in range(CHANGES):
        changed = bytearray(raw)
        for _ in range(chosen.choice((0, 1, 1, 2))):
            changed[chosen.choice((chosen.randrange(len(raw)), chosen.randrange(300)))] = chosen.choice(
                (0, 1, 2, 3, 126, 127, 128, 255, chosen.randrange(256))
            )
        if chosen.random() < 0.1:
            del changed[-chosen.randrange(1, 20) :]
        if chosen.random() < 0.1:
            changed += bytes(chosen.randrange(1, 4))
        count = len(forms) + chosen.choice((0, 0, 0, 0, -1, 1))
        found, decoded = outcome(bytes(changed), count), read(bytes(changed), count)
        if decoded is None:
            assert isinstance(found, ErrorCode), changed[:400].hex()
        else:
            accepted += 1
            assert found == max(max(one.timestamp_ms for one in decoded), -1), changed[:400].hex()
    assert accepted > CHANGES // 5


LEAST, MOST = -(1 << 63), (1 << 63) - 1


def timed(delta: int, number: bytes) -> bytes:
    """A record whose timestamp delta is these bytes."""
    body = b"\0" + number + encode_varint(delta) + b"\x01\x02v\0"
    return encode_varint(len(body)) + body


@pytest.mark.parametrize("others", [0, 40, -40], ids=["alone", "after others", "all alike"])
@pytest.mark.parametrize(
    ("base_timestamp", "number", "is_taken"),
    [
        (0, encode_varint(MOST), True),
        (1, encode_varint(MOST), False),
        (0, encode_varint(LEAST), True),
        (MOST, encode_varint(LEAST), True),
        (-1, encode_varint(LEAST), False),
        (LEAST, encode_varint(0), True),
        (LEAST, encode_varint(-1), False),
        (T0, b"\xff" * 9 + b"\x7f", False),
        (T0, b"\x80" * 9 + b"\x02", False),
        (T0, b"\x88" + b"\x80" * 8 + b"\0", True),
    ],
    ids=["most", "above", "least", "both", "below", "least base", "below it", "70 bits", "65 bits", "padded"],
)
def test_a_time_of_more_than_64_bits_is_refused(
    base_timestamp: int, number: bytes, is_taken: bool, others: int
) -> None:
    """There are others, so that the faster walks see it too."""
    before = abs(others)
    usual = number if others < 0 else encode_varint(0)
    raw = b"".join(timed(delta, usual) for delta in range(before)) + timed(before, number)
    sent = batch(raw, before + 1, base_timestamp=base_timestamp)
    header = parse_header(sent)
    if is_taken:
        walked = walk_produced(sent, header)
        times = [one.timestamp_ms for one in decode_records(sent)]
        assert walked.max_timestamp == max(-1, *times)
        assert min(times) >= LEAST
        return
    with pytest.raises(ApiError) as caught:
        walk_produced(sent, header)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_number_of_more_than_64_bits_is_no_time_of_a_lookup() -> None:
    sent = batch(timed(0, b"\xff" * 9 + b"\x7f"), 1)
    with pytest.raises(ApiError, match="exceeds 64 bits"):
        next(iter_heads(sent, parse_header(sent)))


@PURE_PYTHON_ONLY
@pytest.mark.parametrize("alike", ALIKE.values(), ids=ALIKE)
def test_records_of_the_same_lengths_are_walked_over_together(
    alike: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The single one ends the deltas of one byte."""
    singles: list[int] = []
    walk_any = record_walk._walk_any

    def walk_one(reader: record_walk._Reader, walk: record_walk._Walk) -> None:
        singles.append(walk.records)
        walk_any(reader, walk)

    monkeypatch.setattr(record_walk, "_walk_common", lambda reader, walk, count: None)
    monkeypatch.setattr(record_walk, "_walk_any", walk_one)
    sent = batch(b"".join(alike), len(alike))
    walked = walk_produced(sent, parse_header(sent))
    assert singles == [64]
    assert walked.keyless == sum(one.key is None for one in decode_records(sent))


def test_many_records_take_offset_deltas_of_three_bytes() -> None:
    count = 20_000
    raw = b"".join(record(delta, value=b"", time=delta) for delta in range(count))
    assert outcome(raw, count) == T0 + count - 1
    wrong = b"".join(record(delta + (delta == 19_000), value=b"") for delta in range(count))
    assert outcome(wrong, count) is ErrorCode.INVALID_RECORD


def test_a_long_walk_pauses_after_each_run_of_records() -> None:
    count = 10 * record_walk.RUN_RECORDS + 7
    sent = batch(b"".join(record(delta, value=b"v" * (delta % 7)) for delta in range(count)), count)
    pauses: list[None] = []
    walk_produced(sent, parse_header(sent), pause=lambda: pauses.append(None))
    assert 10 <= len(pauses) <= 12


def test_more_records_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_walk, "MAX_ELEMENTS", 100)
    small = [record(delta, value=b"") for delta in range(101)]
    assert outcome(b"".join(small[:100]), 100) == T0
    assert outcome(b"".join(small), 101) is ErrorCode.MESSAGE_TOO_LARGE
    some = record(0, headers=[(b"a", b"")] * 60) + record(1, headers=[(b"a", b"")] * 60)
    assert outcome(some, 2) is ErrorCode.MESSAGE_TOO_LARGE


def test_the_brokers_time_is_the_time_of_every_record() -> None:
    builder = RecordBatchBuilder()
    for time in (7, 9):
        builder.append(None, b"v", None, time)
    sent = builder.build(base_offset=100)
    stamp_log_append_time(sent, 0, check_batch(sent), 5)
    heads = list(iter_heads(sent, check_batch(sent)))
    assert heads == [RecordHead(100, 5, False), RecordHead(101, 5, False)]


def test_a_lookup_sees_the_records_up_to_a_damaged_one() -> None:
    sent = batch(PLAIN[:-40] + b"\xff" * 40, 3)
    heads = iter_heads(sent, parse_header(sent))
    assert [next(heads).offset, next(heads).offset] == [0, 1]
    damaged = batch(record(0) + b"\xff" * 100, 2)
    heads = iter_heads(damaged, parse_header(damaged))
    assert next(heads).offset == 0
    with pytest.raises(ApiError, match="takes more than 5 bytes"):
        next(heads)
