"""The promises of transactions over many partitions, from what clients sent, were told and can read.

An `Attempt` is one transaction as its producer sees it. Its fate follows from the committed records and
markers of each partition (`truth`); `log_transactions` compares every replica and every read with those.

Without an epoch for every transaction (version 1) nothing tells a late message of one transaction from one of
the next: see "Torn transactions" in ``docs/decisions/transaction-coordinator.md``. The judge sees such a
message arrive, and excuses only the attempts that it hits: by an EndTxn that is handled after its producer
has gone on, by a marker that ends a later transaction than that of its decision, and by a commit of offsets
that is handled after its producer has gone on.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from barnabas.broker.coordinators.group_records import OffsetRecord, from_bytes
from barnabas.broker.coordinators.transaction_records import TransactionMetadata, read_key, read_value
from barnabas.broker.coordinators.transaction_state import IDLE, TransactionState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.produce import InitProducerIdResponse
from barnabas.protocol.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tests.simulation.disk import Entry
from tests.simulation.exactly_once_world import BRIEF, COMMITTED, DATA, OFFSETS, STATES
from tests.simulation.log_transactions import Transaction
from tests.simulation.timed_world import Token
from tests.simulation.truth import Records

if TYPE_CHECKING:
    from tests.simulation.broker import SimBroker
    from tests.simulation.exactly_once_clients import Producer
    from tests.simulation.exactly_once_world import ExactlyOnceWorld
    from tests.simulation.truth import Truth

COMPLETE: Final = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


@dataclass(eq=False)
class Attempt:
    """One transaction of one producer."""

    producer: Producer
    number: int
    sent: dict[int, int] = field(default_factory=dict)
    """Value → the moment of its first request."""
    acknowledged: dict[TopicPartition, list[int]] = field(default_factory=lambda: defaultdict(list))
    is_commit_sent: bool = False
    told: bool | None = None
    """The end that the producer was told: True for a commit."""
    is_hit: bool = False
    """Whether a late message of version 1 was handled in it."""

    def __str__(self) -> str:
        return f"{self.producer} #{self.number}"


class About(NamedTuple):
    """What a client says of a request: which moment it is from, and which transaction."""

    attempt: Attempt | None
    producer: Producer
    at: int


class SentMarker(NamedTuple):
    """A marker of version 1 under way; ``completed`` counts its id's transactions that were complete then."""

    producer_id: int
    epoch: int
    partitions: tuple[TopicPartition, ...]
    completed: int


class Judge:
    def __init__(self, world: ExactlyOnceWorld) -> None:
        self.world = world
        self.attempts: list[Attempt] = []
        self.errors: set[ErrorCode] = set()
        self.stored: dict[str, TransactionMetadata] = {}
        """Transactional id → its last committed record."""
        self.seen: dict[TopicPartition, list[int]] = defaultdict(list)
        """The values that the reader of each partition has shown, in order."""
        self._attempt_of: dict[int, Attempt] = {}
        self._strays: set[int] = set()
        """Offsets of a late commit of version 1."""
        self._moments = itertools.count()
        self._owners: dict[str, list[tuple[int, Producer]]] = defaultdict(list)
        """Transactional id → the moments of answers to InitProducerId, and who was answered."""
        self._given: dict[tuple[int, int], Producer] = {}
        self._completed: Counter[int] = Counter()
        """Producer id → the number of its committed completions."""
        self._read_states = dict.fromkeys(STATES, 0)

    # Steps of clients

    def begin(self, producer: Producer, number: int) -> Attempt:
        attempt = Attempt(producer, number)
        self.attempts.append(attempt)
        return attempt

    def about(self, attempt: Attempt | None, producer: Producer) -> About:
        return About(attempt, producer, next(self._moments))

    def sends(self, attempt: Attempt, value: int) -> None:
        attempt.sent.setdefault(value, next(self._moments))
        self._attempt_of[value] = attempt

    # Requests and answers of brokers

    def arrives(self, token: Token) -> None:
        """A request is handled; one of version 1 may be of an earlier transaction."""
        about: About = token.about
        if isinstance(token.request, EndTxnRequest) and about.producer.version == 1:
            self._excuse_later(about)
        if isinstance(token.request, TxnOffsetCommitRequest) and about.producer.version == 1:
            assert about.attempt is not None
            if about.producer.attempt is not about.attempt:
                self._strays |= about.attempt.sent.keys()

    def _excuse_later(self, about: About) -> None:
        """A late end may end any transaction that its producer has begun since."""
        assert about.attempt is not None
        for attempt in self.attempts:
            if attempt.producer is about.producer and attempt.number > about.attempt.number:
                attempt.is_hit = True

    def check_answer(self, token: Token, response: Any) -> None:
        about: About = token.about
        error = ErrorCode(getattr(response, "error_code", 0))
        self.errors.add(error)
        if isinstance(token.request, EndTxnRequest):
            if about.producer.version == 1:
                # It may have waited in the coordinator.
                self._excuse_later(about)
            if error is ErrorCode.NONE:
                owner = self._owner_at(about.producer.transactional_id, about.at)
                assert owner is about.producer, f"{about.attempt} ended after {owner} had fenced it"
        if isinstance(response, InitProducerIdResponse | EndTxnResponse) and error is ErrorCode.NONE:
            producer = response.producer_id, response.producer_epoch
            other = self._given.setdefault(producer, about.producer)
            assert other is about.producer, f"{producer} is given to {other} and to {about.producer}"
        if isinstance(response, InitProducerIdResponse) and error is ErrorCode.NONE:
            self._owners[about.producer.transactional_id].append((next(self._moments), about.producer))

    def _owner_at(self, transactional_id: str, moment: int) -> Producer | None:
        """The producer whose InitProducerId was the last to be answered before a moment."""
        answered = [owner for at, owner in self._owners[transactional_id] if at < moment]
        return answered[-1] if answered else None

    # Late markers of version 1

    def sent_markers(self, request: Any) -> list[SentMarker]:
        if not isinstance(request, WriteTxnMarkersRequest):
            return []
        self.read_states()
        return [
            SentMarker(
                marker.producer_id,
                marker.producer_epoch,
                tuple(
                    TopicPartition(topic.name, index)
                    for topic in marker.topics
                    for index in topic.partition_indexes
                ),
                self._completed[marker.producer_id],
            )
            for marker in request.markers
            if marker.transaction_version < 2
        ]

    def late_markers(self, broker: SimBroker, sent: list[SentMarker]) -> list[tuple[SentMarker, Any, int]]:
        """The ongoing transactions that these markers would end and do not belong to: their first offsets."""
        if not sent:
            return []
        self.read_states()
        hit = []
        for marker in sent:
            for name in marker.partitions if self._completed[marker.producer_id] > marker.completed else ():
                log = broker.logs.get(name)
                if log is not None and log.producers.has_ongoing_transaction(
                    marker.producer_id, marker.epoch
                ):
                    hit.append((marker, log, log.log_end_offset))
        return hit

    def markers_written(self, broker: SimBroker, hit: Iterable[tuple[SentMarker, Any, int]]) -> None:
        """Excuse the attempts whose transactions were ended by those late markers."""
        for marker, log, end in hit:
            if log.producers.has_ongoing_transaction(marker.producer_id, marker.epoch):
                continue
            view = broker.disk.view(log.topic_partition, log.topic_id)
            entries = [] if view is None else view.between(log.log_start_offset, end)
            for entry in reversed(entries):
                if entry is None or entry.writer != marker.producer_id:
                    continue
                if entry.commits is not None:
                    break
                if (attempt := self._attempt_of.get(value_of(log.topic_partition, entry))) is not None:
                    attempt.is_hit = True

    # The log of the coordinators

    def read_states(self) -> None:
        """Read the committed records of transactional ids."""
        for truth in self._truths(STATES):
            truth.check()
            at = self._read_states[truth.tp]
            for entry in truth.committed[at:]:
                assert entry.key is not None
                assert isinstance(entry.value, bytes), f"{entry} has no value"
                value = read_value(entry.value)
                self.stored[read_key(entry.key)] = value
                if value.state in COMPLETE:
                    self._completed[value.producer_id] += 1
            self._read_states[truth.tp] = len(truth.committed)

    def _truths(self, names: Iterable[TopicPartition]) -> list[Truth]:
        return [truth for truth in self.world.truths.values() if truth.tp in names]

    # Readers

    def shows(self, tp: TopicPartition, records: Records) -> None:
        """A reader of committed records shows these, which follow those before."""
        for _, entry in records:
            value = value_of(tp, entry)
            attempt = self._attempt_of[value]
            assert attempt.is_commit_sent or attempt.is_hit, f"{value} of {attempt} is shown: not committed"
            self.seen[tp].append(value)
        for attempt in {self._attempt_of[value_of(tp, entry)] for _, entry in records}:
            shown = [value for value in self.seen[tp] if self._attempt_of[value] is attempt]
            whole = attempt.acknowledged[tp]
            # A transaction that began between two of its records, and is still open, hides the later one.
            assert shown == whole[: len(shown)] or attempt.is_hit or tp == OFFSETS, (
                f"{shown} of {attempt} are shown in {tp}, written were {whole}"
            )

    # The end

    def check_at_rest(self) -> None:
        """Every transaction is decided, complete, and below the last stable offset."""
        world = self.world
        self.read_states()
        for transactional_id, stored in self.stored.items():
            assert stored.state in IDLE, f"{transactional_id} is {stored}"
        for broker in world.brokers.values():
            for partition in broker.replicas.partitions():
                assert partition.last_stable_offset == partition.high_watermark, (
                    f"broker {broker.id}: {partition.view()} is not stable"
                )
            assert world.parts[broker.id].are_at_rest, f"broker {broker.id} has markers or questions left"
        self._check_offsets()
        world.forget_lost_requests()
        assert not world.waiting, f"not answered: {[token.request for token in world.waiting]}"

    def _check_offsets(self) -> None:
        """Each group has the offset of its last committed transaction, and none is pending."""
        (truth,) = self._truths([OFFSETS])
        committed: dict[str, int] = {}
        for one in truth.transactions.all:
            for value in [] if one.is_aborted else self._values(truth, one):
                transactional_id = self._attempt_of[value].producer.transactional_id
                committed[f"g-{transactional_id}"] = value
        leader = self.world.brokers[truth.state.leader]
        shard = self.world.parts[leader.id].groups.shards.get(OFFSETS.partition)
        assert shard is not None, f"broker {leader.id} coordinates no group"
        groups = {group.group_id: group for group in shard.machines()}
        for group_id, value in committed.items():
            offsets = groups[group_id].offsets if group_id in groups else None
            stored = None if offsets is None else offsets.get(COMMITTED)
            assert stored is not None, f"{group_id} has no offset, committed was {value}"
            assert stored.committed_offset == value, f"{group_id} has {stored}, committed was {value}"

    def check_end(self) -> None:
        fates: dict[Attempt, dict[bool, set[int]]] = defaultdict(lambda: defaultdict(set))
        placed: Counter[int] = Counter()
        for truth in self._truths([*DATA, BRIEF, OFFSETS]):
            for one in truth.transactions.all:
                for value in self._values(truth, one):
                    attempt = self._attempt_of[value]
                    fates[attempt][not one.is_aborted].add(value)
                    placed[value] += truth.tp != OFFSETS
                    self._check_fence(attempt, value)
        for value, times in placed.items():
            assert times <= 1, f"{value} of {self._attempt_of[value]} is there {times} times"
        deleted = self._deleted()
        for attempt in self.attempts:
            if not attempt.is_hit:
                self._check_fate(attempt, fates[attempt], deleted)
        for tp in (*DATA, OFFSETS):
            (truth,) = self._truths([tp])
            committed = [
                value
                for one in truth.transactions.all
                if not one.is_aborted
                for value in self._values(truth, one)
            ]
            assert sorted(self.seen[tp]) == sorted(committed), f"the reader of {tp} has not shown all"

    def _values(self, truth: Truth, one: Transaction) -> list[int]:
        return [value_of(truth.tp, truth.committed[offset]) for offset in one.offsets]

    def _check_fence(self, attempt: Attempt, value: int) -> None:
        owner = self._owner_at(attempt.producer.transactional_id, attempt.sent[value])
        assert owner is attempt.producer, f"{value} of {attempt} was written after {owner} had fenced it"

    def _check_fate(self, attempt: Attempt, fates: dict[bool, set[int]], deleted: set[int]) -> None:
        committed, aborted = fates[True] - self._strays, fates[False] - self._strays
        assert not (committed and aborted), f"{attempt} is torn: committed {committed}, aborted {aborted}"
        assert attempt.is_commit_sent or not committed, f"{attempt} was not committed: {committed}"
        if attempt.told is False:
            assert not committed, f"{attempt} was aborted: {committed}"
        if attempt.told is True:
            assert not aborted, f"{attempt} was committed: {aborted}"
            acknowledged = {value for values in attempt.acknowledged.values() for value in values}
            missing = acknowledged - committed - deleted - self._strays
            assert not missing, f"{attempt} is committed without {missing}"

    def _deleted(self) -> set[int]:
        """The values that were written to a topic that was deleted, or perhaps were."""
        return {
            value
            for attempt in self.attempts
            for value in attempt.acknowledged.get(BRIEF, ())
            if self.world.past_truths
        }


def value_of(tp: TopicPartition, entry: Entry) -> int:
    """The value of a record; a commit of offsets has it in its metadata."""
    if tp != OFFSETS:
        assert isinstance(entry.value, int)
        return entry.value
    assert entry.key is not None
    assert isinstance(entry.value, bytes)
    record = from_bytes(entry.key, entry.value)
    assert isinstance(record, OffsetRecord), record
    assert record.value is not None
    return int(record.value.metadata)
