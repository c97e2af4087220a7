"""Produce, from bytes to bytes, over real logs; version None is the native protocol."""

import gc
import time
import uuid
import weakref
from typing import Any

import pytest

from barnabas.broker.base.limits import MAX_PRODUCED_BATCHES
from barnabas.broker.handlers import produce as produce_handler
from barnabas.broker.log import appending
from barnabas.broker.log.appending import ProducedBatches, parse_produced
from barnabas.broker.network.request import Lane, Request
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.record_batch import BatchHeader, TimestampType, check_produced_batch, parse_header
from barnabas.protocol.topic_names import INTERNAL_TOPICS
from tests.support.batches import build_batch
from tests.support.building import TP, state
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.record_requests import (
    LAST_PRODUCE,
    PRODUCE_VERSIONS,
    catch_up,
    fetch,
    fetch_request,
    fetched,
    produce,
    produce_request,
    produced,
    set_topic,
)
from tests.support.serving import Connection, Serving, batch


def end_offset(serving: Serving) -> int:
    return serving.managed.manager.partition(TP).log_end_offset


def packed(compression: Compression, **fields: Any) -> bytes:
    return bytes(build_batch([(b"k", b"v" * 500)], compression=compression, **fields))


@pytest.mark.parametrize("version", PRODUCE_VERSIONS)
def test_a_batch_is_kept_as_it_came(leading: Serving, version: int | None) -> None:
    sent = packed(Compression.LZ4)
    answer = produced(produce(leading, sent, version=version))
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 0, -1)
    assert answer.log_start_offset == (0 if version is None or version >= 5 else -1)
    assert produced(produce(leading, sent, version=version)).base_offset == 1
    catch_up(leading)
    kept = bytes(fetched(fetch(leading, 0)).records)
    # The broker writes base offset and leader epoch.
    assert kept[16 : len(sent)] == sent[16:]


@pytest.mark.parametrize("version", range(3))
def test_versions_that_are_named_only_for_librdkafka_are_refused(leading: Serving, version: int) -> None:
    answer = produced(produce(leading, batch(b"a"), version=version))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


def test_a_kafka_client_sends_exactly_one_batch_and_a_native_client_several(leading: Serving) -> None:
    several = batch(b"a") + batch(b"b")
    answer = produced(produce(leading, several, version=LAST_PRODUCE))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert "exactly one batch" in answer.error_message
    assert produced(produce(leading, several)).error_code == ErrorCode.NONE
    assert end_offset(leading) == 2


@PURE_PYTHON_ONLY
def test_no_batch_behind_the_first_is_looked_at_for_a_kafka_client(
    leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame of 100 MB holds more than a million, and this is the network thread."""
    looked_at: list[int] = []

    def check(view: memoryview, position: int = 0) -> BatchHeader:
        looked_at.append(position)
        return check_produced_batch(view, position)

    monkeypatch.setattr(appending, "check_produced_batch", check)
    answer = produced(produce(leading, batch(b"a") * 50, version=LAST_PRODUCE))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert looked_at == [0]


def test_a_partition_has_a_bounded_number_of_batches_in_a_request(leading: Serving) -> None:
    answer = produced(produce(leading, batch(b"a") * MAX_PRODUCED_BATCHES))
    assert answer.error_code == ErrorCode.NONE
    answer = produced(produce(leading, batch(b"a") * (MAX_PRODUCED_BATCHES + 1)))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert f"at most {MAX_PRODUCED_BATCHES} batches" in answer.error_message
    assert end_offset(leading) == MAX_PRODUCED_BATCHES


@pytest.mark.parametrize(("version", "code"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, 0)])
def test_zstd_needs_version_7(leading: Serving, version: int, code: int) -> None:
    assert produced(produce(leading, packed(Compression.ZSTD), version=version)).error_code == code


def with_byte(position: int, value: int) -> bytes:
    records = bytearray(batch(b"a", b"b"))
    records[position] = value
    return bytes(records)


BAD_RECORDS = {
    "damaged": (with_byte(-1, 77), ErrorCode.CORRUPT_MESSAGE),
    "empty": (b"", ErrorCode.INVALID_RECORD),
    "null": (None, ErrorCode.INVALID_RECORD),
    "too large": (batch(b"x" * 1_100_000), ErrorCode.MESSAGE_TOO_LARGE),
    "message format 1": (with_byte(16, 1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "base offset": (bytes(build_batch([(b"k", b"v")], base_offset=3)), ErrorCode.INVALID_RECORD),
}


@pytest.mark.parametrize("what", BAD_RECORDS)
def test_bad_records_are_refused_and_nothing_is_written(leading: Serving, what: str) -> None:
    records, code = BAD_RECORDS[what]
    answer = produced(produce(leading, records, version=LAST_PRODUCE))
    assert (answer.error_code, answer.base_offset) == (code, -1)
    assert answer.error_message
    assert end_offset(leading) == 0


def test_results_keep_the_order_of_the_request(leading: Serving) -> None:
    second = state()
    second.partition_index = 1
    assert leading.managed.tell(state(), second) == []
    connection = produce(leading, batch(b"a")[:-3], batch(b"b"), batch(b"c"), b"")
    answers = [produced(connection, index) for index in range(4)]
    assert [(answer.index, answer.error_code, answer.base_offset) for answer in answers] == [
        (0, ErrorCode.INVALID_RECORD, -1),
        (1, ErrorCode.NONE, 0),
        (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]


@pytest.mark.parametrize("version", [None, LAST_PRODUCE])
@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_only_brokers_write_internal_topics(leading: Serving, topic: str, version: int | None) -> None:
    assert leading.managed.tell(state(), topic=topic, topic_id=uuid.UUID(int=9)) == []
    answer = produced(produce(leading, batch(b"a"), topic=topic, version=version))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


# Acks


def test_acks_all_is_answered_later_and_once(leading: Serving) -> None:
    connection = produce(leading, batch(b"a"), acks=-1)
    assert not connection.is_answered
    catch_up(leading)
    assert (produced(connection).error_code, produced(connection).base_offset) == (0, 0)
    leading.managed.pass_time(100_000)
    assert len(connection.answers) == 1


def test_acks_0_is_not_answered(leading: Serving) -> None:
    connection = produce(leading, batch(b"a"), acks=0)
    assert connection.answers == [b""]
    assert end_offset(leading) == 1


def test_acks_0_that_fails_closes_the_connection(leading: Serving) -> None:
    """No answer is expected, and so the client learns that it must look for the leader again."""
    connection = produce(leading, batch(b"a"), acks=0, topic="nowhere")
    assert connection.closed is not None
    assert "nowhere-0: UNKNOWN_TOPIC_OR_PARTITION" in connection.closed


@pytest.mark.parametrize("acks", [2, -2])
def test_other_acks_are_refused(leading: Serving, acks: int) -> None:
    answer = produced(produce(leading, batch(b"a"), acks=acks))
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert f"acks is {acks}" in answer.error_message
    assert end_offset(leading) == 0


# Lanes and memory


@pytest.mark.parametrize(
    ("settings", "lane"),
    [
        ({"compression_type": "gzip"}, Lane.RECORDS),
        ({"flush_messages": 1}, Lane.DISK),
        ({"preallocate": True}, Lane.DISK),
    ],
)
def test_batches_that_take_time_continue_on_a_worker(
    leading: Serving, settings: dict[str, Any], lane: Lane
) -> None:
    set_topic(leading, **settings)
    records = packed(Compression.ZSTD, timestamp_ms=time.time_ns() // 1_000_000)
    connection = Connection.of(produce_request(records, records), version=LAST_PRODUCE)
    request = connection.request
    assert request.lane is Lane.NETWORK
    leading.process(request)
    assert not connection.is_answered
    assert end_offset(leading) == 0
    assert request.lane is lane
    assert request.rest is not None
    request.rest()
    assert produced(connection).error_code == ErrorCode.NONE
    assert end_offset(leading) == 1


@PURE_PYTHON_ONLY
def test_an_append_to_a_slow_disk_continues_on_a_worker(
    leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Partition, "is_on_slow_disk", True)
    connection = Connection.of(produce_request(batch(b"a")), version=LAST_PRODUCE)
    leading.process(connection.request)
    assert (connection.is_answered, connection.request.lane) == (False, Lane.DISK)


@PURE_PYTHON_ONLY
@pytest.mark.parametrize(
    ("batches", "lane"),
    [([500], Lane.NETWORK), ([501], Lane.RECORDS), ([250, 251], Lane.RECORDS), ([300, None], Lane.NETWORK)],
)
def test_a_request_with_very_many_batches_continues_before_they_are_parsed(
    leading: Serving, batches: list[int | None], lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes: list[Lane] = []

    def parse(records: memoryview, most: int) -> ProducedBatches:
        lanes.append(connection.request.lane)
        return parse_produced(records, most)

    monkeypatch.setattr(produce_handler, "parse_produced", parse)
    records = [None if count is None else batch(b"a") * count for count in batches]
    connection = Connection.of(produce_request(*records))
    connection.run(leading.dispatch)
    assert set(lanes) == {lane}
    assert end_offset(leading) == batches[0]


@pytest.mark.parametrize(("count", "lane"), [(500, Lane.NETWORK), (501, Lane.GENERAL)])
def test_a_request_with_very_many_partitions_continues_on_a_worker(
    leading: Serving, count: int, lane: Lane
) -> None:
    connection = Connection.of(produce_request(*[None] * count), version=LAST_PRODUCE)
    leading.process(connection.request)
    assert connection.request.lane is lane
    assert connection.is_answered is (lane is Lane.NETWORK)


@pytest.mark.parametrize("body", [produce_request(batch(b"a"), acks=-1), fetch_request(0, max_wait_ms=1_000)])
def test_a_request_that_waits_has_given_its_memory_back(
    leading: Serving, monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    released: list[Request] = []
    monkeypatch.setattr(Request, "release_frame", lambda request: released.append(request))
    waiting = leading.send(body)
    assert (waiting.is_answered, released) == (False, [waiting.request])


@pytest.mark.parametrize("settings", [{}, {"cleanup_policy": ("compact",)}, {"segment_bytes": 1_000}])
def test_a_batch_that_is_too_large_is_freed_when_it_is_refused(
    leading: Serving, settings: dict[str, Any]
) -> None:
    """Without the garbage collector: many frames of 100 MB could wait for it."""
    set_topic(leading, **({"max_message_bytes": 1_000} | settings))
    body = produce_request(bytes(build_batch([(None, bytes(2_000))])))
    gc.collect()
    gc.disable()
    try:
        connection = Connection.of(body, version=LAST_PRODUCE)
        request = weakref.ref(connection.request)
        leading.run(connection)
        del connection.request
        assert request() is None
    finally:
        gc.enable()
    code = ErrorCode.RECORD_LIST_TOO_LARGE if "segment_bytes" in settings else ErrorCode.MESSAGE_TOO_LARGE
    assert produced(connection).error_code == code


# Settings of the topic


@pytest.mark.parametrize("version", [7, 8])
def test_records_that_a_compacted_topic_refuses_are_named(leading: Serving, version: int) -> None:
    set_topic(leading, cleanup_policy=("compact",))
    sent = bytes(build_batch([(b"k", b"v"), (None, b"v")]))
    answer = produced(produce(leading, sent, version=version))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert [error.batch_index for error in answer.record_errors] == ([1] if version == 8 else [])
    assert end_offset(leading) == 0


def test_a_topic_may_stamp_the_brokers_time(leading: Serving) -> None:
    set_topic(leading, message_timestamp_type="LogAppendTime")
    answer = produced(produce(leading, batch(b"a", b"b", timestamp_ms=5)))
    catch_up(leading)
    header = parse_header(fetched(fetch(leading, 0)).records)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == answer.log_append_time_ms > 1_600_000_000_000
