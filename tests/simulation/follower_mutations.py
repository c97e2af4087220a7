"""Known mistakes of followers and of their disks, each put into the code on purpose; see `mutations`."""

from __future__ import annotations

from typing import Any

from barnabas.broker.log import batch_scan, recovery
from barnabas.broker.log.epoch_cache import EpochCache
from barnabas.broker.replication import following
from barnabas.broker.replication.following import FollowedPartition, FollowedPartitions, LeaderFetches
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.record_batch import parse_header
from tests.simulation.planted import SetAttr, found_in


@found_in("usual", 145)
def answers_of_another_epoch_are_taken(setattr_: SetAttr) -> None:
    """Records of an earlier leader are appended after the controller has named another one."""

    def credulous(self: Partition, leader_epoch: Any) -> None:
        return

    setattr_(Partition, "_check_following", credulous)


@found_in("usual", 1)
def the_leaders_high_watermark_is_taken_as_it_is(setattr_: SetAttr) -> None:
    append = Partition.append_as_follower

    def trusting(self: Partition, records: memoryview, **arguments: Any) -> bool:
        appended = append(self, records, **arguments)
        self.high_watermark = max(self.high_watermark, arguments["leader_high_watermark"])
        return appended

    setattr_(Partition, "append_as_follower", trusting)


@found_in("usual", 70)
def fetches_name_an_earlier_broker_epoch(setattr_: SetAttr) -> None:
    """The broker epoch is looked up once; a leader lets no replica with an old broker epoch join."""
    next_request = LeaderFetches.next_request

    def stuck(self: LeaderFetches, now: float) -> Any:
        first = self.__dict__.setdefault("first_epoch", self._current_broker_epoch())
        self._current_broker_epoch = lambda: first
        return next_request(self, now)

    setattr_(LeaderFetches, "next_request", stuck)


@found_in("usual", 36)
def failed_partitions_are_not_fetched_again(setattr_: SetAttr) -> None:
    failed = FollowedPartitions.failed

    def resigned(self: FollowedPartitions, name: Any, followed: FollowedPartition, now: float) -> float:
        rests_ms = failed(self, name, followed, now)
        followed.retry_at = 1e9
        return rests_ms

    setattr_(FollowedPartitions, "failed", resigned)


@found_in("usual", 195)
def a_follower_drops_its_log_instead_of_truncating(setattr_: SetAttr) -> None:
    """It drops records that may be committed, while it is in the ISR."""
    apply_answer = following.apply_answer

    def rash(partition: Partition, leader_epoch: Any, data: Any, **arguments: Any) -> None:
        if data.diverging_epoch.epoch >= 0:
            partition.restart_at(leader_epoch, partition.log.log_start_offset)
            return
        apply_answer(partition, leader_epoch, data, **arguments)

    setattr_(following, "apply_answer", rash)


@found_in("usual", 112)
def a_torn_tail_is_kept(setattr_: SetAttr) -> None:
    """Recovery checks headers only, not the CRCs."""
    setattr_(batch_scan, "check_batch", lambda data, position, **_: parse_header(data, position))


@found_in("usual", 113)
def old_epochs_outlive_a_power_cut(setattr_: SetAttr) -> None:
    """Recovery trusts the epoch checkpoint, which may be older than the log, or gone."""
    recover = recovery._recover_segments

    def forgetful(*arguments: Any) -> Any:
        kept, _, without_producers = recover(*arguments)
        return kept, [], without_producers

    setattr_(recovery, "_recover_segments", forgetful)
    setattr_(recovery, "_miss_first_epochs", lambda *_: False)


@found_in("usual", 4)
def truncation_leaves_the_epochs(setattr_: SetAttr) -> None:
    setattr_(EpochCache, "truncate_from_end", lambda self, end_offset: None)
