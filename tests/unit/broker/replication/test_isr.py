"""Changes of the ISR: pending until ZooKeeper has them, and safe in each outcome."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from barnabas.broker.replication.followers import CommittedIsr, PendingIsr
from barnabas.broker.replication.isr_changes import IsrChanges
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import (
    NO_BROKER,
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.invariants import InvariantViolation
from barnabas.zookeeper.errors import LeadershipConflict, ReplicaNotRegistered, ZooKeeperUnavailable
from barnabas.zookeeper.znodes import LeadershipState
from tests.support.building import LAG_MS, ME, THREE, TOPIC_ID, TP, TWO, append, fetched, leader_of, state
from tests.support.errors import refused
from tests.support.waiting import DEADLINE_S

REGISTERED = BrokerEpoch(5)


def brokers(*ids: int) -> frozenset[BrokerId]:
    return frozenset(BrokerId(number) for number in ids)


def expanding() -> tuple[Partition, PendingIsr]:
    """Broker 1 leads alone; broker 2 has caught up and is joining."""
    partition = leader_of(1, records=2)
    pending = fetched(partition, TWO, 2).pending
    assert pending is not None
    return partition, pending


def shrinking() -> tuple[Partition, PendingIsr]:
    """Brokers 1, 2 and 3 are in sync; 3 is leaving."""
    partition = leader_of(1, 2, 3, records=2)
    fetched(partition, TWO, 2, now_ms=LAG_MS)
    pending = partition.propose_shrink(LAG_MS + 1)
    assert pending is not None
    return partition, pending


# Growing


def test_the_high_watermark_waits_for_a_replica_that_may_have_joined() -> None:
    partition, pending = expanding()
    append(partition, now_ms=10 * LAG_MS)
    assert partition.high_watermark == 2
    assert partition.settle_isr(pending, CommittedIsr(pending.proposed, 1), 10 * LAG_MS) is False
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)
    assert fetched(partition, TWO, 3, now_ms=10 * LAG_MS).high_watermark_moved


def test_only_one_change_is_pending_at_a_time() -> None:
    partition, pending = expanding()
    assert fetched(partition, THREE, 2).pending is None
    assert partition.propose_shrink(99 * LAG_MS) is None
    partition.settle_isr(pending, CommittedIsr(pending.proposed, 1), 0.0)
    assert fetched(partition, THREE, 2).pending is not None


# Shrinking


def test_the_high_watermark_waits_for_a_replica_that_may_still_be_in_sync() -> None:
    partition, pending = shrinking()
    assert pending.leaving == brokers(3)
    fetched(partition, TWO, 2, now_ms=LAG_MS + 2)
    assert partition.high_watermark == 0
    assert partition.settle_isr(pending, CommittedIsr(pending.proposed, 1), LAG_MS + 2)
    assert partition.high_watermark == 2


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
    """Records each request, and raises the errors that the test has put into its lists."""

    def __init__(self) -> None:
        self.written: list[tuple[list[int], int]] = []
        self.joining: list[dict[int, int]] = []
        self.errors: list[Exception] = []
        self.states: dict[TopicPartition, LeadershipState] = {}
        self.notified: list[list[TopicPartition]] = []
        self.notify_errors: list[Exception] = []
        self.broker_epoch: int | None = 17
        self.leader_epoch = 0
        self.topic_id = NO_TOPIC_ID

    def update_isr(
        self,
        tp: TopicPartition,
        state: LeadershipState,
        *,
        joining: Mapping[int, int],
        broker_epoch: int,
        topic_id: object,
    ) -> int:
        assert (broker_epoch, topic_id) == (self.broker_epoch, self.topic_id)
        assert (tp, state.leader, state.controller_epoch) == (TP, ME, 1)
        assert state.leader_epoch == self.leader_epoch
        self.joining.append(dict(joining))
        self.written.append((list(state.isr), state.partition_epoch))
        if self.errors:
            raise self.errors.pop(0)
        return state.partition_epoch + 1

    def leadership(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, LeadershipState]:
        if self.errors:
            raise self.errors.pop(0)
        return {name: self.states[name] for name in partitions if name in self.states}

    def notify_isr_change(self, partitions: Sequence[TopicPartition]) -> None:
        if self.notify_errors:
            raise self.notify_errors.pop(0)
        self.notified.append(list(partitions))

    def notify_log_dir_failure(self, broker: BrokerId) -> None:
        raise AssertionError("no disk fails here")


class Carrier:
    """`IsrChanges` over a `Store`; its thread is not started."""

    def __init__(self) -> None:
        self.store = Store()
        self.moved: list[TopicPartition] = []
        self.deposed: list[TopicPartition] = []
        self.fatal: list[BaseException] = []
        self.changes = IsrChanges(
            self.store,
            broker_epoch=lambda: self.store.broker_epoch,
            now_ms=lambda: LAG_MS + 1,
            on_high_watermark=self.moved.append,
            on_deposed=lambda name, _: self.deposed.append(name),
            on_fatal=self.fatal.append,
        )

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.changes.shrinks, self.changes.expands, self.changes.failures


@pytest.fixture
def carrier() -> Carrier:
    return Carrier()


def test_a_change_is_written_committed_and_notified(carrier: Carrier) -> None:
    partition, pending = shrinking()
    partition.log.topic_id = carrier.store.topic_id = TopicId(TOPIC_ID)
    carrier.changes.submit(partition, pending)
    assert carrier.changes.work_off()
    assert carrier.store.written == [([1, 2], 0)]
    assert carrier.store.notified == [[TP]]
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)
    assert (partition.high_watermark, carrier.moved) == (2, [TP])
    assert carrier.changes.work_off()
    assert (len(carrier.store.written), carrier.counts) == (1, (1, 0, 0))


def test_an_expansion_is_written_with_the_broker_epoch_of_the_fetch(carrier: Carrier) -> None:
    partition, pending = expanding()
    carrier.changes.submit(partition, pending)
    assert carrier.changes.work_off()
    assert carrier.store.joining == [{TWO: REGISTERED}]
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)
    assert carrier.moved == [], "the high watermark did not move"
    assert carrier.counts == (0, 1, 0)


@pytest.mark.parametrize(
    "error",
    [
        ZooKeeperUnavailable("gone"),
        ZeroDivisionError("a bug"),
        # The topic was removed by hand, and is restored later.
        LeadershipConflict(TP, 0, None),
    ],
)
def test_a_change_of_unknown_outcome_stays_pending_and_is_retried(
    carrier: Carrier, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    partition, pending = shrinking()
    carrier.store.errors, carrier.store.notify_errors = [error, error], [error]
    carrier.changes.submit(partition, pending)
    for _ in range(2):
        assert not carrier.changes.work_off()
        assert partition.isr is pending
        assert partition.high_watermark == 0
    # The change is written, but the controller must still be notified.
    assert not carrier.changes.work_off()
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)
    assert "notify the controller of ISR changes" in caplog.text
    assert carrier.changes.work_off()
    assert carrier.store.notified == [[TP]]
    assert carrier.store.written == [([1, 2], 0)] * 3


@pytest.mark.parametrize("begin", [expanding, shrinking])
def test_after_a_conflict_a_change_stays_pending_until_the_controllers_next_request(
    begin: Callable[[], tuple[Partition, PendingIsr]], carrier: Carrier
) -> None:
    partition, pending = begin()
    carrier.store.errors = [LeadershipConflict(TP, 3, led_by_zookeeper(ME, 0))]
    carrier.changes.submit(partition, pending)
    assert carrier.changes.work_off()
    assert partition.isr is pending
    assert carrier.store.notified == []
    assert carrier.changes.work_off()
    assert (len(carrier.store.written), carrier.counts) == (1, (0, 0, 1))
    partition.make_leader(state(epoch=1, isr=(1, 2), partition_epoch=4), 0.0)
    assert partition.isr == CommittedIsr(brokers(1, 2), 4)


def led_by_zookeeper(leader: BrokerId, epoch: int) -> LeadershipState:
    return LeadershipState(
        leader=leader,
        leader_epoch=LeaderEpoch(epoch),
        isr=(ME, TWO),
        controller_epoch=ControllerEpoch(2),
        partition_epoch=3,
    )


@pytest.mark.parametrize(
    ("leader", "epoch", "is_deposed"),
    [(TWO, 1, True), (NO_BROKER, 1, True), (ME, 1, False), (ME, 0, False)],
)
@pytest.mark.parametrize("how", ["conflict", "question"])
def test_another_leader_in_zookeeper_deposes_this_one(
    carrier: Carrier, how: str, leader: BrokerId, epoch: int, is_deposed: bool
) -> None:
    """The controller may not be able to reach this broker."""
    partition, pending = shrinking()
    present = led_by_zookeeper(leader, epoch)
    if how == "conflict":
        carrier.store.errors = [LeadershipConflict(TP, 0, present)]
        carrier.changes.submit(partition, pending)
    else:
        carrier.store.states = {TP: present}
        carrier.changes.confirm(partition)
    assert carrier.changes.work_off()
    assert carrier.deposed == [TP] * is_deposed
    assert partition.is_leader is not is_deposed
    if is_deposed:
        assert (partition.leader, partition.leader_epoch) == (leader, epoch)
        # A late request of the former epoch must not make it lead again.
        with refused(ErrorCode.STALE_CONTROLLER_EPOCH):
            partition.make_leader(state(isr=(1, 2)), 0.0)
        assert partition.make_follower(state(leader=2, epoch=1))
    else:
        assert partition.isr is pending
        assert partition.is_proven(2 * LAG_MS, LAG_MS), "as of the question or the conflict"


def test_a_question_that_is_not_answered_proves_nothing(carrier: Carrier) -> None:
    partition = leader_of(1, 2)
    carrier.store.states = {TP: led_by_zookeeper(ME, 0)}
    carrier.store.errors = [ZooKeeperUnavailable("gone")]
    carrier.changes.confirm(partition)
    assert carrier.changes.work_off()
    assert not partition.is_proven(2 * LAG_MS, LAG_MS)
    carrier.changes.confirm(partition)
    assert carrier.changes.work_off()
    assert partition.is_proven(2 * LAG_MS, LAG_MS)


@pytest.mark.parametrize("is_late", [False, True], ids=["retried", "submitted late"])
def test_an_older_proposal_does_not_replace_the_newest(carrier: Carrier, is_late: bool) -> None:
    """A thread may be paused between proposing a change and submitting it."""
    partition, old = shrinking()
    if not is_late:
        carrier.store.errors = [ZooKeeperUnavailable("gone")]
        carrier.changes.submit(partition, old)
        carrier.changes.work_off()
    partition.make_leader(state(epoch=1, isr=(1, 2), partition_epoch=1), 0.0)
    carrier.store.leader_epoch = 1
    append(partition)
    new = partition.propose_shrink(99 * LAG_MS)
    assert new is not None
    carrier.changes.submit(partition, new)
    if is_late:
        carrier.changes.submit(partition, old)
    assert carrier.changes.work_off()
    assert carrier.store.written == [*[([1, 2], 0)] * (not is_late), ([1], 1)]
    assert partition.isr == CommittedIsr(brokers(1), 2)


def test_a_joining_replica_that_restarted_does_not_join_and_the_next_change_may_begin(
    carrier: Carrier,
) -> None:
    partition, pending = expanding()
    append(partition, now_ms=10 * LAG_MS)
    assert partition.high_watermark == 2
    carrier.store.errors = [ReplicaNotRegistered("it is registered with epoch 6")]
    carrier.changes.submit(partition, pending)
    assert carrier.changes.work_off()
    assert partition.isr == CommittedIsr(brokers(1), 0)
    assert (carrier.store.notified, carrier.counts) == ([], (0, 0, 1))
    assert (partition.high_watermark, carrier.moved) == (3, [TP])
    assert fetched(partition, THREE, 3).pending is not None


def test_an_unregistered_broker_changes_no_isr(carrier: Carrier) -> None:
    partition, pending = shrinking()
    carrier.store.broker_epoch = None
    carrier.changes.submit(partition, pending)
    assert not carrier.changes.work_off()
    assert (carrier.store.written, partition.isr) == ([], pending)
    carrier.store.broker_epoch = 18
    assert carrier.changes.work_off()
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)


def test_a_broken_invariant_is_not_retried(carrier: Carrier) -> None:
    carrier.store.errors = [InvariantViolation("the program contradicts itself")]
    carrier.changes.submit(*shrinking())
    with pytest.raises(InvariantViolation):
        carrier.changes.work_off()


def test_the_thread_writes_submitted_changes_and_retries(carrier: Carrier) -> None:
    is_notified = threading.Event()
    carrier.store.notify_isr_change = lambda partitions: is_notified.set()
    carrier.store.errors = [ZooKeeperUnavailable("gone")]
    partition, pending = shrinking()
    carrier.changes.start()
    carrier.changes.submit(partition, pending)
    assert is_notified.wait(DEADLINE_S)
    carrier.changes.stop()
    assert partition.isr == CommittedIsr(brokers(1, 2), 1)
    assert len(carrier.store.written) == 2
