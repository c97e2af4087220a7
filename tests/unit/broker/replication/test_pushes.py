"""The follower's side of a subscription: which pushes it applies, and what it reports."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.replication.fetcher_state import FollowedPartition, LeaderFetches
from barnabas.protocol.errors import ConnectionClosed, ErrorCode
from barnabas.protocol.ids import BrokerEpoch, LeaderEpoch
from barnabas.protocol.messages.fetch import (
    FetchPartitionResponse,
    FetchProgressRequest,
    FetchResponse,
    FetchTopicResponse,
)
from tests.support.building import ME, TP, TWO, partition_of, state
from tests.support.defaults import CONFIG, log_config
from tests.support.serving import batch

SESSION, NUMBER = 77, 1


class Follower:
    """Broker 2 follows broker 1, whose answer to the second fetch has opened a subscription."""

    def __init__(self, folder: Path, *, flush_messages: int | None = None) -> None:
        config = log_config() if flush_messages is None else log_config(flush_messages=flush_messages)
        self.log = Log.open(TP, LogLoader(folder / str(TP), config, now_ms=0))
        self.epoch = BrokerEpoch(5)
        self.partition = partition_of(self.log, broker=TWO)
        self.tell(0)
        self.fetches = LeaderFetches(
            replace(CONFIG, broker_id=TWO),
            ME,
            MetadataCache(),
            broker_epoch=lambda: self.epoch,
            note_error=lambda error: None,
            subscribes=True,
        )
        self.fetches.followed.add(TP, FollowedPartition(self.partition, LeaderEpoch(0)))
        assert self.requests_subscription() is False
        self.fetches.answered(self.answer(0, subscription=0), 0.0, 0)
        assert self.requests_subscription() is True
        self.fetches.answered(self.answer(0), 0.0, 0)

    def tell(self, epoch: int) -> None:
        self.partition.make_follower(state(leader=1, epoch=epoch, isr=(1, 2), replicas=(1, 2)))

    def requests_subscription(self) -> bool:
        request = self.fetches.next_request(0.0).request
        assert request is not None
        return request.subscribes

    def answer(
        self,
        number: int,
        offset: int | None = None,
        *,
        subscription: int = NUMBER,
        error: ErrorCode = ErrorCode.NONE,
        read_at: int | None = None,
    ) -> FetchResponse:
        """An answer or a push, with one record at that offset if there is one."""
        records = None
        if offset is not None:
            sent = bytearray(batch(b"value"))
            sent[:8] = offset.to_bytes(8, "big")
            records = memoryview(sent)
        data = FetchPartitionResponse(
            partition_index=TP.partition,
            error_code=error,
            high_watermark=offset or 0,
            log_start_offset=0,
            records=records,
            fetch_offset=self.partition.log_end_offset if read_at is None else read_at,
        )
        return FetchResponse(
            session_id=SESSION,
            responses=[FetchTopicResponse(topic=TP.topic, partitions=[data])],
            subscription=subscription,
            push_number=number,
        )

    def push(self, number: int, offset: int | None = None, **fields: int) -> None:
        self.fetches.pushed(self.answer(number, offset, **fields), 0.0, 0)

    def report(self) -> tuple[int, list[int]]:
        """The number and the ends that it reports."""
        progress = self.fetches.progress(0.0)
        assert isinstance(progress, FetchProgressRequest)
        assert (progress.session_id, progress.subscription) == (SESSION, NUMBER)
        ends = [end.fetch_offset for topic in progress.topics for end in topic.partitions]
        return progress.push_number, ends


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    made = Follower(tmp_path)
    assert made.report() == (0, [])
    return made


def test_pushes_are_applied_and_reported_together(follower: Follower) -> None:
    follower.push(1, 0)
    follower.push(2, 1)
    assert follower.partition.high_watermark == 1
    assert follower.report() == (2, [2])
    assert follower.fetches.progress(0.0) is None
    assert follower.fetches.is_subscribed
    # A high watermark changes no position, but the leader must know that it has arrived.
    follower.push(3)
    assert follower.report() == (3, [])
    # What was reported need not be fetched for.
    request = follower.fetches.next_request(0.1).request
    assert request is not None
    assert request.topics == []


def _gap(follower: Follower) -> None:
    follower.push(2, 0)


def _last(follower: Follower) -> None:
    follower.fetches.pushed(
        FetchResponse(session_id=SESSION, responses=[], subscription=NUMBER, push_number=1), 0.0, 0
    )


def _error(follower: Follower) -> None:
    follower.push(1, error=ErrorCode.FENCED_LEADER_EPOCH)
    assert follower.fetches.progress(0.0) is None


def _hole(follower: Follower) -> None:
    follower.push(1, 5, read_at=5)
    assert follower.fetches.progress(0.0) is None


def _registered_again(follower: Follower) -> None:
    follower.epoch = BrokerEpoch(6)
    follower.push(1)
    assert follower.fetches.progress(0.0) is None


def _lost(follower: Follower) -> None:
    follower.fetches.failed(ConnectionClosed("of a test"))


@pytest.mark.parametrize("doubt", [_gap, _last, _error, _hole, _registered_again, _lost])
def test_doubt_ends_the_subscription_and_later_pushes_are_ignored(
    follower: Follower, doubt: Callable[[Follower], None]
) -> None:
    doubt(follower)
    assert not follower.fetches.is_subscribed
    for number in (1, 2, 3):
        follower.push(number, 0)
    assert follower.partition.log_end_offset == 0
    assert follower.fetches.progress(0.0) is None


def test_pushes_are_ignored_while_a_fetch_is_in_flight_and_those_of_another_subscription(
    follower: Follower,
) -> None:
    follower.push(1, 0, subscription=NUMBER + 1)
    assert follower.fetches.is_subscribed
    assert follower.requests_subscription()
    follower.push(1, 0)
    assert follower.partition.log_end_offset == 0
    follower.fetches.answered(follower.answer(0, 0, subscription=NUMBER + 1), 0.0, 0)
    follower.push(1, 1)
    assert follower.partition.log_end_offset == 1


def test_a_replica_in_another_epoch_applies_and_reports_nothing(follower: Follower) -> None:
    follower.tell(1)
    follower.push(1, 0)
    assert follower.partition.log_end_offset == 0
    assert follower.fetches.progress(0.0) is None


def test_records_that_must_be_flushed_first_are_not_reported(tmp_path: Path) -> None:
    follower = Follower(tmp_path, flush_messages=1)
    follower.push(1, 0)
    assert follower.fetches.progress(0.0) is None
    assert not follower.fetches.is_subscribed
    assert follower.fetches.take_unflushed() == [follower.log]
