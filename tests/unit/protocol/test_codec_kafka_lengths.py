"""Lengths in flexible versions: a varint of one to four bytes, read back at every change of its size."""

from __future__ import annotations

import pytest

from barnabas.protocol.codec_kafka import decode_request, encode_request
from barnabas.protocol.errors import MalformedFrame
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

BOUNDARIES = [2**7, 2**14, 2**21]


def produce(sizes: list[int]) -> memoryview:
    """A Produce request of version 9 with records of these sizes."""
    data = [PartitionProduceData(index=index, records=bytes(size)) for index, size in enumerate(sizes)]
    body = ProduceRequest(
        acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="topic", partition_data=data)]
    )
    return memoryview(b"".join(encode_request(9, 1, "c", body)))[4:]


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_records_are_read_with_lengths_of_every_size(boundary: int) -> None:
    sizes = [boundary + offset for offset in (-2, -1, 0, 1)]
    (topic,) = decode_request(produce(sizes)).body.topic_data
    assert [len(data.records) for data in topic.partition_data] == sizes


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_frame_that_ends_within_a_length_is_malformed(boundary: int) -> None:
    whole = produce([boundary])
    start = len(whole) - boundary - 3
    for end in range(start - 3, start + 1):
        with pytest.raises(MalformedFrame):
            decode_request(whole[:end])


def test_a_length_of_more_than_32_bits_is_malformed() -> None:
    head = bytes(produce([0])[:-4])
    for length in (b"\x80" * 5 + b"\x01", b"\xff" * 5, b"\x80\x80\x80\x80\x10"):
        with pytest.raises(MalformedFrame):
            decode_request(memoryview(head + length + bytes(8)))
