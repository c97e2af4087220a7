"""The rules of replication, as pure functions over plain data; time is an argument.

They say what is committed, which replicas are in sync, which may join the ISR, and where a follower truncates
its log. They need no socket, clock or thread: see ``tests/simulation``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from barnabas.broker.log.epoch_cache import EpochCache
from barnabas.protocol.ids import (
    LEAVING_BROKER_EPOCH,
    NO_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
)

UNKNOWN_OFFSET: Final = Offset(-1)
NEVER_MS: Final = -math.inf


class FollowerState(NamedTuple):
    """A leader's knowledge of one follower, all of it from that follower's fetch requests.

    ``log_end_offset`` is the offset of its last fetch (it has everything below), or -1 before its first
    fetch. ``last_caught_up_ms`` is the latest time at which it had all records of the leader.
    """

    log_end_offset: Offset = UNKNOWN_OFFSET
    log_start_offset: Offset = UNKNOWN_OFFSET
    last_fetch_ms: float = NEVER_MS
    last_fetch_leader_log_end_offset: Offset = UNKNOWN_OFFSET
    last_caught_up_ms: float = NEVER_MS
    broker_epoch: BrokerEpoch = NO_BROKER_EPOCH

    def is_caught_up(self, leader_log_end_offset: Offset, now_ms: float, max_lag_ms: float) -> bool:
        """Whether it has all records, or had them within the allowed lag."""
        if self.log_end_offset == leader_log_end_offset:
            return True
        return now_ms - self.last_caught_up_ms <= max_lag_ms


def after_fetch(
    follower: FollowerState,
    *,
    fetch_offset: Offset,
    log_start_offset: Offset,
    leader_log_end_offset: Offset,
    broker_epoch: BrokerEpoch,
    now_ms: float,
) -> FollowerState:
    """The follower after a fetch.

    A follower that fetches at the leader's end is caught up now. A follower that fetches at the offset that
    was the end at its previous fetch was caught up at that time. So a follower that keeps pace with a busy
    leader stays in sync although it never reaches the end.
    """
    caught_up_ms = follower.last_caught_up_ms
    if fetch_offset >= leader_log_end_offset:
        caught_up_ms = max(caught_up_ms, now_ms)
    elif follower.last_fetch_leader_log_end_offset != UNKNOWN_OFFSET and (
        fetch_offset >= follower.last_fetch_leader_log_end_offset
    ):
        caught_up_ms = max(caught_up_ms, follower.last_fetch_ms)
    return FollowerState(
        fetch_offset, log_start_offset, now_ms, leader_log_end_offset, caught_up_ms, broker_epoch
    )


def after_election(
    follower: FollowerState | None,
    *,
    knows_ends: bool,
    is_in_sync: bool,
    leader_log_end_offset: Offset,
    now_ms: float,
) -> FollowerState:
    """The follower at the start of a leader epoch.

    A leader that also led the epoch before knows the follower's log end offset; a new one does not. A
    member of the ISR gets the whole allowed lag for its first fetch.
    """
    caught_up_ms = now_ms if is_in_sync else NEVER_MS
    if not knows_ends or follower is None:
        return FollowerState(last_caught_up_ms=caught_up_ms)
    return follower._replace(
        last_fetch_leader_log_end_offset=leader_log_end_offset,
        last_fetch_ms=now_ms if is_in_sync else NEVER_MS,
        last_caught_up_ms=caught_up_ms,
    )


def next_high_watermark(
    high_watermark: Offset,
    log_end_offset: Offset,
    followers: Mapping[BrokerId, FollowerState],
    maximal_in_sync_replicas: frozenset[BrokerId],
    *,
    now_ms: float,
    max_lag_ms: float,
) -> Offset:
    """Everything below the result is on every replica that may be in the ISR or is about to join it.

    A stopping replica outside the ISR does not count as about to join, even if it keeps up. The result never
    falls, because committed records stay committed.
    """
    lowest = log_end_offset
    for broker_id, follower in followers.items():
        if follower.log_end_offset >= lowest:
            continue
        if broker_id in maximal_in_sync_replicas or (
            follower.broker_epoch != LEAVING_BROKER_EPOCH
            and follower.is_caught_up(log_end_offset, now_ms, max_lag_ms)
        ):
            lowest = follower.log_end_offset
    return max(high_watermark, lowest)


def may_join_isr(
    follower: FollowerState,
    *,
    high_watermark: Offset,
    leader_epoch_start_offset: Offset,
    registered_broker_epoch: BrokerEpoch,
) -> bool:
    """Whether a follower outside the ISR holds enough to join it.

    It must have all committed records, and have reached the start of this leader's epoch: only then is its
    history known to agree with the leader's. ``registered_broker_epoch`` is the broker epoch of its present
    registration. A fetch with an earlier broker epoch does not count, because the disk may have been lost
    since (KIP-903).
    """
    if follower.broker_epoch != registered_broker_epoch:
        return False
    return follower.log_end_offset >= max(high_watermark, leader_epoch_start_offset)


def witnessed_ms(
    fetched_ms: Mapping[BrokerId, float], maximal_in_sync_replicas: frozenset[BrokerId], leader: BrokerId
) -> float:
    """The latest time at which the followers' fetches prove that there was no other leader.

    ``fetched_ms`` is when each follower last fetched in this very leader epoch. A new leader would be one of
    the other replicas that may be in sync, and it would stop fetching in this epoch. So while all of them
    fetch, there is no other leader. A leader that is alone in its ISR has no witness.
    """
    others = maximal_in_sync_replicas - {leader}
    return min((fetched_ms.get(follower, NEVER_MS) for follower in others), default=NEVER_MS)


def out_of_sync(
    followers: Mapping[BrokerId, FollowerState],
    in_sync_replicas: Iterable[BrokerId],
    leader: BrokerId,
    log_end_offset: Offset,
    *,
    now_ms: float,
    max_lag_ms: float,
) -> frozenset[BrokerId]:
    """The members of the ISR that have not been caught up for longer than the allowed lag."""
    lagging = set()
    for broker_id in in_sync_replicas:
        if broker_id == leader:
            continue
        follower = followers.get(broker_id)
        if follower is None or not follower.is_caught_up(log_end_offset, now_ms, max_lag_ms):
            lagging.add(broker_id)
    return frozenset(lagging)


class EpochEnd(NamedTuple):
    """The largest epoch not above some epoch, and the offset at which the next one starts."""

    epoch: LeaderEpoch
    end_offset: Offset


def truncation_for(leader: EpochEnd, history: EpochCache, log_end_offset: Offset) -> Offset:
    """Where a follower truncates, given where the leader's history of an epoch ends (KIP-101, KIP-279).

    If both know the epoch, the histories agree up to the smaller of its two ends. If the follower does not
    know the leader's epoch, its records above the epoch before that are not the leader's: it truncates there
    and compares again. The high watermark alone is not used, because it may be stale.
    """
    if leader.epoch < 0 or leader.end_offset < 0:
        # The leader does not know that epoch, so the follower keeps its log.
        return log_end_offset
    epoch, end_offset = history.end_offset_for(leader.epoch, log_end_offset)
    if epoch < 0 or end_offset < 0:
        return Offset(min(leader.end_offset, log_end_offset))
    if epoch != leader.epoch:
        return Offset(min(end_offset, log_end_offset))
    return Offset(min(end_offset, leader.end_offset, log_end_offset))


def diverges(
    last_fetched_epoch: LeaderEpoch,
    fetch_offset: Offset,
    leader_answer: EpochEnd,
) -> bool:
    """Whether a follower has another history than its leader, by its fetch offset and last record's epoch.

    ``leader_answer`` is where the leader's history of that epoch ends. Source: KIP-595, Fetch.
    """
    return leader_answer.epoch < last_fetched_epoch or leader_answer.end_offset < fetch_offset
