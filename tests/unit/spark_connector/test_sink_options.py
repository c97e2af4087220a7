"""Options and columns of the sink: accepted ones, and the errors that name a refused one."""

import logging
import pickle

import pytest
from pyspark.sql.types import StructType

from barnabas.protocol.errors import InvalidConfiguration
from barnabas.spark_connector.sink.sink_options import (
    DEFAULT_BATCH_BYTES,
    encoder_limits,
    parse_sink_options,
    sink_columns,
)

GOOD = {"kafka.bootstrap.servers": "a:1,b:2", "topic": "t"}


def schema(ddl: str) -> StructType:
    """A schema from its DDL, for the types that the sink knows, without a JVM."""
    types = {
        "string": "string",
        "binary": "binary",
        "int": "integer",
        "long": "long",
        "timestamp": "timestamp",
        "headers": {
            "type": "array",
            "containsNull": True,
            "elementType": {
                "type": "struct",
                "fields": [
                    {"name": "key", "type": "string", "nullable": True, "metadata": {}},
                    {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
                ],
            },
        },
        "strings": {"type": "array", "containsNull": True, "elementType": "string"},
    }
    fields = [part.split() for part in ddl.split(", ")]
    return StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": types[kind], "nullable": True, "metadata": {}} for name, kind in fields
            ],
        }
    )


def test_options_become_settings_of_the_producer() -> None:
    options = parse_sink_options(
        GOOD
        | {
            "KAFKA.acks": "1",
            "kafka.compression.type": "zstd",
            "kafka.linger.ms": "7",
            "kafka.max.request.size": "100000",
            "kafka.retries": "3",
            "kafka.delivery.timeout.ms": "60000",
            "wire": "kafka",
            "includeHeaders": "true",
        }
    )
    config = options.producer_config()
    assert [str(endpoint) for endpoint in config.endpoints] == ["a:1", "b:2"]
    assert (config.required_acks, config.compression_type, config.linger_ms) == (1, "zstd", 7)
    assert (config.retries, config.delivery_timeout_ms, config.wire) == (3, 60_000, "kafka")
    assert (options.topic, options.include_headers, options.include_timestamp) == ("t", True, False)
    assert pickle.loads(pickle.dumps(options)) == options


def test_batches_are_large_unless_a_setting_or_a_limit_makes_them_smaller() -> None:
    def limits(**given: str) -> tuple[int, int]:
        options = parse_sink_options(GOOD | {f"kafka.{name}": value for name, value in given.items()})
        found = encoder_limits(options.producer_config())
        return found.batch_bytes, found.record_bytes

    assert limits() == (DEFAULT_BATCH_BYTES, 1 << 20)
    assert limits(**{"batch.size": "1000"}) == (1000, 1 << 20)
    assert limits(**{"max.request.size": "2000"}) == (2000, 2000)
    assert limits(**{"buffer.memory": "600000"}) == (DEFAULT_BATCH_BYTES, 600_000)


def test_options_of_spark_and_of_the_source_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    of_spark = {
        "checkpointlocation": "x",
        "path": "x",
        "queryName": "q",
        "asyncProgressTrackingEnabled": "true",
    }
    assert parse_sink_options(GOOD | of_spark) == parse_sink_options(GOOD)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert parse_sink_options(GOOD | {"startingOffsets": "latest"}) == parse_sink_options(GOOD)
    assert "option 'startingOffsets' has no effect in the barnabas sink" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topik": "t"}, "option 'topik' is unknown to the barnabas sink; did you mean topic?"),
        ({"topic": " "}, "topic=' ': expected a text that is not empty"),
        ({"wire": "tls"}, "wire='tls': expected one of auto, native, kafka"),
        ({"kafka.wire": "kafka", "wire": "native"}, "'kafka.wire' is refused: use the option wire"),
        ({"bootstrap.servers": "c:3"}, "'bootstrap.servers' and 'kafka.bootstrap.servers' differ"),
        ({"kafka.bootstrap.servers": "nowhere"}, "bootstrap.servers='nowhere': expected host:port"),
        ({"includeTimestamp": "yes"}, "includeTimestamp='yes': expected true or false"),
        ({"kafka.acks": "2"}, "kafka.acks='2': expected 0, 1 or all"),
        ({"kafka.key.serializer": "x"}, "'kafka.key.serializer' is refused"),
        ({"kafka.partitioner": "random"}, "kafka.partitioner='random': expected sticky or murmur2"),
        ({"kafka.delivery.timeout.ms": "10"}, "kafka.delivery.timeout.ms=10: expected at least"),
        ({"exactlyOnce": "true"}, "kafka.transactional.id=NAME makes the sink write exactly once"),
        (
            {"kafka.transactional.id": "x", "wire": "kafka"},
            "kafka.transactional.id='x' with wire='kafka': expected wire=native",
        ),
        ({"kafka.transactional.id": "x", "kafka.acks": "1"}, "kafka.acks=1: expected all"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_expected(changes: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        parse_sink_options(GOOD | changes)
    assert message in str(caught.value)


def test_the_servers_are_required() -> None:
    with pytest.raises(
        InvalidConfiguration, match=r"option 'kafka.bootstrap.servers' is missing; expected host:port"
    ):
        parse_sink_options({"topic": "t"})


def columns(ddl: str, **options: str) -> tuple[str, ...]:
    given = {"bootstrap.servers": "a:1", **options}
    return sink_columns(schema(ddl), parse_sink_options(given))


def test_the_known_columns_are_written_and_others_ignored() -> None:
    everything = (
        "id long, key string, value binary, headers headers, partition int, topic string, timestamp timestamp"
    )
    assert columns(everything) == ("key", "value", "headers", "partition", "topic")
    assert columns(everything, topic="t", includeTimestamp="true") == (
        "key",
        "value",
        "headers",
        "partition",
        "timestamp",
    )
    # A column that is not written may have any type.
    assert columns("value string, topic int, timestamp string", topic="t") == ("value",)


@pytest.mark.parametrize(
    ("ddl", "options", "message"),
    [
        (
            "key binary, Value binary",
            {},
            "no column 'value', which the sink needs; its columns are key, Value",
        ),
        (
            "value binary",
            {},
            "neither the option 'topic' nor a column 'topic' is given; the columns are value",
        ),
        ("value long", {"topic": "t"}, "column 'value' is bigint; expected string or binary: cast it"),
        ("value binary, key int", {"topic": "t"}, "column 'key' is int; expected string or binary"),
        ("value binary, topic binary", {}, "column 'topic' is binary; expected string"),
        ("value binary, partition long", {"topic": "t"}, "column 'partition' is bigint; expected int"),
        (
            "value binary, headers strings",
            {"topic": "t"},
            "column 'headers' is array<string>; expected array<struct<key:string,value:binary>>",
        ),
        (
            "value binary, timestamp long",
            {"topic": "t", "includeTimestamp": "true"},
            "column 'timestamp' is bigint; expected timestamp",
        ),
        ("value binary", {"topic": "t", "includeTimestamp": "true"}, "includeTimestamp=true needs a column"),
    ],
)
def test_a_wrong_column_is_named_with_what_was_expected(
    ddl: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        columns(ddl, **options)
    assert message in str(caught.value)
