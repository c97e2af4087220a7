"""Offsets that are committed in transactions: pending until the marker, whatever order the outcomes have."""

import random
import uuid
from dataclasses import replace
from typing import Any

import pytest

from barnabas.broker.coordinators.groups.group import Group
from barnabas.broker.coordinators.groups.offsets import OpenTransactions, TransactionEnd
from barnabas.broker.coordinators.groups.rebalance import GroupState
from barnabas.broker.coordinators.groups.records import OffsetRecord
from barnabas.broker.coordinators.state_machine import Append, TransactionalProducer
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicId, TopicPartition
from tests.support.grouping import GroupRig
from tests.support.transactional_offsets import Entry, replay

E = ErrorCode

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
PRODUCER = TransactionalProducer(5, 0)
UNSTABLE = (-1, E.UNSTABLE_OFFSET_COMMIT)
NOTHING = (-1, E.NONE)


class OffsetsRig(GroupRig):
    """A rig whose index of open transactions the test can look at."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.transactions = OpenTransactions()
        self.group = Group("g", self.config, self.moment(), self.new_id, self.transactions)

    def pend(
        self,
        *partitions: TopicPartition,
        at: int = 10,
        value: int = 7,
        producer: TransactionalProducer = PRODUCER,
    ) -> None:
        """Commit in a transaction; the record is in the log."""
        offsets = {partition: self.offset(value) for partition in partitions or (T0,)}
        self.commit_from_outside(offsets=offsets, producer=producer)
        self.settle(base_offset=at)
        assert set(self.answer("commit").values()) == {E.NONE}

    def store(self, partition: TopicPartition = T0, at: int = 1, value: int = 3) -> None:
        self.commit_from_outside(offsets={partition: self.offset(value)})
        self.settle(base_offset=at)
        assert self.committed_error() is E.NONE

    def end(self, marker_offset: int = 20, *, commit: bool = True, producer_id: int = 5) -> None:
        self.apply(
            lambda group, now: group.transaction_ended(TransactionEnd(producer_id, marker_offset, commit))
        )

    def read(self, partition: TopicPartition = T0) -> tuple[int, ErrorCode]:
        result = self.group.fetch([partition], require_stable=True)[partition]
        return result.committed_offset, ErrorCode(result.error_code)

    def read_any(self, partition: TopicPartition = T0) -> int:
        return self.group.fetch([partition])[partition].committed_offset


@pytest.fixture
def rig() -> OffsetsRig:
    return OffsetsRig()


# ---- until the marker


@pytest.mark.parametrize(("commit", "offset"), [(True, 7), (False, 3)])
def test_an_offset_is_pending_until_the_marker(commit: bool, offset: int, rig: OffsetsRig) -> None:
    rig.store()
    rig.commit_from_outside(offsets={T0: rig.offset(7)}, producer=PRODUCER)
    assert rig.appends[0].producer == PRODUCER
    assert rig.read() == UNSTABLE
    rig.settle(base_offset=10)
    assert rig.committed_error() is E.NONE
    assert (rig.read(), rig.read_any()) == (UNSTABLE, 3)
    assert rig.transactions.groups_of(5) == ["g"]
    rig.end(commit=commit)
    assert (rig.read(), rig.read_any()) == ((offset, E.NONE), offset)
    assert len(rig.transactions) == 0


@pytest.mark.parametrize(("plain_at", "expected"), [(9, 7), (11, 3)])
def test_of_plain_and_transactional_commits_the_later_record_wins(
    plain_at: int, expected: int, rig: OffsetsRig
) -> None:
    rig.pend(at=10)
    rig.store(at=plain_at)
    rig.end(20)
    assert rig.read() == (expected, E.NONE)


# ---- outcomes that come late


def test_a_late_marker_does_not_end_the_next_transaction(rig: OffsetsRig) -> None:
    rig.pend(at=30)
    rig.end(20)
    assert rig.read() == UNSTABLE
    rig.end(40, commit=False)
    assert rig.read() == NOTHING


# ---- fencing


Caller = dict[str, Any]
UNNAMED: Caller = {"member_id": "", "generation_id": -1}


@pytest.mark.parametrize(
    ("caller", "error"),
    [
        ({}, E.NONE),
        (UNNAMED, E.NONE),
        ({"generation_id": 0}, E.ILLEGAL_GENERATION),
        ({"generation_id": -1}, E.ILLEGAL_GENERATION),
        ({"member_id": "gone"}, E.UNKNOWN_MEMBER_ID),
        ({**UNNAMED, "member_id": "gone"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": ""}, E.UNKNOWN_MEMBER_ID),
        ({**UNNAMED, "instance_id": "i"}, E.UNKNOWN_MEMBER_ID),
    ],
)
@pytest.mark.parametrize("state", [GroupState.STABLE, GroupState.PREPARING_REBALANCE])
def test_a_member_that_is_not_current_is_fenced(
    state: GroupState, caller: Caller, error: ErrorCode, rig: OffsetsRig
) -> None:
    rig.stable("m")
    if state is GroupState.PREPARING_REBALANCE:
        rig.join("n")
    assert rig.state is state
    rig.commit("m", producer=PRODUCER, **caller)
    if error is E.NONE:
        rig.settle(base_offset=10)
    assert rig.committed_error() is error


def test_a_replaced_instance_is_fenced(rig: OffsetsRig) -> None:
    rig.stable("m", m={"group_instance_id": "i"})
    former = rig.ids["m"]
    rig.ids["m"] = ""
    rig.join("m", group_instance_id="i")
    rig.commit("m", producer=PRODUCER, member_id=former, instance_id="i")
    assert rig.committed_error() is E.FENCED_INSTANCE_ID


def test_a_generation_without_members_is_unknown(rig: OffsetsRig) -> None:
    rig.commit("m", producer=PRODUCER, generation_id=0)
    assert rig.committed_error() is E.UNKNOWN_MEMBER_ID


def test_a_transactional_commit_is_taken_before_the_assignment_is_known(rig: OffsetsRig) -> None:
    """As in Kafka: the producer ends the transaction before its consumer joins the next rebalance."""
    rig.complete("m")
    rig.commit("m", producer=PRODUCER)
    rig.settle(base_offset=10)
    assert rig.committed_error() is E.NONE
    rig.commit("m")
    assert rig.committed_error() is E.REBALANCE_IN_PROGRESS


# ---- removal and expiry


def test_pending_offsets_of_an_earlier_topic_are_found(rig: OffsetsRig) -> None:
    old, new = TopicId(uuid.UUID(int=1)), TopicId(uuid.UUID(int=2))

    def value(topic_id: TopicId) -> Any:
        return replace(rig.offset(7), topic_id=topic_id)

    rig.commit_from_outside(offsets={T0: value(old), T1: value(old)}, producer=PRODUCER)
    rig.settle(base_offset=10)
    rig.answer("commit")
    rig.commit_from_outside(offsets={T1: value(new)})
    rig.settle(base_offset=11)
    assert rig.group.offsets.of_former_topics(set(), {"t": new}) == [T0]
    assert rig.group.offsets.of_former_topics(set(), {"t": old}) == []


# ---- random histories


class History:
    """Appends that wait for the log and are settled in any order; markers that are reported late and twice.

    As the log and the coordinator of transactions promise: a producer's next transaction begins when the end
    of the last one was reported, and the log refuses records of a transaction that has a marker already. A
    marker may be repeated before it is reported.
    """

    producers = (5, 6, 7)
    partitions = (T0, T1, U0)

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rig = OffsetsRig()
        # The group never dies, because it keeps one offset.
        self.rig.store(TopicPartition("kept", 0), at=-1)
        self.log: list[Entry] = []
        self.queued: list[tuple[Append, dict[int, int]]] = []
        """Appends with the transaction of each producer at that time."""
        self.written: list[tuple[int, ErrorCode, int]] = []
        """Number, error and offset of appends that are not settled."""
        self.number = dict.fromkeys(self.producers, 0)
        """Each producer's transaction."""
        self.ends: list[TransactionEnd] = []
        """Markers that are not reported."""
        self.reported: list[TransactionEnd] = []
        self.tokens = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            draw = self.random.random()
            if draw < 0.35:
                self.commit()
            elif draw < 0.42:
                self.remove()
            elif draw < 0.6:
                self.append()
            elif draw < 0.75:
                self.settle()
            elif draw < 0.85:
                self.mark()
            elif draw < 0.97:
                self.report()
            else:
                self.calm()
        self.calm()

    def commit(self) -> None:
        names = self.random.sample(self.partitions, self.random.randint(1, 3))
        offsets = {name: self.rig.offset(self.random.randrange(1_000)) for name in names}
        producer_id = self.random.choice((None, *self.producers))
        if producer_id in {end.producer_id for end in self.ends}:
            return
        self.tokens += 1
        producer = None if producer_id is None else TransactionalProducer(producer_id, 0)
        self.rig.commit_from_outside(f"c{self.tokens}", offsets=offsets, producer=producer)
        self.take_appends()

    def remove(self) -> None:
        names = self.random.sample(self.partitions, self.random.randint(1, 2))
        self.rig.apply(lambda group, now: group.remove_offsets(names, now))
        self.take_appends()

    def take_appends(self) -> None:
        appends, self.rig.appends = self.rig.appends, []
        self.queued += [(append, dict(self.number)) for append in appends]

    def append(self) -> None:
        """The log takes the oldest append."""
        if not self.queued:
            return
        append, number = self.queued.pop(0)
        producer_id = None if append.producer is None else append.producer.producer_id
        is_refused = producer_id is not None and number[producer_id] != self.number[producer_id]
        if is_refused or (append.number is not None and self.random.random() < 0.1):
            assert append.number is not None
            self.written.append((append.number, E.INVALID_TXN_STATE, -1))
            return
        base_offset = len(self.log)
        for record in append.records:
            assert isinstance(record, OffsetRecord)
            value = None if record.value is None else record.value.committed_offset
            self.log.append(Entry(len(self.log), record.partition, value, producer_id))
        if append.number is not None:
            self.written.append((append.number, E.NONE, base_offset))

    def settle(self) -> None:
        if self.written:
            number, error, offset = self.written.pop(self.random.randrange(len(self.written)))
            self.rig.apply(lambda group, now: group.outbox.settle(number, error, offset, now))

    def mark(self) -> None:
        producer_id = self.random.choice(self.producers)
        is_commit = self.random.random() < 0.6
        unreported = [end.is_commit for end in self.ends if end.producer_id == producer_id]
        if unreported:
            # It is repeated.
            is_commit = unreported[0]
        offset = len(self.log)
        self.log.append(Entry(offset, None, None, producer_id, is_commit))
        self.number[producer_id] += 1
        self.ends.append(TransactionEnd(producer_id, offset, is_commit))

    def report(self) -> None:
        if self.ends:
            end = self.ends.pop(self.random.randrange(len(self.ends)))
            self.reported.append(end)
        elif self.reported:
            end = self.random.choice(self.reported)
        else:
            return
        self.rig.apply(lambda group, now: group.transaction_ended(end))

    def calm(self) -> None:
        """All outcomes and markers are reported: the group agrees with its log."""
        while self.queued:
            self.append()
        while self.written:
            self.settle()
        while self.ends:
            self.report()
        expected = replay(self.log)
        for name in self.partitions:
            assert self.rig.read_any(name) == expected.committed.get(name, -1), name
            assert (self.rig.read(name) == UNSTABLE) == (name in expected.pending), name
        open_producers = {each for pending in expected.pending.values() for each in pending}
        for producer_id in self.producers:
            assert bool(self.rig.transactions.groups_of(producer_id)) == (producer_id in open_producers)


@pytest.mark.parametrize("seed", range(100))
def test_a_group_agrees_with_its_log_after_any_history(seed: int) -> None:
    History(seed).run(60)
