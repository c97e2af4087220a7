"""The clients' settings: defaults, conversions and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from barnabas.client.config import AdminConfig, ConsumerConfig, ProducerConfig
from barnabas.client.errors import InvalidConfiguration
from barnabas.protocol.compression import Compression
from barnabas.protocol.ids import Endpoint


def test_the_defaults_are_kafkas() -> None:
    config = ProducerConfig()
    assert (config.acks, config.linger_ms, config.batch_size) == (-1, 0, 16_384)
    assert config.delivery_timeout_ms == 120_000
    assert config.bootstrap_servers == (Endpoint("localhost", 9092),)
    assert ConsumerConfig().auto_offset_reset == "latest"


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


def test_compression_is_known_by_name() -> None:
    assert ProducerConfig(compression_type="zstd").compression is Compression.ZSTD


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"acks": 2}, "acks=2: expected 0, 1 or all"),
        ({"acks": True}, "acks=True: expected"),
        ({"linger_ms": -1}, "linger_ms=-1: expected a whole number, at least 0"),
        ({"linger_ms": 1.5}, "linger_ms=1.5: expected a whole number"),
        ({"batch_size": "16384"}, "batch_size='16384': expected a whole number"),
        ({"bootstrap_servers": "nowhere"}, "bootstrap_servers='nowhere': expected host:port"),
        ({"bootstrap_servers": []}, "expected at least one host:port"),
        ({"bootstrap_servers": 9092}, "bootstrap_servers=9092: expected host:port"),
        ({"compression_type": "lzma"}, "expected one of none, gzip, snappy, lz4, zstd"),
        ({"partitioner": "best"}, "expected sticky, murmur2, round_robin, random"),
        ({"client_id": ""}, "client_id='': expected a text that is not empty"),
        ({"linger_msec": 5}, "there is no such setting; did you mean linger_ms?"),
        ({"linger.ms": 5}, "did you mean linger_ms?"),
        ({"delivery_timeout_ms": 100}, "delivery_timeout_ms=100: expected at least linger_ms (0) + request"),
        ({"buffer_memory": 1_000}, "batch_size=16384: expected at most buffer_memory (1000)"),
    ],
)
def test_a_wrong_producer_setting_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfiguration) as refusal:
        ProducerConfig.of(settings)
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"auto_offset_reset": "first"}, "expected one of earliest, latest, none"),
        ({"check_crcs": 1}, "check_crcs=1: expected true or false"),
        ({"request_timeout_ms": 400}, "expected more than fetch_max_wait_ms (500)"),
    ],
)
def test_a_wrong_consumer_setting_is_refused_by_name(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfiguration) as refusal:
        ConsumerConfig.of(settings)
    assert said in str(refusal.value)
