"""Carries proposed changes of in-sync replicas to ZooKeeper, and their outcome back to the partitions.

It has a thread of its own, because ZooKeeper may be slow or down and other threads must not wait for it. A
partition has at most one pending change, so the queue is bounded by the number of partitions. An attempt has
one of four outcomes:

- ZooKeeper has the change: it is committed.
- The outcome is unknown, or this broker's registration is gone: the partition stays pending, which is safe,
  and the change is retried.
- ZooKeeper has a newer state. If another broker leads in it, this one is deposed. If not, the controller's
  LeaderAndIsr, with a new leader epoch, is on the way, and the partition stays pending until then. An earlier
  attempt whose answer was lost may have succeeded and the controller may have elected the joined replica, so
  the high watermark must still wait for it.
- The joining replica has restarted or stopped, so its disk may be gone: the store refuses this and all
  earlier attempts, and the change is withdrawn (KIP-903).

It also asks ZooKeeper for the leader of partitions whose followers do not fetch: the controller may have
elected another one, and be unable to reach this broker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from barnabas.broker.base.contained import contained
from barnabas.broker.replication.followers import CommittedIsr, PendingIsr
from barnabas.broker.replication.partition import Partition
from barnabas.common.workers import Task
from barnabas.protocol.ids import NO_TOPIC_ID, BrokerEpoch, BrokerId, TopicId, TopicPartition
from barnabas.zookeeper.errors import (
    LeadershipConflict,
    ReplicaNotRegistered,
    SessionLost,
    ZooKeeperUnavailable,
)
from barnabas.zookeeper.json_nodes import MalformedZnode
from barnabas.zookeeper.znodes import LeadershipState

logger = logging.getLogger(__name__)


RETRY_S: Final = 0.25
_RETRIED: Final = (ZooKeeperUnavailable, SessionLost, MalformedZnode, LeadershipConflict)
"""It is unknown whether the change was made, or the nodes of the topic are unreadable or gone."""


class IsrStore(Protocol):
    """A leader's writes to ZooKeeper, as `barnabas.zookeeper.store.ClusterStore` does; all calls block.

    A protocol, because replication does not import the ZooKeeper client.
    """

    def update_isr(
        self,
        tp: TopicPartition,
        state: LeadershipState,
        *,
        joining: Mapping[BrokerId, BrokerEpoch],
        broker_epoch: BrokerEpoch,
        topic_id: TopicId,
    ) -> int: ...

    def leadership(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, LeadershipState]: ...

    def notify_isr_change(self, partitions: Sequence[TopicPartition]) -> None: ...

    def notify_log_dir_failure(self, broker: BrokerId) -> None: ...


class IsrChanges:
    """The queue of pending changes and the task that works it off."""

    def __init__(
        self,
        store: IsrStore,
        *,
        broker_epoch: Callable[[], BrokerEpoch | None],
        now_ms: Callable[[], float],
        on_high_watermark: Callable[[TopicPartition], None],
        on_fatal: Callable[[BaseException], None],
        on_deposed: Callable[[TopicPartition, LeadershipState], None] = lambda tp, state: None,
    ) -> None:
        """``broker_epoch`` returns the epoch of this broker's registration; None until that has its roles.

        ``on_deposed`` is called for a partition that has given up leading, with the state in ZooKeeper.
        """
        self._store = store
        self._broker_epoch = broker_epoch
        self._now_ms = now_ms
        self._on_high_watermark = on_high_watermark
        self._on_deposed = on_deposed
        self.shrinks = self.expands = self.failures = 0
        """The changes that were written, and those that another broker's write prevented."""
        self._lock = threading.Lock()
        self._pending: dict[TopicPartition, tuple[Partition, PendingIsr]] = {}
        self._to_confirm: dict[TopicPartition, Partition] = {}
        self._to_notify: dict[TopicPartition, None] = {}
        self._task = Task("isr-changes", lambda: None if self.work_off() else RETRY_S, on_fatal=on_fatal)

    def start(self) -> None:
        self._task.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._task.stop(timeout_s)

    def submit(self, partition: Partition, pending: PendingIsr) -> None:
        """Write a proposed change to ZooKeeper; it replaces a proposal of an earlier leader epoch.

        An outdated proposal is dropped. It would replace the newer one, which is submitted only once, so the
        partition would stay pending until its next leader epoch.
        """
        with self._lock:
            if partition.isr is not pending:
                return
            self._pending[partition.partition] = (partition, pending)
        self._task.wake()

    def confirm(self, partition: Partition) -> None:
        """Ask ZooKeeper once whether this replica still leads; to be called again if that fails."""
        with self._lock:
            self._to_confirm[partition.partition] = partition
        self._task.wake()

    def work_off(self) -> bool:
        """Try once everything that is pending; False if something must be retried.

        The task runs this; simulation and tests call it without the thread.
        """
        with self._lock:
            work, self._pending = self._pending, {}
            to_confirm, self._to_confirm = self._to_confirm, {}
        if to_confirm:
            failure = f"cannot confirm the leaderships of {len(to_confirm)} partitions"
            contained(failure, self._confirm, to_confirm, expected=_RETRIED)
        # After an unforeseen error the outcome is unknown, as after a lost answer; the others continue.
        unsettled = {
            tp: (partition, pending)
            for tp, (partition, pending) in work.items()
            if not contained(
                f"the ISR of {tp} stays {sorted(pending.maximal)} for now",
                self._change,
                partition,
                pending,
                expected=_RETRIED,
            )
        }
        if self._to_notify:
            failure = "could not notify the controller of ISR changes; will retry"
            contained(failure, self._notify, expected=_RETRIED)
        with self._lock:
            for tp, item in unsettled.items():
                self._pending.setdefault(tp, item)
        return not unsettled and not self._to_notify

    def _confirm(self, partitions: Mapping[TopicPartition, Partition]) -> None:
        asked_ms = self._now_ms()
        for tp, state in self._store.leadership(partitions).items():
            self._learn_leader(partitions[tp], state, asked_ms)

    def _notify(self) -> None:
        self._store.notify_isr_change(list(self._to_notify))
        self._to_notify.clear()

    def _learn_leader(self, partition: Partition, state: LeadershipState, asked_ms: float) -> bool:
        is_deposed = partition.learn_leader(state.leader, state.leader_epoch, asked_ms)
        if is_deposed:
            logger.warning(
                "%s: broker %d leads in epoch %d; the controller has not told this broker",
                partition.partition,
                state.leader,
                state.leader_epoch,
            )
            self._on_deposed(partition.partition, state)
        return is_deposed

    def _change(self, partition: Partition, pending: PendingIsr) -> None:
        tp = partition.partition
        view = partition.view()
        if view.isr is not pending:
            return
        broker_epoch = self._broker_epoch()
        if broker_epoch is None:
            raise SessionLost("this broker is not registered, or has no roles yet")
        try:
            partition_epoch = self._store.update_isr(
                tp,
                LeadershipState(
                    leader=view.leader,
                    leader_epoch=view.leader_epoch,
                    isr=tuple(replica for replica in view.replicas if replica in pending.proposed),
                    controller_epoch=partition.controller_epoch,
                    partition_epoch=pending.committed.partition_epoch,
                ),
                joining=pending.joining,
                broker_epoch=broker_epoch,
                topic_id=NO_TOPIC_ID if partition.log.topic_id is None else partition.log.topic_id,
            )
        except LeadershipConflict as error:
            self.failures += 1
            if error.current is None:
                # The topic was removed by hand and may be restored; if it is deleted, the replica is stopped.
                raise
            if not self._learn_leader(partition, error.current, self._now_ms()):
                logger.info(
                    "the ISR of %s stays pending, since the controller changed it first: %s", tp, error
                )
            return
        except ReplicaNotRegistered as error:
            self.failures += 1
            logger.info("the ISR of %s stays %s: %s", tp, sorted(pending.in_sync_replicas), error)
            if partition.settle_isr(pending, pending.committed, self._now_ms()):
                self._on_high_watermark(tp)
            return
        self.shrinks += bool(pending.leaving)
        self.expands += bool(pending.joining)
        logger.info(
            "ISR of %s: %s -> %s (leader epoch %d, partition epoch %d)",
            tp,
            sorted(pending.in_sync_replicas),
            sorted(pending.proposed),
            view.leader_epoch,
            partition_epoch,
        )
        self._to_notify[tp] = None
        committed = CommittedIsr(pending.proposed, partition_epoch)
        if partition.settle_isr(pending, committed, self._now_ms()):
            self._on_high_watermark(tp)
