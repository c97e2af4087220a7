"""A leader's knowledge of its followers, and of the ISR that they form with it.

The ISR changes by proposals, one at a time: from the moment of a proposal until it is settled the state is a
pending one, and no other change begins. Which replicas may join or must leave, and where the high watermark
goes, is decided by the pure rules of `barnabas.broker.replication.rules`.

Part of a `Partition` and guarded by its lock; a replica that does not lead has none, and an empty ISR.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from barnabas.broker.replication import rules
from barnabas.broker.replication.isr import CommittedIsr, IsrState, PendingExpand, PendingShrink
from barnabas.broker.replication.rules import FollowerState
from barnabas.protocol.ids import BrokerEpoch, BrokerId, Offset

_NO_ISR: Final = CommittedIsr(frozenset(), -1)


class Followers:
    """See the module. ``max_lag_ms`` is ``replica.lag.time.max.ms``; times are monotonic milliseconds."""

    def __init__(self, broker_id: BrokerId, max_lag_ms: float) -> None:
        self.isr: IsrState = _NO_ISR
        self.leader_epoch_start_offset = Offset(0)
        """Where the log ended when the leader epoch began; without one, of the last that this replica led."""
        self._broker_id = broker_id
        self._max_lag_ms = max_lag_ms
        self._states: dict[BrokerId, FollowerState] = {}
        # When each follower last fetched in the present leader epoch.
        self._fetched_ms: dict[BrokerId, float] = {}

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
        self._states = rules.followers_after_election(
            self._states,
            [replica for replica in replicas if replica != self._broker_id],
            isr.in_sync_replicas,
            knows_ends=knows_ends,
            leader_log_end_offset=log_end_offset,
            now_ms=now_ms,
        )

    def forget(self) -> None:
        """This replica leads no longer."""
        self.isr = _NO_ISR
        self._states = {}
        self._fetched_ms = {}

    def __contains__(self, follower: object) -> bool:
        return follower in self._states

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
        """A fetch of a known follower was answered from a log that ended at ``leader_log_end_offset``.

        ``is_of_epoch`` says that the fetch named the present leader epoch.
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
        return rules.are_witnesses(
            self._fetched_ms,
            self.isr.maximal,
            self._broker_id,
            now_ms=now_ms,
            max_lag_ms=self._max_lag_ms,
        )

    def may_join(
        self, follower: BrokerId, high_watermark: Offset, registered_broker_epoch: BrokerEpoch | None
    ) -> bool:
        """Whether a known follower could be proposed now."""
        is_settled = isinstance(self.isr, CommittedIsr) and follower not in self.isr.in_sync_replicas
        return is_settled and rules.may_join_isr(
            self._states[follower],
            high_watermark=high_watermark,
            leader_epoch_start_offset=self.leader_epoch_start_offset,
            registered_broker_epoch=registered_broker_epoch,
        )

    def propose_expand(
        self, follower: BrokerId, high_watermark: Offset, registered_broker_epoch: BrokerEpoch
    ) -> PendingExpand | None:
        """Begin to let a known follower join, if it still may and no other change is pending."""
        if not isinstance(self.isr, CommittedIsr):
            return None
        if not self.may_join(follower, high_watermark, registered_broker_epoch):
            return None
        self.isr = PendingExpand(self.isr, {follower: registered_broker_epoch})
        return self.isr

    def propose_shrink(self, log_end_offset: Offset, now_ms: float) -> PendingShrink | None:
        """Begin to put out those that lag too long, if there are any and no other change is pending."""
        if not isinstance(self.isr, CommittedIsr):
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
        self.isr = PendingShrink(self.isr, leaving)
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
        """The log starts that the living followers have told, -1 for one that has not."""
        return [state.log_start_offset for name, state in self._states.items() if name in alive]
