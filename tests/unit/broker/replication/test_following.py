"""The fetches of a follower without a socket or a clock: their partitions and times, answers and retries."""

from dataclasses import replace
from pathlib import Path

import pytest

from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.replication import fetcher_state as following
from barnabas.broker.replication.fetcher_state import (
    Failed,
    FollowedPartition,
    FollowedPartitions,
    LeaderFetches,
)
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replication_quota import ReplicationQuota
from barnabas.protocol.errors import (
    ApiError,
    ConnectionClosed,
    ConnectionRefused,
    ErrorCode,
    RequestTimedOutLocally,
)
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerEpoch, LeaderEpoch, TopicPartition
from barnabas.protocol.messages.fetch import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
)
from tests.support.building import ME, TP, TWO, follow, follower_of, partition_of, state
from tests.support.defaults import CONFIG, log_config
from tests.support.serving import batch

OTHER = TopicPartition(TP.topic, 1)
SESSION = 77
REFRESH_MS, LONGEST_PAUSE_MS, BACKOFF_MS = 1_000.0, 40.0, 200


def in_session() -> tuple[FollowedPartitions, dict[TopicPartition, FollowedPartition]]:
    """Two partitions in a session: the leader has answered their first fetch at time 0."""
    partitions = FollowedPartitions(REFRESH_MS, LONGEST_PAUSE_MS)
    followed = {name: FollowedPartition(follower_of(), LeaderEpoch(0)) for name in (TP, OTHER)}
    for name, partition in followed.items():
        partitions.add(name, partition)
    first = partitions.next_fetch(0.0)
    assert (first.session_id, first.epoch, list(first.included)) == (NO_SESSION, 0, [TP, OTHER])
    partitions.opened(SESSION)
    return partitions, followed


def test_a_fetch_names_only_changed_partitions() -> None:
    partitions, followed = in_session()
    follow(followed[OTHER].partition, 0, 3)
    partitions.applied(OTHER, followed[OTHER])
    second = partitions.next_fetch(0.1)
    assert (second.session_id, second.epoch, second.forgotten) == (SESSION, 1, [])
    assert second.included == {OTHER: (0, 3, 0, 0, NO_TOPIC_ID)}
    # An answer that leaves the log as it was, such as a new high watermark, changes no field of a fetch.
    partitions.applied(OTHER, followed[OTHER])
    third = partitions.next_fetch(0.95)
    assert (third.epoch, third.included, third.is_empty) == (2, {}, False)


def test_each_partition_is_named_once_in_the_refresh_time() -> None:
    partitions, followed = in_session()
    follow(followed[TP].partition, 0, 1)
    partitions.applied(TP, followed[TP])
    assert list(partitions.next_fetch(0.6).included) == [TP]
    assert list(partitions.next_fetch(1.0).included) == [OTHER]
    assert list(partitions.next_fetch(1.1).included) == []
    assert list(partitions.next_fetch(1.6).included) == [TP]


def test_a_failed_partition_pauses_outside_of_the_session_twice_as_long_each_time() -> None:
    partitions, followed = in_session()
    now = 0.0
    for pause_ms in (10.0, 20.0, 40.0, 40.0):
        assert partitions.failed(TP, followed[TP], now) == pause_ms
        paused = partitions.next_fetch(now)
        assert (paused.included, paused.forgotten, paused.next_retry) == ({}, [TP], now + pause_ms / 1000)
        assert partitions.fetched(TP) is None
        now += pause_ms / 1000
        again = partitions.next_fetch(now)
        assert (list(again.included), again.forgotten, again.next_retry) == ([TP], [], 0.0)
    partitions.applied(TP, followed[TP])
    assert partitions.failed(TP, followed[TP], now) == 10.0


def test_a_removed_partition_is_forgotten_and_the_last_one_ends_the_session() -> None:
    partitions, followed = in_session()
    partitions.remove(TP)
    assert partitions.next_fetch(0.1).forgotten == [TP]
    assert partitions.fetched(TP) is None
    partitions.failed(OTHER, followed[OTHER], 0.1)
    partitions.remove(OTHER)
    ended = partitions.next_fetch(0.1)
    assert (ended.is_empty, ended.next_retry) == (True, 0.0)
    partitions.add(OTHER, FollowedPartition(follower_of(), LeaderEpoch(0)))
    assert partitions.next_fetch(0.3).epoch == 0


def test_an_answer_does_not_concern_a_partition_added_again_since() -> None:
    partitions, followed = in_session()
    assert partitions.fetched(TP) is followed[TP]
    added_again = FollowedPartition(follower_of(epoch=1), LeaderEpoch(1))
    partitions.add(TP, added_again)
    assert partitions.fetched(TP) is None
    # Nor does it pause, if it did.
    partitions.failed(OTHER, followed[OTHER], 0.1)
    partitions.add(OTHER, FollowedPartition(follower_of(epoch=1), LeaderEpoch(1)))
    second = partitions.next_fetch(0.1)
    assert (set(second.included), set(second.forgotten)) == ({TP, OTHER}, {TP, OTHER})
    assert partitions.fetched(TP) is added_again


def test_a_partition_with_another_role_is_not_named() -> None:
    partitions, followed = in_session()
    followed[TP].leader_epoch = LeaderEpoch(9)
    partitions.applied(TP, followed[TP])
    assert partitions.next_fetch(0.1).included == {}
    followed[TP].leader_epoch = LeaderEpoch(0)
    follow(followed[TP].partition, 0, 1)
    assert list(partitions.next_fetch(0.2).included) == [TP]


# Requests and answers


class Follower:
    """Broker 2 follows broker 1."""

    def __init__(self, log: Log, quota: ReplicationQuota | None = None) -> None:
        self.metadata = MetadataCache()
        self.epoch = BrokerEpoch(5)
        self.noted: list[ApiError] = []
        self.given_up: list[tuple[Partition, LeaderEpoch, str]] = []
        self.partition = partition_of(log, broker=TWO)
        self.partition.make_follower(state(leader=1, isr=(1, 2), replicas=(1, 2)))
        self.fetches = LeaderFetches(
            replace(
                CONFIG,
                broker_id=TWO,
                replica_fetch_wait_max_ms=400,
                replica_fetch_min_bytes=2,
                replica_fetch_max_bytes=3_000,
                replica_fetch_response_max_bytes=5_000,
                replica_fetch_backoff_ms=BACKOFF_MS,
                replica_lag_time_max_ms=8_000,
            ),
            ME,
            self.metadata,
            broker_epoch=lambda: self.epoch,
            note_error=self.noted.append,
            fail=lambda partition, epoch, error: self.given_up.append((partition, epoch, repr(error))),
            quota=quota,
        )

    def follow(self) -> None:
        """Follow the partition, and send the first fetch."""
        self.fetches.followed.add(TP, FollowedPartition(self.partition, LeaderEpoch(0)))
        first = self.fetches.next_request(0.0).request
        assert first is not None
        assert (first.session_id, first.session_epoch, first.replica_epoch) == (NO_SESSION, INITIAL_EPOCH, 5)


def answer(
    error: ErrorCode = ErrorCode.NONE, *, records: bytes | None = None, high_watermark: int = 1
) -> FetchResponse:
    data = FetchPartitionResponse(
        partition_index=TP.partition,
        error_code=error,
        high_watermark=high_watermark,
        log_start_offset=0,
        records=None if records is None else memoryview(records),
    )
    topics = [FetchTopicResponse(topic=TP.topic, partitions=[data])]
    return FetchResponse(session_id=SESSION, responses=topics)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log.open(TP, LogLoader(tmp_path / str(TP), log_config(), now_ms=0))


@pytest.fixture
def follower(log: Log) -> Follower:
    return Follower(log)


def test_a_fetch_has_the_settings_of_the_broker(follower: Follower) -> None:
    follower.fetches.followed.add(TP, FollowedPartition(follower.partition, LeaderEpoch(0)))
    request = follower.fetches.next_request(0.0).request
    assert request is not None
    assert (request.replica_id, request.max_wait_ms) == (TWO, 400)
    assert (request.min_bytes, request.max_bytes) == (2, 5_000)
    assert request.topics[0].partitions[0].partition_max_bytes == 3_000


def test_an_idle_partition_is_named_four_times_within_the_lag_time(follower: Follower) -> None:
    follower.follow()
    for now, named in ((1.9, []), (2.0, [TP.topic]), (3.9, []), (4.0, [TP.topic])):
        follower.fetches.answered(answer(), now, 0)
        request = follower.fetches.next_request(now).request
        assert request is not None
        assert [topic.topic for topic in request.topics] == named


def test_an_answer_opens_the_session_of_the_next_fetch(follower: Follower) -> None:
    follower.follow()
    assert follower.fetches.answered(answer(), 0.0, 0) == 0.0
    second = follower.fetches.next_request(0.0).request
    assert second is not None
    assert (second.session_id, second.session_epoch) == (SESSION, 1)


def test_a_new_registration_of_this_broker_begins_a_new_session(follower: Follower) -> None:
    follower.follow()
    follower.fetches.answered(answer(), 0.0, 0)
    follower.epoch = BrokerEpoch(6)
    request = follower.fetches.next_request(0.0).request
    assert request is not None
    assert (request.session_id, request.replica_epoch) == (NO_SESSION, 6)
    assert [topic.topic for topic in request.topics] == [TP.topic]


def test_a_partition_that_fails_is_fetched_again_after_a_pause(follower: Follower) -> None:
    follower.follow()
    assert follower.fetches.answered(answer(ErrorCode.NOT_LEADER_OR_FOLLOWER), 0.0, 0) == 0.0
    assert [error.code for error in follower.noted] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert follower.fetches.next_request(0.0) == (None, 0.01)
    # The fetch of another partition waits no longer than the pause.
    follower.fetches.followed.add(OTHER, FollowedPartition(follower_of(), LeaderEpoch(0)))
    request = follower.fetches.next_request(0.0).request
    assert request is not None
    assert (request.topics[0].partitions[0].partition, request.max_wait_ms) == (OTHER.partition, 10)
    request = follower.fetches.next_request(0.02).request
    assert request is not None
    assert request.topics[0].partitions[0].partition == TP.partition


def test_records_that_come_twice_are_appended_once(follower: Follower) -> None:
    follower.follow()
    follower.fetches.answered(answer(records=batch(b"value")), 0.0, 0)
    assert follower.fetches.take_moved() == [TP]
    request = follower.fetches.next_request(0.0).request
    assert request is not None
    assert request.topics[0].partitions[0].fetch_offset == follower.partition.log_end_offset == 1
    follower.fetches.answered(answer(records=batch(b"value")), 0.0, 0)
    assert follower.fetches.take_moved() == []
    assert follower.partition.log_end_offset == 1
    assert follower.fetches.next_request(0.0) == (None, 0.01)


def test_a_partition_with_an_unforeseen_error_is_no_longer_fetched(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    follower.follow()
    monkeypatch.setattr(following, "apply_answer", poisoned)
    assert follower.fetches.answered(answer(), 0.0, 0) == 0.0
    assert follower.given_up == [(follower.partition, 0, "KeyError('a bug')")]
    # The session continues for the others; this partition is removed from it.
    request = follower.fetches.next_request(0.0).request
    assert request is None or request.topics == []
    assert follower.fetches.followed.fetched(TP) is None


@pytest.mark.parametrize(
    ("code", "pause_s"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0.0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0.0),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, BACKOFF_MS / 1000),
    ],
)
def test_a_refused_fetch_is_followed_by_a_new_session_if_that_helps_at_once(
    follower: Follower, code: ErrorCode, pause_s: float
) -> None:
    follower.follow()
    follower.fetches.answered(answer(), 0.0, 0)
    follower.fetches.next_request(0.0)
    assert follower.fetches.answered(FetchResponse(error_code=code, responses=[]), 0.0, 0) == pause_s
    request = follower.fetches.next_request(0.0).request
    assert request is not None
    assert request.session_id == NO_SESSION


def test_a_lost_connection_is_suspected_once_and_for_a_while(follower: Follower) -> None:
    follower.follow()
    for _ in range(2):
        follower.fetches.answered(answer(), 0.0, 0)
        assert follower.fetches.failed(ConnectionClosed("lost")) == Failed(0.01, 1.0)
        assert follower.metadata.suspects == {ME}
        assert follower.fetches.failed(ConnectionClosed("lost")) == Failed(0.01)
        follower.fetches.end_suspicion()
        assert not follower.metadata.suspects
        request = follower.fetches.next_request(0.0).request
        assert request is not None
        assert request.session_id == NO_SESSION


def test_a_refusal_is_suspected_until_the_leader_answers(follower: Follower) -> None:
    follower.follow()
    assert follower.fetches.failed(ConnectionRefused("refused")) == Failed(0.01)
    follower.fetches.end_suspicion()
    assert follower.metadata.suspects == {ME}
    follower.fetches.answered(answer(), 0.0, 0)
    assert not follower.metadata.suspects


def test_the_back_off_follows_a_network_error_but_not_a_timeout(
    follower: Follower,
) -> None:
    unreachable = ConnectionClosed("no route")
    unreachable.__cause__ = OSError("no route to host")
    assert follower.fetches.failed(unreachable) == Failed(BACKOFF_MS / 1000)
    assert follower.fetches.failed(RequestTimedOutLocally("late")) == Failed(0.0)
    assert not follower.metadata.suspects


def test_a_nudge_is_outside_of_the_session(follower: Follower) -> None:
    follower.follow()
    nudge = follower.fetches.nudge()
    assert (nudge.session_id, nudge.session_epoch, nudge.max_wait_ms) == (NO_SESSION, FINAL_EPOCH, 0)
    assert nudge.topics == []


def test_an_error_that_is_usual_during_an_election_is_logged_once_when_it_lasts(
    follower: Follower, caplog: pytest.LogCaptureFixture
) -> None:
    follower.follow()
    warnings = []
    for second in range(8):
        follower.fetches.answered(answer(ErrorCode.UNKNOWN_LEADER_EPOCH), second, 0)
        assert follower.fetches.next_request(second + 1).request is not None
        warnings.append(sum(record.levelname == "WARNING" for record in caplog.records))
    # After delays of 10, 20, 40, 80 and 160 ms.
    assert warnings == [0, 0, 0, 0, 1, 1, 1, 1]
    assert "UNKNOWN_LEADER_EPOCH" in caplog.text


@pytest.mark.parametrize(
    ("listed", "high_watermark", "is_paused"),
    [("*", 10, True), ("*", 1, False), ("0:3", 10, False)],
    ids=["it lags", "in sync", "not listed"],
)
def test_a_throttled_follower_that_lags_pays_before_it_fetches_more(
    log: Log, listed: str, high_watermark: int, is_paused: bool
) -> None:
    quota = ReplicationQuota(TWO, lambda topic: (listed,), lambda: 0.0)
    quota.set_rate(10)
    follower = Follower(log, quota)
    follower.follow()
    follower.fetches.answered(answer(records=batch(b"value"), high_watermark=high_watermark), 0.0, 0)
    assert follower.partition.log_end_offset == 1
    assert (follower.fetches.next_request(0.5).request is None) == is_paused
    # It looks again after a second at most, and still owes bytes, which another replica may pay for, too.
    assert follower.fetches.next_request(1.0).request is not None
