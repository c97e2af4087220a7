"""Producer, consumer and admin: asyncio first, with a blocking facade in `barnabas.client.blocking`.

The public names are looked up when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from barnabas.client.admin.admin import Admin, ConfigResource, NewPartitions, NewTopic
    from barnabas.client.admin.quotas import ClientQuotaEntity
    from barnabas.client.admin.users import ScramDeletion, ScramUpsertion
    from barnabas.client.config import AdminConfig, ConsumerConfig, ProducerConfig
    from barnabas.client.consumer.consumer import Consumer
    from barnabas.client.consumer.subscription import RebalanceListener
    from barnabas.client.consumer_record import ConsumerRecord
    from barnabas.client.offsets import GroupMetadata, OffsetAndMetadata
    from barnabas.client.producer.batch import RecordFuture, RecordMetadata
    from barnabas.client.producer.producer import Producer
    from barnabas.client.producer.transactions import PreparedTransaction
    from barnabas.client.telemetry import observe
    from barnabas.common.fault_rules import FaultRule
    from barnabas.common.security.acl import (
        AclBinding,
        AclEntry,
        AclFilter,
        Operation,
        PatternType,
        Permission,
        ResourcePattern,
        ResourceType,
    )
    from barnabas.common.security.principal import Principal
    from barnabas.common.security.scram import ScramMechanism
    from barnabas.protocol.ids import TopicPartition
    from barnabas.protocol.messages.client_quotas import QuotaMatch

__all__ = [
    "AclBinding",
    "AclEntry",
    "AclFilter",
    "Admin",
    "AdminConfig",
    "ClientQuotaEntity",
    "ConfigResource",
    "Consumer",
    "ConsumerConfig",
    "ConsumerRecord",
    "FaultRule",
    "GroupMetadata",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "Operation",
    "PatternType",
    "Permission",
    "PreparedTransaction",
    "Principal",
    "Producer",
    "ProducerConfig",
    "QuotaMatch",
    "RebalanceListener",
    "RecordFuture",
    "RecordMetadata",
    "ResourcePattern",
    "ResourceType",
    "ScramDeletion",
    "ScramMechanism",
    "ScramUpsertion",
    "TopicPartition",
    "observe",
]

_HOMES = {
    "barnabas.client.admin.admin": ("Admin", "ConfigResource", "NewPartitions", "NewTopic"),
    "barnabas.client.admin.quotas": ("ClientQuotaEntity",),
    "barnabas.client.admin.users": ("ScramDeletion", "ScramUpsertion"),
    "barnabas.client.config": ("AdminConfig", "ConsumerConfig", "ProducerConfig"),
    "barnabas.client.consumer.consumer": ("Consumer",),
    "barnabas.client.consumer_record": ("ConsumerRecord",),
    "barnabas.client.consumer.subscription": ("RebalanceListener",),
    "barnabas.client.offsets": ("GroupMetadata", "OffsetAndMetadata"),
    "barnabas.client.producer.batch": ("RecordFuture", "RecordMetadata"),
    "barnabas.client.producer.producer": ("Producer",),
    "barnabas.client.producer.transactions": ("PreparedTransaction",),
    "barnabas.client.telemetry": ("observe",),
    "barnabas.common.fault_rules": ("FaultRule",),
    "barnabas.common.security.acl": (
        "AclBinding",
        "AclEntry",
        "AclFilter",
        "Operation",
        "PatternType",
        "Permission",
        "ResourcePattern",
        "ResourceType",
    ),
    "barnabas.common.security.principal": ("Principal",),
    "barnabas.common.security.scram": ("ScramMechanism",),
    "barnabas.protocol.ids": ("TopicPartition",),
    "barnabas.protocol.messages.client_quotas": ("QuotaMatch",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
