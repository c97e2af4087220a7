"""Ids and endpoints as people write them."""

import pytest

from barnabas.protocol.ids import NO_TOPIC_ID, Endpoint, TopicPartition, parse_endpoints


def test_a_partition_is_written_as_its_folder_and_no_topic_id_is_all_zero() -> None:
    assert NO_TOPIC_ID.bytes == bytes(16)
    assert str(TopicPartition("flights-2013", 4)) == "flights-2013-4"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:9092", "localhost", 9092),
        (" broker-1.example.com:0 ", "broker-1.example.com", 0),
        ("127.0.0.1:65535", "127.0.0.1", 65535),
        ("[::1]:9092", "::1", 9092),
        ("[fe80::1%eth0]:9092", "fe80::1%eth0", 9092),
    ],
)
def test_an_endpoint_is_read_and_written(text: str, host: str, port: int) -> None:
    endpoint = Endpoint.parse(text)
    assert endpoint == Endpoint(host, port)
    assert Endpoint.parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        ":9092",
        "localhost:",
        "localhost:x",
        "localhost:-1",
        "localhost:65536",
        "localhost:٣",
        "::1:9092",
        "[]:9092",
        "[::1:9092",
        "::1]:9092",
        "two words:9092",
        "PLAINTEXT://localhost:9092",
    ],
)
def test_a_text_that_is_not_an_endpoint_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port") as caught:
        Endpoint.parse(text)
    assert repr(text) in str(caught.value)


def test_a_list_of_endpoints_may_have_spaces_and_empty_places() -> None:
    assert parse_endpoints("a:1, b:2,,") == [Endpoint("a", 1), Endpoint("b", 2)]


@pytest.mark.parametrize("text", ["", " ", ",,"])
def test_a_list_of_no_endpoints_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names no server"):
        parse_endpoints(text)
