"""The throttles of replication: the rule, a leader that holds records back, a follower that waits."""

from pathlib import Path

import pytest

from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.metadata_cache import MetadataCache
from barnabas.broker.replication.fetch_wait import FetchReader
from barnabas.broker.replication.following import FetcherSettings, FollowedPartition, LeaderFetches
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replication_quota import ReplicationQuota
from barnabas.protocol.ids import BrokerEpoch, LeaderEpoch, TopicPartition
from barnabas.protocol.messages.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from barnabas.protocol.settings import LONG_MAX
from tests.support.building import (
    ME,
    THREE,
    TP,
    TWO,
    fatal,
    fetch_item,
    fetch_params,
    leader_of,
    partition_of,
    state,
)
from tests.support.defaults import log_config
from tests.support.serving import batch

ALL = ("*",)
SLOW_BYTES = 10
"""Per second: a batch takes longer than a test."""


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def quota(*listed: str, rate: int = SLOW_BYTES) -> ReplicationQuota:
    made = ReplicationQuota(ME, lambda topic: listed, Clock())
    made.set_rate(rate)
    return made


# The rule


@pytest.mark.parametrize(
    ("listed", "is_throttled"),
    [
        (ALL, True),
        ((f"{TP.partition}:1",), True),
        ((f"{TP.partition}:2",), False),
        (("7:1",), False),
        ((), False),
    ],
)
def test_a_topic_lists_its_throttled_replicas(listed: tuple[str, ...], is_throttled: bool) -> None:
    assert quota(*listed).applies_to(TP) == is_throttled


def test_nothing_is_throttled_without_a_rate() -> None:
    unbounded = quota(*ALL, rate=LONG_MAX)
    assert not unbounded.applies_to(TP)
    assert not ReplicationQuota(ME, lambda topic: ALL).applies_to(TP)
    unbounded.set_rate(SLOW_BYTES)
    assert unbounded.applies_to(TP)


# The leader


def reader_of(partition: Partition, *listed: str) -> FetchReader:
    reader = FetchReader(lambda name: partition, lambda error: None, on_fatal=fatal)
    reader.quota = quota(*listed)
    return reader


def read_by(reader: FetchReader, follower: int) -> int:
    """The bytes of an answer to a follower."""
    params = fetch_params(follower)
    result = reader.read_all(params, [fetch_item()])
    reader.note_sent(params, result)
    return result.bytes_read


def test_a_leader_holds_back_a_throttled_replica_that_is_not_in_sync() -> None:
    reader = reader_of(leader_of(1, 2, records=3), *ALL)
    # The first answer is sent, and must be paid for.
    assert read_by(reader, THREE) > 0
    assert read_by(reader, THREE) == 0
    reader.quota.set_rate(LONG_MAX)
    assert read_by(reader, THREE) > 0


@pytest.mark.parametrize(("reading", "isr"), [(TWO, (1, 2)), (-1, (1,))], ids=["in sync", "consumer"])
def test_others_are_not_held_back(reading: int, isr: tuple[int, ...]) -> None:
    reader = reader_of(leader_of(*isr, records=3), *ALL)
    reader.quota.note(1_000)
    assert read_by(reader, reading) > 0


def test_a_fetch_waits_no_longer_than_the_throttle() -> None:
    partition = leader_of(1, 2, records=3)
    reader = reader_of(partition, *ALL)
    params = fetch_params(THREE, max_wait_ms=500)
    result = reader.read_all(params, [fetch_item()])
    assert reader.wait_ms(params, result) == 500
    reader.quota.set_rate(1_000)
    reader.quota.note(100)
    assert reader.wait_ms(params, result) == pytest.approx(100)
    assert reader.wait_ms(fetch_params(-1, max_wait_ms=500), result) == 500


# The follower


class Follower:
    """Broker 2 follows broker 1, whose high watermark is ahead."""

    def __init__(self, folder: Path, throttle: ReplicationQuota) -> None:
        log = Log.open(TP, LogLoader(folder / str(TP), log_config(), now_ms=0))
        self.partition = partition_of(log, broker=TWO)
        self.partition.make_follower(state(leader=1, isr=(1,), replicas=(1, 2)))
        self.fetches = LeaderFetches(
            TWO,
            ME,
            FetcherSettings(500, 1, 1 << 20, 1 << 20, 200, 1_000),
            MetadataCache(),
            broker_epoch=lambda: BrokerEpoch(5),
            note_error=lambda error: None,
            quota=throttle,
        )
        self.fetches.followed.add(TP, FollowedPartition(self.partition, LeaderEpoch(0)))
        assert self.named(0.0) == [TP]

    def named(self, now: float) -> list[TopicPartition]:
        """The partitions that the next fetch asks for."""
        request = self.fetches.next_request(now).request
        topics = [] if request is None else request.topics
        return [TopicPartition(topic.topic, part.partition) for topic in topics for part in topic.partitions]

    def receive(self, high_watermark: int, now: float) -> None:
        data = FetchPartitionResponse(
            partition_index=TP.partition,
            error_code=0,
            high_watermark=high_watermark,
            log_start_offset=0,
            records=memoryview(batch(b"value")),
        )
        topics = [FetchTopicResponse(topic=TP.topic, partitions=[data])]
        self.fetches.answered(FetchResponse(session_id=77, responses=topics), now, 0)


def test_a_throttled_follower_that_lags_pays_before_it_fetches_more(tmp_path: Path) -> None:
    throttle = quota(*ALL)
    follower = Follower(tmp_path, throttle)
    follower.receive(high_watermark=10, now=0.0)
    assert follower.partition.log_end_offset == 1
    assert follower.named(0.5) == []
    # It looks again after a second at most, and still owes bytes, which another replica may pay for, too.
    assert follower.named(1.0) == [TP]


@pytest.mark.parametrize(("listed", "high_watermark"), [(ALL, 1), (("0:3",), 10)])
def test_a_follower_in_sync_or_not_listed_fetches_on(
    tmp_path: Path, listed: tuple[str, ...], high_watermark: int
) -> None:
    follower = Follower(tmp_path, quota(*listed))
    follower.receive(high_watermark, now=0.0)
    assert follower.named(0.1) == [TP]
