"""The in-sync replicas of a partition, as its leader knows them: committed, or about to change.

A change of the ISR takes effect when ZooKeeper has it, never before. Until then it is *pending*, and the
leader must be right whichever way it ends. So the high watermark looks at the *maximal* set: with a replica
that may be joining, it waits for that one too; with one that may be leaving, it still waits for it.

Committed and pending are different frozen types; there is no flag that could be forgotten. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from barnabas.protocol.ids import BrokerEpoch, BrokerId


@dataclass(frozen=True, slots=True)
class CommittedIsr:
    """What ZooKeeper is known to hold; ``partition_epoch`` is the version of the state znode."""

    in_sync_replicas: frozenset[BrokerId]
    partition_epoch: int

    @property
    def maximal(self) -> frozenset[BrokerId]:
        """All replicas that may be in the ISR by what ZooKeeper may hold."""
        return self.in_sync_replicas


@dataclass(frozen=True, slots=True)
class PendingExpand:
    """``joining`` may already be in the ISR, each in the life that the broker epoch names and in no other."""

    committed: CommittedIsr
    joining: Mapping[BrokerId, BrokerEpoch]

    @property
    def in_sync_replicas(self) -> frozenset[BrokerId]:
        return self.committed.in_sync_replicas

    @property
    def partition_epoch(self) -> int:
        return self.committed.partition_epoch

    @property
    def maximal(self) -> frozenset[BrokerId]:
        return self.committed.in_sync_replicas | self.joining.keys()

    @property
    def proposed(self) -> frozenset[BrokerId]:
        """The ISR that ZooKeeper is asked to hold."""
        return self.maximal


@dataclass(frozen=True, slots=True)
class PendingShrink:
    """``leaving`` may still be in the ISR."""

    committed: CommittedIsr
    leaving: frozenset[BrokerId]

    @property
    def joining(self) -> Mapping[BrokerId, BrokerEpoch]:
        return {}

    @property
    def in_sync_replicas(self) -> frozenset[BrokerId]:
        return self.committed.in_sync_replicas

    @property
    def partition_epoch(self) -> int:
        return self.committed.partition_epoch

    @property
    def maximal(self) -> frozenset[BrokerId]:
        return self.committed.in_sync_replicas

    @property
    def proposed(self) -> frozenset[BrokerId]:
        """The ISR that ZooKeeper is asked to hold."""
        return self.committed.in_sync_replicas - self.leaving


PendingIsr = PendingExpand | PendingShrink
IsrState = CommittedIsr | PendingExpand | PendingShrink
