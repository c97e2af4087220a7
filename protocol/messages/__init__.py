"""Every request and response, declared once; one module per API family.

Importing this package fills `barnabas.protocol.schema.APIS`.
"""

from barnabas.protocol.messages import (
    api_versions,
    describe_replicas,
    fetch,
    inter_broker,
    leader_epoch,
    list_offsets,
    metadata,
    produce,
    topics,
)

__all__ = [
    "api_versions",
    "describe_replicas",
    "fetch",
    "inter_broker",
    "leader_epoch",
    "list_offsets",
    "metadata",
    "produce",
    "topics",
]
