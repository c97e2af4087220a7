"""The counts of topics: exact with many threads, and never falling."""

import sys
import threading
from collections.abc import Iterator

import pytest

from barnabas.broker.base.topic_metrics import TopicTraffic, Traffic
from barnabas.protocol.errors import ErrorCode

THREADS, ADDITIONS = 8, 5_000


@pytest.fixture
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching_often")
def test_no_count_of_many_threads_is_lost() -> None:
    traffic = Traffic()

    def work() -> None:
        for _ in range(ADDITIONS):
            traffic.of("t").note_append(3, 2)
            traffic.of("t").note_fetch(5, ErrorCode.NONE)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts, calls = traffic.of("t"), THREADS * ADDITIONS
    assert (counts.bytes_in, counts.messages_in, counts.bytes_out) == (3 * calls, 2 * calls, 5 * calls)
    assert (counts.produce_requests, counts.fetch_requests) == (calls, calls)


def test_the_total_keeps_the_counts_of_deleted_topics() -> None:
    traffic = Traffic()
    assert {getattr(traffic.total(), name) for name in TopicTraffic.__slots__} == {0}
    traffic.of("a").note_append(10, 1)
    traffic.of("b").note_append(5, 3)
    traffic.forget("a")
    traffic.forget("unknown")
    assert list(traffic.topics()) == ["b"]
    total = traffic.total()
    assert (total.bytes_in, total.messages_in, total.produce_requests) == (15, 4, 2)
    traffic.of("a").note_append(1, 1)
    assert (traffic.of("a").bytes_in, traffic.total().bytes_in) == (1, 16)


def test_requests_for_topics_that_are_not_hosted_count_in_the_total_alone() -> None:
    traffic = Traffic()
    traffic.of_any("elsewhere").note_refusal(10, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert traffic.topics() == {}
    assert traffic.total().produce_requests == 1


@pytest.mark.parametrize(
    ("code", "rejected", "failed"),
    [
        (ErrorCode.MESSAGE_TOO_LARGE, 10, 0),
        (ErrorCode.RECORD_LIST_TOO_LARGE, 10, 0),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, 0),
        (ErrorCode.NOT_ENOUGH_REPLICAS, 0, 1),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 0, 1),
    ],
)
def test_a_refused_append_has_failed_or_was_too_large_or_was_sent_to_the_wrong_broker(
    code: ErrorCode, rejected: int, failed: int
) -> None:
    counts = TopicTraffic()
    counts.note_refusal(10, code)
    assert (counts.bytes_rejected, counts.failed_produce_requests, counts.produce_requests) == (
        rejected,
        failed,
        1,
    )
    assert counts.bytes_in == 0


@pytest.mark.parametrize(
    ("code", "failed"),
    [(ErrorCode.NONE, 0), (ErrorCode.OFFSET_OUT_OF_RANGE, 0), (ErrorCode.UNKNOWN_SERVER_ERROR, 1)],
)
def test_a_fetch_fails_by_an_error_that_no_client_causes(code: ErrorCode, failed: int) -> None:
    counts = TopicTraffic()
    counts.note_fetch(7, code)
    assert (counts.failed_fetch_requests, counts.fetch_requests, counts.bytes_out) == (failed, 1, 7)
