"""The bulk encoder: both engines against each other, and against what the records decode to."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from barnabas.client.producer.partitioners import partition_of_key
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration
from barnabas.protocol.record_batch import check_produced_batch
from barnabas.protocol.records import decode_records
from barnabas.spark_connector.columns.encode import BatchEncoder, EncodedBatch, EncoderLimits, TopicLayout
from barnabas.spark_connector.columns.loops import Engine
from tests.support.soak import searched

Headers = list[tuple[str, bytes | None]]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOW_MS = 1_700_000_000_000
TOPICS = {"a": TopicLayout(3, (0, 2)), "ü": TopicLayout(1, (0,))}
ROOMY = EncoderLimits(batch_bytes=100_000, record_bytes=100_000)


class Row(NamedTuple):
    value: bytes | None = b""
    key: bytes | None = None
    headers: Headers | None = None
    topic: str = "a"
    partition: int | None = None
    timestamp_ms: int | None = None


@pytest.fixture(params=["compiled", "python"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return request.param


def batch_of(rows: Sequence[Row], binary: pa.DataType | None = None) -> pa.RecordBatch:
    kind = binary or pa.binary()

    def in_microseconds(stamp: int | None) -> int | None:
        return None if stamp is None else stamp * 1000 + 999

    def with_names(headers: Headers | None) -> list[dict[str, Any]] | None:
        return headers and [{"key": name, "value": value} for name, value in headers]

    columns = {
        "key": pa.array([row.key for row in rows], pa.binary()).cast(kind),
        "value": pa.array([row.value for row in rows], pa.binary()).cast(kind),
        "headers": pa.array([with_names(row.headers) for row in rows], HEADERS),
        "topic": pa.array([row.topic for row in rows], pa.string()),
        "partition": pa.array([row.partition for row in rows], pa.int32()),
        "timestamp": pa.array(
            [in_microseconds(row.timestamp_ms) for row in rows], pa.timestamp("us", tz="UTC")
        ),
    }
    return pa.record_batch(columns)


def encode(
    batches: Sequence[pa.RecordBatch],
    engine: Engine,
    limits: EncoderLimits = ROOMY,
    compression: Compression = Compression.NONE,
    topic: str | None = None,
    columns: Sequence[str] = ("key", "value", "headers", "topic", "partition", "timestamp"),
) -> list[EncodedBatch]:
    # The first sticky partition is chosen at random.
    random.seed(5)
    encoder = BatchEncoder(
        columns, topic, TOPICS.__getitem__, limits, compression, engine=engine, clock=lambda: NOW_MS / 1000
    )
    encoded = [made for batch in batches for made in encoder.encode(batch)]
    return [*encoded, *encoder.finish()]


def counts(encoded: Sequence[EncodedBatch]) -> list[int]:
    return [check_produced_batch(batch.data).record_count for batch in encoded]


def decoded(encoded: Sequence[EncodedBatch]) -> dict[tuple[str, int], list[Row]]:
    """The records of each partition, as rows."""
    found: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for batch in encoded:
        header = check_produced_batch(batch.data)
        records = list(decode_records(batch.data))
        assert header.record_count == len(records)
        for record in records:
            found[batch.topic, batch.partition].append(
                Row(
                    record.value,
                    record.key,
                    list(record.headers),
                    batch.topic,
                    batch.partition,
                    record.timestamp_ms,
                )
            )
    return found


maybe_bytes = st.none() | st.binary(max_size=300)
rows = st.builds(
    Row,
    value=maybe_bytes | st.builds(bytes, st.integers(301, 9000)),
    key=maybe_bytes,
    headers=st.none() | st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3),
    topic=st.sampled_from(sorted(TOPICS)),
    partition=st.none() | st.just(0),
    timestamp_ms=st.none() | st.integers(0, 1 << 43),
)
kinds = st.sampled_from(
    [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())]
)


@st.composite
def arrow_batches(draw: st.DrawFn) -> tuple[list[pa.RecordBatch], list[Row]]:
    """Arrow batches, some of them slices of larger ones, and their rows."""
    batches, content = [], []
    for _ in range(draw(st.integers(0, 3))):
        part = draw(st.lists(rows, max_size=30))
        kind = draw(kinds)
        before, after = (draw(st.lists(rows, max_size=2)) for _ in range(2))
        whole = batch_of([*before, *part, *after], kind)
        batches.append(whole.slice(len(before), len(part)))
        content += part
    return batches, content


@settings(max_examples=searched(300, usual=60), deadline=None)
@given(
    arrow_batches(),
    st.sampled_from(Compression),
    st.integers(100, 20_000),
    st.sampled_from([1, 3_000, 1 << 20]),
    st.none() | st.just("a"),
)
def test_the_engines_make_the_same_batches_of_all_rows(
    given_rows: tuple[list[pa.RecordBatch], list[Row]],
    compression: Compression,
    batch_bytes: int,
    group_bytes: int,
    topic: str | None,
) -> None:
    batches, content = given_rows
    limits = EncoderLimits(batch_bytes=batch_bytes, record_bytes=100_000, group_bytes=group_bytes)
    encoded = encode(batches, "compiled", limits, compression, topic)
    assert encoded == encode(batches, "python", limits, compression, topic)
    if compression is Compression.NONE:
        assert all(counts([made]) == [1] or len(made.data) <= batch_bytes for made in encoded)

    placed: dict[tuple[str, int], list[Row]] = defaultdict(list)
    anywhere: Counter[str] = Counter()
    for row in content:
        written = row._replace(
            topic=topic or row.topic,
            headers=row.headers or [],
            timestamp_ms=NOW_MS if row.timestamp_ms is None else row.timestamp_ms,
        )
        partition = row.partition
        if partition is None and row.key is not None:
            partition = partition_of_key(row.key, TOPICS[written.topic].partition_count)
        if partition is None:
            anywhere[repr(written)] += 1
        else:
            placed[written.topic, partition].append(written._replace(partition=partition))
    for place, records in decoded(encoded).items():
        expected = placed.pop(place, [])
        for record in records:
            if expected and record == expected[0]:
                expected.pop(0)
            else:
                assert place[1] in TOPICS[place[0]].candidates
                anywhere.subtract([repr(record._replace(partition=None))])
        assert expected == []
    assert not placed
    assert not any(anywhere.values())


def test_rows_without_a_key_fill_whole_batches_of_one_candidate_after_the_other(engine: Engine) -> None:
    limits = EncoderLimits(batch_bytes=400, record_bytes=400)
    batches = [batch_of([Row(b"x" * 100)] * 4), batch_of([Row(b"x" * 100)] * 5)]
    encoded = encode(batches, engine, limits)
    assert counts(encoded) == [3, 3, 3]
    assert [batch.partition for batch in encoded] in ([0, 2, 0], [2, 0, 2])


def test_a_group_ends_with_the_row_that_fills_it_and_ends_all_batches(engine: Engine) -> None:
    limits = EncoderLimits(batch_bytes=10_000, record_bytes=10_000, group_bytes=1_000)
    encoded = encode([batch_of([Row(b"x" * 300, b"k")] * 7)], engine, limits)
    assert counts(encoded) == [4, 3]
    assert len({batch.partition for batch in encoded}) == 1


def test_a_value_of_megabytes_is_alone_in_its_batch(engine: Engine) -> None:
    limits = EncoderLimits(batch_bytes=1_000, record_bytes=1 << 23)
    big = random.Random(1).randbytes(5 << 20)
    encoded = encode([batch_of([Row(b"a", b"k"), Row(big, b"k"), Row(b"", b"k")])], engine, limits)
    (records,) = decoded(encoded).values()
    assert [row.value for row in records] == [b"a", big, b""]
    assert counts(encoded) == [1, 1, 1]


def test_columns_that_are_not_named_are_not_written(engine: Engine) -> None:
    row = Row(b"v", b"k", [("h", b"1")], "ü", 0, 7)
    encoded = encode([batch_of([row])], engine, topic="a", columns=["value"])
    ((topic, _), (record,)) = next(iter(decoded(encoded).items()))
    assert topic == "a"
    assert record[:3] == (b"v", None, [])
    assert record.timestamp_ms == NOW_MS


def test_strings_are_written_as_utf8(engine: Engine) -> None:
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        batch = pa.record_batch({"value": pa.array(["ü", None, ""]).cast(kind)})
        encoded = encode([batch], engine, topic="a", columns=["value"])
        (records,) = decoded(encoded).values()
        assert [row.value for row in records] == ["ü".encode(), None, b""]


def test_null_rows_hide_the_headers_below_them(engine: Engine) -> None:
    structs = pa.array([{"key": None, "value": b"0"}, {"key": "h", "value": b"1"}], HEADERS.value_type)
    headers = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), structs, type=HEADERS, mask=pa.array([True, False])
    )
    batch = pa.record_batch({"value": pa.array([b"x", b"y"]), "headers": headers})
    encoded = encode([batch], engine, topic="a", columns=["value", "headers"])
    (records,) = decoded(encoded).values()
    assert [row.headers for row in records] == [[], [("h", b"1")]]


@pytest.mark.parametrize("nameless", [None, {"key": None, "value": b"0"}])
def test_a_header_without_a_key_is_refused(engine: Engine, nameless: dict[str, Any] | None) -> None:
    headers = pa.array([[], [{"key": "h", "value": None}, nameless]], HEADERS)
    batch = pa.record_batch({"value": pa.array([b"x", b"y"]), "headers": headers})
    with pytest.raises(ApiError, match="header whose key is null") as caught:
        encode([batch], engine, topic="a", columns=["value", "headers"])
    assert caught.value.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(topic=None), "null topic present in the data; use the option 'topic'"),
        (Row(partition=-1), "column 'partition' is -1; expected 0 or more, or null"),
        (Row(partition=3), "column 'partition' is 3; topic 'a' has the partitions 0 to 2"),
        (Row(timestamp_ms=-2), r"column 'timestamp' has a time before 1970 \(-2 ms\)"),
    ],
)
def test_a_row_that_cannot_be_written_is_refused(engine: Engine, row: Row, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        encode([batch_of([Row(partition=2), row])], engine)


def test_a_record_above_the_limit_is_refused_with_size_topic_and_option(engine: Engine) -> None:
    row = Row(b"x" * 1000, b"k" * 100)
    (fitting,) = encode([batch_of([row])], engine)
    size = len(fitting.data)
    assert encode([batch_of([row])], engine, EncoderLimits(batch_bytes=1, record_bytes=size)) == [fitting]
    with pytest.raises(
        ApiError, match=rf"{size} bytes for topic 'a' exceeds kafka.max.request.size"
    ) as caught:
        encode([batch_of([row])], engine, EncoderLimits(batch_bytes=1, record_bytes=size - 1))
    assert caught.value.code == ErrorCode.MESSAGE_TOO_LARGE
