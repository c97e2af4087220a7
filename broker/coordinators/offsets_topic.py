"""The topic of committed offsets and groups: its creation, and the partition of a group.

The partition is the one that Kafka chooses, so that tools and migrated data agree: Java's hash of the group
id, made non-negative in Kafka's way, modulo the number of partitions. Pure; any thread.
"""

from __future__ import annotations

from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.protocol.messages.topics import CreatableTopic, CreatableTopicConfig

OFFSETS_TOPIC: Final = "__consumer_offsets"
_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000


def java_hash(text: str) -> int:
    """``String.hashCode``: over the UTF-16 code units, in 32 bits with a sign."""
    found = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        found = (31 * found + (data[index] << 8 | data[index + 1])) & _MASK
    return found - (_MASK + 1) if found & _SIGN else found


def partition_of(group_id: str, num_partitions: int) -> int:
    """The partition of a group, from 0 on; the one hash that has no positive twin counts as 0."""
    hashed = java_hash(group_id)
    return (0 if hashed == -_SIGN else abs(hashed)) % num_partitions


def new_offsets_topic(config: BrokerConfig) -> CreatableTopic:
    """The request for the topic; it is refused while fewer brokers are alive than it has replicas."""
    return CreatableTopic(
        name=OFFSETS_TOPIC,
        num_partitions=config.offsets_topic_num_partitions,
        replication_factor=config.offsets_topic_replication_factor,
        configs=[
            CreatableTopicConfig(name="cleanup.policy", value="compact"),
            CreatableTopicConfig(name="compression.type", value="producer"),
            CreatableTopicConfig(name="segment.bytes", value=str(config.offsets_topic_segment_bytes)),
        ],
    )
