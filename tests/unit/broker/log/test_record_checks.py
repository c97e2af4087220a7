"""A topic's settings refuse records, and recompression changes nothing but the compression."""

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.log import record_checks
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.record_checks import (
    RecordsRefused,
    are_quickly_prepared,
    prepare_records,
)
from barnabas.protocol import compression
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.compression import Compression, compress
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.record_batch import (
    HEADER,
    HEADER_BYTES,
    check_batch,
    iter_batches,
    parse_header,
    write_crc,
)
from barnabas.protocol.records import Record, decode_records
from tests.support.defaults import log_config
from tests.support.odd_batches import batch as odd_batch
from tests.support.odd_batches import raw_snappy, record, xerial

TP = TopicPartition("topic", 0)
NOW_MS = 1_000_000
blobs = st.none() | st.binary(max_size=300)
records = st.tuples(
    blobs,
    blobs,
    st.lists(st.tuples(st.text(max_size=5), blobs), max_size=2),
    st.integers(0, 1 << 40),
)


def batch_of(
    *result: tuple[bytes | None, bytes | None, Any, int],
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
) -> bytearray:
    builder = RecordBatchBuilder(max_bytes=1 << 30, compression=compression)
    for key, value, headers, timestamp_ms in result:
        builder.append(key, value, headers, timestamp_ms)
    return builder.build(
        producer_id=producer_id, producer_epoch=min(producer_id, 3), base_sequence=min(producer_id, 5)
    )


def prepared(batch: bytes | bytearray, max_bytes: int = 1 << 20, **settings: Any) -> memoryview:
    config = log_config(**settings)
    return prepare_records(TP, parse_produced(batch), config, now_ms=NOW_MS, max_bytes=max_bytes).view


def decoded(view: memoryview) -> list[Record]:
    return [
        record
        for position, header in iter_batches(view)
        for record in decode_records(view[position : position + header.size_bytes])
    ]


def type_of(compression: Compression) -> str:
    """The value of compression.type."""
    return "uncompressed" if compression is Compression.NONE else compression.name.lower()


@given(
    st.lists(st.tuples(st.lists(records, min_size=1, max_size=8), st.sampled_from(Compression)), min_size=1),
    st.sampled_from(Compression),
    st.sampled_from([-1, 40]),
)
def test_recompressed_records_are_the_same_records(
    batches: list[tuple[list[Any], Compression]], target: Compression, producer_id: int
) -> None:
    sent = memoryview(
        b"".join(batch_of(*result, compression=source, producer_id=producer_id) for result, source in batches)
    )
    kept = prepared(sent, compression_type=type_of(target))
    assert decoded(kept) == decoded(sent)
    position = 0
    for _, before in iter_batches(sent):
        after = check_batch(kept, position)
        position += after.size_bytes
        assert after.compression is target
        different = {"batch_length", "crc", "attributes"}
        assert {name: value for name, value in after._asdict().items() if name not in different} == {
            name: value for name, value in before._asdict().items() if name not in different
        }
        assert after.attributes & ~7 == before.attributes & ~7
    assert position == len(kept)


@pytest.mark.parametrize(
    ("target", "level"), [(Compression.GZIP, 1), (Compression.LZ4, 12), (Compression.ZSTD, 19)]
)
def test_recompression_uses_the_level_of_the_topic(target: Compression, level: int) -> None:
    chosen = random.Random(1)
    sent = batch_of(*[(None, b"%d" % chosen.randrange(999), None, 0) for _ in range(20_000)])
    name = target.name.lower()
    kept = prepared(sent, **{"compression_type": name, f"compression_{name}_level": level})
    assert bytes(kept[HEADER_BYTES:]) == bytes(compress(target, sent[HEADER_BYTES:], level))
    assert bytes(kept[HEADER_BYTES:]) != bytes(compress(target, sent[HEADER_BYTES:]))
    assert decoded(kept) == decoded(memoryview(sent))


@pytest.mark.parametrize("compression", Compression)
def test_a_batch_that_is_in_the_right_compression_is_not_copied(compression: Compression) -> None:
    batch = batch_of((b"k", b"v" * 100, None, 5), compression=compression)
    kept = prepared(batch, compression_type=type_of(compression))
    batch[0] = 7
    assert kept[0] == 7


def test_a_batch_that_decompresses_to_too_much_is_refused() -> None:
    batch = batch_of((None, bytes(100_000), None, 5), compression=Compression.GZIP)
    with pytest.raises(ApiError, match="more than 5000 bytes"):
        prepared(batch, max_bytes=5_000, compression_type="uncompressed")


def refused(batch: bytes | bytearray, **settings: Any) -> tuple[ErrorCode, list[int]]:
    with pytest.raises(RecordsRefused) as caught:
        prepared(batch, **settings)
    assert all(str(fault.index) in fault.message for fault in caught.value.faults)
    return caught.value.code, [fault.index for fault in caught.value.faults]


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("policy", [("compact",), ("compact", "delete")])
def test_a_compacted_topic_takes_no_record_without_a_key(
    compression: Compression, policy: tuple[str, ...]
) -> None:
    keyless = batch_of(
        (b"a", b"1", None, 0),
        (None, b"2", None, 0),
        (b"", None, None, 0),
        (None, b"3", None, 0),
        compression=compression,
    )
    assert refused(keyless, cleanup_policy=policy) == (ErrorCode.INVALID_RECORD, [1, 3])
    keyed = batch_of((b"a", None, None, 0), (b"", b"x", None, 0), compression=compression)
    assert prepared(keyed, cleanup_policy=policy) == keyed


def test_records_out_of_time_are_refused_by_their_places() -> None:
    limits = {"message_timestamp_before_max_ms": 100, "message_timestamp_after_max_ms": 50}
    times = [NOW_MS - 101, NOW_MS - 100, NOW_MS, NOW_MS + 50, NOW_MS + 51]
    batch = batch_of(*((b"k", b"v", None, time) for time in times))
    assert refused(batch, **limits) == (ErrorCode.INVALID_TIMESTAMP, [0, 4])
    assert prepared(batch_of((b"k", b"v", None, -1)), **limits)
    assert refused(batch, message_timestamp_after_max_ms=50) == (ErrorCode.INVALID_TIMESTAMP, [4])


def test_the_brokers_own_time_needs_no_limits() -> None:
    batch = batch_of((b"k", b"v", None, 1))
    settings = {"message_timestamp_type": "LogAppendTime", "message_timestamp_before_max_ms": 1}
    assert prepared(batch, **settings) == batch


def test_a_damaged_batch_is_not_looked_into() -> None:
    batch = batch_of((b"k", b"v", None, 0))
    batch[-1] ^= 1
    with pytest.raises(ApiError) as caught:
        prepared(batch, cleanup_policy=("compact",))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


def test_a_batch_that_is_too_large_is_not_looked_into_and_left_to_the_append() -> None:
    keyless = batch_of(*[(None, bytes(100), None, 0)] * 50)
    settings = {"cleanup_policy": ("compact",), "max_message_bytes": len(keyless) - 1}
    assert prepared(keyless, **settings) == keyless
    packed = prepared(PLAIN + keyless, compression_type="zstd", max_message_bytes=len(PLAIN) + 50)
    assert packed[-len(keyless) :] == keyless


def test_a_batch_that_is_too_large_once_it_is_unfolded_is_refused() -> None:
    batch = batch_of((b"k", bytes(100_000), None, 0), compression=Compression.ZSTD)
    with pytest.raises(ApiError) as caught:
        prepared(batch * 3, compression_type="uncompressed", max_message_bytes=50_000)
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_not_every_one_of_very_many_bad_records_is_named() -> None:
    keyless = batch_of(*[(None, b"", None, 0)] * (record_checks.MAX_FAULTS + 5))
    code, places = refused(keyless, cleanup_policy=("compact",))
    assert code == ErrorCode.INVALID_RECORD
    assert places == list(range(record_checks.MAX_FAULTS))


def claiming(max_timestamp: int, base_timestamp: int, *times: int, packed: Compression) -> bytearray:
    """A batch of records with these times, and other timestamps in its header."""
    batch = batch_of(*[(None, b"v", None, time) for time in times], compression=packed)
    header = parse_header(batch)
    assert header.base_timestamp == times[0]
    HEADER.pack_into(batch, 0, *header._replace(max_timestamp=max_timestamp, base_timestamp=base_timestamp))
    write_crc(batch)
    return batch


NOW_LATE_MS = 1_700_000_000_000


@pytest.mark.parametrize("packed", Compression)
@pytest.mark.parametrize("claim_ms", [0, -1, 1 << 60, NOW_LATE_MS])
def test_a_misleading_header_is_stored_with_the_largest_timestamp_of_its_records(
    claim_ms: int, packed: Compression
) -> None:
    times = (NOW_LATE_MS - 5, NOW_LATE_MS + 2, NOW_LATE_MS - 9)
    honest = batch_of(*[(None, b"v", None, time) for time in times], compression=packed)
    lying = claiming(claim_ms, times[0], *times, packed=packed)
    sent = parse_produced(bytes(honest + lying))
    config = log_config(retention_ms=1)
    kept = prepare_records(TP, sent, config, now_ms=NOW_LATE_MS + 9, max_bytes=1 << 20)
    assert kept.view == honest * 2


def test_what_is_right_is_stored_as_it_was_sent_without_a_copy() -> None:
    batch = batch_of((None, b"v", None, 5), (None, b"v", None, 3))
    sent = parse_produced(batch)
    kept = prepare_records(TP, sent, log_config(), now_ms=NOW_LATE_MS, max_bytes=1 << 20)
    assert kept == sent
    assert kept.view is sent.view


def test_headers_by_the_million_are_refused_in_little_memory() -> None:
    """A few KB decompress to them; each would cost a reader a tuple and two strings."""
    header = b"\x02a\x01"
    count = 1_000_000
    bomb = record(0, header_count=count, tail=header * count)
    batch = odd_batch(bomb, 1, compression=Compression.ZSTD)
    tracemalloc.start()
    with pytest.raises(ApiError) as caught:
        prepared(batch, max_bytes=1 << 27)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert peak_bytes < 1 << 20


def test_an_empty_first_stream_is_refused() -> None:
    """Of gzip, librdkafka reads no byte behind it, and then its process is aborted."""
    one = odd_batch(record(0), 1)[HEADER_BYTES:]
    for kind in (Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY):
        streams = bytes(compress(kind, b"")) + bytes(compress(kind, one))
        with pytest.raises(ApiError, match="follow the first stream") as caught:
            prepared(odd_batch(b"", 1, compression=kind, packed=streams))
        assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_batch_that_decompresses_to_much_is_walked_over_piece_by_piece() -> None:
    batch = odd_batch(record(0, value=bytes(60 << 20)), 1, compression=Compression.ZSTD)
    tracemalloc.start()
    kept = prepared(batch, max_bytes=1 << 27)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kept == batch
    assert peak_bytes < 1 << 20


def test_records_with_limits_are_looked_at_one_at_a_time() -> None:
    count = 20_000
    batch = odd_batch(
        (record(delta, value=b"") for delta in range(count)), count, compression=Compression.ZSTD
    )
    tracemalloc.start()
    kept = prepared(batch, max_bytes=1 << 27, message_timestamp_before_max_ms=1 << 60)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kept == batch
    assert peak_bytes < 1 << 20


def test_the_choice_of_a_thread_reads_one_stream_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each empty one costs a few microseconds, and 250 KB hold tens of thousands."""
    made: list[None] = []

    def make() -> Any:
        made.append(None)
        return real()

    real = compression.zstd.ZstdDecompressor
    monkeypatch.setattr(compression.zstd, "ZstdDecompressor", make)
    streams = bytes(compress(Compression.ZSTD, record(0))) + bytes(compress(Compression.ZSTD, b"")) * 1_000
    batch = odd_batch(b"", 1, compression=Compression.ZSTD, packed=streams)
    are_quickly_prepared([(parse_produced(batch), log_config())])
    assert len(made) == 1


PLAIN = batch_of((b"k", b"v", None, 0))
LARGE = batch_of((b"k", bytes(20_000), None, 0))
PACKED = batch_of((b"k", b"v", None, 0), compression=Compression.ZSTD)
PACKED_SOME = batch_of((b"k", bytes(200_000), None, 0), compression=Compression.ZSTD)
PACKED_MUCH = batch_of((b"k", bytes(300_000), None, 0), compression=Compression.ZSTD)
PACKED_NOISE = batch_of((b"k", random.Random(1).randbytes(300_000), None, 0), compression=Compression.ZSTD)
SNAPPY = odd_batch(record(0), 1, compression=Compression.SNAPPY)
BLOCKS = odd_batch(
    b"", 1, compression=Compression.SNAPPY, packed=xerial(raw_snappy(record(0)), *[raw_snappy(b"")] * 128)
)
CUT = odd_batch(b"", 1, compression=Compression.ZSTD, packed=compress(Compression.ZSTD, bytes(200_000))[:-2])


@pytest.mark.parametrize(
    ("partitions", "settings", "is_quick"),
    [
        ([PLAIN], {}, True),
        ([LARGE * 37], {}, True),
        ([LARGE * 38], {}, False),
        ([LARGE * 20, LARGE * 20], {}, False),
        ([PLAIN * 384], {}, True),
        ([PLAIN * 400], {}, False),
        ([PLAIN * 200, PLAIN * 200], {}, False),
        ([PACKED, PACKED_SOME], {}, True),
        ([PACKED_SOME, PACKED_SOME], {}, False),
        ([PACKED_SOME * 2], {}, False),
        ([PACKED_MUCH], {}, False),
        ([PACKED_NOISE], {}, False),
        ([CUT], {}, True),
        ([PACKED * 128], {}, True),
        ([PACKED * 129], {}, False),
        ([SNAPPY], {}, True),
        ([BLOCKS], {}, False),
        ([SNAPPY * 20], {}, True),
        ([PACKED], {"compression_type": "zstd"}, True),
        ([PACKED], {"compression_type": "gzip"}, False),
        ([PLAIN], {"compression_type": "gzip"}, False),
    ],
)
def test_quick_checks_are_recognized_before_they_run(
    partitions: list[bytes], settings: dict[str, Any], is_quick: bool
) -> None:
    config = log_config(**settings)
    request = [(parse_produced(batches), config) for batches in partitions]
    assert are_quickly_prepared(request) is is_quick


@pytest.mark.parametrize(("records", "rests"), [(300, 0), (1_000, 4)])
def test_long_checks_rest_and_quick_ones_do_not(
    records: int, rests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick one may run on a network thread, which must not sleep."""
    rested: list[None] = []
    monkeypatch.setattr(record_checks, "Rests", lambda most: lambda: rested.append(None))
    prepared(batch_of(*[(b"k", b"v" * (number % 7), None, 0) for number in range(records)]))
    assert len(rested) == rests
