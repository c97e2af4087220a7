"""Fetch, from bytes to bytes, over real logs; version None is the native protocol.

The rules of fetch sessions have suites of their own.
"""

import uuid

import pytest

from barnabas.broker.handlers import fetch as fetch_handler
from barnabas.broker.network.request import Lane
from barnabas.broker.security.session import Session
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_TOPIC_ID
from barnabas.protocol.messages.fetch import ForgottenTopic, ReplicaState
from barnabas.protocol.record_batch import iter_batches, parse_header
from barnabas.protocol.records import decode_records
from tests.support.batches import build_batch
from tests.support.building import TOPIC_ID, TP, TWO, led_by, metadata, state
from tests.support.gaps import emptied, stamped
from tests.support.gaps import follow as append_gaps
from tests.support.record_requests import (
    FETCH_VERSIONS,
    LAST_FETCH,
    catch_up,
    fetch,
    fetch_of,
    fetch_request,
    fetched,
    follow,
    produce,
    set_topic,
)
from tests.support.serving import EXTERNAL, INTERNAL, Connection, Serving, batch


@pytest.fixture
def leading(leading: Serving) -> Serving:
    """Its metadata has the topic's id."""
    leading.managed.metadata.update(metadata({1: 0, 2: 5, 3: 5}, led_by(1), topic_id=TOPIC_ID))
    return leading


def batches_of(connection: Connection) -> int:
    return len(list(iter_batches(fetched(connection).records)))


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_a_consumer_gets_committed_batches_as_they_were_written(
    leading: Serving, version: int | None
) -> None:
    produce(leading, batch(b"a", b"b"))
    catch_up(leading)
    produce(leading, batch(b"c"))
    isolation = {} if version is None else {"isolation_level": 1, "rack_id": "r"}
    answer = fetched(fetch(leading, 0, version=version, listener=EXTERNAL, **isolation))
    assert (answer.error_code, answer.high_watermark, answer.last_stable_offset) == (0, 2, 2)
    if version is not None:
        assert (answer.preferred_read_replica, answer.aborted_transactions) == (-1, [])
    [(position, _)] = iter_batches(answer.records)
    records = decode_records(answer.records[position:])
    assert [(record.offset, record.value) for record in records] == [(0, b"a"), (1, b"b")]


def test_the_brokers_limit_bounds_a_consumer_but_not_to_nothing(leading: Serving) -> None:
    for _ in range(3):
        produce(leading, batch(b"x" * 1_500))
    catch_up(leading)
    assert batches_of(fetch(leading, 0)) == 1
    assert batches_of(follow(leading, 0)) == 3
    # A second batch does not fit, so the fetch does not wait for it.
    assert batches_of(fetch(leading, 0, min_bytes=1 << 20, max_wait_ms=1_000)) == 1
    produce(leading, batch(b"x" * 9_000))
    catch_up(leading)
    # A fetch does not wait for more bytes than the limit.
    connection = fetch(leading, 3, min_bytes=1 << 20, max_wait_ms=1_000)
    assert len(fetched(connection).records) > 9_000


def test_a_fetch_that_reads_to_the_end_of_a_segment_does_not_wait(leading: Serving) -> None:
    produce(leading, batch(b"a"))
    leading.managed.manager.partition(TP).log.roll(0)
    produce(leading, batch(b"b"))
    catch_up(leading)
    assert batches_of(fetch(leading, 0, min_bytes=1_000, max_wait_ms=1_000)) == 1
    assert not fetch(leading, 1, min_bytes=1_000, max_wait_ms=1_000).is_answered


def without_records(offset: int) -> bytearray:
    return emptied(stamped(build_batch([(b"k", b"v")]), offset))


@pytest.mark.parametrize("min_bytes", [1, 100])
def test_batches_without_records_are_answered_at_the_deadline(leading: Serving, min_bytes: int) -> None:
    """kafkajs stays at their offset: an answer at once would make it fetch in a loop."""
    log = leading.managed.manager.partition(TP).log
    append_gaps(log, [without_records(0), without_records(1)])
    catch_up(leading)
    waiting = fetch(leading, 0, min_bytes=min_bytes, max_wait_ms=500)
    assert not waiting.is_answered
    leading.managed.pass_time(500)
    answer = fetched(waiting)
    assert (answer.high_watermark, [header.base_offset for _, header in iter_batches(answer.records)]) == (
        2,
        [0, 1],
    )
    assert fetched(fetch(leading, 0, min_bytes=0, max_wait_ms=500)).records == answer.records
    waiting = fetch(leading, 1, min_bytes=min_bytes, max_wait_ms=500)
    produce(leading, batch(b"x" * 100))
    assert not waiting.is_answered
    catch_up(leading)
    assert [header.base_offset for _, header in iter_batches(fetched(waiting).records)] == [1, 2]


def test_a_follower_gets_batches_without_records_at_once(leading: Serving) -> None:
    append_gaps(leading.managed.manager.partition(TP).log, [without_records(0), without_records(1)])
    assert batches_of(follow(leading, 0, max_wait_ms=500)) == 2


@pytest.mark.parametrize("replica", [0, TWO])
@pytest.mark.parametrize(("version", "listener"), [(None, EXTERNAL), (14, INTERNAL), (15, INTERNAL)])
def test_a_follower_must_use_the_native_protocol_and_the_brokers_listener(
    leading: Serving, version: int | None, listener: str, replica: int
) -> None:
    produce(leading, batch(b"a"))
    named = {"replica_id": replica}
    if version is not None and version >= 15:
        named = {"replica_state": ReplicaState(replica_id=replica, replica_epoch=5)}
    answer = fetch(leading, 1, version=version, listener=listener, **named).response
    assert (answer.error_code, answer.responses) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    assert leading.managed.manager.partition(TP).high_watermark == 0


def test_a_consumer_that_pauses_after_answers_with_a_rest_is_muted_for_a_while(
    leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        produce(leading, batch(b"x" * 1_500))
    catch_up(leading)
    session = Session("127.0.0.1")

    def mute_ms(at_s: float, offset: int, **fields: int) -> int:
        """The answer comes two milliseconds after the request."""
        monkeypatch.setattr(fetch_handler, "monotonic_ms", lambda: at_s * 1000 + 2)
        connection = Connection.of(fetch_request(offset, **fields), INTERNAL, session=session)
        connection.request.received_ns = int(at_s * 1e9)
        assert fetched(leading.run(connection)).records
        return connection.request.throttle_ms

    assert [mute_ms(10.0, 0), mute_ms(10.004, 1), mute_ms(11.005, 0)] == [0, 0, 31]
    # Neither at the end of the log nor for followers.
    assert [mute_ms(11.056, 0, replica_id=TWO, replica_epoch=5), mute_ms(11.06, 2)] == [0, 0]


def test_a_long_poll_ends_after_ten_minutes(leading: Serving) -> None:
    connection = fetch(leading, 0, max_wait_ms=2**31 - 1)
    leading.managed.reaper.expire_due(int(leading.managed.now_ms()) + 599_000)
    assert not connection.is_answered
    leading.managed.reaper.expire_due(int(leading.managed.now_ms()) + 600_001)
    assert connection.is_answered


def test_a_diverging_follower_learns_where_its_log_diverges(leading: Serving) -> None:
    produce(leading, batch(b"a"))
    leading.managed.tell(state(leader=2, epoch=1))
    leading.managed.tell(state(epoch=3))
    produce(leading, batch(b"b"))
    answer = fetched(follow(leading, 2, last_fetched_epoch=2, current_leader_epoch=3))
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 1)
    assert len(answer.records) == 0


# Topic ids and versions


@pytest.mark.parametrize(
    ("topic_id", "code"),
    [
        (TOPIC_ID, ErrorCode.NONE),
        (uuid.UUID(int=99), ErrorCode.UNKNOWN_TOPIC_ID),
        (NO_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_ID),
    ],
)
def test_a_topic_id_names_its_topic(leading: Serving, topic_id: uuid.UUID, code: ErrorCode) -> None:
    connection = fetch(leading, 0, version=LAST_FETCH, topic_id=topic_id)
    assert connection.response.responses[0].topic_id == topic_id
    assert fetched(connection).error_code == code


def test_a_recreated_topic_is_not_taken_for_the_former_one(leading: Serving) -> None:
    newer = uuid.UUID(int=8)
    leading.managed.metadata.update(metadata({1: 0, 2: 5, 3: 5}, led_by(1, epoch=1), topic_id=newer))
    answer = fetched(fetch(leading, 0, version=LAST_FETCH, topic_id=newer))
    assert answer.error_code == ErrorCode.INCONSISTENT_TOPIC_ID


def test_topics_are_answered_one_by_one_under_their_names(leading: Serving) -> None:
    request = fetch_request(0)
    request.topics += fetch_request(0, topic="other").topics
    answers = leading.call(request).responses
    codes = {topic.topic: [partition.error_code for partition in topic.partitions] for topic in answers}
    assert codes == {"topic": [0], "other": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]}


@pytest.mark.parametrize("version", [None, 12, LAST_FETCH])
def test_of_a_partition_that_is_named_twice_the_last_entry_counts(
    leading: Serving, version: int | None
) -> None:
    produce(leading, batch(b"a"))
    produce(leading, batch(b"b"))
    catch_up(leading)
    whole, rest = (fetch_request(offset, version=version) for offset in (0, 1))
    whole.topics[0].partitions *= 2
    whole.topics += rest.topics
    (answer,) = leading.call(whole, EXTERNAL, version=version).responses
    assert [parse_header(partition.records).base_offset for partition in answer.partitions] == [1]


def test_old_clients_are_refused_topics_that_are_kept_in_zstd(leading: Serving) -> None:
    set_topic(leading, compression_type="zstd")
    produce(leading, batch(b"a"))
    catch_up(leading)
    assert fetched(fetch(leading, 0, version=9)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert len(fetched(fetch(leading, 0, version=10)).records) > 0


# Sessions


def test_a_session_by_topic_ids(leading: Serving) -> None:
    opened = fetch(leading, 0, version=LAST_FETCH, session_epoch=0).response
    assert opened.session_id > 0

    def continue_session(epoch: int, offset: int | None = None, **fields: object) -> Connection:
        session = {"version": LAST_FETCH, "session_id": opened.session_id, "max_wait_ms": 100, **fields}
        return fetch(leading, offset, session_epoch=epoch, **session)

    quiet = continue_session(1)
    assert not quiet.is_answered
    leading.managed.pass_time(100)
    assert (quiet.response.session_id, quiet.response.responses) == (opened.session_id, [])
    waiting = continue_session(2)
    produce(leading, batch(b"a"))
    catch_up(leading)
    assert (fetched(waiting).high_watermark, len(fetched(waiting).records)) == (1, len(batch(b"a")))
    assert waiting.response.responses[0].topic_id == TOPIC_ID
    produce(leading, batch(b"b"))
    catch_up(leading)
    assert parse_header(fetched(continue_session(3, 1)).records).base_offset == 1
    by_name = continue_session(4, version=12).response
    assert by_name.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    doubled = continue_session(3).response
    assert (doubled.error_code, doubled.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
    forgotten = [ForgottenTopic(topic_id=TOPIC_ID, partitions=[0])]
    emptied = continue_session(4, forgotten_topics_data=forgotten).response
    assert (emptied.error_code, emptied.session_id) == (0, 0)
    assert continue_session(5).response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def lane_of(connection: Connection) -> Lane:
    return connection.request.lane


def test_a_fetch_that_looks_at_many_partitions_leaves_the_network_thread(
    leading: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it names none: each answer of a session has all its partitions that have an error."""
    monkeypatch.setattr(fetch_handler, "MAX_ON_NETWORK_THREAD", 2)
    unknown = range(7, 10)
    opened = leading.send(fetch_of(dict.fromkeys(unknown, 0), session_epoch=0))
    session_id = opened.response.session_id

    def continue_session(epoch: int, forget: int | None = None) -> Connection:
        forgotten = [] if forget is None else [ForgottenTopic(topic=TP.topic, partitions=[forget])]
        session = {"session_id": session_id, "session_epoch": epoch, "forgotten_topics_data": forgotten}
        return fetch(leading, None, **session)

    failing = continue_session(1)
    assert [len(topic.partitions) for topic in failing.response.responses] == [len(unknown)]
    continue_session(2, forget=9)
    few = continue_session(3)
    assert list(map(lane_of, (opened, failing, few))) == [Lane.GENERAL, Lane.GENERAL, Lane.NETWORK]
    quiet = leading.send(fetch_of({0: 0}, session_epoch=0)).response
    assert lane_of(fetch(leading, None, session_id=quiet.session_id, session_epoch=-1)) is Lane.NETWORK
    monkeypatch.setattr(fetch_handler, "MAX_ON_NETWORK_THREAD", 1)
    assert lane_of(continue_session(-1)) is Lane.GENERAL, "to close a session takes time for each partition"


def test_a_fetch_that_is_overtaken_in_its_session_is_refused(leading: Serving) -> None:
    opened = fetch(leading, 0, version=LAST_FETCH, session_epoch=0).response
    session = {"version": LAST_FETCH, "session_id": opened.session_id, "max_wait_ms": 100}
    overtaken = fetch(leading, None, session_epoch=1, **session)
    fetch(leading, 0, session_epoch=2, **session)
    leading.managed.pass_time(100)
    assert overtaken.response.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert overtaken.response.session_id == opened.session_id
