"""One replica of one partition on this broker: leader, follower, or neither yet.

It owns what several threads touch, guarded by one lock per partition: IO workers append and read, the
fetcher thread appends what it fetched, the ISR thread proposes and commits changes of the ISR, the scheduler
looks for laggards. Nothing blocks while the lock is held but the append itself.

Guarantees:

- log start ≤ last stable offset ≤ high watermark ≤ log end offset, checked whenever one of them moves;
- the high watermark moves on five occasions: an append, a follower's fetch, becoming leader, an ISR change,
  the periodic check of the ISR. It only rises, except that a truncation lowers it to the log's end;
- a request of an older or newer leader epoch than this replica's is refused (KIP-320);
- the rules are those of `barnabas.broker.replication.rules`; time comes in as an argument.
"""

from __future__ import annotations

import threading
from collections.abc import Container
from typing import Final

from barnabas.broker.log.appending import ProducedBatches, first_base_offset
from barnabas.broker.log.log import Log
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.replication import fencing, rules
from barnabas.broker.replication.followers import Followers
from barnabas.broker.replication.isr import CommittedIsr, IsrState, PendingExpand, PendingIsr, PendingShrink
from barnabas.broker.replication.replica_views import (
    FollowerPosition,
    FollowerProgress,
    LeaderAppend,
    PartitionRead,
    ReplicaView,
    Role,
)
from barnabas.broker.replication.rules import EpochEnd
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import (
    NO_BROKER,
    NO_CONTROLLER_EPOCH,
    NO_LEADER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from barnabas.protocol.invariants import check_offset_order, invariant
from barnabas.protocol.messages.inter_broker import LeaderAndIsrPartition

_EMPTY: Final = memoryview(b"")
_EVER: Final = 1 << 31


class Partition:
    """See the module. ``max_lag_ms`` is ``replica.lag.time.max.ms``; times are monotonic milliseconds."""

    def __init__(
        self,
        partition: TopicPartition,
        broker_id: BrokerId,
        log: Log,
        *,
        high_watermark: Offset,
        max_lag_ms: float,
        min_insync_replicas: int,
    ) -> None:
        self.partition = partition
        self.log = log
        self.min_insync_replicas = min_insync_replicas
        self._broker_id = broker_id
        self._lock = threading.Lock()
        self._role = Role.NONE
        # What is said to those that want a leader and find none here.
        self._refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self._leader = NO_BROKER
        self._leader_epoch = NO_LEADER_EPOCH
        self._controller_epoch = NO_CONTROLLER_EPOCH
        # The epoch in which this replica last came to lead; while it leads on, its log is never cut.
        self.leading_since = NO_LEADER_EPOCH
        self._replicas: tuple[BrokerId, ...] = ()
        self._followers = Followers(broker_id, max_lag_ms)
        # Invariant: log start ≤ high watermark ≤ log end. Without transactions it is the last stable offset.
        self._high_watermark = Offset(min(max(high_watermark, log.log_start_offset), log.log_end_offset))

    # What anyone may look at. Plain attributes are read without the lock: each is one reference.
    @property
    def role(self) -> Role:
        return self._role

    @property
    def is_leader(self) -> bool:
        return self._role is Role.LEADER

    @property
    def leader(self) -> BrokerId:
        return self._leader

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._leader_epoch

    @property
    def controller_epoch(self) -> ControllerEpoch:
        return self._controller_epoch

    @property
    def high_watermark(self) -> Offset:
        return self._high_watermark

    @property
    def log_end_offset(self) -> Offset:
        return self.log.log_end_offset

    @property
    def isr(self) -> IsrState:
        return self._followers.isr

    def view(self) -> ReplicaView:
        with self._lock:
            return ReplicaView(
                self.partition,
                self._role,
                self._leader,
                self._leader_epoch,
                self._followers.isr,
                self._replicas,
                self.log.log_start_offset,
                self._high_watermark,
                self.log.log_end_offset,
                self.log.size_bytes,
            )

    # What the controller says.

    def make_leader(self, state: LeaderAndIsrPartition, now_ms: float) -> bool:
        """Lead from now on. Returns False, and changes nothing, when this state is known already.

        Raises STALE_CONTROLLER_EPOCH for a state older than what this replica knows, or LogDirFailure.
        """
        with self._lock:
            if not self._is_news(state):
                return False
            is_new_leader = self._role is not Role.LEADER
            # In a skipped epoch another replica may have led, and the followers may have truncated. So their
            # known log ends are valid only from one epoch to the very next.
            knows_ends = not is_new_leader and state.leader_epoch == self._leader_epoch + 1
            log_end_offset = self.log.log_end_offset
            # First, because the disk may refuse, and then nothing may have changed.
            with self.log.lock:
                self.log.epoch_cache.assign(state.leader_epoch, log_end_offset)
            self._take_over(state)
            self._role = Role.LEADER
            if is_new_leader:
                self.leading_since = self._leader_epoch
            in_sync = frozenset(BrokerId(replica) for replica in state.isr)
            self._followers.begin_epoch(
                self._replicas,
                CommittedIsr(in_sync, state.partition_epoch),
                knows_ends=knows_ends,
                log_end_offset=log_end_offset,
                now_ms=now_ms,
            )
            self._advance_high_watermark(now_ms)
            return True

    def make_follower(self, state: LeaderAndIsrPartition) -> bool:
        """Follow the given leader from now on. Returns and raises as `make_leader`."""
        with self._lock:
            if not self._is_news(state):
                return False
            self._take_over(state)
            self._role = Role.FOLLOWER
            self._followers.forget()
            return True

    def _is_news(self, state: LeaderAndIsrPartition) -> bool:
        if state.leader_epoch < self._leader_epoch:
            raise fencing.stale_state(self.partition, self._leader_epoch, state.leader_epoch)
        return state.leader_epoch > self._leader_epoch or self._role is Role.NONE

    def _take_over(self, state: LeaderAndIsrPartition) -> None:
        self._leader = BrokerId(state.leader)
        self._leader_epoch = LeaderEpoch(state.leader_epoch)
        self._controller_epoch = ControllerEpoch(state.controller_epoch)
        self._replicas = tuple(BrokerId(replica) for replica in state.replicas)

    # Leading.

    def append_as_leader(
        self,
        produced: ProducedBatches,
        *,
        require_all: bool,
        now_ms: float,
        wall_clock_ms: int,
        since: int = _EVER,
    ) -> LeaderAppend:
        """Append produced batches. With ``require_all`` (acks=all) the ISR must be large enough.

        Raises NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS, and whatever the log finds wrong with the batches.
        """
        with self._lock:
            self.check_leading(since=since)
            if require_all and len(self._followers.isr.in_sync_replicas) < self.min_insync_replicas:
                in_sync = len(self._followers.isr.in_sync_replicas)
                raise fencing.not_enough_replicas(self.partition, in_sync, self.min_insync_replicas)
            result = self.log.append_as_leader(produced, self._leader_epoch, wall_clock_ms)
            moved = self._advance_high_watermark(now_ms)
            return LeaderAppend(result, self._leader_epoch, Offset(result.last_offset + 1), moved)

    def acknowledgement(self, leader_epoch: LeaderEpoch, required_offset: Offset) -> ErrorCode | None:
        """Whether an acks=all append of that epoch is settled: None while it must wait, else its outcome.

        A new epoch in which this replica leads on changes nothing: what it appended before is still there.
        """
        with self._lock:
            if self._role is not Role.LEADER or leader_epoch < self.leading_since:
                return self._refusal
            if self._high_watermark < required_offset:
                return None
            if len(self._followers.isr.in_sync_replicas) < self.min_insync_replicas:
                return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            return ErrorCode.NONE

    def read(
        self,
        *,
        current_leader_epoch: int,
        fetch_offset: Offset,
        last_fetched_epoch: int,
        max_bytes: int,
        for_follower: bool,
        min_one_batch: bool,
        may_wait: bool = True,
        from_any_replica: bool = False,
    ) -> PartitionRead:
        """Read for a consumer (below the high watermark) or for a follower (to the end).

        ``from_any_replica`` allows a read from a follower. Raises NOT_LEADER_OR_FOLLOWER,
        FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH or OFFSET_OUT_OF_RANGE.
        """
        with self._lock:
            self._check_readable(current_leader_epoch, from_any_replica)
            log_start_offset = self.log.log_start_offset
            log_end_offset = self.log.log_end_offset
            high_watermark = self._high_watermark
            # The newest epoch ends at the log's end: within it nothing can diverge.
            if last_fetched_epoch >= 0 and not (
                last_fetched_epoch == self.log.epoch_cache.latest_epoch and fetch_offset <= log_end_offset
            ):
                epoch = LeaderEpoch(last_fetched_epoch)
                answer = EpochEnd(*self.log.epoch_cache.end_offset_for(epoch, log_end_offset))
                if answer.epoch >= 0 and rules.diverges(epoch, fetch_offset, answer):
                    return PartitionRead(_EMPTY, high_watermark, log_start_offset, log_end_offset, answer)
        if not log_start_offset <= fetch_offset <= log_end_offset:
            raise fencing.out_of_range(self.partition, fetch_offset, log_start_offset, log_end_offset)
        bound = log_end_offset if for_follower else high_watermark
        records = _EMPTY
        if fetch_offset < bound and (max_bytes > 0 or min_one_batch):
            try:
                records = self.log.read(
                    fetch_offset,
                    max_bytes,
                    upper_bound_offset=bound,
                    min_one_batch=min_one_batch,
                    may_wait=may_wait,
                ).records
            except NotCached:
                return PartitionRead(_EMPTY, high_watermark, log_start_offset, log_end_offset, is_cold=True)
        return PartitionRead(records, high_watermark, log_start_offset, log_end_offset)

    def latest_offset(self, current_leader_epoch: int) -> Offset:
        """The high watermark, for a client that wants everything committed; raises as `read`.

        Raises OFFSET_NOT_AVAILABLE while a new leader does not know yet how much of what it was elected with
        is committed: its high watermark may be lower than what the leader before it acknowledged (KIP-207).
        """
        with self._lock:
            self.check_leading(current_leader_epoch)
            start = self._followers.leader_epoch_start_offset
            if self._high_watermark < start:
                raise fencing.not_available(self.partition, self._high_watermark, self._leader_epoch, start)
            return self._high_watermark

    def readable_end(
        self, current_leader_epoch: int, for_follower: bool, *, from_any_replica: bool = False
    ) -> Offset:
        """Up to where a fetch would read now; raises as `read`. Cheap, without the lock: it is read again."""
        self._check_readable(current_leader_epoch, from_any_replica)
        return self.log.log_end_offset if for_follower else self._high_watermark

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

        The epoch is checked once more, for leadership may have changed hands since the read. Raises as
        `read`, or UNKNOWN_LEADER_EPOCH from a broker that holds no replica.
        """
        with self._lock:
            self.check_leading(current_leader_epoch)
            if follower not in self._followers:
                raise fencing.not_a_replica(self.partition, follower, self._replicas)
            if registered_broker_epoch is not None and -1 < broker_epoch < registered_broker_epoch:
                return FollowerProgress(False, False)
            self._followers.note_fetch(
                follower,
                fetch_offset=fetch_offset,
                log_start_offset=log_start_offset,
                leader_log_end_offset=leader_log_end_offset,
                broker_epoch=broker_epoch,
                now_ms=now_ms,
                is_of_epoch=current_leader_epoch >= 0,
            )
            # Another follower that the high watermark waited for may have lagged too long by now.
            moved = self._advance_high_watermark(now_ms)
            may_join = self._followers.may_join(follower, self._high_watermark, registered_broker_epoch)
            return FollowerProgress(moved, may_join)

    def is_witnessed(self, now_ms: float) -> bool:
        """Whether the fetches of the other replicas prove that this one leads; see `rules.are_witnesses`."""
        with self._lock:
            return self._role is Role.LEADER and self._followers.are_witnesses(now_ms)

    def epoch_end(self, current_leader_epoch: int, epoch: LeaderEpoch) -> EpochEnd:
        """Where this leader's history of an epoch ends; epoch and offset are -1 when it is unknown."""
        with self._lock:
            self.check_leading(current_leader_epoch)
            return EpochEnd(*self.log.epoch_cache.end_offset_for(epoch, self.log.log_end_offset))

    def check_leading(self, current_leader_epoch: int = -1, since: int = _EVER) -> None:
        """Raises FENCED_ or UNKNOWN_LEADER_EPOCH; NOT_LEADER_OR_FOLLOWER, also if it came to lead later."""
        if current_leader_epoch >= 0 and current_leader_epoch != self._leader_epoch:
            raise fencing.other_epoch(self.partition, self._leader_epoch, current_leader_epoch)
        if self._role is not Role.LEADER or since < self.leading_since:
            raise fencing.not_leader(self.partition, self._broker_id, self._leader, self._refusal)

    def _check_readable(self, current_leader_epoch: int, from_any_replica: bool) -> None:
        if not (from_any_replica and self._role is Role.FOLLOWER):
            self.check_leading(current_leader_epoch)
        elif current_leader_epoch >= 0 and current_leader_epoch != self._leader_epoch:
            raise fencing.other_epoch(self.partition, self._leader_epoch, current_leader_epoch)

    def delete_records(self, offset: int) -> Offset:
        """Move the log's start up to an offset, -1 being the high watermark; returns what was meant by it.

        Raises as `check_leading`, and OFFSET_OUT_OF_RANGE for what is not committed.
        """
        with self._lock:
            self.check_leading()
            start = self._high_watermark if offset == -1 else Offset(offset)
            if not 0 <= start <= self._high_watermark:
                raise fencing.out_of_range(self.partition, start, Offset(0), self._high_watermark)
            self.log.increment_log_start_offset(start)
            return start

    def low_watermark(self, alive: Container[BrokerId]) -> Offset:
        """The least log start of this leader and its living followers, -1 while one has not said its own."""
        with self._lock:
            self.check_leading()
            return min([self.log.log_start_offset, *self._followers.log_starts(alive)])

    # The ISR, as the leader changes it.

    def propose_expand(
        self, follower: BrokerId, registered_broker_epoch: BrokerEpoch | None
    ) -> PendingExpand | None:
        """Begin to let a follower join, if it still may and no other change is pending."""
        with self._lock:
            if self._role is not Role.LEADER or registered_broker_epoch is None:
                return None
            if follower not in self._followers:
                return None
            return self._followers.propose_expand(follower, self._high_watermark, registered_broker_epoch)

    def propose_shrink(self, now_ms: float) -> PendingShrink | None:
        """Begin to put out those that lag too long, if there are any and no other change is pending."""
        with self._lock:
            if self._role is not Role.LEADER:
                return None
            return self._followers.propose_shrink(self.log.log_end_offset, now_ms)

    def settle_isr(self, pending: PendingIsr, outcome: CommittedIsr, now_ms: float) -> bool:
        """ZooKeeper holds ``outcome``, and the change is over. Returns whether the high watermark moved."""
        with self._lock:
            if self._followers.isr is not pending:
                return False
            self._followers.isr = outcome
            return self._advance_high_watermark(now_ms)

    def advance_high_watermark(self, now_ms: float) -> bool:
        """Move the high watermark as far as the replicas allow; returns whether it moved.

        It waits for a replica outside the ISR until that has lagged too long. If the replica hangs, and there
        are no appends and no other fetches, only this periodic call moves it.
        """
        with self._lock:
            return self._advance_high_watermark(now_ms)

    def _advance_high_watermark(self, now_ms: float) -> bool:
        log_end_offset = self.log.log_end_offset
        if self._role is not Role.LEADER or self._high_watermark == log_end_offset:
            return False
        found = self._followers.next_high_watermark(self._high_watermark, log_end_offset, now_ms)
        if found == self._high_watermark:
            return False
        self._set_high_watermark(found)
        return True

    def _set_high_watermark(self, offset: Offset) -> None:
        check_offset_order(self.log.log_start_offset, offset, offset, self.log.log_end_offset)
        self._high_watermark = offset

    # Following.

    def append_as_follower(
        self,
        records: memoryview,
        *,
        leader_epoch: LeaderEpoch,
        leader_high_watermark: Offset,
        leader_log_start_offset: Offset,
        wall_clock_ms: int,
    ) -> bool:
        """Append what a fetch of that leader epoch brought. Returns whether anything was appended.

        Raises FENCED_LEADER_EPOCH when the epoch has passed meanwhile: the records may be another history's.
        """
        with self._lock:
            self._check_following(leader_epoch)
            before = self.log.log_end_offset
            if first_base_offset(records, before) < before <= leader_log_start_offset:
                # The leader's log starts within its first batch, and all records here are below that start.
                # They may be of another history, which the leader's epochs no longer show. No batch continues
                # them.
                self._restart_at(before)
            if len(records) > 0:
                self.log.append_as_follower(records, wall_clock_ms, leader_epoch)
            high_watermark = min(leader_high_watermark, self.log.log_end_offset)
            if high_watermark > self._high_watermark:
                self._set_high_watermark(Offset(high_watermark))
            # Never past the high watermark: what is not known to be committed may not be dropped.
            log_start_offset = Offset(min(leader_log_start_offset, self._high_watermark))
            if log_start_offset > self.log.log_start_offset:
                self.log.increment_log_start_offset(log_start_offset)
            return self.log.log_end_offset > before

    def truncate_for(self, leader_epoch: LeaderEpoch, leader_answer: EpochEnd) -> rules.Truncation:
        """Cut this follower's log to where its history agrees with the leader's."""
        with self._lock:
            self._check_following(leader_epoch)
            found = rules.truncation_for(leader_answer, self.log.epoch_cache, self.log.log_end_offset)
            self._truncate(found.offset)
            return found

    def restart_at(self, leader_epoch: LeaderEpoch, offset: Offset) -> None:
        """Drop everything and go on at the leader's log start: what lies between is gone there too."""
        with self._lock:
            self._check_following(leader_epoch)
            self._restart_at(offset)

    def _restart_at(self, offset: Offset) -> None:
        self.log.truncate_fully_and_start_at(offset)
        self._high_watermark = offset

    def follower_position(self, leader_epoch: LeaderEpoch) -> FollowerPosition:
        """What this follower's next fetch says of it."""
        with self._lock:
            self._check_following(leader_epoch)
            log = self.log
            return FollowerPosition(
                log.log_end_offset, log.epoch_cache.latest_epoch, log.log_start_offset, self._high_watermark
            )

    def _check_following(self, leader_epoch: LeaderEpoch) -> None:
        if self._role is not Role.FOLLOWER or self._leader_epoch != leader_epoch:
            raise fencing.not_following(self.partition, self._role, self._leader_epoch, leader_epoch)

    def _truncate(self, offset: Offset) -> None:
        if offset >= self.log.log_end_offset:
            # An epoch in which this replica led and wrote nothing must go too, or the leader would find the
            # same divergence for ever.
            with self.log.lock:
                self.log.epoch_cache.truncate_from_end(self.log.log_end_offset)
            return
        try:
            self.log.truncate_to(Offset(max(offset, self.log.log_start_offset)))
        finally:
            # The order is kept by cutting the high watermark with the log, also if a later step failed; what
            # lies above it was never committed by a leader whose history this replica shares.
            self._high_watermark = min(self._high_watermark, self.log.log_end_offset)
        invariant(self.log.log_end_offset <= max(offset, self.log.log_start_offset), "truncation went astray")

    def set_offline(self, refusal: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Stop having a role: the replica is being removed, or its disk has failed, as ``refusal`` says."""
        with self._lock:
            self._refusal = refusal
            self._role = Role.NONE
            self._leader = NO_BROKER
            self._followers.forget()
