"""Changes of the ISR: pending until ZooKeeper has them, and safe whichever way they end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from barnabas.broker.replication.isr import CommittedIsr, PendingExpand, PendingIsr, PendingShrink
from barnabas.broker.replication.isr_changes import (
    IsrChanges,
)
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.zookeeper.errors import PartitionStateConflict, ReplicaNotRegistered, ZooKeeperUnavailable
from barnabas.zookeeper.znodes import LeadershipState
from tests.support.building import (
    LAG_MS,
    ME,
    THREE,
    TP,
    TWO,
    append,
    fetched,
    leader_of,
    state,
)
from tests.support.waiting import DEADLINE_S

REGISTERED = BrokerEpoch(5)


def brokers(*ids: int) -> frozenset[BrokerId]:
    return frozenset(BrokerId(number) for number in ids)


def expanding(records: int = 2) -> tuple[Partition, PendingExpand]:
    """Broker 1 leads alone, and broker 2 has caught up and is joining."""
    partition = leader_of(1, records=records)
    assert fetched(partition, TWO, records).may_join_isr
    pending = partition.propose_expand(TWO, REGISTERED)
    assert pending is not None
    return partition, pending


def shrinking(records: int = 2) -> tuple[Partition, PendingShrink]:
    """Brokers 1, 2 and 3 are in sync, and 3 is being put out."""
    partition = leader_of(1, 2, 3, records=records)
    fetched(partition, TWO, records, now_ms=LAG_MS)
    pending = partition.propose_shrink(LAG_MS + 1)
    assert pending is not None
    return partition, pending


# The states


def test_a_pending_change_counts_all_replicas_that_may_be_in_sync() -> None:
    committed = CommittedIsr(brokers(1, 2), 7)
    assert (committed.maximal, committed.in_sync_replicas) == (brokers(1, 2), brokers(1, 2))
    expand = PendingExpand(committed, {THREE: REGISTERED})
    assert (expand.maximal, expand.proposed) == (brokers(1, 2, 3), brokers(1, 2, 3))
    shrink = PendingShrink(committed, brokers(2))
    assert (shrink.maximal, shrink.proposed) == (brokers(1, 2), brokers(1))
    for pending in (expand, shrink):
        assert (pending.in_sync_replicas, pending.partition_epoch) == (brokers(1, 2), 7)


# Growing


def test_the_high_watermark_waits_for_a_replica_that_may_have_joined() -> None:
    partition, pending = expanding()
    append(partition, now_ms=10 * LAG_MS)
    assert partition.high_watermark == 2
    assert partition.settle_isr(pending, CommittedIsr(pending.proposed, 1), 10 * LAG_MS) is False
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)
    assert fetched(partition, TWO, 3, now_ms=10 * LAG_MS).high_watermark_moved


def test_a_silent_replica_about_to_join_delays_the_high_watermark_only_for_the_lag() -> None:
    """Nobody appends any more: all producers wait. The next fetch of anybody moves the mark all the same."""
    partition = leader_of(1, 2, records=2)
    for broker in (TWO, THREE):
        fetched(partition, broker, 2, now_ms=0.0)
    append(partition, now_ms=1.0)
    assert not fetched(partition, TWO, 3, now_ms=1.0).high_watermark_moved
    assert not fetched(partition, TWO, 3, now_ms=LAG_MS).high_watermark_moved
    assert fetched(partition, TWO, 3, now_ms=LAG_MS + 1).high_watermark_moved
    assert partition.high_watermark == 3


def test_only_one_change_is_pending_at_a_time() -> None:
    partition, pending = expanding()
    progress = fetched(partition, THREE, 2)
    assert not progress.may_join_isr
    assert partition.propose_expand(THREE, REGISTERED) is None
    assert partition.propose_shrink(99 * LAG_MS) is None
    partition.settle_isr(pending, CommittedIsr(pending.proposed, 1), 0.0)
    assert fetched(partition, THREE, 2).may_join_isr


@pytest.mark.parametrize("registered", [None, 4, 6])
def test_only_the_registered_broker_epoch_may_join(registered: int | None) -> None:
    partition = leader_of(1, records=2)
    epoch = None if registered is None else BrokerEpoch(registered)
    assert not fetched(partition, TWO, 2, registered=registered).may_join_isr
    assert partition.propose_expand(TWO, epoch) is None
    assert isinstance(partition.isr, CommittedIsr)


def test_a_broker_that_restarted_before_the_proposal_does_not_join() -> None:
    partition = leader_of(1, records=2)
    assert fetched(partition, TWO, 2).may_join_isr
    assert partition.propose_expand(TWO, BrokerEpoch(6)) is None


def test_who_is_in_already_or_behind_or_unknown_does_not_join() -> None:
    partition = leader_of(1, 2, records=2)
    fetched(partition, TWO, 2)
    fetched(partition, THREE, 1)
    for broker in (TWO, THREE, BrokerId(9)):
        assert partition.propose_expand(broker, REGISTERED) is None


# Shrinking


def test_the_high_watermark_waits_for_a_replica_that_may_still_be_in_sync() -> None:
    partition, pending = shrinking()
    assert pending.leaving == brokers(3)
    fetched(partition, TWO, 2, now_ms=LAG_MS + 2)
    assert partition.high_watermark == 0
    assert partition.settle_isr(pending, CommittedIsr(pending.proposed, 1), LAG_MS + 2)
    assert partition.high_watermark == 2


def test_who_keeps_pace_is_not_put_out() -> None:
    partition = leader_of(1, 2, 3, records=2)
    fetched(partition, TWO, 2)
    fetched(partition, THREE, 2)
    append(partition)
    assert partition.propose_shrink(LAG_MS) is None
    pending = partition.propose_shrink(LAG_MS + 1)
    assert pending is not None
    assert pending.leaving == brokers(2, 3)


def test_who_has_everything_is_never_put_out() -> None:
    partition = leader_of(1, 2, records=2)
    fetched(partition, TWO, 2)
    assert partition.propose_shrink(99 * LAG_MS) is None


def test_a_follower_proposes_nothing() -> None:
    partition = leader_of(1, 2, 3)
    partition.make_follower(state(leader=2, epoch=1))
    assert partition.propose_shrink(99 * LAG_MS) is None
    assert partition.propose_expand(TWO, REGISTERED) is None


# Overtaken by the controller


@pytest.mark.parametrize("begin", [expanding, shrinking])
def test_a_change_of_an_older_epoch_is_not_committed(
    begin: Callable[[], tuple[Partition, PendingIsr]],
) -> None:
    partition, pending = begin()
    partition.make_leader(state(epoch=1, isr=(1,), partition_epoch=4), 0.0)
    assert not partition.settle_isr(pending, CommittedIsr(pending.proposed, 9), 0.0)
    assert partition.isr == CommittedIsr(brokers(1), 4)


# Carrying changes to ZooKeeper


class Store:
    """A state znode that notes each request and gives the answers that the test set; a None lets the write
    through.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], int]] = []
        self.joining: list[dict[int, int]] = []
        self.answers: list[Exception | None] = []
        self.notified: list[list[TopicPartition]] = []
        self.notify_answers: list[Exception | None] = []
        self.broker_epoch: int | None = 17

    def update_isr(
        self,
        tp: TopicPartition,
        state: LeadershipState,
        *,
        joining: Mapping[int, int],
        broker_epoch: int,
        topic_id: object,
    ) -> int:
        assert broker_epoch == self.broker_epoch
        self.joining.append(dict(joining))
        assert (tp, state.leader, state.leader_epoch, state.controller_epoch) == (TP, ME, 0, 1)
        self.asked.append((list(state.isr), state.partition_epoch))
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return state.partition_epoch + 1

    def notify_isr_change(self, partitions: Sequence[TopicPartition]) -> None:
        answer = self.notify_answers.pop(0) if self.notify_answers else None
        if answer is not None:
            raise answer
        self.notified.append(list(partitions))

    def notify_log_dir_failure(self, broker: BrokerId) -> None:
        raise AssertionError("no disk fails here")


class Carrier:
    """IsrChanges without its thread."""

    def __init__(self) -> None:
        self.store = Store()
        self.moved: list[TopicPartition] = []
        self.fatal: list[BaseException] = []
        self.changes = IsrChanges(
            self.store,
            broker_epoch=lambda: self.store.broker_epoch,
            now_ms=lambda: LAG_MS + 1,
            on_high_watermark=self.moved.append,
            on_fatal=self.fatal.append,
        )


@pytest.fixture
def carrier() -> Carrier:
    return Carrier()


def test_a_change_is_written_committed_and_notified(carrier: Carrier) -> None:
    partition, pending = shrinking()
    carrier.changes.submit(partition, pending)
    assert carrier.changes.work_off()
    assert carrier.store.asked == [([1, 2], 0)]
    assert carrier.store.notified == [[TP]]
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)
    assert (partition.high_watermark, carrier.moved) == (2, [TP])
    assert carrier.changes.work_off()
    assert len(carrier.store.asked) == 1


def test_a_change_that_moves_no_high_watermark_wakes_no_request(carrier: Carrier) -> None:
    partition, pending = expanding()
    carrier.changes.submit(partition, pending)
    carrier.changes.work_off()
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)
    assert carrier.moved == []


def test_a_change_of_unknown_outcome_stays_pending_and_is_retried(carrier: Carrier) -> None:
    partition, pending = shrinking()
    carrier.store.answers = [ZooKeeperUnavailable("gone"), ZooKeeperUnavailable("gone")]
    carrier.changes.submit(partition, pending)
    for _ in range(2):
        assert not carrier.changes.work_off()
        assert partition.isr is pending
        assert partition.high_watermark == 0
    assert carrier.changes.work_off()
    assert carrier.store.asked == [([1, 2], 0)] * 3
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)


@pytest.mark.parametrize("begin", [expanding, shrinking])
def test_a_conflict_leaves_it_pending_until_the_controller_speaks(
    begin: Callable[[], tuple[Partition, PendingIsr]], carrier: Carrier
) -> None:
    partition, pending = begin()
    carrier.store.answers = [PartitionStateConflict(TP, 3, None)]
    carrier.changes.submit(partition, pending)
    assert carrier.changes.work_off()
    assert partition.isr is pending
    assert carrier.store.notified == []
    assert carrier.changes.work_off()
    assert len(carrier.store.asked) == 1
    partition.make_leader(state(epoch=1, isr=(1, 2), partition_epoch=4), 0.0)
    assert partition.isr == CommittedIsr(brokers(1, 2), 4)


def test_a_change_that_was_overtaken_is_not_written(carrier: Carrier) -> None:
    partition, pending = shrinking()
    carrier.changes.submit(partition, pending)
    partition.make_leader(state(epoch=1), 0.0)
    assert carrier.changes.work_off()
    assert carrier.store.asked == []


def test_a_newer_change_of_a_partition_takes_the_place_of_an_older(carrier: Carrier) -> None:
    partition, old = shrinking()
    carrier.store.answers = [ZooKeeperUnavailable("gone")]
    carrier.changes.submit(partition, old)
    carrier.changes.work_off()
    partition.make_leader(state(epoch=1, isr=(1, 2), partition_epoch=1), 0.0)
    append(partition)
    new = partition.propose_shrink(99 * LAG_MS)
    assert new is not None
    carrier.changes.submit(partition, new)
    asked: list[LeadershipState] = []

    def note(tp: TopicPartition, state: LeadershipState, **arguments: Any) -> int:
        asked.append(state)
        return 2

    carrier.store.update_isr = note
    assert carrier.changes.work_off()
    assert [(one.leader_epoch, one.isr) for one in asked] == [(1, (1,))]
    assert partition.isr == CommittedIsr(brokers(1), 2)


def test_a_late_proposal_does_not_replace_a_newer_one(carrier: Carrier) -> None:
    """A thread may be paused between proposing a change and submitting it."""
    partition, old = shrinking()
    partition.make_leader(state(epoch=1, isr=(1, 2), partition_epoch=1), 0.0)
    append(partition)
    new = partition.propose_shrink(99 * LAG_MS)
    assert new is not None
    asked: list[int] = []

    def note(tp: TopicPartition, state: LeadershipState, **arguments: Any) -> int:
        asked.append(state.leader_epoch)
        return 2

    carrier.store.update_isr = note
    carrier.changes.submit(partition, new)
    carrier.changes.submit(partition, old)
    assert carrier.changes.work_off()
    assert asked == [1]
    assert partition.isr == CommittedIsr(brokers(1), 2)


@pytest.mark.parametrize("error", [ZooKeeperUnavailable("gone"), ZeroDivisionError("a bug")])
def test_a_failed_notification_of_the_controller_is_retried(
    carrier: Carrier, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    partition, pending = shrinking()
    carrier.store.notify_answers = [error]
    carrier.changes.submit(partition, pending)
    assert not carrier.changes.work_off()
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)
    assert "ISR changes" in caplog.text
    assert carrier.changes.work_off()
    assert carrier.store.notified == [[TP]]
    assert len(carrier.store.asked) == 1


def test_an_expansion_is_bound_to_the_broker_epoch_of_the_fetch(carrier: Carrier) -> None:
    partition, pending = expanding()
    carrier.changes.submit(partition, pending)
    assert carrier.changes.work_off()
    assert carrier.store.joining == [{TWO: REGISTERED}]


def test_a_joining_replica_that_restarted_does_not_join_and_the_next_change_may_begin(
    carrier: Carrier,
) -> None:
    partition, pending = expanding()
    append(partition, now_ms=10 * LAG_MS)
    assert partition.high_watermark == 2
    carrier.store.answers = [ReplicaNotRegistered("it is registered with epoch 6")]
    carrier.changes.submit(partition, pending)
    assert carrier.changes.work_off()
    assert partition.isr == CommittedIsr(brokers(1), 0)
    assert carrier.store.notified == []
    assert fetched(partition, THREE, 3).may_join_isr


def test_an_unregistered_broker_changes_no_isr(carrier: Carrier) -> None:
    partition, pending = shrinking()
    carrier.store.broker_epoch = None
    carrier.changes.submit(partition, pending)
    assert not carrier.changes.work_off()
    assert (carrier.store.asked, partition.isr) == ([], pending)
    carrier.store.broker_epoch = 18
    assert carrier.changes.work_off()
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)


@pytest.fixture
def started(carrier: Carrier) -> Iterator[Carrier]:
    carrier.changes.start()
    yield carrier
    carrier.changes.stop()


@pytest.mark.parametrize("answers", [[], [ZooKeeperUnavailable("gone")]])
def test_the_thread_writes_submitted_changes_and_retries(
    started: Carrier, answers: list[Exception | None]
) -> None:
    is_notified = threading.Event()
    started.store.notify_isr_change = lambda partitions: is_notified.set()
    started.store.answers = list(answers)
    partition, pending = shrinking()
    started.changes.submit(partition, pending)
    assert is_notified.wait(DEADLINE_S)
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)
    assert len(started.store.asked) == len(answers) + 1


def test_an_unforeseen_error_leaves_the_change_pending_and_the_others_continue(
    carrier: Carrier, caplog: pytest.LogCaptureFixture
) -> None:
    carrier.store.answers = [ZeroDivisionError("a bug")]
    partition, pending = shrinking()
    carrier.changes.submit(partition, pending)
    assert not carrier.changes.work_off()
    assert partition.isr is pending
    assert "cannot be changed" in caplog.text
    assert carrier.changes.work_off()
    assert partition.isr is not pending


def test_a_broken_invariant_in_the_thread_is_fatal(carrier: Carrier) -> None:
    died = threading.Event()
    changes = IsrChanges(
        carrier.store,
        broker_epoch=lambda: carrier.store.broker_epoch,
        now_ms=lambda: 0.0,
        on_high_watermark=carrier.moved.append,
        on_fatal=lambda error: died.set(),
    )
    carrier.store.answers = [InvariantViolation("the program contradicts itself")]
    partition, pending = shrinking()
    changes.start()
    changes.submit(partition, pending)
    assert died.wait(DEADLINE_S)


def test_the_end_of_leadership_settles_changes_and_appends() -> None:
    partition, pending = shrinking()
    appended = append(partition)
    partition.set_offline()
    assert not partition.settle_isr(pending, CommittedIsr(pending.proposed, 1), 0.0)
    settled = partition.acknowledgement(appended)
    assert settled is ErrorCode.NOT_LEADER_OR_FOLLOWER
