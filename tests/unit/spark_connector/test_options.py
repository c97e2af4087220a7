"""Options of the source: accepted values, and the errors that name a refused one."""

import pickle

import pytest

from barnabas.common.settings import LONG_MAX
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.option_kinds import EARLIEST, LATEST
from barnabas.spark_connector.options import OPTIONS, SourceOptions, parse_options

GOOD = {"bootstrap.servers": "a:1,b:2", "subscribe": "t"}


def test_defaults_are_sparks() -> None:
    options = parse_options(GOOD)
    assert options.bootstrap_servers == "a:1,b:2"
    assert options.topics == ("t",)
    assert (options.start, options.end) == (
        ("startingOffsets", EARLIEST, False),
        ("endingOffsets", LATEST, False),
    )
    assert (options.min_partitions, options.include_headers, options.fail_on_data_loss) == (None, False, True)


def test_names_come_in_any_case_and_with_the_kafka_prefix() -> None:
    options = parse_options(
        {"KAFKA.bootstrap.servers": "a:1", "SUBSCRIBEpattern": "t.*", "includeheaders": "TRUE"}
    )
    assert options.topic_pattern == "t.*"
    assert options.include_headers
    assert options.isolation_level == "read_uncommitted"
    options = parse_options(GOOD | {"Kafka.Isolation.Level": "read_committed"})
    assert options.isolation_level == "read_committed"
    assert parse_options(GOOD | {"isolation.level": "read_committed"}) == options


def test_everything_can_be_given_and_the_result_is_pickled() -> None:
    given = {
        "bootstrap.servers": "a:1",
        "kafka.bootstrap.servers": "a:1",
        "wire": "kafka",
        "assign": '{"t":[1,0],"u":[3]}',
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t":{"0":0,"1":2},"u":{"3":9223372036854775807}}',
        "startingOffsets": '{"t":{"0":-2,"1":7},"u":{"3":0}}',
        "startingOffsetsByTimestampStrategy": "Latest",
        "endingTimestamp": "6",
        "endingOffsetsByTimestamp": '{"t":{"0":4,"1":5},"u":{"3":6}}',
        "endingOffsets": '{"t":{"0":-1,"1":9},"u":{"3":1}}',
        "minPartitions": "12",
        "maxRecordsPerPartition": "5000000000",
        "maxOffsetsPerTrigger": "30",
        "minOffsetsPerTrigger": "30",
        "maxTriggerDelay": "10s",
        "maxBytesPerTrigger": "64m",
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "failOnDataLoss": "false",
        "kafkaConsumer.pollTimeoutMs": "7",
        "fetchOffset.numRetries": "8",
        "fetchOffset.retryIntervalMs": "9",
        "kafka.group.id": "g",
        "groupIdPrefix": "p",
        "kafka.client.id": "c",
    }
    options = parse_options(given)
    t0, t1, u3 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 3)
    assert options == SourceOptions(
        bootstrap_servers="a:1",
        wire="kafka",
        partitions=(t1, t0, u3),
        starting_timestamp=5,
        starting_offsets_by_timestamp={t0: 0, t1: 2, u3: LONG_MAX},
        starting_offsets={t0: -2, t1: 7, u3: 0},
        starting_offsets_by_timestamp_strategy="latest",
        ending_timestamp=6,
        ending_offsets_by_timestamp={t0: 4, t1: 5, u3: 6},
        ending_offsets={t0: -1, t1: 9, u3: 1},
        min_partitions=12,
        max_records_per_partition=5_000_000_000,
        max_offsets_per_trigger=30,
        min_offsets_per_trigger=30,
        max_trigger_delay_ms=10_000,
        max_bytes_per_trigger=64 << 20,
        isolation_level="read_committed",
        include_headers=True,
        fail_on_data_loss=False,
        poll_timeout_ms=7,
        fetch_offset_num_retries=8,
        fetch_offset_retry_interval_ms=9,
        group_id="g",
        group_id_prefix="p",
        client={"client_id": "c"},
    )
    assert {*given} >= {
        name for name in OPTIONS if name not in ("subscribe", "subscribePattern", "isolation.level")
    }
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_stream_starts_at_the_end_by_default_and_its_offsets_may_be_there() -> None:
    assert parse_options(GOOD, streaming=True).start.at == LATEST
    assert parse_options(GOOD | {"startingOffsets": "earliest"}, streaming=True).start.at == EARLIEST
    offsets = {"startingOffsets": '{"t":{"0":-1}}'}
    assert parse_options(GOOD | offsets, streaming=True).start.at == {TopicPartition("t", 0): LATEST}


def test_options_that_only_streams_have_are_ignored_in_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    given = GOOD | {"maxoffsetspertrigger": "1", "maxTriggerDelay": "1"}
    parse_options(given, streaming=True)
    assert caplog.text == ""
    parse_options(given)
    for name in ("maxOffsetsPerTrigger", "maxTriggerDelay"):
        assert f"option '{name}' is ignored in a batch query" in caplog.text


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("15m", 900_000), ("2 ", 2), ("3ms", 3), ("10S", 10_000), ("1min", 60_000), ("2h", 7_200_000), ("0", 0)],
)
def test_times_have_sparks_units(text: str, milliseconds: int) -> None:
    options = parse_options(GOOD | {"maxTriggerDelay": text}, streaming=True)
    assert options.max_trigger_delay_ms == milliseconds


@pytest.mark.parametrize(
    ("text", "size"), [("7", 7), ("1k", 1024), ("2KB", 2048), ("3m", 3 << 20), ("1g", 1 << 30), ("5b", 5)]
)
def test_sizes_have_sparks_units(text: str, size: int) -> None:
    options = parse_options(GOOD | {"maxBytesPerTrigger": text}, streaming=True)
    assert options.max_bytes_per_trigger == size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"startingOfsets": "earliest"}, "'startingOfsets' is unknown .* did you mean startingOffsets"),
        ({"path": "/x"}, "'path' is unknown"),
        ({"bootstrap.servers": None}, r"'kafka.bootstrap.servers' is missing; expected host:port"),
        ({"bootstrap.servers": "a"}, "'a' is not host:port"),
        ({"bootstrap.servers": ","}, "names no server"),
        ({"kafka.bootstrap.servers": "other:1"}, "differ"),
        ({"isolation.level": "committed"}, "isolation.level='committed': expected .*read_committed"),
        ({"isolation.level": "read_committed", "kafka.isolation.level": "read_uncommitted"}, "differ"),
        ({"subscribe": None}, "exactly one of the options .* found none"),
        ({"assign": '{"t":[0]}'}, "found subscribe and assign"),
        ({"subscribe": " , "}, "subscribe=' , ': expected topic"),
        ({"subscribe": None, "subscribePattern": "("}, "expected a regular expression"),
        ({"subscribe": None, "subscribePattern": " "}, "subscribePattern=' ': expected a regular expression"),
        ({"subscribe": None, "assign": "t"}, "assign='t': expected JSON"),
        ({"subscribe": None, "assign": "[]"}, "expected JSON"),
        ({"subscribe": None, "assign": "{}"}, "expected JSON"),
        ({"subscribe": None, "assign": '{"t":0}'}, "expected JSON"),
        ({"subscribe": None, "assign": '{"t":[-1]}'}, "expected JSON"),
        ({"subscribe": None, "assign": '{"t":[true]}'}, "expected JSON"),
        ({"startingOffsets": "latest"}, "startingOffsets='latest': a batch query has no records there"),
        ({"endingOffsets": "earliest"}, "endingOffsets='earliest': a batch query has no records there"),
        ({"startingOffsets": '{"t":{"0":-1}}'}, r"startingOffsets has -1 \(latest\) for t-0: a batch"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, r"endingOffsets has -2 \(earliest\) for t-0: a batch"),
        ({"startingOffsets": "first"}, "startingOffsets='first': expected earliest, latest or JSON"),
        ({"startingOffsets": '{"t":5}'}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"t":{"x":5}}'}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"t":{"0":1.5}}'}, "expected earliest, latest or JSON"),
        ({"endingOffsets": '{"t":{"0":"5"}}'}, "expected earliest, latest or JSON"),
        ({"minPartitions": "0"}, "minPartitions='0': expected a whole number, at least 1"),
        ({"startingTimestamp": "-1"}, "startingTimestamp='-1': expected a whole number, at least 0"),
        ({"endingTimestamp": "2026-01-01"}, "endingTimestamp='2026-01-01': expected a whole number"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, r"expected JSON such as .*, in ms"),
        ({"endingOffsetsByTimestamp": "[]"}, "endingOffsetsByTimestamp=.*expected JSON"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "expected one of error, latest"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition='0': expected a whole number, at least 1"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0': expected a whole number, at least 1"),
        ({"minOffsetsPerTrigger": "-1"}, "minOffsetsPerTrigger='-1': expected a whole number, at least 0"),
        ({"maxTriggerDelay": "15 minutes"}, "maxTriggerDelay='15 minutes': expected a time such as 15m"),
        ({"maxTriggerDelay": "1.5h"}, "maxTriggerDelay='1.5h': expected a time such as 15m"),
        ({"maxBytesPerTrigger": "0k"}, "maxBytesPerTrigger='0k': expected a size such as 64m"),
        ({"maxBytesPerTrigger": "1x"}, "maxBytesPerTrigger='1x': expected a size such as 64m"),
        ({"kafkaConsumer.pollTimeoutMs": "0"}, "pollTimeoutMs='0': expected a whole number, at least 1"),
        ({"fetchOffset.numRetries": "-1"}, "numRetries='-1': expected a whole number, at least 0"),
        ({"fetchOffset.retryIntervalMs": "1s"}, "retryIntervalMs='1s': expected a whole number"),
        ({"wire": "tls"}, "wire='tls': expected one of auto, native, kafka"),
        ({"kafka.group.id": " "}, "kafka.group.id=' ': expected a text that is not empty"),
        (
            {"startingTimestamp": "5", "endingOffsets": "earliest"},
            "endingOffsets='earliest': a batch query has no records there",
        ),
        (
            {"startingOffsets": '{"t":{"0":1}}', "endingOffsets": '{"t":{"0":0}}'},
            "startingOffsets has 1 for t-0, beyond endingOffsets with 0",
        ),
        ({"startingOffsets": '{"t":{"٣":5}}'}, "expected earliest, latest or JSON"),
        ({"startingOffsets": '{"t":{"0":9223372036854775808}}'}, "expected earliest, latest or JSON"),
        ({"minPartitions": "many"}, "expected a whole number, at least 1"),
        ({"includeHeaders": "yes"}, "includeHeaders='yes': expected true or false"),
        ({"failOnDataLoss": "1"}, "failOnDataLoss='1': expected true or false"),
    ],
)
def test_the_error_for_a_wrong_option_names_it(changes: dict[str, str | None], message: str) -> None:
    merged = {**GOOD, **changes}
    with pytest.raises(InvalidConfiguration, match=message):
        parse_options({name: value for name, value in merged.items() if value is not None})
