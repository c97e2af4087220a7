"""The topics in which coordinators keep their records, and which broker coordinates a key.

The key (a group id or a transactional id) determines a partition; the partition's leader is the coordinator.
The hash is Kafka's, so that tools and migrated data agree.

The number of partitions determines the coordinator, so a broker uses it only when it is certain: when it
knows as many partitions as the settings require, or when ZooKeeper confirms another number.

Any thread; nothing here waits.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Final

from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.broker.config.settings import BrokerConfig
from barnabas.protocol.errors import ApiError, ErrorCode, LocalError, api_error
from barnabas.protocol.ids import NO_BROKER, BrokerId, Endpoint, TopicId
from barnabas.protocol.messages.topics import CreatableTopic, CreatableTopicConfig
from barnabas.protocol.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

logger = logging.getLogger(__name__)

TOO_FEW_EVERY_MS: Final = 30_000
"""The shortest interval between warnings that a topic waits for brokers."""
_MASK: Final = 0xFFFF_FFFF
_SIGN: Final = 0x8000_0000


def java_hash(text: str) -> int:
    """``String.hashCode``: over the UTF-16 code units, in 32 bits with a sign."""
    result = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        result = (31 * result + (data[index] << 8 | data[index + 1])) & _MASK
    return result - (_MASK + 1) if result & _SIGN else result


def partition_of(key: str, num_partitions: int) -> int:
    """The partition of a key, from 0 on; the hash without a positive counterpart counts as 0."""
    hashed = java_hash(key)
    return (0 if hashed == -_SIGN else abs(hashed)) % num_partitions


def new_topic(name: str, config: BrokerConfig) -> CreatableTopic:
    """The request that creates a topic: one of these as the settings require it, another with the defaults.

    No decision about a transaction may be lost, so always ``transaction.state.log.min.isr`` replicas have it.
    """
    if name == OFFSETS_TOPIC:
        num_partitions = config.offsets_topic_num_partitions
        replication_factor = config.offsets_topic_replication_factor
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
    elif name == TRANSACTIONS_TOPIC:
        num_partitions = config.transaction_state_log_num_partitions
        replication_factor = config.transaction_state_log_replication_factor
        configs = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
    else:
        return CreatableTopic(name=name)
    return CreatableTopic(
        name=name,
        num_partitions=num_partitions,
        replication_factor=replication_factor,
        configs=[CreatableTopicConfig(name=setting, value=value) for setting, value in configs.items()],
    )


_REPLICATION_SETTINGS: Final = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTIONS_TOPIC: "transaction.state.log.replication.factor",
}


class InternalTopic:
    """One of these topics.

    ``create_topic`` begins the creation and does not wait. ``count_partitions`` asks ZooKeeper for the number
    of partitions, None without the topic; it blocks, and raises LocalError or ApiError. ``submit`` has work
    done on another thread.
    """

    def __init__(
        self,
        name: str,
        config: BrokerConfig,
        metadata: MetadataCache,
        *,
        create_topic: Callable[[str], object],
        count_partitions: Callable[[str], int | None],
        submit: Callable[[Callable[[], object]], None],
        now_ms: Callable[[], float],
    ) -> None:
        self.name = name
        self._required = new_topic(name, config)
        self._metadata = metadata
        self._create_topic = create_topic
        self._count_partitions = count_partitions
        self._submit = submit
        self._now_ms = now_ms
        self._counted: tuple[TopicId, int] | None = None
        self._is_count_submitted = False
        self._warned_ms = -math.inf

    @property
    def is_known(self) -> bool:
        return self.name in self._metadata.current.topics

    def create(self) -> None:
        """Begin to create the topic, unless fewer brokers are alive than it has replicas (KIP-115)."""
        too_few = self._too_few_brokers()
        if too_few is None:
            self._create_topic(self.name)
        elif self._now_ms() - self._warned_ms >= TOO_FEW_EVERY_MS:
            self._warned_ms = self._now_ms()
            logger.warning("%s", too_few)

    def coordinator_of(self, key: str, listener: str) -> tuple[BrokerId, Endpoint]:
        """The broker that coordinates a key, which need not exist. Raises COORDINATOR_NOT_AVAILABLE."""
        index = self.partition_of(key)
        state = self._metadata.current.partitions_of(self.name).get(index)
        leader = NO_BROKER if state is None else self._metadata.leader_of(state)[0]
        endpoint = self._metadata.current.endpoint(leader, listener)
        if endpoint is None:
            raise api_error(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.name}-{index} has no leader at present"
            )
        return leader, endpoint

    def partition_of(self, key: str) -> int:
        """The partition of a key. Raises COORDINATOR_NOT_AVAILABLE while the topic's size is uncertain."""
        count = self._partition_count()
        if count is None:
            text = self._too_few_brokers() or f"{self.name} does not exist yet"
            raise api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        return partition_of(key, count)

    def _too_few_brokers(self) -> str | None:
        """Why the topic cannot be created now; None if it exists or enough brokers are alive."""
        current, factor = self._metadata.current, self._required.replication_factor
        if self.name in current.topics or len(current.brokers) >= factor:
            return None
        return (
            f"{self.name} waits for brokers: {_REPLICATION_SETTINGS[self.name]} is {factor}, "
            f"alive are {len(current.brokers)}"
        )

    def _partition_count(self) -> int | None:
        topic = self._metadata.current.topics.get(self.name)
        if topic is None:
            return None
        counted = self._counted
        if counted is not None and counted[0] == topic.topic_id:
            return counted[1]
        count = len(topic.partitions)
        if count == self._required.num_partitions and count - 1 in topic.partitions:
            self._counted = (topic.topic_id, count)
            return count
        if not self._is_count_submitted:
            self._is_count_submitted = True
            self._submit(self._count)
        return None

    def _count(self) -> None:
        self._is_count_submitted = False
        try:
            count = self._count_partitions(self.name)
        except (ApiError, LocalError) as error:
            logger.warning("the partitions of %s cannot be counted now: %s", self.name, error)
            return
        topic = self._metadata.current.topics.get(self.name)
        # Partitions that only ZooKeeper has will be in the metadata soon; the next request counts again.
        if topic is not None and count == len(topic.partitions):
            self._counted = (topic.topic_id, count)
