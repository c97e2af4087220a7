"""The clients' settings: defaults, conversions and refusals."""

from typing import Any

import pytest

from barnabas.client import Admin, Consumer, Producer, blocking, config
from barnabas.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from barnabas.client.consumer.assignors import ASSIGNORS
from barnabas.client.errors import InvalidConfiguration
from barnabas.client.producer.partitioners import PARTITIONERS
from barnabas.protocol.ids import Endpoint


def test_the_defaults_are_kafkas() -> None:
    settings = ProducerConfig()
    assert (settings.acks, settings.linger_ms, settings.batch_size) == (-1, 0, 16_384)
    assert settings.delivery_timeout_ms == 120_000
    assert settings.bootstrap_servers == (Endpoint("localhost", 9092),)
    assert ConsumerConfig().auto_offset_reset == "latest"


def test_every_partitioner_and_assignor_has_its_name_in_the_settings() -> None:
    assert (tuple(PARTITIONERS), tuple(ASSIGNORS)) == (config.PARTITIONERS, config.ASSIGNORS)


@pytest.mark.parametrize(
    "servers", ["a:1,b:2", ["a:1", "b:2"], [Endpoint("a", 1), Endpoint("b", 2)], ["a:1,b:2", "a:1"]]
)
def test_bootstrap_servers_are_read_from_every_form(servers: Any) -> None:
    assert AdminConfig(bootstrap_servers=servers).bootstrap_servers == (Endpoint("a", 1), Endpoint("b", 2))


@pytest.mark.parametrize(("given", "code"), [("all", -1), (-1, -1), ("1", 1), (1, 1), (0, 0)])
def test_acks_is_read_from_every_form(given: Any, code: int) -> None:
    assert ProducerConfig(acks=given).acks == code


def test_settings_are_read_from_text() -> None:
    texts = {"linger.ms": "5", "enable_idempotence": "TRUE", "acks": "1", "client-id": "me"}
    typed = ProducerConfig.parse(texts)
    assert typed == {"linger_ms": 5, "enable_idempotence": True, "acks": 1, "client_id": "me"}
    strategies = ConsumerConfig.parse({"partition.assignment.strategy": "range, sticky"})
    assert strategies == {"partition_assignment_strategy": ("range", "sticky")}
    with pytest.raises(InvalidConfiguration, match=r"linger_ms='5\.0': expected a whole"):
        ProducerConfig.parse({"linger_ms": "5.0"})


def test_settings_that_just_fit_together_are_taken() -> None:
    times = {"delivery_timeout_ms": 500, "linger_ms": 100, "request_timeout_ms": 400}
    config = ProducerConfig(**times, batch_size=1_000, buffer_memory=1_000, partitioner="random")
    assert (config.delivery_timeout_ms, config.partitioner) == (500, "random")


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (ProducerConfig, {"acks": 2}, "acks=2: expected 0, 1 or all"),
        (ProducerConfig, {"acks": True}, "acks=True: expected"),
        (ProducerConfig, {"linger_ms": -1}, "linger_ms=-1: expected a whole number, at least 0"),
        (ProducerConfig, {"linger_ms": 1.5}, "linger_ms=1.5: expected a whole number"),
        (ProducerConfig, {"batch_size": "16384"}, "batch_size='16384': expected a whole number"),
        (ProducerConfig, {"bootstrap_servers": "nowhere"}, "bootstrap_servers='nowhere': expected host:port"),
        (ProducerConfig, {"bootstrap_servers": []}, "expected at least one host:port"),
        (ProducerConfig, {"bootstrap_servers": 9092}, "bootstrap_servers=9092: expected host:port"),
        (ProducerConfig, {"compression_type": "lzma"}, "expected one of none, gzip, snappy, lz4, zstd"),
        (ProducerConfig, {"partitioner": "best"}, "expected sticky, murmur2, round_robin, random"),
        (ProducerConfig, {"client_id": ""}, "client_id='': expected a text that is not empty"),
        (ProducerConfig, {"linger_msec": 5}, "there is no such setting; did you mean linger_ms?"),
        (ProducerConfig, {"linger.ms": 5}, "did you mean linger_ms?"),
        (ProducerConfig, {"value_deserializer": str}, "did you mean value_serializer?"),
        (ConsumerConfig, {"key_serializer": str}, "did you mean key_deserializer?"),
        (
            ProducerConfig,
            {"delivery_timeout_ms": 100},
            "delivery_timeout_ms=100: expected at least linger_ms (0) + request",
        ),
        (ProducerConfig, {"buffer_memory": 1_000}, "batch_size=16384: expected at most buffer_memory (1000)"),
        (ConsumerConfig, {"auto_offset_reset": "first"}, "expected earliest, latest, none, or by_"),
        (ConsumerConfig, {"auto_offset_reset": "by_duration"}, "none, or by_duration: with a duration, such"),
        (ConsumerConfig, {"auto_offset_reset": "by_duration:1h"}, "such as by_duration:PT1H"),
        (ConsumerConfig, {"auto_offset_reset": "by_duration:-PT1H"}, "such as by_duration:PT1H"),
        (ConsumerConfig, {"check_crcs": 1}, "check_crcs=1: expected true or false"),
        (ConsumerConfig, {"request_timeout_ms": 500}, "expected more than fetch_max_wait_ms (500)"),
        (ConsumerConfig, {"heartbeat_interval_ms": 45_000}, "expected less than session_timeout_ms (45000)"),
        (ConsumerConfig, {"partition_assignment_strategy": []}, "expected one or several of range"),
        (ConsumerConfig, {"partition_assignment_strategy": "best"}, "expected one or several of range"),
        (ConsumerConfig, {"partition_assignment_strategy": ["range"] * 2}, "expected one or several of"),
        (ConsumerConfig, {"group_instance_id": "i"}, "group_instance_id='i': expected a group_id as well"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    config: type[ClientConfig], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refusal:
        config.of(settings)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("client", "given", "expected"),
    [
        (
            Consumer,
            {"bootstrap.servers": "h:1"},
            "config={'bootstrap.servers': 'h:1'}: expected a ConsumerConfig",
        ),
        (Producer, "h:1", "config='h:1': expected a ProducerConfig, or settings by name"),
        (Admin, "h:1", "config='h:1': expected an AdminConfig"),
        (Consumer, ProducerConfig, "expected a ConsumerConfig"),
        (blocking.Consumer, "topic", "config='topic': expected a ConsumerConfig"),
        (blocking.Producer, ["h:1"], "config=['h:1']: expected a ProducerConfig"),
        (blocking.Admin, {}, "config={}: expected an AdminConfig"),
    ],
)
def test_a_client_refuses_what_is_not_its_configuration(client: Any, given: Any, expected: str) -> None:
    """As the first argument of other libraries' clients, which is a dict of settings or a topic."""
    with pytest.raises(TypeError) as refusal:
        client(given)
    assert expected in str(refusal.value)


@pytest.mark.parametrize("client", [Consumer, Producer, Admin])
def test_settings_by_name_replace_those_of_a_configuration(client: Any) -> None:
    config = client(client_id="first", request_timeout_ms=5_000).config
    changed = client(config, client_id="other").config
    assert (changed.client_id, changed.request_timeout_ms) == ("other", 5_000)
    assert client(config).config is config
    with pytest.raises(InvalidConfiguration, match="did you mean client_id"):
        client(config, client_ip="other")
