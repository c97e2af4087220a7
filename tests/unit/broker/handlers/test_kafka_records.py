"""Produce, Fetch, ListOffsets, DeleteRecords and DescribeLogDirs as Kafka's clients see them, by version."""

from __future__ import annotations

import gc
import time
import uuid
import weakref
from typing import Any

import pytest

from barnabas.broker.log.log_config import LogConfig
from barnabas.broker.log.storage_errors import LogDirFailure
from barnabas.broker.network.request import Lane
from barnabas.protocol.batch_builder import build_batch
from barnabas.protocol.compression import Compression
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_TOPIC_ID
from barnabas.protocol.messages.delete_records import (
    DELETE_TO_HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from barnabas.protocol.messages.list_offsets import (
    EARLIEST_LOCAL_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from barnabas.protocol.messages.log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.record_batch import TimestampType, parse_header, stamp_producer
from barnabas.protocol.records import decode_records
from barnabas.protocol.topic_names import INTERNAL_TOPICS
from tests.support.building import (
    THREE,
    TOPIC_ID,
    TP,
    TWO,
    led_by,
    metadata,
    state,
)
from tests.support.serving import INTERNAL, Connection, Serving, batch

LAST_PRODUCE, LAST_FETCH = 9, 13


def produce(
    serving: Serving, *batches: bytes | None, version: int = LAST_PRODUCE, acks: int = 1
) -> Connection:
    """Each of the batches for partition 0, 1, 2…"""
    data = [PartitionProduceData(index=index, records=one) for index, one in enumerate(batches)]
    body = ProduceRequest(
        acks=acks, timeout_ms=1_000, topic_data=[TopicProduceData(name=TP.topic, partition_data=data)]
    )
    return serving.send(body, version=version)


def outcome(connection: Connection, index: int = 0) -> Any:
    return connection.response.responses[0].partition_responses[index]


def set_topic(serving: Serving, **settings: Any) -> None:
    serving.managed.manager.partition(TP).log.config = LogConfig(**settings)


def fetch(
    serving: Serving,
    offset: int | None,
    *,
    version: int = LAST_FETCH,
    topic: str = TP.topic,
    topic_id: uuid.UUID = TOPIC_ID,
    partition: int = 0,
    **fields: Any,
) -> Connection:
    asked = []
    if offset is not None:
        asked.append(FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20))
    named = {"topic_id": topic_id} if version >= 13 else {"topic": topic}
    body = FetchRequest(
        **{
            "max_wait_ms": 0,
            "min_bytes": 1,
            "topics": [FetchTopic(**named, partitions=asked)] if asked else [],
            **fields,
        }
    )
    return serving.send(body, version=version)


def found(connection: Connection) -> Any:
    (topic,) = connection.response.responses
    (partition,) = topic.partitions
    return partition


def catch_up(serving: Serving, log_start_offset: int = 0) -> list[Connection]:
    """Both followers have everything, and say so."""
    end = serving.managed.manager.partition(TP).log_end_offset
    asked = FetchPartition(
        partition=0,
        fetch_offset=end,
        partition_max_bytes=1,
        log_start_offset=log_start_offset,
    )
    return [
        serving.send(
            FetchRequest(
                replica_id=replica,
                replica_epoch=5,
                max_wait_ms=0,
                min_bytes=1,
                topics=[FetchTopic(topic=TP.topic, partitions=[asked])],
            ),
            INTERNAL,
        )
        for replica in (TWO, THREE)
    ]


@pytest.fixture
def named(leading: Serving) -> Serving:
    """The topic's id is known."""
    leading.managed.metadata.update(metadata({1: 0, 2: 5, 3: 5}, led_by(1), topic_id=TOPIC_ID))
    return leading


# Produce


@pytest.mark.parametrize("version", range(3, LAST_PRODUCE + 1))
def test_a_batch_is_kept_as_it_came(leading: Serving, version: int) -> None:
    sent = bytes(build_batch([(b"k", b"v" * 500)], compression=Compression.LZ4))
    answer = outcome(produce(leading, sent, version=version))
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 0, -1)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    catch_up(leading)
    kept = bytes(found(fetch(leading, 0, version=11)).records)
    # Base offset and leader epoch are the broker's to write.
    assert kept[16:] == sent[16:]


@pytest.mark.parametrize("version", range(3))
def test_versions_that_are_named_only_for_librdkafka_are_refused(leading: Serving, version: int) -> None:
    answer = outcome(produce(leading, batch(b"a"), version=version))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused(leading: Serving, magic: int) -> None:
    old = bytearray(batch(b"a", b"b") * 2)
    old[16] = magic
    assert outcome(produce(leading, bytes(old))).error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_a_partition_gets_exactly_one_batch(leading: Serving) -> None:
    answer = outcome(produce(leading, batch(b"a") + batch(b"b")))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert "exactly one batch" in answer.error_message


@pytest.mark.parametrize(("version", "code"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, 0)])
def test_zstd_needs_version_7(leading: Serving, version: int, code: int) -> None:
    sent = bytes(build_batch([(b"k", b"v")], compression=Compression.ZSTD))
    assert outcome(produce(leading, sent, version=version)).error_code == code


def test_offsets_are_not_the_producers_to_give(leading: Serving) -> None:
    sent = bytes(build_batch([(b"k", b"v")], base_offset=3))
    assert outcome(produce(leading, sent)).error_code == ErrorCode.INVALID_RECORD


def test_outcomes_keep_the_order_of_the_request(leading: Serving) -> None:
    assert leading.managed.tell(state(), _at(1), _at(2)) == []
    connection = produce(leading, batch(b"a") * 2, batch(b"b"), batch(b"c") * 2, batch(b"d"))
    codes = [outcome(connection, index).error_code for index in range(4)]
    assert codes == [
        ErrorCode.INVALID_RECORD,
        ErrorCode.NONE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert [one.index for one in connection.response.responses[0].partition_responses] == [0, 1, 2, 3]


def _at(index: int) -> Any:
    one = state()
    one.partition_index = index
    return one


@pytest.mark.parametrize("version", [None, LAST_PRODUCE])
@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_internal_topics_are_the_brokers_to_write_and_to_cut(
    leading: Serving, topic: str, version: int | None
) -> None:
    assert leading.managed.tell(state(), topic=topic, topic_id=uuid.UUID(int=9)) == []
    data = [PartitionProduceData(index=0, records=batch(b"a"))]
    body = ProduceRequest(
        acks=1, timeout_ms=0, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )
    assert outcome(leading.send(body, version=version)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    asked = DeleteRecordsPartition(partition_index=0, offset=0)
    cut = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[asked])], timeout_ms=0)
    assert deleted(leading.send(cut)) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)


def test_a_refused_batch_without_acks_closes_the_connection(leading: Serving) -> None:
    connection = produce(leading, batch(b"a") * 2, acks=0)
    assert connection.closed is not None
    assert "exactly one batch" in connection.closed


@pytest.mark.parametrize(
    ("settings", "lane"),
    [({"cleanup_policy": ("compact",)}, Lane.RECORDS), ({"flush_messages": 1}, Lane.GENERAL)],
)
def test_compressed_or_flushed_batches_do_not_run_on_a_network_thread(
    leading: Serving, settings: dict[str, Any], lane: Lane
) -> None:
    set_topic(leading, **settings)
    now_ms = time.time_ns() // 1_000_000
    packed = bytes(build_batch([(b"k", b"v")], timestamp_ms=now_ms, compression=Compression.ZSTD))
    data = [PartitionProduceData(index=index, records=packed) for index in (1, 0)]
    body = ProduceRequest(
        acks=1, timeout_ms=0, topic_data=[TopicProduceData(name=TP.topic, partition_data=data)]
    )
    connection = Connection.of(body, version=LAST_PRODUCE)
    request = connection.request
    assert request.lane is Lane.NETWORK
    leading.process(request)
    assert not connection.is_answered
    assert leading.managed.manager.partition(TP).log_end_offset == 0
    assert request.lane is lane
    assert request.rest is not None
    request.rest()
    assert outcome(connection, 1).error_code == ErrorCode.NONE
    assert leading.managed.manager.partition(TP).log_end_offset == 1


@pytest.mark.parametrize("settings", [{}, {"cleanup_policy": ("compact",)}, {"segment_bytes": 1_000}])
def test_a_batch_that_is_too_large_is_gone_when_it_is_refused(
    leading: Serving, settings: dict[str, Any]
) -> None:
    """Not only when the garbage collector comes: many frames of 100 MB could wait for that."""
    set_topic(leading, **({"max_message_bytes": 1_000} | settings))
    data = [PartitionProduceData(index=0, records=bytes(build_batch([(None, bytes(2_000))])))]
    body = ProduceRequest(
        acks=1, timeout_ms=0, topic_data=[TopicProduceData(name=TP.topic, partition_data=data)]
    )
    gc.collect()
    gc.disable()
    try:
        connection = Connection.of(body, version=LAST_PRODUCE)
        gone = weakref.ref(connection.request)
        leading.run(connection)
        del connection.request
        assert gone() is None
    finally:
        gc.enable()
    code = ErrorCode.RECORD_LIST_TOO_LARGE if "segment_bytes" in settings else ErrorCode.MESSAGE_TOO_LARGE
    assert outcome(connection).error_code == code


def test_what_names_very_many_partitions_is_not_for_a_network_thread(leading: Serving) -> None:
    data = [PartitionProduceData(index=index, records=None) for index in range(501)]
    for count in (500, 501):
        topics = [TopicProduceData(name=TP.topic, partition_data=data[:count])]
        body = ProduceRequest(acks=1, timeout_ms=0, topic_data=topics)
        connection = Connection.of(body, version=LAST_PRODUCE)
        leading.process(connection.request)
        assert connection.request.lane is (Lane.NETWORK if count == 500 else Lane.GENERAL)
        assert connection.is_answered is (count == 500)


@pytest.mark.parametrize("version", [7, 8])
def test_records_that_a_compacted_topic_refuses_are_named(leading: Serving, version: int) -> None:
    set_topic(leading, cleanup_policy=("compact",))
    sent = bytes(build_batch([(b"k", b"v"), (None, b"v")]))
    answer = outcome(produce(leading, sent, version=version))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert [error.batch_index for error in answer.record_errors] == ([1] if version == 8 else [])
    assert answer.log_start_offset == 0
    assert leading.managed.manager.partition(TP).log_end_offset == 0


def test_a_topic_may_take_the_brokers_time(leading: Serving) -> None:
    set_topic(leading, message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    answer = outcome(produce(leading, batch(b"a", b"b", timestamp_ms=5)))
    assert answer.log_append_time_ms > 1_600_000_000_000
    catch_up(leading)
    kept = found(fetch(leading, 0, version=11)).records
    header = parse_header(kept)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert header.max_timestamp == answer.log_append_time_ms
    assert {record.timestamp_ms for record in decode_records(kept)} == {answer.log_append_time_ms}


@pytest.mark.parametrize("target", Compression)
def test_a_topic_may_have_a_compression_of_its_own(leading: Serving, target: Compression) -> None:
    set_topic(leading, compression_type=target)
    sent = bytes(build_batch([(b"k", b"v" * 500)], compression=Compression.SNAPPY))
    assert outcome(produce(leading, sent)).error_code == ErrorCode.NONE
    catch_up(leading)
    kept = found(fetch(leading, 0, version=11)).records
    assert parse_header(kept).compression is target
    assert [record.value for record in decode_records(kept)] == [b"v" * 500]


def test_what_recompression_makes_too_large_is_refused(leading: Serving) -> None:
    set_topic(leading, compression_type=Compression.NONE, max_message_bytes=1_000)
    sent = bytes(build_batch([(b"k", b"v" * 5_000)], compression=Compression.GZIP))
    assert len(sent) < 1_000
    assert outcome(produce(leading, sent)).error_code == ErrorCode.MESSAGE_TOO_LARGE


# Fetch


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"compression_type": Compression.NONE, "max_message_bytes": 300}, ErrorCode.MESSAGE_TOO_LARGE),
        ({"cleanup_policy": ("compact",)}, ErrorCode.INVALID_RECORD),
    ],
)
def test_a_batch_that_was_written_is_known_again_whatever_the_topic_takes_by_now(
    leading: Serving, settings: dict[str, Any], code: ErrorCode
) -> None:
    """Or its producer would cut it up and write it again, or call written records refused."""

    def numbered(sequence: int) -> bytes:
        made = build_batch([(None, bytes(1_000))], compression=Compression.GZIP)
        stamp_producer(made, 7, 0, sequence)
        return bytes(made)

    first = outcome(produce(leading, numbered(0))).base_offset
    set_topic(leading, **settings)
    again = outcome(produce(leading, numbered(0)))
    assert (again.error_code, again.base_offset) == (ErrorCode.NONE, first)
    assert outcome(produce(leading, numbered(1))).error_code == code


def test_topic_ids_lead_to_their_topics(named: Serving) -> None:
    produce(named, batch(b"a"))
    catch_up(named)
    connection = fetch(named, 0)
    assert connection.response.responses[0].topic_id == TOPIC_ID
    assert found(connection).error_code == ErrorCode.NONE
    assert len(found(connection).records) == len(batch(b"a"))


def test_an_unknown_topic_id_is_named_as_such(named: Serving) -> None:
    connection = fetch(named, 0, topic_id=uuid.UUID(int=99))
    assert connection.response.responses[0].topic_id == uuid.UUID(int=99)
    assert found(connection).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert found(fetch(named, 0, topic_id=NO_TOPIC_ID)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_made_anew_is_not_taken_for_the_old_one(named: Serving) -> None:
    newer = uuid.UUID(int=8)
    named.managed.metadata.update(metadata({1: 0, 2: 5, 3: 5}, led_by(1, epoch=1), topic_id=newer))
    assert found(fetch(named, 0, topic_id=newer)).error_code == ErrorCode.INCONSISTENT_TOPIC_ID


def test_old_clients_are_refused_topics_that_are_kept_in_zstd(leading: Serving) -> None:
    set_topic(leading, compression_type=Compression.ZSTD)
    produce(leading, batch(b"a"))
    catch_up(leading)
    assert found(fetch(leading, 0, version=9)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert len(found(fetch(leading, 0, version=10)).records) > 0


@pytest.mark.parametrize("version", range(4, LAST_FETCH + 1))
def test_every_version_reads(named: Serving, version: int) -> None:
    produce(named, batch(b"a"))
    catch_up(named)
    answer = found(fetch(named, 0, version=version, isolation_level=1, rack_id="r"))
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 1, 1)
    assert (answer.preferred_read_replica, answer.aborted_transactions) == (-1, [])


def test_more_than_the_most_is_not_waited_for(leading: Serving) -> None:
    produce(leading, batch(b"x" * 3_000))
    catch_up(leading)
    assert fetch(leading, 0, version=11, min_bytes=1 << 20, max_wait_ms=1_000).is_answered


def test_nobody_claims_by_kafkas_protocol_to_be_a_replica(leading: Serving) -> None:
    produce(leading, batch(b"a"))
    answer = leading.call(
        FetchRequest(
            replica_id=2,
            max_wait_ms=0,
            min_bytes=1,
            topics=[
                FetchTopic(
                    topic=TP.topic,
                    partitions=[FetchPartition(partition=0, fetch_offset=1, partition_max_bytes=1)],
                )
            ],
        ),
        INTERNAL,
        version=11,
    )
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert leading.managed.manager.partition(TP).high_watermark == 0


# Sessions, from bytes to bytes; their rules are tried in test_fetch_session


def test_a_session_by_topic_ids(named: Serving) -> None:
    opened = fetch(named, 0, session_epoch=0).response
    session = {"session_id": opened.session_id, "max_wait_ms": 100}
    assert opened.session_id > 0
    quiet = fetch(named, None, session_epoch=1, **session)
    assert not quiet.is_answered
    named.managed.pass_time(100)
    assert (quiet.response.session_id, quiet.response.responses) == (opened.session_id, [])
    waiting = fetch(named, None, session_epoch=2, **session)
    produce(named, batch(b"a"))
    catch_up(named)
    assert (found(waiting).high_watermark, len(found(waiting).records)) == (1, len(batch(b"a")))
    assert waiting.response.responses[0].topic_id == TOPIC_ID
    produce(named, batch(b"b"))
    catch_up(named)
    assert parse_header(found(fetch(named, 1, session_epoch=3, **session)).records).base_offset == 1
    by_name = fetch(named, None, version=12, session_epoch=4, **session).response
    assert by_name.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    doubled = fetch(named, None, session_epoch=3, **session).response
    assert (doubled.error_code, doubled.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
    forgotten = fetch(
        named,
        None,
        session_epoch=4,
        forgotten_topics_data=[ForgottenTopic(topic_id=TOPIC_ID, partitions=[0])],
        **session,
    ).response
    assert (forgotten.error_code, forgotten.session_id) == (0, 0)
    gone = fetch(named, None, session_epoch=5, **session).response
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_fetch_that_is_overtaken_on_its_session_is_told_so(named: Serving) -> None:
    opened = fetch(named, 0, session_epoch=0).response
    session = {"session_id": opened.session_id, "max_wait_ms": 100}
    overtaken = fetch(named, None, session_epoch=1, **session)
    fetch(named, 0, session_epoch=2, **session)
    named.managed.pass_time(100)
    assert overtaken.response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert overtaken.response.session_id == opened.session_id


def test_a_session_hears_of_a_change_of_leadership(leading: Serving) -> None:
    opened = fetch(leading, 0, version=11, session_epoch=0).response
    fetch(leading, None, version=11, session_id=opened.session_id, session_epoch=1)
    waiting = fetch(leading, None, version=11, session_id=opened.session_id, session_epoch=2, max_wait_ms=100)
    assert not waiting.is_answered
    leading.managed.tell(state(leader=2, epoch=1))
    assert found(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# ListOffsets


def offsets(serving: Serving, timestamp: int, version: int, times: int = 1) -> Any:
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    answer = serving.call(
        ListOffsetsRequest(topics=[ListOffsetsTopic(name=TP.topic, partitions=[asked] * times)]),
        version=version,
    )
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize(
    ("timestamp", "since"), [(LATEST_TIMESTAMP, 1), (MAX_TIMESTAMP, 7), (EARLIEST_LOCAL_TIMESTAMP, 8)]
)
def test_special_timestamps_mean_something_since_their_version(
    leading: Serving, timestamp: int, since: int
) -> None:
    produce(leading, batch(b"a", b"b", timestamp_ms=10))
    catch_up(leading)
    offset = {LATEST_TIMESTAMP: 2, MAX_TIMESTAMP: 1, EARLIEST_LOCAL_TIMESTAMP: 0}[timestamp]
    for version in range(1, 9):
        answer = offsets(leading, timestamp, version)
        expected = (0, offset) if version >= since else (ErrorCode.UNSUPPORTED_VERSION, -1)
        assert (answer.error_code, answer.offset) == expected
    assert offsets(leading, -9, 8).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("version", "code"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE)]
)
def test_a_new_leader_answers_what_it_knows_and_nothing_else(
    leading: Serving, version: int, code: ErrorCode
) -> None:
    produce(leading, batch(b"a", timestamp_ms=10))
    catch_up(leading)
    produce(leading, batch(b"b", timestamp_ms=20))
    leading.managed.tell(state(leader=2, epoch=1))
    leading.managed.tell(state(epoch=2))
    assert offsets(leading, LATEST_TIMESTAMP, version).error_code == code
    assert offsets(leading, 15, version).error_code == code
    known = offsets(leading, 5, version)
    assert (known.error_code, known.offset, known.timestamp) == (0, 0, 10)


def test_a_partition_is_asked_for_once(leading: Serving) -> None:
    assert offsets(leading, LATEST_TIMESTAMP, 7, times=2).error_code == ErrorCode.INVALID_REQUEST


# DeleteRecords


def delete(serving: Serving, offset: int, *, version: int = 2, partition: int = 0) -> Connection:
    asked = DeleteRecordsPartition(partition_index=partition, offset=offset)
    topics = [DeleteRecordsTopic(name=TP.topic, partitions=[asked])]
    return serving.send(DeleteRecordsRequest(topics=topics, timeout_ms=500), version=version)


def deleted(connection: Connection) -> tuple[int, int]:
    (one,) = connection.response.topics[0].partitions
    return one.error_code, one.low_watermark


@pytest.mark.parametrize("version", range(3))
def test_records_are_deleted_when_every_replica_has_done_so(leading: Serving, version: int) -> None:
    produce(leading, batch(b"a", b"b", b"c"))
    catch_up(leading)
    connection = delete(leading, 2, version=version)
    assert leading.managed.manager.partition(TP).log.log_start_offset == 2
    # The followers' next fetches say where they are, and are told where the leader is.
    told = catch_up(leading, log_start_offset=0)
    assert [found(one).log_start_offset for one in told] == [2, 2]
    assert not connection.is_answered
    catch_up(leading, log_start_offset=2)
    assert deleted(connection) == (0, 2)
    assert found(fetch(leading, 1, version=11)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_followers_long_poll_ends_when_records_are_deleted(leading: Serving) -> None:
    produce(leading, batch(b"a", b"b"))
    catch_up(leading)
    asked = FetchPartition(partition=0, fetch_offset=2, partition_max_bytes=1, log_start_offset=0)
    waiting = leading.send(
        FetchRequest(
            replica_id=TWO,
            replica_epoch=5,
            max_wait_ms=1_000,
            min_bytes=1,
            topics=[FetchTopic(topic=TP.topic, partitions=[asked])],
        ),
        INTERNAL,
    )
    assert not waiting.is_answered
    delete(leading, 1)
    assert found(waiting).log_start_offset == 1


def test_everything_that_is_committed_can_be_deleted(leading: Serving) -> None:
    produce(leading, batch(b"a", b"b"))
    catch_up(leading)
    produce(leading, batch(b"not yet"))
    connection = delete(leading, DELETE_TO_HIGH_WATERMARK)
    catch_up(leading, log_start_offset=2)
    assert deleted(connection) == (0, 2)


def test_a_dead_follower_is_not_waited_for(leading: Serving) -> None:
    produce(leading, batch(b"a"))
    catch_up(leading)
    leading.managed.know({1: 0})
    assert deleted(delete(leading, 1)) == (0, 1)


def test_a_follower_that_does_not_follow_is_waited_for_until_the_timeout(leading: Serving) -> None:
    produce(leading, batch(b"a"))
    catch_up(leading)
    connection = delete(leading, 1)
    leading.managed.pass_time(499)
    assert not connection.is_answered
    leading.managed.pass_time(1)
    assert deleted(connection) == (ErrorCode.REQUEST_TIMED_OUT, -1)


def test_a_deletion_that_waits_hears_of_a_change_of_leadership(leading: Serving) -> None:
    produce(leading, batch(b"a"))
    catch_up(leading)
    connection = delete(leading, 1)
    leading.managed.tell(state(leader=2, epoch=1))
    assert deleted(connection) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


@pytest.mark.parametrize("offset", [2, -2])
def test_what_is_not_committed_cannot_be_deleted(leading: Serving, offset: int) -> None:
    produce(leading, batch(b"a"))
    catch_up(leading)
    produce(leading, batch(b"b"))
    assert deleted(delete(leading, offset)) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert leading.managed.manager.partition(TP).log.log_start_offset == 0


def test_records_of_a_compacted_topic_are_not_deleted(leading: Serving) -> None:
    set_topic(leading, cleanup_policy=("compact",))
    assert deleted(delete(leading, -1)) == (ErrorCode.POLICY_VIOLATION, -1)
    set_topic(leading, cleanup_policy=("compact", "delete"))
    leading.managed.know({1: 0})
    assert deleted(delete(leading, -1)) == (0, 0)


def test_a_fenced_broker_deletes_nothing(leading: Serving) -> None:
    leading.managed.manager.fence.silent("ZooKeeper is silent")
    assert deleted(delete(leading, -1)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


def test_records_of_an_unknown_partition_are_not_deleted(leading: Serving) -> None:
    assert deleted(delete(leading, 0, partition=9)) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)


# DescribeLogDirs


@pytest.mark.parametrize("version", range(5))
def test_log_dirs_and_what_lies_in_them(leading: Serving, version: int) -> None:
    sent = batch(b"a" * 100)
    produce(leading, sent)
    (log_dir,) = leading.call(DescribeLogDirsRequest(topics=None), version=version).results
    log = leading.managed.manager.partition(TP).log
    assert (log_dir.error_code, log_dir.log_dir) == (0, str(log.folder.parent))
    (topic,) = log_dir.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.partition_index) == TP
    assert (partition.partition_size, partition.offset_lag, partition.is_future_key) == (len(sent), 0, False)
    if version >= 4:
        assert 0 < log_dir.usable_bytes <= log_dir.total_bytes
    one = DescribableLogDirTopic(topic=TP.topic, partitions=[5])
    (log_dir,) = leading.call(DescribeLogDirsRequest(topics=[one]), version=version).results
    assert log_dir.topics == []


def test_a_failed_log_dir_is_named(leading: Serving) -> None:
    log = leading.managed.manager.partition(TP).log
    leading.logs.fail_dir(LogDirFailure(log.folder, OSError("broken")))
    (log_dir,) = leading.call(DescribeLogDirsRequest(topics=None), version=4).results
    assert (log_dir.error_code, log_dir.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])
