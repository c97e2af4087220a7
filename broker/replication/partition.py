"""One replica of one partition on this broker: leader, follower, or neither yet.

It owns the state that several threads use, guarded by one lock per partition: IO workers append and read, the
fetcher thread appends fetched records, the ISR thread proposes and commits changes of the ISR, the scheduler
removes lagging replicas. Only the append itself may block while the lock is held.

Guarantees:

- log start ≤ last stable offset ≤ high watermark ≤ log end offset, checked whenever one of them moves;
- the high watermark moves on five occasions: an append, a follower's fetch, becoming leader, an ISR change,
  the periodic check of the ISR. It only rises, except that a truncation lowers it to the log's end;
- the controller gives the role in a leader epoch; a request of an older or newer epoch than this replica's is
  refused (KIP-320). A leader that continues in a later epoch has led since its first one: its log was not
  truncated, so its earlier appends are still in it;
- a reader with read_committed gets the aborted transactions of exactly the records that it gets: it drops all
  records of a producer from the first offset of an aborted transaction to its marker, so a transaction whose
  marker it does not get would hide the later records of that producer.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Mapping
from enum import Enum
from time import monotonic
from typing import Final, NamedTuple

from barnabas.broker.log.appending import AppendResult, ProducedBatches, first_base_offset
from barnabas.broker.log.log import Log
from barnabas.broker.log.lookups import look_up
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.producer_state import AppendOrigin, VerificationGuards
from barnabas.broker.log.record_checks import prepare_records
from barnabas.broker.log.segment import ReadResult
from barnabas.broker.log.transaction_index import AbortedTransaction
from barnabas.broker.replication import rules
from barnabas.broker.replication.followers import (
    CommittedIsr,
    FollowerStates,
    FollowerView,
    IsrState,
    PendingIsr,
)
from barnabas.broker.replication.near_replicas import NearConsumer
from barnabas.broker.replication.rules import EpochEnd
from barnabas.broker.replication.slow_disks import SLOW_APPEND_S, SLOW_DISK_S, SlowDisks
from barnabas.protocol.errors import ApiError, ErrorCode, OffsetOutOfRangeError, api_error
from barnabas.protocol.ids import (
    NO_BROKER,
    NO_CONTROLLER_EPOCH,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.invariants import check_offset_order, invariant
from barnabas.protocol.messages.inter_broker import LeaderAndIsrPartition
from barnabas.protocol.record_batch import LOG_OVERHEAD_BYTES
from barnabas.protocol.record_walk import MAX_UNPACKED_BYTES

EVER: Final = LeaderEpoch(1 << 31)
"""For ``since``: the caller does not mind when this replica came to lead."""

EMPTY: Final = memoryview(b"")
_NO_ERROR: Final = ErrorCode.NONE
_CLIENT: Final = AppendOrigin.CLIENT


class Role(Enum):
    """A replica starts with no role and gets one from the controller."""

    NONE = "none"
    LEADER = "leader"
    FOLLOWER = "follower"


class Isolation(Enum):
    """How far a reader may read; 0 and up are the values of Kafka's protocol, -1 is ours."""

    FOLLOWER = -1
    """To the log end offset."""
    READ_UNCOMMITTED = 0
    """To the high watermark."""
    READ_COMMITTED = 1
    """To the last stable offset."""

    @classmethod
    def of_consumer(cls, isolation_level: int) -> Isolation:
        return _READ_COMMITTED if isolation_level == 1 else _READ_UNCOMMITTED


# Looking up a member of an Enum takes 0.3 µs in Python 3.11.
_LEADER: Final = Role.LEADER
_FOLLOWER: Final = Isolation.FOLLOWER
_READ_UNCOMMITTED: Final = Isolation.READ_UNCOMMITTED
_READ_COMMITTED: Final = Isolation.READ_COMMITTED


class PartitionRead(NamedTuple):
    """The result of reading one partition, from the log to the answer.

    With an ``error`` it has nothing else but, with OFFSET_OUT_OF_RANGE, ``log_start_offset``: a follower with
    a lower offset restarts there. ``diverging`` is set instead of records (KIP-595). ``end_offset`` is where
    the reader's isolation ends. ``has_more``: not all records below it were read. ``is_cold``: there are
    records that could not be read without waiting for the disk. ``is_without_records``: a consumer has read
    all records, and the batches here hold none for it. ``aborted_transactions``: those among the records;
    None unless the reader's isolation is read_committed. ``preferred_read_replica`` is set instead of records
    if the consumer should read there (KIP-392).
    """

    records: memoryview
    high_watermark: Offset = NO_OFFSET
    last_stable_offset: Offset = NO_OFFSET
    log_start_offset: Offset = NO_OFFSET
    log_end_offset: Offset = NO_OFFSET
    end_offset: Offset = NO_OFFSET
    diverging: EpochEnd | None = None
    is_cold: bool = False
    has_more: bool = False
    is_without_records: bool = False
    aborted_transactions: list[AbortedTransaction] | None = None
    preferred_read_replica: BrokerId = NO_BROKER
    error: ErrorCode = _NO_ERROR

    @classmethod
    def failed(cls, error: ErrorCode, log_start_offset: Offset = NO_OFFSET) -> PartitionRead:
        return cls(EMPTY, log_start_offset=log_start_offset, error=error)

    @property
    def is_urgent(self) -> bool:
        """Whether it must be answered at once, although it has no records."""
        return bool(self.error) or self.diverging is not None or self.preferred_read_replica != NO_BROKER


class FollowerProgress(NamedTuple):
    """The changes by a follower's fetch; ``pending`` is to be submitted to `IsrChanges`."""

    high_watermark_moved: bool
    pending: PendingIsr | None


class FollowerPosition(NamedTuple):
    """The fields of a partition in a follower's fetch; ``last_epoch`` is -1 without records."""

    leader_epoch: LeaderEpoch
    log_end_offset: Offset
    last_epoch: LeaderEpoch
    log_start_offset: Offset
    topic_id: TopicId


class ReplicaView(NamedTuple):
    """A replica at one moment, for operators and for tests; only a leader has ``followers``."""

    partition: TopicPartition
    role: Role
    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: IsrState
    replicas: tuple[BrokerId, ...]
    log_start_offset: Offset
    last_stable_offset: Offset
    high_watermark: Offset
    log_end_offset: Offset
    size_bytes: int
    followers: Mapping[BrokerId, FollowerView]


class Partition:
    """``max_lag_ms`` is ``replica.lag.time.max.ms``; times are monotonic milliseconds.

    The public attributes are changed under the lock, and each may be read without it. The append lock is
    taken first by everything that changes the records or the role, except `learn_leader`, which may not wait
    for a disk. An append that waits for a slow disk holds it alone: reads, followers' fetches and
    acknowledgements need the other one only.
    """

    def __init__(
        self,
        partition: TopicPartition,
        broker_id: BrokerId,
        log: Log,
        *,
        high_watermark: Offset,
        max_lag_ms: float,
        min_insync_replicas: int,
        is_min_isr_strict: bool = False,
        slow_disks: SlowDisks | None = None,
    ) -> None:
        self.partition = partition
        self.role = Role.NONE
        self.leader = NO_BROKER
        self.leader_epoch = NO_LEADER_EPOCH
        self.told_epoch = NO_LEADER_EPOCH
        """The epoch of the controller's last LeaderAndIsr; `leader_epoch` may be a later one of ZooKeeper."""
        self.controller_epoch = NO_CONTROLLER_EPOCH
        self.leading_since = NO_LEADER_EPOCH
        """The epoch in which this replica last became leader; its log is not truncated while it leads on."""
        self.broker_id = broker_id
        self._refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        """The error of requests that need a leader, while this replica does not lead."""
        self.replicas: tuple[BrokerId, ...] = ()
        self.adding: tuple[BrokerId, ...] = ()
        """The replicas that a reassignment adds."""
        self.is_reassigning = False
        self._append_lock = threading.Lock()
        self._lock = threading.Lock()
        self._followers = FollowerStates(broker_id, max_lag_ms)
        self.log = log
        self._slow_disks = slow_disks or SlowDisks()
        self._slow_until_s = 0.0
        self.min_insync_replicas = min_insync_replicas
        self._is_min_isr_strict = is_min_isr_strict
        self._set_high_watermark(Offset(min(max(high_watermark, log.log_start_offset), log.log_end_offset)))

    @property
    def is_leader(self) -> bool:
        return self.role is _LEADER

    @property
    def is_added(self) -> bool:
        """Whether a reassignment adds this replica."""
        return self.broker_id in self.adding

    @property
    def log_end_offset(self) -> Offset:
        return self.log.log_end_offset

    @property
    def isr(self) -> IsrState:
        return self._followers.isr

    @property
    def leader_epoch_start_offset(self) -> Offset:
        """Where the log ended when this replica last began to lead in a new epoch."""
        return self._followers.leader_epoch_start_offset

    @property
    def effective_min_isr(self) -> int:
        """The in-sync replicas that acks=all demands; as in Kafka, no more than the partition has."""
        return min(self.min_insync_replicas, len(self.replicas))

    @property
    def is_on_slow_disk(self) -> bool:
        """Whether late appends to this log, or to its log dir, took so long that the next one may as well."""
        if not (self._slow_until_s or self._slow_disks.any_until_s):
            return False
        now_s = monotonic()
        return now_s < self._slow_until_s or self._slow_disks.include(self.log.folder, now_s)

    @property
    def waits_for_disk(self) -> bool:
        return self.log.config.waits_for_disk or self.is_on_slow_disk

    def _note_slow_append(self, ended_s: float) -> None:
        self._slow_until_s = ended_s + SLOW_DISK_S
        self._slow_disks.note(self.log.folder.parent, ended_s)

    def view(self) -> ReplicaView:
        with self._lock:
            # Retention moves the log start before it takes this lock, perhaps beyond the last stable offset.
            log_start_offset = self.log.log_start_offset
            return ReplicaView(
                self.partition,
                self.role,
                self.leader,
                self.leader_epoch,
                self._followers.isr,
                self.replicas,
                log_start_offset,
                max(log_start_offset, self.last_stable_offset),
                self.high_watermark,
                self.log.log_end_offset,
                self.log.size_bytes,
                self._followers.views(),
            )

    # Roles

    def make_leader(self, state: LeaderAndIsrPartition, now_ms: float) -> bool:
        """Lead from now on. Returns False, and changes nothing, if this state is known already.

        Raises STALE_CONTROLLER_EPOCH for a state older than this replica's.
        """
        with self._append_lock, self._lock:
            if not self._is_news(state):
                return False
            is_new_leader = self.role is not _LEADER
            # In a skipped epoch another replica may have led, and the followers may have truncated. So their
            # known log ends are valid only from one epoch to the very next.
            knows_ends = not is_new_leader and state.leader_epoch == self.leader_epoch + 1
            log_end_offset = self.log.log_end_offset
            with self.log.lock:
                self.log.epoch_cache.begin(state.leader_epoch, log_end_offset)
            self._take_over(state)
            self._set_high_watermark(self.high_watermark)
            self.role = Role.LEADER
            if is_new_leader:
                self.leading_since = self.leader_epoch
            in_sync = frozenset(BrokerId(replica) for replica in state.isr)
            self._followers.begin_epoch(
                self.replicas,
                CommittedIsr(in_sync, state.partition_epoch),
                knows_ends=knows_ends,
                log_end_offset=log_end_offset,
                now_ms=now_ms,
            )
            self._advance_high_watermark(log_end_offset, now_ms)
            return True

    def make_follower(self, state: LeaderAndIsrPartition) -> bool:
        """Follow the given leader from now on. Returns and raises as `make_leader`."""
        with self._append_lock, self._lock:
            if not self._is_news(state):
                return False
            self._take_over(state)
            self._set_high_watermark(self.high_watermark)
            self.role = Role.FOLLOWER
            self._followers.clear()
            return True

    def set_offline(self, refusal: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Give up the role. ``refusal`` is the error of later requests, such as KAFKA_STORAGE_ERROR."""
        with self._append_lock, self._lock:
            self._give_up(refusal)
            self._followers.clear()

    def _is_news(self, state: LeaderAndIsrPartition) -> bool:
        if state.leader_epoch < self.leader_epoch:
            raise api_error(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"{self.partition} is at leader epoch {self.leader_epoch}, not {state.leader_epoch}",
            )
        return state.leader_epoch > self.leader_epoch or self.role is Role.NONE

    def _take_over(self, state: LeaderAndIsrPartition) -> None:
        """Take the leader, the epochs and the replicas of a new state."""
        self.leader = BrokerId(state.leader)
        self.leader_epoch = self.told_epoch = LeaderEpoch(state.leader_epoch)
        self.controller_epoch = ControllerEpoch(state.controller_epoch)
        self.replicas = tuple(BrokerId(replica) for replica in state.replicas)
        self.adding = tuple(BrokerId(replica) for replica in state.adding_replicas)
        self.is_reassigning = bool(state.adding_replicas or state.removing_replicas)

    def _give_up(self, refusal: ErrorCode) -> None:
        self._refusal = refusal
        self.role = Role.NONE
        self.leader = NO_BROKER

    # The proof that this replica leads, and its followers' consumers

    def is_witnessed(self, now_ms: float) -> bool:
        """Whether the fetches of the other replicas prove that this one leads; see `rules.witnessed_ms`."""
        with self._lock:
            return self.role is _LEADER and self._followers.are_witnesses(now_ms)

    def is_proven(self, now_ms: float, max_age_ms: float) -> bool:
        """Whether this replica does not lead, or certainly led within that time: by the fetches of the ISR or
        by ZooKeeper.
        """
        if self.role is not _LEADER or now_ms - self._followers.proven_ms <= max_age_ms:
            return True
        with self._lock:
            return self._followers.is_proven(now_ms, max_age_ms)

    def learn_leader(self, leader: BrokerId, leader_epoch: LeaderEpoch, asked_ms: float) -> bool:
        """ZooKeeper, asked at that time, has this leader. Returns whether it deposes this one.

        Then this replica has no role until the controller sends the next, which may not be able to reach it.
        """
        with self._lock:
            if self.role is not _LEADER or leader_epoch < self.leader_epoch:
                return False
            if leader == self.broker_id:
                self._followers.proven_ms = max(self._followers.proven_ms, asked_ms)
                return False
            self._give_up(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self.leader, self.leader_epoch = leader, leader_epoch
            self._followers.clear()
            return True

    def is_read_at(self, follower: BrokerId) -> bool:
        """Whether consumers may be reading from this follower, so that it needs the high watermark soon."""
        return follower in self._followers.consumers_sent_ms

    @property
    def is_read_at_followers(self) -> bool:
        return bool(self._followers.consumers_sent_ms)

    def forget_consumers(self, now_ms: float) -> None:
        """Forget the followers from which consumers do not read any more."""
        with self._lock:
            self._followers.forget_consumers(now_ms)

    # Refusals

    def check_leading(self, current_leader_epoch: int = -1, since: LeaderEpoch = EVER) -> None:
        """Raises FENCED_ or UNKNOWN_LEADER_EPOCH; NOT_LEADER_OR_FOLLOWER, also if it leads for less long."""
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            self._refuse_epoch(current_leader_epoch)
        if self.role is not _LEADER or since < self.leading_since:
            raise api_error(
                self._refusal,
                f"broker {self.broker_id} does not lead {self.partition}; broker {self.leader} does",
            )

    def _check_readable(self, current_leader_epoch: int, from_any_replica: bool) -> None:
        if not (from_any_replica and self.role is Role.FOLLOWER):
            self.check_leading(current_leader_epoch)
        elif current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            self._refuse_epoch(current_leader_epoch)

    def _refuse_epoch(self, given: int) -> None:
        """Refuse an epoch that is older (FENCED_LEADER_EPOCH) or newer (UNKNOWN_LEADER_EPOCH) than ours."""
        is_behind = given < self.leader_epoch
        raise api_error(
            ErrorCode.FENCED_LEADER_EPOCH if is_behind else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.partition} is at leader epoch {self.leader_epoch}, not {given}",
        )

    def _check_following(self, leader_epoch: LeaderEpoch) -> None:
        if self.role is not Role.FOLLOWER or self.leader_epoch != leader_epoch:
            raise api_error(
                ErrorCode.FENCED_LEADER_EPOCH,
                f"{self.partition} is {self.role.value} at leader epoch {self.leader_epoch}, "
                f"no longer a follower at {leader_epoch}",
            )

    # Appends of a leader

    def append_as_leader(
        self,
        produced: ProducedBatches,
        *,
        require_all: bool,
        now_ms: float,
        wall_clock_ms: int,
        since: LeaderEpoch = EVER,
        origin: AppendOrigin = _CLIENT,
        guards: VerificationGuards | None = None,
    ) -> AppendResult:
        """Check produced batches as the topic's settings demand, and append them.

        With ``require_all`` the ISR must be large enough. With ``since`` this replica must have led since
        that epoch. Only the records of clients are checked. ``guards``: see `Log.begin_verification`. No lock
        is held while records are checked, or flushed for `flush.messages`.

        Raises NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, the errors of `prepare_records` and of the log.
        """
        log = self.log
        only_again = False
        self.check_leading(since=since)
        if origin is _CLIENT:
            produced, only_again = self._prepared(produced, wall_clock_ms)
        with self._append_lock:
            with self._lock:
                self.check_leading(since=since)
                leader_epoch = self.leader_epoch
                if require_all and self._is_under_min_isr():
                    raise api_error(
                        ErrorCode.NOT_ENOUGH_REPLICAS,
                        f"{self.partition} has {len(self._followers.isr.in_sync_replicas)} in-sync replicas, "
                        f"min.insync.replicas is {self.min_insync_replicas}",
                    )
            began_s = monotonic()
            appended = log.append_as_leader(
                produced,
                leader_epoch,
                wall_clock_ms,
                origin=origin,
                guards=guards,
                only_again=only_again,
            )
            ended_s = monotonic()
            if ended_s - began_s > SLOW_APPEND_S:
                self._note_slow_append(ended_s)
            with self._lock:
                self._advance_high_watermark(appended.log_end_offset, now_ms)
        if log.config.waits_for_disk and log.must_flush:
            log.flush(wall_clock_ms)
        return appended

    def _prepared(self, produced: ProducedBatches, wall_clock_ms: int) -> tuple[ProducedBatches, bool]:
        """The batches as they are to be stored, and whether some of them were not looked into.

        Those may not be written: until the append, their producer may be forgotten, or a setting raised.
        """
        batches, config = produced.batches, self.log.config
        if min([header.producer_id for _, header in batches], default=0) >= 0:
            with self.log.lock:
                # A changed setting must not refuse batches that were written before: their producer would
                # write the records again in another way. The append decides.
                if self.log.producers.have(batches):
                    return produced, True
        prepared = prepare_records(
            self.partition,
            produced,
            config,
            now_ms=wall_clock_ms,
            max_bytes=max(MAX_UNPACKED_BYTES, config.max_message_bytes),
        )
        largest = max([header.batch_length for _, header in batches]) + LOG_OVERHEAD_BYTES
        return prepared, largest > config.max_message_bytes

    def acknowledgement(self, appended: AppendResult) -> ErrorCode | None:
        """The outcome of an acks=all append, or None while it must wait.

        A new epoch in which this replica leads on changes nothing: its appends are still in its log. For
        batches that had been written before, the high watermark must reach the end of the old ones.
        """
        has_lost = self.role is not _LEADER or appended.leader_epoch < self.leading_since
        if self.high_watermark <= appended.last_offset and not has_lost:
            # Needs no lock: each event that ends the wait is followed by a wake-up.
            return None
        with self._lock:
            if self.role is not _LEADER or appended.leader_epoch < self.leading_since:
                return self._refusal
            if self.high_watermark <= appended.last_offset:
                return None
            if self._is_under_min_isr():
                return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            return ErrorCode.NONE

    # Reads

    def read(
        self,
        *,
        current_leader_epoch: int,
        fetch_offset: Offset,
        last_fetched_epoch: int,
        max_bytes: int,
        isolation: Isolation,
        min_one_batch: bool,
        may_wait: bool = True,
        from_any_replica: bool = False,
        consumer: NearConsumer | None = None,
    ) -> PartitionRead:
        """Read as far as the isolation allows.

        ``from_any_replica`` allows a read from a follower. A leader may send a ``consumer`` to a replica
        that is nearer. Raises NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH or
        OFFSET_OUT_OF_RANGE.
        """
        with self._lock:
            if from_any_replica:
                self._check_readable(current_leader_epoch, from_any_replica)
            else:
                self.check_leading(current_leader_epoch)
            start, end = self.log.log_start_offset, self.log.log_end_offset
            high_watermark, last_stable_offset = self.high_watermark, self.last_stable_offset
            if isolation is _FOLLOWER:
                bound = end
            else:
                bound = last_stable_offset if isolation is _READ_COMMITTED else high_watermark
            offsets = (high_watermark, last_stable_offset, start, end, bound)
            # The newest epoch ends at the log's end: within it nothing can diverge.
            if last_fetched_epoch >= 0 and not (
                last_fetched_epoch == self.log.epoch_cache.latest_epoch and fetch_offset <= end
            ):
                epoch = LeaderEpoch(last_fetched_epoch)
                answer = EpochEnd(*self.log.epoch_cache.end_offset_for(epoch, end))
                if answer.epoch >= 0 and rules.diverges(epoch, fetch_offset, answer):
                    return PartitionRead(EMPTY, *offsets, answer)
            if consumer is not None and self.role is _LEADER:
                replica = self._followers.send_consumer(consumer, fetch_offset)
                if replica != NO_BROKER:
                    return PartitionRead(EMPTY, *offsets, preferred_read_replica=replica)
        if not start <= fetch_offset <= end:
            raise self._out_of_range(fetch_offset, start, end)
        try:
            return read_records(
                self.log,
                fetch_offset,
                offsets,
                isolation,
                max_bytes,
                min_one_batch=min_one_batch,
                may_wait=may_wait,
            )
        except OffsetOutOfRangeError:
            # Perhaps of a log that was truncated because this broker no longer leads.
            self._check_readable(current_leader_epoch, from_any_replica)
            raise

    def _end_for(self, isolation: Isolation, log_end_offset: Offset) -> Offset:
        if isolation is _FOLLOWER:
            return log_end_offset
        return self.last_stable_offset if isolation is _READ_COMMITTED else self.high_watermark

    def latest_offset(self, current_leader_epoch: int, isolation: Isolation) -> Offset:
        """The end of the log for a reader of that isolation; raises as `read`.

        For consumers also OFFSET_NOT_AVAILABLE, while a new leader does not know how much of its log is
        committed: its high watermark may be lower than what the leader before it acknowledged (KIP-207).
        """
        with self._lock:
            self.check_leading(current_leader_epoch)
            start = self._followers.leader_epoch_start_offset
            if isolation is not Isolation.FOLLOWER and self.high_watermark < start:
                raise api_error(
                    ErrorCode.OFFSET_NOT_AVAILABLE,
                    f"{self.partition}: high watermark {self.high_watermark} has not reached the start "
                    f"{start} of leader epoch {self.leader_epoch} yet",
                )
            return self._end_for(isolation, self.log.log_end_offset)

    def readable_end(
        self, current_leader_epoch: int, isolation: Isolation, *, from_any_replica: bool = False
    ) -> Offset:
        """The offset where `read` would end now; raises as `read`. A cheap estimate, without the lock."""
        self._check_readable(current_leader_epoch, from_any_replica)
        return self._end_for(isolation, self.log.log_end_offset)

    @property
    def read_state(self) -> tuple[object, ...]:
        """Equal at two times only if a read between them found the same. Without the lock."""
        log = self.log
        offsets = (self.high_watermark, self.last_stable_offset, log.log_start_offset, log.log_end_offset)
        return self, self.role, self.leader_epoch, *offsets

    def epoch_end(self, current_leader_epoch: int, epoch: LeaderEpoch) -> EpochEnd:
        """Where this leader's history of an epoch ends; epoch and offset are -1 if it is unknown."""
        with self._lock:
            self.check_leading(current_leader_epoch)
            return EpochEnd(*self.log.epoch_cache.end_offset_for(epoch, self.log.log_end_offset))

    def _out_of_range(self, offset: Offset, start: Offset, end: Offset) -> ApiError:
        return api_error(
            ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.partition}: offset {offset} is not within {start}..{end}"
        )

    # Deletion of records

    def delete_records(self, offset: int) -> Offset:
        """Move the log's start up to an offset, -1 being the high watermark; returns the new start.

        Raises as `check_leading`, and OFFSET_OUT_OF_RANGE beyond the committed records.
        """
        with self._append_lock, self._lock:
            self.check_leading()
            start = self.high_watermark if offset == -1 else Offset(offset)
            if not 0 <= start <= self.high_watermark:
                raise self._out_of_range(start, Offset(0), self.high_watermark)
            self._increment_log_start(start)
            return start

    def log_start_moved(self) -> None:
        """Retention has moved the log's start, perhaps beyond the first record of an ongoing transaction."""
        with self._lock:
            self._set_high_watermark(self.high_watermark)

    def _increment_log_start(self, offset: Offset) -> None:
        try:
            self.log.increment_log_start_offset(offset)
        finally:
            # Also if a later step failed.
            self._set_high_watermark(self.high_watermark)

    def low_watermark(self, alive: Container[BrokerId]) -> Offset:
        """The least log start of this leader and its living followers; -1 while one is unknown."""
        with self._lock:
            self.check_leading()
            return min([self.log.log_start_offset, *self._followers.log_starts(alive)])

    # Followers and the ISR

    def follower_fetched(
        self,
        follower: BrokerId,
        *,
        current_leader_epoch: int,
        broker_epoch: BrokerEpoch,
        registered_broker_epoch: BrokerEpoch | None,
        fetch_offset: Offset,
        log_start_offset: Offset,
        leader_log_end_offset: Offset,
        now_ms: float,
    ) -> FollowerProgress:
        """Take note of a follower's fetch that was answered from a log ending at ``leader_log_end_offset``.

        If the follower may join the ISR, that is proposed. The epoch is checked once more, because the leader
        may have changed since the read. Raises as `read`, or UNKNOWN_LEADER_EPOCH from a broker that holds no
        replica.
        """
        with self._lock:
            self.check_leading(current_leader_epoch)
            if follower not in self._followers:
                raise api_error(
                    ErrorCode.UNKNOWN_LEADER_EPOCH,
                    f"broker {follower} is not among the replicas {list(self.replicas)} of {self.partition}",
                )
            if registered_broker_epoch is not None and -1 < broker_epoch < registered_broker_epoch:
                return FollowerProgress(False, None)
            self._followers.note_fetch(
                follower,
                fetch_offset=fetch_offset,
                log_start_offset=log_start_offset,
                leader_log_end_offset=leader_log_end_offset,
                broker_epoch=broker_epoch,
                now_ms=now_ms,
                is_of_epoch=current_leader_epoch >= 0,
            )
            # The high watermark may have waited for another follower that has lagged too long by now.
            moved = self._advance_high_watermark(self.log.log_end_offset, now_ms)
            pending = self._followers.propose_expand(follower, self.high_watermark, registered_broker_epoch)
            return FollowerProgress(moved, pending)

    def propose_shrink(self, now_ms: float) -> PendingIsr | None:
        """Propose that lagging replicas leave the ISR, if there are any and no change is pending."""
        with self._lock:
            if self.role is not _LEADER:
                return None
            return self._followers.propose_shrink(self.log.log_end_offset, now_ms)

    def settle_isr(self, pending: PendingIsr, outcome: CommittedIsr, now_ms: float) -> bool:
        """End a change: ZooKeeper holds ``outcome``. Returns whether the high watermark moved."""
        with self._lock:
            if self._followers.isr is not pending:
                return False
            self._followers.isr = outcome
            return self._advance_high_watermark(self.log.log_end_offset, now_ms)

    def advance_high_watermark(self, now_ms: float) -> bool:
        """Move the high watermark as far as the replicas allow; returns whether it moved.

        It waits for a replica outside the ISR until that has lagged too long. If the replica hangs, and there
        are no appends and no other fetches, only this periodic call moves it.
        """
        with self._lock:
            return self._advance_high_watermark(self.log.log_end_offset, now_ms)

    def _is_under_min_isr(self) -> bool:
        return len(self._followers.isr.in_sync_replicas) < self.effective_min_isr

    def _advance_high_watermark(self, log_end_offset: Offset, now_ms: float) -> bool:
        if self.role is not _LEADER or self.high_watermark == log_end_offset:
            return False
        if self._is_min_isr_strict and self._is_under_min_isr():
            return False
        offset = self._followers.next_high_watermark(self.high_watermark, log_end_offset, now_ms)
        if offset == self.high_watermark:
            return False
        self._set_high_watermark(offset)
        return True

    def _set_high_watermark(self, offset: Offset) -> None:
        """Set both watermarks: the last stable offset follows from the records below the high watermark.

        So it moves only with the high watermark, and with a log start that passes it.
        """
        log = self.log
        start, unstable = log.log_start_offset, log.first_unstable_offset(offset)
        stable = offset if unstable is None else max(start, min(unstable, offset))
        check_offset_order(start, stable, offset, log.log_end_offset)
        self.high_watermark, self.last_stable_offset = offset, stable

    # Following

    def append_as_follower(
        self,
        records: memoryview,
        *,
        leader_epoch: LeaderEpoch,
        leader_high_watermark: Offset,
        leader_log_start_offset: Offset,
        wall_clock_ms: int,
    ) -> bool:
        """Append the answer to a fetch of that leader epoch. Returns whether anything was appended.

        Raises FENCED_LEADER_EPOCH if the epoch has passed: the records may be another history's.
        """
        with self._append_lock:
            self._check_following(leader_epoch)
            before = self.log.log_end_offset
            if first_base_offset(records, before) < before <= leader_log_start_offset:
                # The leader's log starts within its first batch, and all records here are below that start.
                # They may be of another history, which the leader's epochs no longer show. No batch continues
                # them.
                with self._lock:
                    self._restart_at(before)
            if len(records) > 0:
                began_s = monotonic()
                self.log.append_as_follower(records, wall_clock_ms, leader_epoch)
                ended_s = monotonic()
                if ended_s - began_s > SLOW_APPEND_S:
                    self._note_slow_append(ended_s)
            with self._lock:
                high_watermark = min(leader_high_watermark, self.log.log_end_offset)
                if high_watermark > self.high_watermark:
                    self._set_high_watermark(Offset(high_watermark))
                # Not beyond the high watermark: uncommitted records may not be dropped.
                log_start_offset = Offset(min(leader_log_start_offset, self.high_watermark))
                if log_start_offset > self.log.log_start_offset:
                    self._increment_log_start(log_start_offset)
            return self.log.log_end_offset > before

    def truncate_for(self, leader_epoch: LeaderEpoch, leader_answer: EpochEnd) -> Offset:
        """Truncate this follower's log to where its history agrees with the leader's."""
        with self._append_lock, self._lock:
            self._check_following(leader_epoch)
            offset = rules.truncation_for(leader_answer, self.log.epoch_cache, self.log.log_end_offset)
            self._truncate(offset)
            return offset

    def restart_at(self, leader_epoch: LeaderEpoch, offset: Offset) -> None:
        """Drop all records and continue at the leader's log start; the leader does not have them either."""
        with self._append_lock, self._lock:
            self._check_following(leader_epoch)
            self._restart_at(offset)

    def _restart_at(self, offset: Offset) -> None:
        self.log.truncate_fully_and_start_at(offset)
        self._set_high_watermark(offset)

    def follower_position(self, leader_epoch: LeaderEpoch) -> FollowerPosition:
        """The fields of this follower's next fetch."""
        with self._lock:
            self._check_following(leader_epoch)
            log = self.log
            return FollowerPosition(
                leader_epoch,
                log.log_end_offset,
                log.epoch_cache.latest_epoch,
                log.log_start_offset,
                log.topic_id or NO_TOPIC_ID,
            )

    def _truncate(self, offset: Offset) -> None:
        if offset >= self.log.log_end_offset:
            # An epoch in which this replica led and wrote nothing must go too, or the leader would find the
            # same divergence without end.
            with self.log.lock:
                self.log.epoch_cache.truncate_from_end(self.log.log_end_offset)
            return
        try:
            self.log.truncate_to(Offset(max(offset, self.log.log_start_offset)))
        finally:
            # The high watermark is lowered with the log, also if a later step failed. Records above it were
            # never committed by a leader whose history this replica shares.
            self._set_high_watermark(min(self.high_watermark, self.log.log_end_offset))
        invariant(self.log.log_end_offset <= max(offset, self.log.log_start_offset), "truncation went astray")


# Reading

_Offsets = tuple[Offset, Offset, Offset, Offset, Offset]
"""High watermark, last stable offset, log start, log end, and where the isolation ends."""


def read_records(
    log: Log,
    fetch_offset: Offset,
    offsets: _Offsets,
    isolation: Isolation,
    max_bytes: int,
    *,
    min_one_batch: bool,
    may_wait: bool,
) -> PartitionRead:
    """Read from an offset within the log; ``offsets`` are those of the result, in order.

    Raises as `Log.read`.
    """
    records = EMPTY
    is_cold = is_without_records = False
    bound = offsets[-1]
    has_more = fetch_offset < bound
    aborted: list[AbortedTransaction] | None = [] if isolation is _READ_COMMITTED else None
    if has_more and (max_bytes > 0 or min_one_batch):
        try:
            if aborted is not None:
                result, aborted = _read_committed(
                    log, fetch_offset, bound, max_bytes, min_one_batch=min_one_batch, may_wait=may_wait
                )
            else:
                result = log.read(
                    fetch_offset,
                    max_bytes,
                    upper_bound_offset=bound,
                    min_one_batch=min_one_batch,
                    may_wait=may_wait,
                    for_consumer=isolation is not _FOLLOWER,
                )
            records = result.records
            is_without_records = result.is_without_records
            has_more = result.next_offset < bound and not is_without_records
        except NotCached:
            is_cold = True
    return PartitionRead(records, *offsets, None, is_cold, has_more, is_without_records, aborted)


def _read_committed(
    log: Log, fetch_offset: Offset, bound: Offset, max_bytes: int, *, min_one_batch: bool, may_wait: bool
) -> tuple[ReadResult, list[AbortedTransaction]]:
    """The records, and the aborted transactions among them.

    A cleaning may replace a segment between the two look-ups, which then do not fit each other.
    """

    def look(_: object) -> tuple[ReadResult, list[AbortedTransaction]]:
        result = log.read(
            fetch_offset,
            max_bytes,
            upper_bound_offset=bound,
            min_one_batch=min_one_batch,
            may_wait=may_wait,
            for_consumer=True,
        )
        # Batches without records may have been passed over, and the markers among them too.
        start = max(fetch_offset, result.start_offset)
        return result, log.aborted_transactions(start, result.next_offset, may_wait=may_wait)

    return look_up(log, look, may_wait=may_wait)
