"""What a follower's fetches name, and when."""

from __future__ import annotations

from barnabas.broker.replication.following import FollowedPartition, FollowedPartitions
from barnabas.protocol.fetch_epochs import NO_SESSION
from barnabas.protocol.ids import NO_TOPIC_ID, LeaderEpoch, TopicPartition
from tests.support.building import TP, follow, follower_of

OTHER = TopicPartition(TP.topic, 1)
SESSION = 77
REFRESH_MS, BACKOFF_MS = 1_000.0, 40.0


def following() -> tuple[FollowedPartitions, dict[TopicPartition, FollowedPartition]]:
    """Two partitions, of which the leader has answered the first fetch at time 0 in a session."""
    partitions = FollowedPartitions(REFRESH_MS, BACKOFF_MS)
    followed = {name: FollowedPartition(follower_of(), LeaderEpoch(0)) for name in (TP, OTHER)}
    for name, one in followed.items():
        partitions.add(name, one)
    first = partitions.next_fetch(0.0)
    assert (first.session_id, first.epoch, list(first.named)) == (NO_SESSION, 0, [TP, OTHER])
    partitions.opened(SESSION)
    return partitions, followed


def test_without_partitions_there_is_nothing_to_ask() -> None:
    assert FollowedPartitions(REFRESH_MS, BACKOFF_MS).next_fetch(0.0).is_empty


def test_what_has_changed_is_named_and_nothing_else() -> None:
    partitions, followed = following()
    follow(followed[OTHER].partition, 0, 3)
    partitions.applied(OTHER, followed[OTHER])
    second = partitions.next_fetch(0.1)
    assert (second.session_id, second.epoch, second.forgotten) == (SESSION, 1, [])
    assert second.named == {OTHER: (0, 3, 0, 0, NO_TOPIC_ID)}
    # An answer that changed nothing here, such as a high watermark, gives no reason to name it.
    partitions.applied(OTHER, followed[OTHER])
    third = partitions.next_fetch(0.2)
    assert (third.epoch, third.named, third.is_empty) == (2, {}, False)


def test_each_is_named_now_and_then() -> None:
    partitions, followed = following()
    follow(followed[TP].partition, 0, 1)
    partitions.applied(TP, followed[TP])
    assert list(partitions.next_fetch(0.6).named) == [TP]
    assert list(partitions.next_fetch(1.0).named) == [OTHER]
    assert list(partitions.next_fetch(1.1).named) == []
    assert list(partitions.next_fetch(1.6).named) == [TP]


def test_one_that_failed_rests_outside_of_the_session_twice_as_long_each_time() -> None:
    partitions, followed = following()
    now = 0.0
    for rests_ms in (10.0, 20.0, 40.0, 40.0):
        assert partitions.failed(TP, followed[TP], now) == rests_ms
        resting = partitions.next_fetch(now)
        assert (resting.named, resting.forgotten, resting.next_retry) == ({}, [TP], now + rests_ms / 1000)
        assert partitions.fetched(TP) is None
        now += rests_ms / 1000
        again = partitions.next_fetch(now)
        assert (list(again.named), again.forgotten, again.next_retry) == ([TP], [], 0.0)
    partitions.applied(TP, followed[TP])
    assert partitions.failed(TP, followed[TP], now) == 10.0


def test_a_rest_that_is_over_before_the_next_fetch_is_told_all_the_same() -> None:
    partitions, followed = following()
    partitions.failed(TP, followed[TP], 0.0)
    again = partitions.next_fetch(0.5)
    assert (list(again.named), again.forgotten) == ([TP], [TP])


def test_what_is_followed_no_more_is_forgotten_and_the_last_ends_the_session() -> None:
    partitions, _ = following()
    partitions.remove(TP)
    assert partitions.next_fetch(0.1).forgotten == [TP]
    assert partitions.fetched(TP) is None
    partitions.remove(OTHER)
    assert partitions.next_fetch(0.2).is_empty
    partitions.add(OTHER, FollowedPartition(follower_of(), LeaderEpoch(0)))
    assert partitions.next_fetch(0.3).epoch == 0


def test_an_answer_is_not_for_who_follows_since() -> None:
    partitions, followed = following()
    assert partitions.fetched(TP) is followed[TP]
    anew = FollowedPartition(follower_of(epoch=1), LeaderEpoch(1))
    partitions.add(TP, anew)
    assert partitions.fetched(TP) is None
    second = partitions.next_fetch(0.1)
    assert (list(second.named), second.forgotten) == ([TP], [TP])
    assert partitions.fetched(TP) is anew


def test_a_lost_session_begins_anew_with_all() -> None:
    partitions, _ = following()
    assert partitions.next_fetch(0.1).named == {}
    partitions.reset()
    first = partitions.next_fetch(0.2)
    assert (first.session_id, first.epoch, list(first.named)) == (NO_SESSION, 0, [TP, OTHER])


def test_a_leader_without_a_session_to_give_is_told_everything_each_time() -> None:
    partitions, _ = following()
    partitions.reset()
    for _ in range(2):
        assert list(partitions.next_fetch(0.1).named) == [TP, OTHER]
        partitions.opened(NO_SESSION)


def test_one_with_another_role_is_left_out_until_it_is_clear() -> None:
    partitions, followed = following()
    followed[TP].leader_epoch = LeaderEpoch(9)
    partitions.applied(TP, followed[TP])
    assert partitions.next_fetch(0.1).named == {}
    followed[TP].leader_epoch = LeaderEpoch(0)
    follow(followed[TP].partition, 0, 1)
    assert list(partitions.next_fetch(0.2).named) == [TP]
