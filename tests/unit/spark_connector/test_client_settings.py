"""`kafka.*` options: settings that reach our clients, those without effect, and the refused ones."""

import pickle

import pytest

from barnabas.client.config import ConsumerConfig, ProducerConfig
from barnabas.client.security import SecurityConfig
from barnabas.common.settings import settings_of
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.spark_connector.client_settings import (
    KAFKA_NAMES,
    SINK_CLIENT,
    SOURCE_CLIENT,
    Client,
    _warn_once,
    client_settings,
)


def test_settings_of_the_client_are_typed_and_used() -> None:
    given = {
        "subscribe": "t",
        "kafka.bootstrap.servers": "a:1",
        "KAFKA.Request.Timeout.Ms": " 5000 ",
        "kafka.client.id": "reports",
        "kafka.fetch.max.bytes": "70000",
    }
    assert client_settings(given, SOURCE_CLIENT, ["kafka.bootstrap.servers"]) == {
        "request_timeout_ms": 5000,
        "client_id": "reports",
        "fetch_max_bytes": 70_000,
    }
    given = {"kafka.acks": "1", "kafka.linger.ms": "5", "kafka.compression.type": "zstd"}
    assert client_settings(given, SINK_CLIENT) == {"acks": 1, "linger_ms": 5, "compression_type": "zstd"}


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("kafka.max.poll.records", "option 'kafka.max.poll.records' has no effect in the barnabas source"),
        ("kafka.client.dns.lookup", "option 'kafka.client.dns.lookup' has no effect in the barnabas source"),
        ("kafka.linger.ms", "option 'kafka.linger.ms' has no effect in the barnabas source"),
        ("kafka.My.Own", "option 'kafka.My.Own' is no setting of Kafka's client and has no effect"),
        ("kafka.max.pol.records", "has no effect; did you mean max.poll.records?"),
        ("kafka.request_timeout_ms", "has no effect; did you mean request.timeout.ms?"),
    ],
)
def test_settings_without_effect_are_named_once_in_a_process(
    option: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_once.cache_clear()
    for _ in range(2):
        assert client_settings({option: "5"}, SOURCE_CLIENT) == {}
    assert caplog.text.count(text) == 1


LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.mark.parametrize("client", [SOURCE_CLIENT, SINK_CLIENT])
def test_settings_of_security_have_kafkas_names_and_reach_other_processes(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{LOGIN} username="me" password="hunter2";',
        "kafka.ssl.truststore.location": "/etc/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
    }
    settings = client_settings(given, client)
    config = client.config_class.of(pickle.loads(pickle.dumps(settings)))
    assert config.make_security().protocol == "SASL_SSL"
    assert config.ssl_truststore_location == "/etc/ca.pem"
    assert "hunter2" not in repr(settings) + repr(config) + caplog.text
    _warn_once.cache_clear()
    assert client_settings({"kafka.ssl.provider": "SunJSSE"}, client) == {}
    assert "'kafka.ssl.provider' has no effect" in caplog.text


@pytest.mark.parametrize(
    ("client", "option", "value", "message"),
    [
        (
            SOURCE_CLIENT,
            "kafka.Fetch.Max.Bytes",
            "0",
            "kafka.Fetch.Max.Bytes='0': expected a whole number, at least 1",
        ),
        (
            SOURCE_CLIENT,
            "kafka.max.poll.records",
            "all",
            "kafka.max.poll.records='all': expected a whole number",
        ),
        (
            SOURCE_CLIENT,
            "kafka.auto.offset.reset",
            "latest",
            "is refused: set startingOffsets to earliest or latest",
        ),
        (SOURCE_CLIENT, "kafka.key.deserializer", "x", "is refused: keys are read as bytes"),
        (SOURCE_CLIENT, "kafka.value.deserializer", "x", "is refused: values are read as bytes"),
        (
            SOURCE_CLIENT,
            "kafka.enable.auto.commit",
            "false",
            "is refused: the source itself keeps the offsets",
        ),
        (SOURCE_CLIENT, "kafka.interceptor.classes", "x", "is refused: interceptors are Java classes"),
        (SOURCE_CLIENT, "kafka.wire", "kafka", "is refused: use the option wire"),
        (SINK_CLIENT, "kafka.key.serializer", "x", "is refused: keys are written as bytes"),
        (SINK_CLIENT, "kafka.value.serializer", "x", "is refused: values are written as bytes"),
        (SINK_CLIENT, "kafka.interceptor.classes", "x", "is refused: interceptors are Java classes"),
        (SINK_CLIENT, "kafka.partitioner.class", "x", "is refused: a partitioner is a Java class"),
        (SOURCE_CLIENT, "kafka.security.protocol", "TLS", "expected one of PLAINTEXT, SSL"),
        (SINK_CLIENT, "kafka.ssl.keystore.kee", "x", "must be known; did you mean ssl.keystore.key"),
        (SOURCE_CLIENT, "kafka.sasl.mechanism", "GSSAPI", "GSSAPI .* is not supported"),
        (SOURCE_CLIENT, "kafka.sasl.password", "x", "does not use it: expected SASL_SSL or SASL_PLAINTEXT"),
    ],
)
def test_the_error_for_a_refused_setting_names_it(
    client: Client, option: str, value: str, message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message) as raised:
        client_settings({option: value}, client)
    assert option in str(raised.value)


PROTOCOL = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}


def test_a_password_is_not_shown() -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        client_settings({"kafka.sasl.jaas.config": 'password="secret"', **PROTOCOL}, SOURCE_CLIENT)
    assert "secret" not in str(raised.value)


def test_a_contradiction_names_the_options() -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        client_settings({"kafka.Delivery.Timeout.ms": "5", "kafka.linger.ms": "9"}, SINK_CLIENT)
    expected = "kafka.Delivery.Timeout.ms=5: expected at least kafka.linger.ms (9) + kafka.request.timeout.ms"
    assert str(raised.value).startswith(expected)


def test_kafkas_names_include_those_that_our_clients_have() -> None:
    ours = {
        field.replace("_", ".")
        for config in (ConsumerConfig, ProducerConfig)
        for field in settings_of(config)
    }
    ours -= {field.replace("_", ".") for field in settings_of(SecurityConfig)}
    own = {"wire", "receive.message.max.bytes", "partitioner", "keep.prepared", "skip.damaged.batches"}
    assert ours - own <= KAFKA_NAMES
