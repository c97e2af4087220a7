"""Metadata: the brokers, the controller and the leaders, as far as this broker knows.

A request for an unknown topic may create it; see `barnabas.broker.auto_topics`. Versions below 4 have no
field to refuse that, so they always may.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from barnabas.broker.clocks import monotonic_ms
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from barnabas.broker.handlers.services import Services
from barnabas.broker.metadata_cache import ClusterMetadata, MetadataCache
from barnabas.broker.purgatory import DelayedOperation
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import NO_BROKER, NO_TOPIC_ID, BrokerId, TopicId
from barnabas.protocol.messages.inter_broker import UpdateMetadataPartition
from barnabas.protocol.messages.metadata import (
    OPERATIONS_UNKNOWN,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
)
from barnabas.protocol.topic_names import INTERNAL_TOPICS, validate_topic_name

_NULL_NAME_SINCE: Final = 12
_LEADERS_WAIT_MS: Final = 1_000
"""As long as librdkafka takes to ask again by itself."""
_NEWS_WAIT_MS: Final = 20
"""As long as a busy broker may take to notice that its own connection to a peer was reset."""
_SETTLED_AFTER_MS: Final = 1_000
_WORTH_KEEPING: Final = 50
"""An answer with fewer partitions is built for each request."""


def handle(services: Services, request: ApiRequest) -> None:
    """Answer; to a Kafka client not before this broker can know what made it ask.

    A client asks once when a connection breaks, and at once: often before the brokers have noticed that their
    own connections to that peer broke too. Told of no leader, or of the dead one, librdkafka asks again only
    by its timer, a second later. So one that asks on a connection of some age waits for a moment, and then,
    if a leader is dead or suspected, for the new one. Who has just connected is answered at once.
    """
    body: MetadataRequest = request.body
    if body.topics is not None:
        body.topics = _each_once(body.topics)
    if request.api_version is None:
        _answer(services, request)
    elif request.raw.connection_age_ms < _SETTLED_AFTER_MS:
        _answer_when_settled(services, request)
    else:
        answer = request.answering(lambda: _answer_when_settled(services, request))
        news = Delayed(_NEWS_WAIT_MS, _never, answer)
        services.topic_purgatory.try_complete_else_watch(news, ())


def _answer_when_settled(services: Services, request: ApiRequest) -> None:
    moving = _moving(services, request.body)
    if not moving:
        _answer(services, request)
        return
    settled = Delayed(
        _LEADERS_WAIT_MS,
        lambda: not _moving(services, request.body),
        request.answering(lambda: _answer(services, request)),
    )
    services.topic_purgatory.try_complete_else_watch(settled, moving)


class Delayed(DelayedOperation):
    """An answer that waits for a condition, or for so long at most; then what is known is the answer."""

    def __init__(self, wait_ms: int, is_due: Callable[[], bool], answer: Callable[[], None]) -> None:
        super().__init__(int(monotonic_ms()) + wait_ms)
        self._is_due = is_due
        self._answer = answer

    def try_complete(self) -> bool:
        return self._is_due()

    def on_complete(self) -> None:
        self._answer()


def _never() -> bool:
    return False


def _moving(services: Services, body: MetadataRequest) -> list[str]:
    """The requested topics that have a partition whose leader is gone and not yet replaced."""
    moving = services.metadata_answers.moving(services.metadata)
    if not moving or body.topics is None:
        return list(moving)
    return [topic.name for topic in body.topics if topic.name in moving]


def _answer(services: Services, request: ApiRequest) -> None:
    version = services.metadata.version
    question = _question(request)
    found = services.metadata_answers.find(version, question)
    if found is None:
        answer = _build(services, request)
        is_large = sum(len(topic.partitions) for topic in answer.topics) >= _WORTH_KEEPING
        # An answer with an error may have a side effect, such as the creation of a topic.
        keeps = is_large and all(topic.error_code == ErrorCode.NONE for topic in answer.topics)
        found = answer if request.api_version is None else request.encoded(answer)
        if found is None:
            return
        if keeps and services.metadata.version == version:
            services.metadata_answers.keep(version, question, found)
    if request.api_version is None:
        request.respond(found)
    else:
        request.respond_with(found)


def _question(request: ApiRequest) -> Hashable:
    """Everything that an answer depends on, except the metadata."""
    body: MetadataRequest = request.body
    return (
        None if body.topics is None else tuple((topic.topic_id, topic.name) for topic in body.topics),
        request.peer.listener_name,
        request.api_version,
        body.include_topic_authorized_operations,
        body.include_cluster_authorized_operations,
    )


def _build(services: Services, request: ApiRequest) -> MetadataResponse:
    body: MetadataRequest = request.body
    cache, current = services.metadata, services.metadata.current
    # In version 0, which has no null, an empty list asks for all topics.
    if body.topics is None or (request.api_version == 0 and not body.topics):
        topics = [_topic(cache, current, name) for name in current.topics]
    else:
        topics = _asked(services, current, body.topics, may_create=body.allow_auto_topic_creation)
    if request.api_version is not None and request.api_version < _NULL_NAME_SINCE:
        for topic in topics:
            topic.name = topic.name or ""
    operations = TOPIC_OPERATIONS if body.include_topic_authorized_operations else OPERATIONS_UNKNOWN
    for topic in topics:
        topic.topic_authorized_operations = operations
    return MetadataResponse(
        brokers=live_brokers(cache, current, request.peer.listener_name),
        cluster_id=services.cluster_id,
        controller_id=named_controller(cache, current),
        topics=topics,
        cluster_authorized_operations=CLUSTER_OPERATIONS
        if body.include_cluster_authorized_operations
        else OPERATIONS_UNKNOWN,
    )


def live_brokers(cache: MetadataCache, current: ClusterMetadata, listener_name: str) -> list[MetadataBroker]:
    """The brokers that live and have this listener, without those that are thought dead."""
    suspects = cache.suspects
    return [
        MetadataBroker(node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker_id, broker in current.brokers.items()
        if broker_id not in suspects and (endpoint := current.endpoint(broker_id, listener_name)) is not None
    ]


def named_controller(cache: MetadataCache, current: ClusterMetadata) -> BrokerId:
    """The controller to name: -1 while it is gone or suspected."""
    known = current.controller_id in current.brokers and current.controller_id not in cache.suspects
    return current.controller_id if known else NO_BROKER


def _asked(
    services: Services, current: ClusterMetadata, asked: list[MetadataRequestTopic], *, may_create: bool
) -> list[MetadataTopic]:
    """Each topic by name, or by id where that is given: a topic id wins over the name."""
    found = [_find(services.metadata, current, one) for one in asked]
    if may_create and services.auto_topics.is_enabled:
        unknown = [topic for topic in found if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        if unknown:
            answers = services.auto_topics.ask({topic.name or "" for topic in unknown})
            for topic in unknown:
                topic.error_code = answers[topic.name or ""]
    return found


def _each_once(topics: list[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    """As in Apache Kafka: an answer may not be so many times as long as its request."""
    return list({(topic.topic_id, topic.name): topic for topic in topics}.values())


def _find(cache: MetadataCache, current: ClusterMetadata, asked: MetadataRequestTopic) -> MetadataTopic:
    if asked.topic_id != NO_TOPIC_ID:
        name = current.topic_names.get(TopicId(asked.topic_id))
        if name is not None:
            return _topic(cache, current, name)
        return MetadataTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=asked.name, topic_id=asked.topic_id, partitions=[]
        )
    name = asked.name or ""
    if name in current.topics:
        return _topic(cache, current, name)
    return MetadataTopic(error_code=_why_unknown(name), name=name, partitions=[])


def _why_unknown(name: str) -> ErrorCode:
    try:
        validate_topic_name(name)
    except ApiError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _topic(cache: MetadataCache, current: ClusterMetadata, name: str) -> MetadataTopic:
    found = current.topics[name]
    return MetadataTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=found.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[
            _partition(cache, current, found.partitions[index]) for index in sorted(found.partitions)
        ],
    )


def _partition(
    cache: MetadataCache, current: ClusterMetadata, state: UpdateMetadataPartition
) -> MetadataPartition:
    leader, leader_epoch = cache.leader_of(state)
    alive = current.brokers
    return MetadataPartition(
        error_code=ErrorCode.NONE if leader != NO_BROKER else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=state.partition_index,
        leader_id=leader,
        leader_epoch=leader_epoch,
        replica_nodes=state.replicas,
        isr_nodes=state.isr,
        offline_replicas=[
            replica
            for replica in state.replicas
            if BrokerId(replica) not in alive or replica in state.offline_replicas
        ],
    )
