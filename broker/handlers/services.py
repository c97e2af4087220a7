"""The dependencies of the handlers, built by the composition root.

The controller appears only as protocols, because the handlers do not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from barnabas.broker.base.purgatory import Purgatory
from barnabas.broker.base.slow_work import SlowWork
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.cluster.producer_ids import ProducerIds
from barnabas.broker.compaction.cleaner import LogCleaner
from barnabas.broker.config.listener_config import ListenerConfig
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.coordinators.groups.coordinator import GroupCoordinator
from barnabas.broker.coordinators.transactions.coordinator import TransactionCoordinator
from barnabas.broker.coordinators.transactions.verification import TransactionVerification
from barnabas.broker.handlers.auto_topics import AutoTopicCreation
from barnabas.broker.handlers.fault_table import FaultTable
from barnabas.broker.replication.fence import RequestOrder
from barnabas.broker.replication.log_dir_moves import LogDirMoves
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.security.authentication_outcomes import AuthenticationOutcomes
from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.broker_principals import BrokerPrincipals
from barnabas.broker.security.client_quotas import ClientQuotas
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import (
    BrokerEpoch,
    BrokerId,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages import topics as wire
from barnabas.zookeeper.acls import AclChanges
from barnabas.zookeeper.configs import ConfigStore
from barnabas.zookeeper.features import FeatureChanges
from barnabas.zookeeper.znodes import ReplicaAssignment

ShutdownAnswer = Callable[[ErrorCode, Collection[TopicPartition]], None]
OutcomesAnswer = Callable[[ErrorCode, Mapping[TopicPartition, ApiError | None]], None]
"""Called with NONE and the reasons why partitions were refused, or with the error of the whole request."""
Charge = Callable[[int], None]
"""Called with the number of partitions that are about to be created or deleted; raises ApiError to refuse."""
ReassignmentsAnswer = Callable[[ErrorCode, Mapping[TopicPartition, ReplicaAssignment]], None]


class TopicWork(Protocol):
    """Creating, growing and deleting topics in ZooKeeper; `TopicAdmin` of the controller. The calls block."""

    def create_topics(
        self, topics: Sequence[wire.CreatableTopic], *, validate_only: bool = ..., charge: Charge = ...
    ) -> list[wire.CreatableTopicResult]: ...

    def create_partitions(
        self, topics: Sequence[wire.CreatePartitionsTopic], *, validate_only: bool = ..., charge: Charge = ...
    ) -> Sequence[tuple[wire.CreatePartitionsTopicResult, TopicId, int]]:
        """The results, each with the topic's id and its number of partitions afterwards."""
        ...

    def delete_topics(
        self, topics: Sequence[wire.DeleteTopicState], *, charge: Charge = ...
    ) -> list[wire.DeletableTopicResult]: ...


class ControllerFace(Protocol):
    """The controller in this process, active or not."""

    @property
    def is_active(self) -> bool: ...

    def controlled_shutdown(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch, answer: ShutdownAnswer
    ) -> None: ...

    def elect_leaders(
        self, partitions: Collection[TopicPartition] | None, *, is_unclean: bool, done: OutcomesAnswer
    ) -> None: ...

    def alter_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        done: OutcomesAnswer,
        *,
        may_change_factor: bool = True,
    ) -> None: ...

    def list_reassignments(self, done: ReassignmentsAnswer) -> None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that handlers may use."""

    config: BrokerConfig
    cluster_id: str
    replicas: ReplicaManager
    metadata: MetadataCache
    topic_purgatory: Purgatory
    topics: TopicWork
    auto_topics: AutoTopicCreation
    configs: ConfigStore
    features: FeatureChanges
    controller: ControllerFace
    slow_work: SlowWork
    producer_ids: ProducerIds
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verification: TransactionVerification
    log_dir_moves: LogDirMoves
    authentication_outcomes: AuthenticationOutcomes
    check_certificate: Callable[[str, ListenerConfig], None]
    """Whether a listener could use these settings. Raises InvalidConfiguration."""
    cleaner: LogCleaner | None = None
    """None if ``log.cleaner.enable`` is false."""
    brokers: BrokerPrincipals = field(default_factory=BrokerPrincipals)
    """The principals that may send requests of brokers, if there is no authorizer."""
    authorizer: Authorizer | None = None
    """None if ``authorizer.class.name`` is empty: everybody may do everything."""
    acls: AclChanges | None = None
    """Changes the ACLs that the authorizer has; None without one."""
    request_order: RequestOrder = field(default_factory=RequestOrder)
    quotas: ClientQuotas = field(default_factory=ClientQuotas)
    faults: FaultTable = field(default_factory=FaultTable)
