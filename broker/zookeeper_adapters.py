"""The controller package's store and topic work, in the shape in which the broker's layers ask for them.

Part of the composition root: beside `barnabas.broker.app` the only place in the broker that knows the
controller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from barnabas.broker.auto_topics import Create, create_through
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.live_settings import LiveSettings, Written
from barnabas.broker.coordinators.offsets_topic import OFFSETS_TOPIC, new_offsets_topic
from barnabas.broker.handlers.services import ALL_BROKERS, ConfigResource, GrownTopic
from barnabas.broker.producer_ids import ProducerIdsUnavailable
from barnabas.broker.replication.isr_changes import IneligibleReplica, IsrConflict, IsrStoreUnavailable
from barnabas.controller.topics import TopicAdmin, TopicResult
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import (
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.protocol.messages.configs import ConfigResourceType
from barnabas.protocol.messages.partitions import CreatePartitionsTopic, CreatePartitionsTopicResult
from barnabas.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    DeletableTopicResult,
    DeleteTopicState,
)
from barnabas.zookeeper.config_store import ConfigStore, Entity, EntityKind
from barnabas.zookeeper.producer_id_blocks import claim_producer_ids
from barnabas.zookeeper.session import SessionLost, ZooKeeperUnavailable
from barnabas.zookeeper.store import ClusterStore, PartitionStateConflict, ReplicaNotRegistered
from barnabas.zookeeper.znodes import MalformedZnode, StoredConfig

_CHANGE_ROUNDS: Final = 10


class ZooKeeperIsrStore:
    """`barnabas.broker.replication.isr_changes.IsrStore` over ZooKeeper."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store

    def update_isr(
        self,
        partition: TopicPartition,
        *,
        leader: BrokerId,
        leader_epoch: LeaderEpoch,
        controller_epoch: ControllerEpoch,
        in_sync_replicas: Sequence[BrokerId],
        partition_epoch: int,
        joining: Mapping[BrokerId, BrokerEpoch],
        broker_epoch: BrokerEpoch,
        topic_id: TopicId | None,
    ) -> int:
        try:
            return self._store.update_isr(
                partition,
                leader,
                leader_epoch,
                controller_epoch,
                tuple(in_sync_replicas),
                partition_epoch,
                joining,
                broker_epoch,
                NO_TOPIC_ID if topic_id is None else topic_id,
            )
        except ReplicaNotRegistered as error:
            raise IneligibleReplica(str(error)) from error
        except PartitionStateConflict as error:
            raise IsrConflict(str(error)) from error
        except (ZooKeeperUnavailable, SessionLost, MalformedZnode) as error:
            raise IsrStoreUnavailable(str(error)) from error

    def notify_isr_change(self, partitions: Sequence[TopicPartition]) -> None:
        try:
            self._store.notify_isr_change(partitions)
        except (ZooKeeperUnavailable, SessionLost) as error:
            raise IsrStoreUnavailable(str(error)) from error

    def notify_log_dir_failure(self, broker_id: BrokerId) -> None:
        try:
            self._store.notify_log_dir_failure(broker_id)
        except (ZooKeeperUnavailable, SessionLost) as error:
            raise IsrStoreUnavailable(str(error)) from error


class ZooKeeperProducerIdBlocks:
    """`barnabas.broker.producer_ids.BlockSource` over ZooKeeper."""

    def __init__(self, store: ClusterStore, broker_id: BrokerId) -> None:
        self._store = store
        self._broker_id = broker_id

    def claim_block(self) -> range:
        try:
            return claim_producer_ids(self._store.session, self._broker_id)
        except (ZooKeeperUnavailable, SessionLost, MalformedZnode) as error:
            raise ProducerIdsUnavailable(str(error)) from error


class ZooKeeperConfigWork:
    """`barnabas.broker.handlers.services.ConfigWork` over ZooKeeper."""

    def __init__(self, configs: ConfigStore) -> None:
        self._configs = configs

    def read(self, resources: Collection[ConfigResource]) -> dict[ConfigResource, Mapping[str, str]]:
        entities = {_entity(resource): resource for resource in resources}
        with _told_as_timeout():
            found = self._configs.read(entities)
        return {entities[entity]: config.values for entity, config in found.items()}

    def change(
        self, resource: ConfigResource, edit: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        entity = _entity(resource)
        with _told_as_timeout():
            for _ in range(_CHANGE_ROUNDS):
                former = self._configs.read([entity])[entity]
                if self._configs.replace(entity, edit(former.values), former):
                    return
        raise api_error(
            ErrorCode.REQUEST_TIMED_OUT,
            f"the settings of {resource.name!r} are changed by others again and again",
        )


def _entity(resource: ConfigResource) -> Entity:
    if resource == ALL_BROKERS:
        return Entity.broker(None)
    kind = EntityKind.TOPIC if resource.kind is ConfigResourceType.TOPIC else EntityKind.BROKER
    return Entity(kind, resource.name)


@contextmanager
def _told_as_timeout() -> Iterator[None]:
    try:
        yield
    except (ZooKeeperUnavailable, SessionLost) as error:
        raise api_error(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error


def settings_taker(
    live: LiveSettings, broker_id: BrokerId
) -> Callable[[Mapping[Entity, StoredConfig]], None]:
    """Hands what stands in ZooKeeper to the live settings."""
    own, everybody = Entity.broker(broker_id), Entity.broker(None)

    def take(found: Mapping[Entity, StoredConfig]) -> None:
        live.take_topics(
            {
                entity.name: Written(config.values, config.zxid)
                for entity, config in found.items()
                if entity.kind is EntityKind.TOPIC and config.exists
            }
        )
        if own in found and found[own].is_readable:
            live.take_broker(found[own].values)
        if everybody in found and found[everybody].is_readable:
            live.take_all_brokers(found[everybody].values)

    return take


def partition_counter(store: ClusterStore, topic: str) -> Callable[[], int | None]:
    """How many partitions a topic has in ZooKeeper, None for no such topic; raises REQUEST_TIMED_OUT."""

    def count() -> int | None:
        with _told_as_timeout():
            found = store.topic_assignments([topic]).get(topic)
        if isinstance(found, MalformedZnode):
            raise api_error(ErrorCode.UNKNOWN_SERVER_ERROR, str(found))
        return None if found is None else len(found.replicas)

    return count


class ZooKeeperTopicWork:
    """`barnabas.broker.handlers.services.TopicWork` by the controller's topic work."""

    def __init__(self, topics: TopicAdmin) -> None:
        self._topics = topics

    def create(self, topics: Sequence[CreatableTopic], *, validate_only: bool) -> list[CreatableTopicResult]:
        try:
            results = self._topics.create_topics(topics, validate_only=validate_only)
        except ApiError as error:
            return [
                CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.text)
                for topic in topics
            ]
        return [
            CreatableTopicResult(
                name=result.name or "",
                topic_id=result.topic_id,
                error_code=result.error,
                error_message=result.message,
                num_partitions=result.num_partitions,
                replication_factor=result.replication_factor,
            )
            for result in results
        ]

    def create_partitions(
        self, topics: Sequence[CreatePartitionsTopic], *, validate_only: bool
    ) -> list[GrownTopic]:
        try:
            results = self._topics.create_partitions(topics, validate_only=validate_only)
        except ApiError as error:
            results = [TopicResult(name=topic.name, error=error.code, message=error.text) for topic in topics]
        return [
            GrownTopic(
                CreatePartitionsTopicResult(
                    name=result.name or "", error_code=result.error, error_message=result.message
                ),
                result.topic_id,
                result.num_partitions,
            )
            for result in results
        ]

    def delete(self, topics: Sequence[DeleteTopicState]) -> list[DeletableTopicResult]:
        try:
            results = self._topics.delete_topics(topics)
        except ApiError as error:
            return [
                DeletableTopicResult(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    error_code=error.code,
                    error_message=error.text,
                )
                for topic in topics
            ]
        return [
            DeletableTopicResult(
                name=result.name,
                topic_id=result.topic_id,
                error_code=result.error,
                error_message=result.message,
            )
            for result in results
        ]


def topic_maker(
    config: BrokerConfig,
    topics: ZooKeeperTopicWork,
    is_active: Callable[[], bool],
    controller_endpoint: Callable[[], Endpoint | None],
) -> Create:
    """Makes topics that clients or this broker asked for: here, or by asking the controller's broker."""

    def create(names: Sequence[str]) -> Mapping[str, ErrorCode]:
        wanted = [
            new_offsets_topic(config) if name == OFFSETS_TOPIC else CreatableTopic(name=name)
            for name in names
        ]
        if not is_active():
            endpoint = controller_endpoint()
            return {} if endpoint is None else create_through(config.broker_id, endpoint, wanted)
        made = topics.create(wanted, validate_only=False)
        return {result.name: ErrorCode(result.error_code) for result in made}

    return create
