"""The promises of transactions over many partitions, from what clients sent, were told and can read.

An `Attempt` is one transaction as its producer sees it. Its fate follows from the committed records and
markers of each partition (`truth`); `log_transactions` compares every replica and every read with those.

Without an epoch for every transaction (version 1) nothing tells a late message of one transaction from one of
the next: see "Torn transactions" in ``docs/decisions/transaction-coordinator.md``. The judge sees such a
message arrive, and excuses only the attempts that it hits: by an EndTxn that is handled after its producer
has gone on with the same epoch, by a marker that ends a later transaction than that of its decision, and by
a commit of offsets that is handled after its producer has gone on with the same epoch.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple

from barnabas.broker.coordinators.groups.records import OffsetRecord, from_bytes
from barnabas.broker.coordinators.transactions.records import TransactionMetadata
from barnabas.broker.coordinators.transactions.rules import LAST_EPOCH
from barnabas.broker.coordinators.transactions.state import DECIDED, TransactionState
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import NO_PRODUCER_ID, TopicPartition
from barnabas.protocol.messages.offsets import OffsetFetchRequest
from barnabas.protocol.messages.produce import InitProducerIdRequest, InitProducerIdResponse
from barnabas.protocol.messages.transactions import (
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tests.simulation.coordinated_judge import CoordinatedJudge
from tests.simulation.coordinated_world import OFFSETS, CoordinatedWorld
from tests.simulation.disk import Entry
from tests.simulation.exactly_once_clients import BRIEF, COMMITTED, DATA
from tests.simulation.log_transactions import Transaction
from tests.simulation.promises import BrokenPromises, Promise
from tests.simulation.timed_world import Token
from tests.simulation.truth import Records

if TYPE_CHECKING:
    from tests.simulation.broker import SimBroker
    from tests.simulation.exactly_once_clients import Producer
    from tests.simulation.truth import Truth


_ENDED_BY_TIME = (TransactionState.PREPARE_EPOCH_FENCE, TransactionState.PREPARE_ABORT)


@dataclass(eq=False)
class Attempt:
    """One transaction of one producer."""

    producer: Producer
    number: int
    epoch: tuple[int, int]
    """The producer's id and epoch."""
    version: int
    began_ms: float
    sent: dict[int, int] = field(default_factory=dict)
    """Value → the moment of its first request."""
    acknowledged: dict[TopicPartition, list[int]] = field(default_factory=lambda: defaultdict(list))
    is_end_sent: bool = False
    is_commit_sent: bool = False
    is_prepared: bool = False
    """Whether its producer was told so: then it ends as was decided, if all that use the id keep it."""
    told: bool | None = None
    """The end that the producer was told: True for a commit."""
    told_ms: float = 0.0
    is_hit: bool = False
    """Whether a late message of version 1 was handled in it."""

    def __str__(self) -> str:
        return f"{self.producer} #{self.number} of version {self.version}"


class About(NamedTuple):
    """A client's note about a request: the moment it was sent, and its transaction."""

    attempt: Attempt | None
    producer: Producer
    at: int


class SentMarker(NamedTuple):
    """A marker of version 1 under way; ``completed`` counts its id's transactions that were complete then."""

    producer_id: int
    epoch: int
    partitions: tuple[TopicPartition, ...]
    completed: int


class Judge(CoordinatedJudge):
    # Mistakes that break G0 break MARKERS or FENCING too.
    promises = frozenset(
        {
            Promise.G1A,
            Promise.G1B,
            Promise.ATOMICITY,
            Promise.COMPLETENESS,
            Promise.FENCING,
            Promise.OFFSETS,
            Promise.ENDS,
            Promise.TIMEOUTS,
            Promise.LEADERS,
            Promise.MARKERS,
            Promise.PRODUCERS,
            Promise.REST,
            Promise.STATES,
        }
    )
    goes_on = True

    def __init__(self, world: CoordinatedWorld) -> None:
        super().__init__(world)
        self.attempts: list[Attempt] = []
        self.prepared: dict[tuple[int, int], Attempt] = {}
        """Id and epoch of a producer → its transaction, which is prepared or perhaps is."""
        self.may_be_left = False
        """Whether a producer may begin that does not keep a prepared transaction, but aborts it."""
        self.seen: dict[TopicPartition, list[int]] = defaultdict(list)
        """The values that the reader of each partition has shown, in order."""
        self.seen_offsets: set[int] = set()
        """The values whose offsets a group has shown."""
        self._attempt_of: dict[int, Attempt] = {}
        self._strays: set[int] = set()
        """Offsets of a late commit of version 1."""
        self._moments = itertools.count()
        self._owners: dict[str, list[tuple[int, Producer]]] = defaultdict(list)
        """Transactional id → the moments of answers to InitProducerId, and who was answered."""
        self._given: dict[tuple[int, int], Producer] = {}
        self._init_ms: dict[str, float] = {}
        """Transactional id → when an InitProducerId, which may abort it, last arrived or was answered."""
        self._waiting_inits: dict[str, set[Token]] = defaultdict(set)

    # Steps of clients

    def begin(self, producer: Producer, number: int, epoch: tuple[int, int]) -> Attempt:
        attempt = Attempt(producer, number, epoch, producer.version, self.world.now_ms)
        self.attempts.append(attempt)
        return attempt

    def about(self, attempt: Attempt | None, producer: Producer) -> About:
        return About(attempt, producer, next(self._moments))

    def sends(self, attempt: Attempt, value: int) -> None:
        attempt.sent.setdefault(value, next(self._moments))
        self._attempt_of[value] = attempt

    def told(self, attempt: Attempt, is_commit: bool) -> None:
        attempt.told, attempt.told_ms = is_commit, self.world.now_ms

    def acknowledged_alone(self, leader: SimBroker, tp: TopicPartition) -> None:
        partition = leader.partition_of(tp)
        assert partition is not None
        text = f"broker {leader.id} acknowledges alone, and another one leads {partition.view()}"
        self.require(Promise.LEADERS, self.world.may_lead_on(leader, partition), text)

    # Requests and answers of brokers

    def arrives(self, token: Token) -> None:
        """A request is handled; one of version 1 may be of an earlier transaction."""
        about: About = token.about
        if isinstance(token.request, InitProducerIdRequest):
            self._init_ms[about.producer.transactional_id] = self.world.now_ms
            self._waiting_inits[about.producer.transactional_id].add(token)
        if isinstance(token.request, EndTxnRequest):
            self._excuse_later(about)
        if isinstance(token.request, TxnOffsetCommitRequest):
            self._note_stray(about)

    def _note_stray(self, about: About) -> None:
        """A late commit of offsets belongs to what its producer has begun since with the same epoch."""
        attempt, present = about.attempt, about.producer.attempt
        assert attempt is not None
        assert present is not None
        if present is not attempt and present.epoch == attempt.epoch:
            self._strays |= attempt.sent.keys()

    def _excuse_later(self, about: About) -> None:
        """A late end may end any transaction that its producer has begun since with the same epoch."""
        assert about.attempt is not None
        for attempt in self.attempts:
            is_later = attempt.producer is about.producer and attempt.number > about.attempt.number
            if is_later and attempt.epoch == about.attempt.epoch:
                assert about.attempt.version == 1, f"{attempt} has the epoch of {about.attempt}"
                attempt.is_hit = True

    def check_answer(self, token: Token, response: Any) -> None:
        if isinstance(token.request, OffsetFetchRequest):
            self._shows_offset(token.broker, token.request, response)
            return
        about: About = token.about
        error = ErrorCode(getattr(response, "error_code", 0))
        self.reached.add(error)
        if isinstance(token.request, InitProducerIdRequest):
            self._init_ms[about.producer.transactional_id] = self.world.now_ms
            self._waiting_inits[about.producer.transactional_id].discard(token)
        if isinstance(token.request, EndTxnRequest):
            # It may have waited in the coordinator.
            self._excuse_later(about)
            # Any process may end a prepared transaction. A deposed coordinator may still answer, from memory,
            # that a transaction has ended; it cannot end one.
            if (
                error is ErrorCode.NONE
                and about.attempt not in self.prepared.values()
                and not self.world.is_deposed_coordinator(token.broker, about.producer.transactional_id)
            ):
                self._check_fence(about.attempt, about.at, "ended")
        if isinstance(token.request, TxnOffsetCommitRequest):
            # It may have waited for the confirmation of its transaction, while a copy was answered.
            self._note_stray(about)
        if isinstance(response, InitProducerIdResponse | EndTxnResponse) and error is ErrorCode.NONE:
            self._check_given((response.producer_id, response.producer_epoch), about.producer)
        if isinstance(response, InitProducerIdResponse) and error is ErrorCode.NONE:
            self._owners[about.producer.transactional_id].append((next(self._moments), about.producer))

    def _check_given(self, given: tuple[int, int], to: Producer) -> None:
        if given[0] == NO_PRODUCER_ID:
            return
        self.require(Promise.PRODUCERS, given[1] <= LAST_EPOCH, f"{given} could not be fenced")
        other = self._given.setdefault(given, to)
        self.require(Promise.PRODUCERS, other is to, f"{given} is given to {other} and to {to}")

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
                self.completed[marker.producer_id],
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
            for name in marker.partitions if self.completed[marker.producer_id] > marker.completed else ():
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

    def _check_move(self, name: str, former: TransactionMetadata, value: TransactionMetadata) -> None:
        """Require that a completed transaction of version 2 has a marker in each of its partitions."""
        super()._check_move(name, former, value)
        if former.state is TransactionState.ONGOING and value.state in _ENDED_BY_TIME:
            self._check_timeout(name, former)
        if former.state not in DECIDED or former.client_transaction_version < 2:
            return
        epoch = former.producer_id, former.producer_epoch - 1
        for truth in self._truths(former.partitions):
            truth.check()
            for one in truth.transactions.all:
                if one.is_open and one.producer_id == epoch[0]:
                    of = {self._attempt_of[value].epoch for value in self._values(truth, one)}
                    text = f"{truth.tp} has no marker of {epoch}, and {name} is complete"
                    self.require(Promise.MARKERS, epoch not in of, text)

    def _check_timeout(self, name: str, former: TransactionMetadata) -> None:
        """Judge the first transaction of an epoch, unless a client may have asked for its end."""
        epoch = former.producer_id, former.producer_epoch
        attempts = [each for each in self.attempts if each.epoch == epoch]
        if not attempts or attempts[0].is_end_sent or self._init_ms.get(name, -1.0) >= attempts[0].began_ms:
            return
        if any(token.life == token.broker.life for token in self._waiting_inits[name]):
            return
        age_ms = self.world.now_ms - attempts[0].began_ms
        text = f"{attempts[0]} is aborted after {age_ms:.0f} ms, its time-out is {former.timeout_ms} ms"
        self.require(Promise.TIMEOUTS, age_ms >= former.timeout_ms, text)

    def _truths(self, names: Iterable[TopicPartition]) -> list[Truth]:
        return [truth for truth in self.world.truths.values() if truth.tp in names]

    # Readers

    def shows(self, tp: TopicPartition, records: Records) -> None:
        """A reader of committed records shows these, which follow those before."""
        for _, entry in records:
            value = value_of(tp, entry)
            self._check_read(value, f"{value} is shown in {tp}")
            self.seen[tp].append(value)
        for attempt in {self._attempt_of[value_of(tp, entry)] for _, entry in records}:
            shown = [value for value in self.seen[tp] if self._attempt_of[value] is attempt]
            whole = attempt.acknowledged[tp]
            # A transaction that began between two of its records, and is still open, hides the later one.
            self.require(
                Promise.G1B,
                shown == whole[: len(shown)] or attempt.is_hit or tp == OFFSETS,
                f"{shown} of {attempt} are shown in {tp}, written were {whole}",
            )

    def _check_read(self, value: int, what: str) -> None:
        attempt = self._attempt_of[value]
        producer = attempt.producer
        is_open = not attempt.is_end_sent and producer.attempt is attempt and not producer.is_gone
        is_excused = attempt.is_hit or value in self._strays
        self.require(Promise.G1B, is_excused or not is_open, f"{what}, and {attempt} is open")

    def _shows_offset(self, broker: SimBroker, request: OffsetFetchRequest, response: Any) -> None:
        """A group shows an offset; if it must be stable, no other may be pending at its coordinator."""
        (group,) = response.groups
        group_id, partitions = group.group_id, [each for topic in group.topics for each in topic.partitions]
        if group.error_code or partitions[0].error_code:
            return
        value = partitions[0].committed_offset
        if value >= 0:
            self._check_read(value, f"{group_id} has {value}")
            self.seen_offsets.add(value)
        if request.require_stable and value not in self._strays:
            self._check_age(broker, group_id, value)
        truth, shard = self.world.truth, self.world.group_shard(broker)
        if not request.require_stable or shard is None or shard.since != truth.state.leader_epoch:
            # A former coordinator does not know of later commits.
            return
        truth.check()
        ended = self._ended_at(broker, truth)
        unmarked = [one for one in truth.transactions.all if one.is_open and one.producer_id not in ended]
        for each in [value for one in unmarked for value in self._values(truth, one)]:
            attempt = self._attempt_of[each]
            # A commit without an answer may be in the log, and the coordinator has forgotten it.
            is_pending = attempt.producer.group == group_id and each in attempt.acknowledged[OFFSETS]
            text = f"{group_id} shows {value} as stable, and {each} of {attempt} is pending"
            self.require(Promise.OFFSETS, not is_pending, text)

    def _check_age(self, broker: SimBroker, group_id: str, value: int) -> None:
        """A coordinator that does not know of later commits was deposed; it may show old ones for a while.

        A late commit of a transaction may follow the others of the same transaction in the log.
        """
        self.world.truth.check()
        places = {each: place for place, each in enumerate(self._committed(self.world.truth))}
        if value >= 0 and value not in places:
            return
        for attempt in self.attempts:
            if attempt.told and not attempt.is_hit and attempt.producer.group == group_id:
                is_older = any(
                    places.get(each, -1) > places.get(value, -1) for each in attempt.acknowledged[OFFSETS]
                )
                text = f"broker {broker.id} shows {value} of {group_id}, {attempt} has committed a later one"
                is_right = not is_older or self.world.is_lately(broker, attempt.told_ms)
                self.require(Promise.LEADERS, is_right, text)

    def _ended_at(self, broker: SimBroker, truth: Truth) -> set[int]:
        """The producers with markers in a broker's log that are not committed yet.

        A coordinator that loads its groups begins with all that its log holds. If the next leader lacks such
        a marker, the transaction's coordinator writes it again, with the outcome that the groups have shown.
        """
        view = broker.disk.view(OFFSETS)
        assert view is not None
        entries = view.between(len(truth.committed), view.log.log_end_offset)
        markers = [entry for entry in entries if entry is not None and entry.commits is not None]
        return {entry.writer for entry in markers if entry.writer is not None}

    # The end

    def faults_of_offsets(self) -> Iterator[str]:
        """The groups that do not have the offset of their last committed transaction."""
        truth = self.world.truth
        committed: dict[str, int] = {}
        for value in self._committed(truth):
            committed[self._attempt_of[value].producer.group] = value
        leader = self.world.brokers[truth.state.leader]
        shard = self.world.group_shard(leader)
        if shard is None:
            yield f"broker {leader.id} coordinates no group"
            return
        groups = {group.group_id: group for group in shard.machines()}
        for group_id, value in committed.items():
            stored = groups[group_id].offsets.get(COMMITTED) if group_id in groups else None
            if stored is None or stored.committed_offset != value:
                yield f"{group_id} has {stored}, committed was {value}"

    def check_end(self) -> None:
        """Raises BrokenPromises for all that the history has broken."""
        truths = self._truths([*DATA, *BRIEF, OFFSETS])
        self._check_order(truths)
        fates: dict[Attempt, dict[bool, set[int]]] = defaultdict(lambda: defaultdict(set))
        placed: Counter[int] = Counter()
        for truth in truths:
            for one in truth.transactions.all:
                for value in self._values(truth, one):
                    attempt = self._attempt_of[value]
                    fates[attempt][not one.is_aborted].add(value)
                    placed[value] += truth.tp != OFFSETS
                    self._check_fence(attempt, attempt.sent[value], f"wrote {value}")
        for value, times in placed.items():
            text = f"{value} of {self._attempt_of[value]} is there {times} times"
            self.require(Promise.COMPLETENESS, times <= 1, text)
        deleted = self._deleted()
        for attempt in self.attempts:
            if not attempt.is_hit:
                self._check_fate(attempt, fates[attempt], deleted)
        for tp in (*DATA, OFFSETS):
            (truth,) = self._truths([tp])
            missing = Counter(self._committed(truth))
            missing.subtract(self.seen[tp])
            for value in self._replaced(truth) if tp == OFFSETS else ():
                # A cleaning may drop it before the reader comes.
                missing[value] = min(0, missing[value])
            for value, times in missing.items():
                self.require(Promise.COMPLETENESS, times <= 0, f"the reader of {tp} has not shown {value}")
                self.require(Promise.G1A, times >= 0, f"the reader of {tp} has shown {value}")
        for value in self.seen_offsets - set(self._committed(self.world.truth)):
            self.require(Promise.OFFSETS, False, f"a group has shown {value}, which is not committed")
        for fault in self.faults_of_offsets():
            self.require(Promise.OFFSETS, False, fault)
        self.reached |= {(attempt.version, attempt.told) for attempt in self.attempts} | self.checked.keys()
        if self.broken:
            raise BrokenPromises(self.broken)

    def _check_order(self, truths: Iterable[Truth]) -> None:
        """Two transactions of one id never mix in a log, and have the same order in all partitions."""
        order: TopologicalSorter[Attempt] = TopologicalSorter()
        for truth in truths:
            last: dict[str, Attempt] = {}
            for one in truth.transactions.all:
                attempts = dict.fromkeys(
                    attempt
                    for value in self._values(truth, one)
                    if not (attempt := self._attempt_of[value]).is_hit and value not in self._strays
                )
                text = f"{truth.tp}: {', '.join(map(str, attempts))} are one transaction, {one}"
                self.require(Promise.G0, len(attempts) <= 1, text)
                for attempt in attempts:
                    former = last.get(attempt.producer.transactional_id, attempt)
                    if former is not attempt:
                        order.add(attempt, former)
                    last[attempt.producer.transactional_id] = attempt
        try:
            order.prepare()
        except CycleError as error:
            self.require(Promise.G0, False, f"{', '.join(map(str, error.args[1]))} follow each other")

    def _values(self, truth: Truth, one: Transaction) -> list[int]:
        return [value_of(truth.tp, truth.committed[offset]) for offset in one.offsets]

    def _committed(self, truth: Truth) -> list[int]:
        """The values of committed transactions."""
        return [
            value
            for one in truth.transactions.all
            if not one.is_aborted
            for value in self._values(truth, one)
        ]

    def _replaced(self, truth: Truth) -> set[int]:
        """The committed offsets of groups that have committed others later."""
        committed = set(self._committed(truth))
        values = [value_of(truth.tp, entry) for entry in truth.committed if entry.commits is None]
        last = {self._attempt_of[value].producer.group: value for value in values if value in committed}
        return committed.difference(last.values())

    def _check_fence(self, attempt: Attempt | None, moment: int, what: str) -> None:
        assert attempt is not None
        owner = self._owner_at(attempt.producer.transactional_id, moment)
        text = f"{attempt} {what} after {owner} had fenced it"
        self.require(Promise.FENCING, owner is attempt.producer, text)

    def _check_fate(self, attempt: Attempt, fates: dict[bool, set[int]], deleted: set[int]) -> None:
        committed, aborted = fates[True] - self._strays, fates[False] - self._strays
        is_torn = bool(committed and aborted)
        text = f"{attempt} is torn: committed {committed}, aborted {aborted}"
        self.require(Promise.ATOMICITY, not is_torn, text)
        if is_torn:
            return
        if attempt.is_prepared and not self.may_be_left:
            is_as_decided = not (aborted if attempt.is_commit_sent else committed)
            text = f"{attempt} was prepared, commit {attempt.is_commit_sent}: {committed}, {aborted}"
            self.require(Promise.ENDS, is_as_decided, text)
        is_committed = attempt.is_commit_sent and attempt.told is not False
        self.require(Promise.G1A, is_committed or not committed, f"{attempt} was not committed: {committed}")
        if attempt.told is True:
            self.require(Promise.COMPLETENESS, not aborted, f"{attempt} was committed, but not {aborted}")
            acknowledged = {value for values in attempt.acknowledged.values() for value in values}
            missing = acknowledged - committed - aborted - deleted - self._strays
            self.require(Promise.COMPLETENESS, not missing, f"{attempt} is committed without {missing}")

    def _deleted(self) -> set[int]:
        """The values that were written to a topic that was deleted, or perhaps were."""
        return {
            value
            for attempt in self.attempts
            for tp in BRIEF
            for value in attempt.acknowledged.get(tp, ())
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
