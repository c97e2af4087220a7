"""The source against logs in memory, as Spark calls it: schema, planning, reading; pickled in between."""

import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from barnabas.client.errors import LogTruncated
from barnabas.protocol.batch_builder import RecordBatchBuilder
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.ids import TopicId, TopicPartition
from barnabas.spark_connector import BarnabasSource
from barnabas.spark_connector.options import parse_options
from barnabas.spark_connector.source import reader
from barnabas.spark_connector.source.batch_reader import BarnabasReader
from barnabas.spark_connector.source.schema import source_schema
from tests.support.batches import build_batch

Numbered = Callable[[int], list[bytes | None]]
T0 = TopicPartition("t", 0)


SUBSCRIBED = {"bootstrap.servers": "a:1", "subscribe": "t"}


def reader_of(view: Any, schema: str = "offset long", **given: str) -> BarnabasReader:
    options = {"bootstrap.servers": "a:1"} if "subscribePattern" in given else SUBSCRIBED
    return BarnabasReader(parse_options(options | given), ddl(schema), view)


def read_all(view: Any, schema: StructType | None = None, **given: str) -> list[dict[str, Any]]:
    options = parse_options(SUBSCRIBED | given)
    if schema is None:
        schema = source_schema(include_headers=options.include_headers)
    made = BarnabasReader(options, schema, view)
    rows: list[dict[str, Any]] = []
    expected = to_arrow_schema(schema, timezone="UTC")
    for partition in made.partitions():
        for batch in made.read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema.equals(expected)
            batch.validate(full=True)
            rows += batch.to_pylist()
    assert not view.is_open
    return rows


def ddl(text: str) -> StructType:
    """A schema of simple types, such as "key binary, offset long"."""
    schema = StructType()
    for part in text.split(", "):
        name, kind = part.split(" ")
        schema = schema.add(name, kind)
    return schema


def test_the_schema_is_that_of_sparks_kafka_source() -> None:
    source = BarnabasSource(SUBSCRIBED | {"includeHeaders": "true"})
    assert source.name() == "barnabas"
    assert source.schema().simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    source = BarnabasSource(SUBSCRIBED)
    assert "headers" not in source.schema().fieldNames()


def test_wrong_options_are_refused_with_the_schema_and_with_the_reader() -> None:
    source = BarnabasSource(SUBSCRIBED | {"minPartition": "3"})
    with pytest.raises(InvalidConfiguration, match="did you mean minPartitions"):
        source.schema()
    with pytest.raises(InvalidConfiguration, match="did you mean minPartitions"):
        source.reader(source_schema(include_headers=False))


def test_source_and_reader_survive_pickling() -> None:
    source = pickle.loads(pickle.dumps(BarnabasSource(SUBSCRIBED)))
    made = pickle.loads(pickle.dumps(source.reader(source.schema())))
    assert isinstance(made, BarnabasReader)


def test_filters_are_not_pushed_down_since_spark_shares_their_state() -> None:
    assert BarnabasReader.pushFilters is DataSourceReader.pushFilters


def test_all_records_of_all_partitions_are_read(view: Any, numbered: Numbered) -> None:
    view.write("t", 0, numbered(10))
    view.write("t", 1, [None, b"x", b""])
    view.write("other", 0, [b"no"])
    rows = read_all(view)
    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in rows] == [
        *((0, offset, b"k%d" % offset, b"v%d" % offset) for offset in range(10)),
        (1, 0, b"k0", None),
        (1, 1, b"k1", b"x"),
        (1, 2, b"k2", b""),
    ]
    assert {row["topic"] for row in rows} == {"t"}
    assert rows[3]["timestamp"].timestamp() == 1.003
    assert {row["timestampType"] for row in rows} == {0}
    assert view.opened[0].bootstrap_servers == "a:1"


def test_nothing_beyond_the_high_watermark_is_read(view: Any, numbered: Numbered) -> None:
    view.write("t", 0, numbered(10), batch_records=10)
    view.committed[T0] = 7
    assert [row["offset"] for row in read_all(view)] == list(range(7))


def test_tasks_cut_batches_where_their_ranges_end(view: Any, numbered: Numbered) -> None:
    view.write("t", 0, numbered(100), batch_records=30)
    made = reader_of(view, minPartitions="7")
    parts = made.partitions()
    assert len(parts) == 7
    batches = [batch for part in parts for batch in made.read(part)]
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(100))


def test_a_sub_schema_selects_columns_in_its_own_order(view: Any, numbered: Numbered) -> None:
    view.write("t", 0, numbered(3))
    assert read_all(view, ddl("offset long, value binary")) == [
        {"offset": offset, "value": b"v%d" % offset} for offset in range(3)
    ]
    assert read_all(view, ddl("topic string, partition integer"))[0] == {"topic": "t", "partition": 0}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("valu binary", "'valu' that does not exist; did you mean value"),
        ("value string", "'value' is binary, the schema says string; read it as it is and cast it"),
        ("offset integer", "'offset' is bigint"),
        ("key binary, key binary", "'key' twice"),
        ("", "schema is empty"),
    ],
)
def test_a_schema_that_cannot_be_filled_is_refused(schema: str, message: str) -> None:
    source = BarnabasSource(SUBSCRIBED)
    with pytest.raises(InvalidConfiguration, match=message):
        source.reader(ddl(schema) if schema else StructType())


def test_a_missing_pyarrow_is_named_with_the_extra_on_the_driver_and_in_a_task(
    view: Any, numbered: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.write("t", 0, numbered(1))
    source = BarnabasSource(SUBSCRIBED)
    made = reader_of(view)
    (part,) = made.partitions()
    monkeypatch.setattr("barnabas.spark_connector.packages.find_spec", lambda name: None)
    for read in (lambda: source.reader(source.schema()), lambda: next(made.read(part))):
        with pytest.raises(ImportError, match=r"needs pyarrow and numpy: pip install 'barnabas\[spark\]'"):
            read()


def test_the_schema_of_a_stream_is_found_too() -> None:
    """Spark asks the same method for both."""
    for given in ({"startingOffsets": "latest"}, {"endingOffsets": "latest"}):
        assert BarnabasSource(SUBSCRIBED | given).schema().fieldNames()[0] == "key"


def test_sparks_search_for_sources_imports_little() -> None:
    """Every process that looks for any source imports all `pyspark_*` packages."""
    code = "import sys, pyspark_barnabas; print(*(name for name in sys.modules if 'barnabas' in name))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = "barnabas.spark_connector"
    chosen = {"barnabas", "barnabas.common", "barnabas.common.compiled_core"}
    assert set(found.stdout.split()) == {"pyspark_barnabas", *chosen, package, f"{package}.data_source"}


def test_no_records_make_no_tasks_and_sparks_own_empty_one_reads_nothing(view: Any) -> None:
    view.write("t", 0, [])
    made = reader_of(view)
    assert made.partitions() == []
    assert list(made.read(InputPartition(None))) == []


def test_a_pattern_leaves_internal_topics_out(view: Any) -> None:
    view.write("t", 0, [b"x"])
    view.write("__t", 0, [b"y"])
    view.internal.add("__t")
    assert len(reader_of(view, subscribePattern=".*").partitions()) == 1


def test_records_lost_during_the_read_fail_it(view: Any, numbered: Numbered) -> None:
    view.write("t", 0, numbered(9))
    view.retention[T0] = [6]
    text = r"t-0 no longer holds offset 3, it starts at 6.*failOnDataLoss"
    with pytest.raises(ApiError, match=text) as raised:
        read_all(view)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("log_starts", "offsets", "skipped"),
    [([6, 9], [0, 1, 2, 6, 7, 8, 9, 10, 11], 3), ([12], [0, 1, 2], 9)],
    ids=["a gap", "the rest"],
)
def test_without_fail_on_data_loss_the_read_skips_lost_records(
    view: Any,
    numbered: Numbered,
    caplog: pytest.LogCaptureFixture,
    log_starts: list[int],
    offsets: list[int],
    skipped: int,
) -> None:
    view.write("t", 0, numbered(12))
    view.retention[T0] = log_starts
    rows = read_all(view, failOnDataLoss="false")
    assert [row["offset"] for row in rows] == offsets
    assert f"{skipped} offsets of this read are skipped" in caplog.text


def test_a_topic_that_is_made_again_after_the_planning_is_not_read(view: Any, numbered: Numbered) -> None:
    view.write("t", 0, numbered(9))
    made = reader_of(view)
    (part,) = made.partitions()
    view.topic_id = TopicId(uuid.uuid4())
    with pytest.raises(ApiError, match=r"made again.*failOnDataLoss"):
        list(made.read(part))


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (api_error(ErrorCode.OFFSET_OUT_OF_RANGE, "above the end"), r"t-0 no longer reaches offset 3"),
        (LogTruncated("t-0 was deleted and made again", None), r"t-0 was deleted and made again"),
        (api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no 0"), r"t-0 no longer exists.*is no 0"),
    ],
    ids=["truncated", "made again", "deleted"],
)
def test_a_truncated_log_is_data_loss(
    view: Any,
    numbered: Numbered,
    caplog: pytest.LogCaptureFixture,
    fails: str,
    error: BarnabasError,
    text: str,
) -> None:
    """After the planning its topic was deleted or recreated, or an unclean election truncated it."""
    view.write("t", 0, numbered(12))
    made = reader_of(view, failOnDataLoss=fails)
    (part,) = made.partitions()
    del view.logs[T0][1:]

    def refuse(_: TopicPartition, start: int, *others: Any) -> Iterator[memoryview]:
        for batch in view.logs[T0]:
            if start < 3:
                yield batch
        raise error

    view.read = refuse
    if fails == "true":
        with pytest.raises(ApiError, match=f"{text}.*failOnDataLoss"):
            list(made.read(part))
    else:
        rows = [row for batch in made.read(part) for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == [0, 1, 2]
        assert "9 offsets of this read are skipped" in caplog.text


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_is_deleted_after_records_were_lost_is_data_loss(
    view: Any, numbered: Numbered, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    view.write("t", 0, numbered(12))
    view.retention[T0] = [6]
    made = reader_of(view, failOnDataLoss=fails)
    (part,) = made.partitions()

    def refuse(_: Any) -> Any:
        raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no 0")

    view.log_start_offsets = refuse
    if fails == "true":
        with pytest.raises(ApiError, match=r"t-0 no longer exists.*failOnDataLoss"):
            list(made.read(part))
    else:
        rows = [row for batch in made.read(part) for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == [0, 1, 2]
        assert "9 offsets of this read are skipped" in caplog.text


def test_the_isolation_level_reaches_the_planning_and_the_tasks(view: Any, numbered: Numbered) -> None:
    view.write("t", 0, numbered(2))
    assert len(read_all(view, **{"kafka.isolation.level": "read_committed"})) == 2
    assert [options.isolation_level for options in view.opened] == ["read_committed"] * 2


def test_a_range_may_end_in_batches_that_are_left_out(view: Any, numbered: Numbered) -> None:
    """As the last offsets of a range are those of an aborted transaction."""
    view.write("t", 0, numbered(9))
    whole = view.read
    view.read = lambda *part: (batch for batch in whole(*part) if batch is view.logs[T0][1])
    assert [row["offset"] for row in read_all(view)] == [3, 4, 5]


def test_a_pattern_that_matches_nothing_is_logged(view: Any, caplog: pytest.LogCaptureFixture) -> None:
    view.write("flights", 0, [b"x"])
    assert reader_of(view, subscribePattern="fligths").partitions() == []
    assert "no topic matches subscribePattern 'fligths'; did you mean flights?" in caplog.text


def test_batches_stay_within_rows_and_bytes(
    view: Any, numbered: Numbered, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.write("t", 0, numbered(100), batch_records=10)
    view.write("t", 1, numbered(100), batch_records=100)
    monkeypatch.setattr(reader, "MAX_BATCH_ROWS", 25)
    made = reader_of(view)
    sizes = [[batch.num_rows for batch in made.read(part)] for part in made.partitions()]
    assert sizes == [[20] * 5, [25] * 4]


def test_headers_are_lists_of_structs_and_null_without_headers(view: Any) -> None:
    builder = RecordBatchBuilder()
    builder.append(None, b"a", (("x", b"1"), ("x", None)), 0)
    builder.append(None, b"b", None, 0)
    builder.append(None, b"c", (("ü", b""),), 0)
    view.append(T0, builder.build())
    rows = read_all(view, includeHeaders="true")
    assert [row["headers"] for row in rows] == [
        [{"key": "x", "value": b"1"}, {"key": "x", "value": None}],
        None,
        [{"key": "ü", "value": b""}],
    ]


def test_a_timestamp_beyond_microseconds_is_refused(view: Any) -> None:
    view.append(T0, build_batch([(None, b"v")], timestamp_ms=1 << 60))
    with pytest.raises(ApiError, match="microseconds"):
        read_all(view)
    assert read_all(view, ddl("value binary")) == [{"value": b"v"}]
