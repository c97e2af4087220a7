"""The in-sync replicas of a partition as its leader knows them, and what it knows of its followers.

A change of the ISR takes effect when ZooKeeper has it, never before. Until then it is *pending*, and the
leader must be right in both cases. So the high watermark uses the *maximal* set: it waits for a replica that
may be joining, and still waits for one that may be leaving. Committed and pending ISRs are different frozen
types; there is no flag that could be forgotten.

The ISR changes by proposals, one at a time: no other change begins before the pending one is settled. The
pure rules in `rules` decide which replicas may join or must leave, and where the high watermark is.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from barnabas.broker.replication import rules
from barnabas.broker.replication.near_replicas import NearConsumer, nearest_replica
from barnabas.broker.replication.rules import FollowerState
from barnabas.protocol.ids import NO_BROKER, BrokerEpoch, BrokerId, Offset

_READS_ON_MS: Final = 900_000
"""How long a consumer may read from the replica that it was sent to: ``metadata.max.age.ms`` of librdkafka,
the longest of the usual clients."""


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    """The ISR that ZooKeeper is known to hold; ``partition_epoch`` is the version of the state znode."""

    in_sync_replicas: frozenset[BrokerId]
    partition_epoch: int

    @property
    def maximal(self) -> frozenset[BrokerId]:
        """All replicas that may be in the ISR that ZooKeeper holds."""
        return self.in_sync_replicas

    @property
    def certain(self) -> frozenset[BrokerId]:
        """The replicas that are in the ISR that ZooKeeper holds, whether a pending change succeeds or not."""
        return self.in_sync_replicas


@dataclass(frozen=True, slots=True)
class PendingIsr:
    """A proposed change of the ISR; its outcome is not known yet.

    ``joining`` may already be in the ISR, each with this broker epoch and no other. ``leaving`` may still be
    in it.
    """

    committed: CommittedIsr
    joining: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict)
    leaving: frozenset[BrokerId] = frozenset()

    @property
    def in_sync_replicas(self) -> frozenset[BrokerId]:
        return self.committed.in_sync_replicas

    @property
    def maximal(self) -> frozenset[BrokerId]:
        return self.in_sync_replicas.union(self.joining)

    @property
    def certain(self) -> frozenset[BrokerId]:
        return self.in_sync_replicas - self.leaving

    @property
    def proposed(self) -> frozenset[BrokerId]:
        """The ISR to be written to ZooKeeper."""
        return self.in_sync_replicas.union(self.joining) - self.leaving


IsrState = CommittedIsr | PendingIsr

_NO_ISR: Final = CommittedIsr(frozenset(), -1)


class FollowerView(NamedTuple):
    """A follower and when it last fetched in the present leader epoch, in monotonic milliseconds."""

    state: FollowerState
    fetched_in_epoch_ms: float


class FollowerStates:
    """The followers of a leader and their ISR; empty while the replica does not lead.

    Guarded by the lock of its `Partition`. ``max_lag_ms`` is ``replica.lag.time.max.ms``; times are monotonic
    milliseconds.
    """

    def __init__(self, broker_id: BrokerId, max_lag_ms: float) -> None:
        self.isr: IsrState = _NO_ISR
        self.leader_epoch_start_offset = Offset(0)
        """The log's end when this replica began to lead its last leader epoch."""
        self._broker_id = broker_id
        self._max_lag_ms = max_lag_ms
        self._states: dict[BrokerId, FollowerState] = {}
        # When each follower last fetched in the present leader epoch.
        self._fetched_ms: dict[BrokerId, float] = {}
        self.consumers_sent_ms: dict[BrokerId, float] = {}
        """When a consumer was last sent to each follower in the present leader epoch; read without the lock.

        A follower that consumers read is sent each high watermark at once: they would wait for a whole fetch
        of it.
        """
        self.proven_ms = rules.NEVER_MS
        """A time at which this replica certainly led, in the present leader epoch."""

    def send_consumer(self, consumer: NearConsumer, fetch_offset: Offset) -> BrokerId:
        """The follower from which a consumer should read; `NO_BROKER` means the leader."""
        in_sync, leader = self.isr.in_sync_replicas, self._broker_id
        replica = nearest_replica(self._states, in_sync, leader, fetch_offset, consumer.rack, consumer.racks)
        if replica == leader:
            return NO_BROKER
        self.consumers_sent_ms[replica] = consumer.now_ms
        return replica

    def forget_consumers(self, now_ms: float) -> None:
        """Forget the followers to which no consumer was sent for a long time."""
        if self.consumers_sent_ms:
            self.consumers_sent_ms = {
                follower: sent_ms
                for follower, sent_ms in self.consumers_sent_ms.items()
                if now_ms - sent_ms < _READS_ON_MS
            }

    def __contains__(self, follower: object) -> bool:
        return follower in self._states

    def views(self) -> dict[BrokerId, FollowerView]:
        fetched_ms = self._fetched_ms
        return {
            follower: FollowerView(state, fetched_ms.get(follower, rules.NEVER_MS))
            for follower, state in self._states.items()
        }

    def begin_epoch(
        self,
        replicas: Sequence[BrokerId],
        isr: CommittedIsr,
        *,
        knows_ends: bool,
        log_end_offset: Offset,
        now_ms: float,
    ) -> None:
        """Begin to lead a leader epoch; ``knows_ends`` if this replica also led the epoch before."""
        self.isr = isr
        self.leader_epoch_start_offset = log_end_offset
        self._fetched_ms = {}
        self.consumers_sent_ms = {}
        self.proven_ms = now_ms
        self._states = {
            replica: rules.after_election(
                self._states.get(replica),
                knows_ends=knows_ends,
                is_in_sync=replica in isr.in_sync_replicas,
                leader_log_end_offset=log_end_offset,
                now_ms=now_ms,
            )
            for replica in replicas
            if replica != self._broker_id
        }

    def clear(self) -> None:
        """This replica leads no longer."""
        self.isr = _NO_ISR
        self._states = {}
        self._fetched_ms = {}
        self.consumers_sent_ms = {}

    def note_fetch(
        self,
        follower: BrokerId,
        *,
        fetch_offset: Offset,
        log_start_offset: Offset,
        leader_log_end_offset: Offset,
        broker_epoch: BrokerEpoch,
        now_ms: float,
        is_of_epoch: bool = False,
    ) -> None:
        """A fetch was answered from a log that ended at ``leader_log_end_offset``.

        ``is_of_epoch``: the fetch named the present leader epoch.
        """
        if is_of_epoch:
            self._fetched_ms[follower] = now_ms
        self._states[follower] = rules.after_fetch(
            self._states[follower],
            fetch_offset=fetch_offset,
            log_start_offset=log_start_offset,
            leader_log_end_offset=leader_log_end_offset,
            broker_epoch=broker_epoch,
            now_ms=now_ms,
        )

    def are_witnesses(self, now_ms: float) -> bool:
        """Whether other replicas may be in sync, and all of them have fetched in this epoch recently."""
        return now_ms - self._witnessed_ms() <= self._max_lag_ms

    def _witnessed_ms(self) -> float:
        return rules.witnessed_ms(self._fetched_ms, self.isr.maximal, self._broker_id)

    def is_proven(self, now_ms: float, max_age_ms: float) -> bool:
        """Whether it is certain that this replica led within that time.

        An election can only choose a member of the ISR, unless it is unclean. So a leader that is alone in it
        needs no proof.
        """
        if now_ms - self.proven_ms <= max_age_ms or self.isr.maximal <= {self._broker_id}:
            return True
        self.proven_ms = max(self.proven_ms, self._witnessed_ms())
        return now_ms - self.proven_ms <= max_age_ms

    def propose_expand(
        self, follower: BrokerId, high_watermark: Offset, registered_broker_epoch: BrokerEpoch | None
    ) -> PendingIsr | None:
        """Propose that the follower joins, if it may and no other change is pending."""
        isr = self.isr
        if registered_broker_epoch is None or isinstance(isr, PendingIsr) or follower in isr.in_sync_replicas:
            return None
        if not rules.may_join_isr(
            self._states[follower],
            high_watermark=high_watermark,
            leader_epoch_start_offset=self.leader_epoch_start_offset,
            registered_broker_epoch=registered_broker_epoch,
        ):
            return None
        self.isr = PendingIsr(isr, joining={follower: registered_broker_epoch})
        return self.isr

    def propose_shrink(self, log_end_offset: Offset, now_ms: float) -> PendingIsr | None:
        """Propose that the replicas that lag too long leave, if there are any and no change is pending."""
        if isinstance(self.isr, PendingIsr):
            return None
        leaving = rules.out_of_sync(
            self._states,
            self.isr.in_sync_replicas,
            self._broker_id,
            log_end_offset,
            now_ms=now_ms,
            max_lag_ms=self._max_lag_ms,
        )
        if not leaving:
            return None
        self.isr = PendingIsr(self.isr, leaving=leaving)
        return self.isr

    def next_high_watermark(self, high_watermark: Offset, log_end_offset: Offset, now_ms: float) -> Offset:
        return rules.next_high_watermark(
            high_watermark,
            log_end_offset,
            self._states,
            self.isr.maximal,
            now_ms=now_ms,
            max_lag_ms=self._max_lag_ms,
        )

    def log_starts(self, alive: Container[BrokerId]) -> list[Offset]:
        """The log starts of the live followers; -1 until a follower has reported its own."""
        return [state.log_start_offset for follower, state in self._states.items() if follower in alive]
