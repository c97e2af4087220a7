"""Producer, consumer and admin: asyncio first, with a blocking facade in `barnabas.client.blocking`.

The public names are looked up when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from barnabas.client.admin.admin import Admin, ConfigResource, NewPartitions, NewTopic
    from barnabas.client.config import AdminConfig, ConsumerConfig, ProducerConfig
    from barnabas.client.consumer.consumer import Consumer
    from barnabas.client.consumer.partition_state import ConsumerRecord
    from barnabas.client.consumer.subscription import RebalanceListener
    from barnabas.client.offsets import GroupMetadata, OffsetAndMetadata
    from barnabas.client.producer.batch import RecordFuture, RecordMetadata
    from barnabas.client.producer.producer import Producer
    from barnabas.client.producer.transactions import PreparedTransaction
    from barnabas.protocol.ids import TopicPartition

__all__ = [
    "Admin",
    "AdminConfig",
    "ConfigResource",
    "Consumer",
    "ConsumerConfig",
    "ConsumerRecord",
    "GroupMetadata",
    "NewPartitions",
    "NewTopic",
    "OffsetAndMetadata",
    "PreparedTransaction",
    "Producer",
    "ProducerConfig",
    "RebalanceListener",
    "RecordFuture",
    "RecordMetadata",
    "TopicPartition",
]

_HOMES = {
    "Admin": "barnabas.client.admin.admin",
    "AdminConfig": "barnabas.client.config",
    "ConfigResource": "barnabas.client.admin.admin",
    "Consumer": "barnabas.client.consumer.consumer",
    "ConsumerConfig": "barnabas.client.config",
    "ConsumerRecord": "barnabas.client.consumer.partition_state",
    "GroupMetadata": "barnabas.client.offsets",
    "NewPartitions": "barnabas.client.admin.admin",
    "NewTopic": "barnabas.client.admin.admin",
    "OffsetAndMetadata": "barnabas.client.offsets",
    "PreparedTransaction": "barnabas.client.producer.transactions",
    "Producer": "barnabas.client.producer.producer",
    "ProducerConfig": "barnabas.client.config",
    "RebalanceListener": "barnabas.client.consumer.subscription",
    "RecordFuture": "barnabas.client.producer.batch",
    "RecordMetadata": "barnabas.client.producer.batch",
    "TopicPartition": "barnabas.protocol.ids",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
