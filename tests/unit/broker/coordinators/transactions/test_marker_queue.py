"""Markers reach the leader of each partition, whatever happens to leaders, answers and topics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from barnabas.broker.base.purgatory import Reaper
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.coordinators.transactions import marker_queue
from barnabas.broker.coordinators.transactions.marker_queue import (
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    MAX_IN_FLIGHT,
    MarkerQueue,
)
from barnabas.broker.replication.marker_writer import MarkersAnswer, TransactionMarker
from barnabas.protocol.errors import ConnectionClosed, ErrorCode, LocalError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.transactions import WriteTxnMarkersRequest
from tests.support.building import ME, NONE, THREE, Clock, fatal, led_by, metadata
from tests.support.defaults import CONFIG
from tests.support.marker_answers import markers_answer

T0, T1, T2 = (TopicPartition("t", index) for index in range(3))


class Sent:
    """A request to another broker that is not answered yet."""

    def __init__(self, broker: int, request: WriteTxnMarkersRequest, answer: Callable[[Any], None]) -> None:
        self.broker = broker
        self.markers = request.markers
        self._answer = answer

    @property
    def partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic.name, index)
            for marker in self.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ]

    def fail(self, error: LocalError | None = None) -> None:
        self._answer(error or ConnectionClosed("gone"))

    def answer(self, *errors: ErrorCode) -> None:
        """The errors of its partitions, in order; NONE for the rest."""
        codes = iter(errors)
        self._answer(markers_answer(self.markers, lambda partition: next(codes, NONE)))


class Rig:
    """The queue of broker 1, with manual time, links and leaders."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.metadata = MetadataCache()
        self.reaper = Reaper(on_fatal=fatal, clock_ms=self.clock)
        self.sent: list[Sent] = []
        self.local: list[tuple[TransactionMarker, MarkersAnswer]] = []
        self.written: list[TopicPartition] = []
        self.is_wanted = True
        self.slow: set[TopicPartition] = set()
        self.run_aside: Callable[[Callable[[], None]], None] = lambda work: work()
        host: Any = SimpleNamespace(
            config=replace(CONFIG, broker_id=ME),
            replicas=self._Replicas(self),
            metadata=self.metadata,
            reaper=self.reaper,
            run_aside=lambda work: self.run_aside(work),
        )
        self.queue = MarkerQueue(host, self)
        self.queue.listen()

    class _Replicas:
        def __init__(self, rig: Rig) -> None:
            self._rig = rig
            self.markers = self

        def waits_for_disk(self, partitions: Iterable[TopicPartition]) -> bool:
            return not self._rig.slow.isdisjoint(partitions)

        def write(self, markers: Sequence[TransactionMarker], timeout_ms: int, answer: MarkersAnswer) -> None:
            (marker,) = markers
            self._rig.local.append((marker, answer))

    def send(self, broker_id: Any, request: Any, answer: Any, *, timeout_ms: Any = None) -> None:
        self.sent.append(Sent(broker_id, request, answer))

    def lead(
        self, leaders: dict[int, int], *, live: tuple[int, ...] = (1, 2, 3), epoch: int = 0, **fields: Any
    ) -> None:
        """An UpdateMetadata with the leaders of partitions of t."""
        states = (led_by(leader, epoch, index) for index, leader in leaders.items())
        fields = {"unreadable_topics": [], **fields}
        self.metadata.update(metadata(dict.fromkeys(live, 0), *states, topic="t", **fields))

    def end(self, *partitions: TopicPartition, producer: int = 1, opened_at: int = 0) -> None:
        """A transaction is committed."""
        marker = TransactionMarker(producer, 5, True, 3, partitions, 2)
        self.queue.send(
            marker, opened_at=opened_at, is_wanted=lambda: self.is_wanted, written=self.written.extend
        )

    def pass_time(self, ms: float) -> None:
        self.clock.now_ms += ms
        self.reaper.expire_due(self.clock.now_ms)

    def take(self) -> Sent:
        """The only request that was sent since."""
        (sent,) = self.sent
        self.sent.clear()
        return sent


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.lead({0: 1, 1: 2, 2: 3}, is_full=True)
    return rig


def test_a_request_has_a_bounded_number_of_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marker_queue, "MAX_IN_FLIGHT", 1)
    monkeypatch.setattr(marker_queue, "MAX_MARKERS", 2)
    rig = Rig()
    rig.lead({1: 2})
    for producer in range(4):
        rig.end(T1, producer=producer)
    rig.take().answer()
    second = rig.take()
    assert len(second.markers) == 2
    second.answer()
    assert len(rig.take().markers) == 1


RETRIED = [
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.MESSAGE_TOO_LARGE,
]


@pytest.mark.parametrize("error", RETRIED, ids=lambda error: error.name)
def test_a_refused_marker_is_sent_again_after_a_growing_pause(rig: Rig, error: ErrorCode) -> None:
    rig.lead({1: 2, 2: 2})
    rig.end(T1, T2)
    sent = rig.take()
    sent.answer(error)
    refused, accepted = sent.partitions
    assert rig.written == [accepted]
    pauses = 0.0
    for failures in range(8):
        pause_ms = min(FIRST_PAUSE_MS * 2**failures, LONGEST_PAUSE_MS)
        rig.pass_time(pause_ms - 0.5)
        assert not rig.sent
        rig.pass_time(0.5)
        again = rig.take()
        assert again.partitions == [refused]
        again.answer(error)
        pauses += pause_ms
    rig.pass_time(LONGEST_PAUSE_MS)
    rig.take().answer()
    assert rig.written == [accepted, refused]


def test_a_marker_that_waits_behind_a_slow_broker_follows_its_partition(rig: Rig) -> None:
    for producer in range(MAX_IN_FLIGHT):
        rig.end(T1, producer=producer)
    rig.end(T1, producer=77)
    rig.sent.clear()
    rig.lead({1: 3}, epoch=1)
    moved = rig.take()
    assert (moved.broker, moved.markers[0].producer_id) == (THREE, 77)


def test_a_partition_may_be_unknown_only_because_the_metadata_is_old(rig: Rig) -> None:
    unknown = TopicPartition("t", 9)
    rig.end(unknown, opened_at=rig.metadata.current.updates)
    rig.pass_time(10_000)
    assert not rig.written
    assert not rig.sent
    rig.lead({9: 2})
    assert rig.take().partitions == [unknown]


def test_a_partition_that_stays_unknown_after_an_update_is_deleted(rig: Rig) -> None:
    unknown = TopicPartition("gone", 0)
    rig.end(unknown, opened_at=rig.metadata.current.updates)
    rig.lead({})
    rig.pass_time(LONGEST_PAUSE_MS)
    assert rig.written == [unknown]


def test_a_new_controllers_first_update_proves_no_deletion(rig: Rig) -> None:
    """The former one has created the topic and died before this broker was told."""
    unknown = TopicPartition("t", 9)
    rig.end(unknown, opened_at=rig.metadata.current.updates)
    rig.lead({}, controller_epoch=2)
    rig.pass_time(LONGEST_PAUSE_MS)
    assert not rig.written
    rig.lead({0: 1, 1: 2, 2: 3, 9: 2}, controller_epoch=2, is_full=True)
    assert rig.take().partitions == [unknown]


def test_a_topic_that_the_controller_cannot_read_is_not_deleted(rig: Rig) -> None:
    unknown = TopicPartition("damaged", 0)
    rig.lead({}, unreadable_topics=["damaged"])
    rig.end(unknown)
    rig.pass_time(LONGEST_PAUSE_MS)
    assert not rig.written
    rig.lead({})
    assert rig.written == [unknown]


def test_a_topic_that_a_full_update_omits_is_deleted(rig: Rig) -> None:
    """The mark was lost with the controller that sent it; the next one does not know the topic."""
    rig.lead({1: -1}, epoch=1)
    rig.end(T1)
    rig.metadata.update(
        metadata({1: 0}, led_by(1), topic="other", is_full=True, controller_epoch=2, unreadable_topics=[])
    )
    assert rig.written == [T1]


def test_a_closed_shard_sends_and_learns_nothing(rig: Rig) -> None:
    for producer in range(MAX_IN_FLIGHT + 1):
        rig.end(T1, producer=producer)
    first, second, *_ = rig.sent
    rig.sent.clear()
    rig.is_wanted = False
    first.answer()
    second.answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    rig.pass_time(math.inf)
    assert not rig.sent
    assert not rig.written


def test_a_stopped_queue_drops_what_waits(rig: Rig) -> None:
    rig.lead({1: -1}, epoch=1)
    rig.end(T1)
    rig.queue.stop()
    rig.end(T1)
    rig.lead({1: 2}, epoch=2)
    assert not rig.sent


def test_markers_that_fail_here_by_an_unforeseen_error_are_written_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as broken:
        broken.setattr(Rig._Replicas, "write", fail)
        rig.end(T0)
    rig.pass_time(FIRST_PAUSE_MS)
    assert len(rig.local) == 1


def test_the_thread_of_all_deadlines_appends_no_marker_again() -> None:
    rig = Rig()
    aside: list[Callable[[], None]] = []
    rig.run_aside = aside.append
    rig.lead({0: ME})
    rig.end(T0)
    _, answer = rig.local.pop()
    answer([{T0: ErrorCode.NOT_ENOUGH_REPLICAS}])
    rig.pass_time(LONGEST_PAUSE_MS)
    assert (len(aside), rig.local) == (1, [])
    aside.pop()()
    assert len(rig.local) == 1


def test_a_marker_for_a_slow_disk_is_appended_aside() -> None:
    """The caller may be a network thread: an append was acknowledged while it handled a follower's fetch."""
    rig = Rig()
    aside: list[Callable[[], None]] = []
    rig.run_aside = aside.append
    rig.lead({0: ME, 1: ME})
    rig.slow.add(T1)
    rig.end(T0)
    assert (len(rig.local), aside) == (1, [])
    rig.end(T1, producer=2)
    assert (len(rig.local), len(aside)) == (1, 1)
    aside.pop()()
    assert [marker.partitions for marker, _ in rig.local] == [(T0,), (T1,)]
