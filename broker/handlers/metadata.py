"""Metadata and DescribeCluster: the brokers, the controller and the leaders that this broker knows.

A Metadata request for an unknown topic may create it; see `auto_topics`. Versions below 4 have no field to
refuse that, so they always may.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Container, Hashable, Iterable, Mapping
from typing import Any, Final

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.base.limits import MAX_ON_NETWORK_THREAD
from barnabas.broker.cluster.metadata_cache import ClusterMetadata, MetadataCache, endpoint_of
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorization import allows, authorized_operations, permitted
from barnabas.broker.handlers.services import Services
from barnabas.broker.handlers.waiting import after_first_update
from barnabas.broker.network.request import Lane
from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import NO_BROKER, NO_TOPIC_ID, BrokerId, TopicId
from barnabas.protocol.messages import metadata as wire
from barnabas.protocol.messages.inter_broker import UpdateMetadataBroker, UpdateMetadataPartition
from barnabas.protocol.topic_names import INTERNAL_TOPICS, validate_topic_name

_NULL_NAME_SINCE: Final = 12
_LEADERS_WAIT_MS: Final = 1_000
"""librdkafka asks again by itself after this time."""
_NEWS_WAIT_MS: Final = 20
"""The resets of a dead broker's connections reach its peers and its clients within this time."""
_LONGEST_NEWS_WAIT_MS: Final = 200
"""The fetchers' thread of a busy broker may take a while until it handles a reset."""
_LOOK_AGAIN_MS: Final = 5
_NEWS_LAST_MS: Final = 500
"""For so long after a death was noticed, requests are taken to ask because of it."""
_SETTLED_AFTER_MS: Final = 100
"""A client that starts has asked its first questions by then."""
_NOTHING_HIDDEN: Final[frozenset[str]] = frozenset()
_OF_PARTITIONS: Final = frozenset(
    {ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.LISTENER_NOT_FOUND, ErrorCode.REPLICA_NOT_AVAILABLE}
)
"""The codes of partitions; a topic has the first one only until it has partitions."""
_WORTH_KEEPING: Final = 50
"""An answer with fewer partitions is built for each request."""


def handle_metadata(services: Services, request: ApiRequest) -> None:
    def begin() -> None:
        after_first_update(services, request, lambda: _answer_soon(services, request))

    if (
        services.authorizer is not None
        and _asks_for_all(request)
        and len(services.metadata.current.topics) > MAX_ON_NETWORK_THREAD
    ):
        # Each topic is a decision, and a session does not remember that many.
        request.raw.continue_in(Lane.GENERAL, begin)
    else:
        begin()


def _answer_soon(services: Services, request: ApiRequest) -> None:
    """Answer; a Kafka client not before this broker can know what made the client ask."""
    body: wire.MetadataRequest = request.body
    if body.topics is not None:
        # As in Apache Kafka, each once: otherwise an answer could be many times as long as its request.
        body.topics = list({_key(topic): topic for topic in body.topics}.values())
    if request.api_version is None:
        _answer(services, request)
    elif request.raw.connection_age_ms < _SETTLED_AFTER_MS:
        _answer_when_settled(services, request)
    else:
        _answer_after_news(services, request)


def _answer_after_news(services: Services, request: ApiRequest) -> None:
    """Answer when this broker has noticed the death of a peer that may have made the client ask.

    A client asks once when a connection breaks, and at once: often before the brokers have noticed that their
    own connections to that peer broke too. If the answer names no leader, or the dead one, librdkafka asks
    again only by its timer, a second later. So a request on a connection of some age waits for a moment, and
    until the fetchers have looked at their connections; if a leader is dead or suspected, it also waits for
    the new leader. On a new connection it is answered at once.
    """
    cache, have_looked = services.metadata, threading.Event()

    def wait_left_ms() -> float:
        now_ms = monotonic_ms()
        waited_ms = now_ms - request.raw.received_ns / 1e6
        if now_ms - cache.death_noticed_ms < _NEWS_LAST_MS or waited_ms >= _LONGEST_NEWS_WAIT_MS:
            return 0.0
        return max(_NEWS_WAIT_MS - waited_ms, 0.0 if have_looked.is_set() else _LOOK_AGAIN_MS)

    def go_on() -> None:
        left_ms = wait_left_ms()
        if not left_ms:
            _answer_when_settled(services, request)
            return
        request.answer_when(
            lambda: not wait_left_ms(),
            go_on,
            purgatory=services.topic_purgatory,
            keys=(),
            wait_ms=math.ceil(left_ms),
        )

    if wait_left_ms():
        services.replicas.fetchers.when_polled(have_looked.set)
    go_on()


def _key(topic: wire.MetadataRequestTopic) -> Hashable:
    """The id of the topic or, without one, its name: a request finds the topic by this."""
    return topic.name if topic.topic_id == NO_TOPIC_ID else topic.topic_id


def _answer_when_settled(services: Services, request: ApiRequest) -> None:
    moving = _moving(services, request)
    if not moving:
        _answer(services, request)
        return
    request.answer_when(
        lambda: not _moving(services, request),
        lambda: _answer(services, request),
        purgatory=services.topic_purgatory,
        keys=moving,
        wait_ms=_LEADERS_WAIT_MS,
    )


def _moving(services: Services, request: ApiRequest) -> list[str]:
    """The requested topics that have a partition whose leader is gone and not yet replaced.

    Without topics that the principal may not describe: the wait would tell that they exist.
    """
    moving = services.metadata.moving_topics()
    if not moving:
        return []
    topics = request.body.topics
    names = moving if topics is None else [each.name for each in topics if each.name in moving]
    shown = permitted(services, request, Operation.DESCRIBE, ResourceType.TOPIC, names, logs_denied=False)
    return [name for name in names if name in shown]


def _answer(services: Services, request: ApiRequest) -> None:
    cache = services.metadata
    version, current = cache.version, cache.current
    hidden = _hidden(services, request, current)
    codes = _ask_to_create(services, request, current, hidden)
    operations = _cluster_operations(services, request)
    gone = _gone(services, request, current)
    question = *_question(request), hidden, operations, *gone, *codes.items()
    # The operations on topics may be another principal's.
    is_shared = services.authorizer is None or not request.body.include_topic_authorized_operations
    answer: Any = cache.answers.find(version, question) if is_shared else None

    def build() -> wire.MetadataResponse:
        response = _build(services, request, current, hidden, codes, gone.values())
        response.cluster_authorized_operations = operations
        return response

    if answer is None:
        response = build()
        answer = response if request.api_version is None else request.encoded(response)
        if answer is None:
            return
        is_large = sum(len(topic.partitions) for topic in response.topics) >= _WORTH_KEEPING
        if is_large and is_shared and cache.version == version:
            cache.answers.keep(version, question, answer)
    if request.quotas is not None and request.throttle_ms():
        # An answer that is kept has no throttle time.
        request.respond(build())
    elif request.api_version is None:
        request.respond(answer)
    else:
        request.respond_with(answer)


def _asks_for_all(request: ApiRequest) -> bool:
    # In version 0, which has no null, an empty list asks for all topics.
    topics = request.body.topics
    return topics is None or (request.api_version == 0 and not topics)


def _hidden(services: Services, request: ApiRequest, current: ClusterMetadata) -> frozenset[str]:
    """The requested topics that the principal may not describe, whether they exist or not."""
    if services.authorizer is None:
        return _NOTHING_HIDDEN
    is_listing = _asks_for_all(request)
    requested = current.topics if is_listing else (_name(current, each) for each in request.body.topics)
    names = [name for name in requested if name]
    shown = permitted(
        services, request, Operation.DESCRIBE, ResourceType.TOPIC, names, logs_denied=not is_listing
    )
    return frozenset(name for name in names if name not in shown)


def _name(current: ClusterMetadata, requested: wire.MetadataRequestTopic) -> str:
    """The name of a topic that is requested by id or name; empty for an unknown id."""
    if requested.topic_id == NO_TOPIC_ID:
        return requested.name or ""
    return current.topic_names.get(TopicId(requested.topic_id), "")


def _ask_to_create(
    services: Services, request: ApiRequest, current: ClusterMetadata, hidden: Container[str]
) -> Mapping[str, ErrorCode]:
    """Have the unknown topics created that a request names, if it may; the error codes to answer for them."""
    body: wire.MetadataRequest = request.body
    if not (body.topics and body.allow_auto_topic_creation and services.auto_topics.is_enabled):
        return {}
    names = (topic.name or "" for topic in body.topics if topic.topic_id == NO_TOPIC_ID)
    unknown = {
        name: None
        for name in names
        if name not in current.topics
        and name not in hidden
        and name not in INTERNAL_TOPICS
        and _invalidity(name) is None
    }
    if not unknown:
        return {}

    def charge(topics: int) -> None:
        request.charge_creation(topics * services.config.num_partitions)

    if not allows(services, request, Operation.CREATE, ResourceType.CLUSTER, logs_denied=False):
        creatable = permitted(services, request, Operation.CREATE, ResourceType.TOPIC, unknown)
        refused = {name: ErrorCode.TOPIC_AUTHORIZATION_FAILED for name in unknown if name not in creatable}
        permitted_names = [name for name in unknown if name in creatable]
        return refused | (services.auto_topics.ask(permitted_names, charge) if permitted_names else {})
    return services.auto_topics.ask(unknown, charge)


def _question(request: ApiRequest) -> tuple[Hashable, ...]:
    """All that decides an answer, but for the metadata and the error codes of topics to be created."""
    body: wire.MetadataRequest = request.body
    return (
        None if body.topics is None else tuple((topic.topic_id, topic.name) for topic in body.topics),
        request.raw.peer.listener_name,
        request.api_version,
        body.include_topic_authorized_operations,
    )


def _build(
    services: Services,
    request: ApiRequest,
    current: ClusterMetadata,
    hidden: Container[str],
    codes: Mapping[str, ErrorCode],
    gone: Iterable[UpdateMetadataBroker] = (),
) -> wire.MetadataResponse:
    body: wire.MetadataRequest = request.body
    cache = services.metadata
    if _asks_for_all(request):
        topics = [_topic(cache, current, name) for name in current.topics if name not in hidden]
    else:
        topics = [_find(cache, current, topic, hidden, codes) for topic in body.topics or ()]
    if body.include_topic_authorized_operations:
        for topic in topics:
            if topic.name and topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                topic.topic_authorized_operations = authorized_operations(
                    services, request, ResourceType.TOPIC, topic.name
                )
    if not request.is_since(_NULL_NAME_SINCE):
        for topic in topics:
            topic.name = topic.name or ""
    return wire.MetadataResponse(
        brokers=live_brokers(cache, current, request.raw.peer.listener_name, gone),
        cluster_id=services.cluster_id,
        controller_id=named_controller(cache, current),
        topics=topics,
    )


def refusal_of_metadata(services: Services, request: ApiRequest, code: ErrorCode) -> wire.MetadataResponse:
    """The answer with a code for each topic, or for each partition where only these have it in Kafka.

    It names the brokers: a client takes an answer without brokers for no answer. A client that gets a topic
    without partitions assigns none of them to its group, and may ask again only after minutes.
    """
    current = services.metadata.current
    response = _build(services, request, current, _hidden(services, request, current), {})
    for topic in response.topics:
        if code in _OF_PARTITIONS and topic.partitions:
            for partition in topic.partitions:
                partition.error_code, partition.leader_id = code, NO_BROKER
        else:
            topic.error_code, topic.partitions = code, []
    # The only code of the whole answer in Kafka (KIP-1102).
    response.error_code = code if code is ErrorCode.REBOOTSTRAP_REQUIRED else ErrorCode.NONE
    return response


def _gone(
    services: Services, request: ApiRequest, current: ClusterMetadata
) -> dict[tuple[int, int], UpdateMetadataBroker]:
    """The brokers that died a moment ago, for a client that may not have heard of it: named once more.

    As soon as an answer omits a broker, librdkafka takes from it all partitions that it leads, on a thread of
    its own. If that comes after the answer's new leaders were taken, the partitions have no leader, until
    librdkafka asks again by its timer, up to a second later. In the next answer the partitions have moved,
    and the broker must be omitted: librdkafka waits ever longer before it connects to one that it knows.
    """
    raw, session = request.raw, request.raw.peer.session
    if request.api_version is None or raw.connection_age_ms < _SETTLED_AFTER_MS:
        return {}
    gone = [current.brokers[broker_id] for broker_id in services.metadata.suspects & current.brokers.keys()]
    departed = current.lately_departed(monotonic_ms())
    gone += (each.broker for each in departed if each.since_ms * 1e6 > raw.peer.opened_ns)
    if not gone:
        return {}
    registrations = {(broker.broker_id, broker.broker_epoch): broker for broker in gone}
    unnamed = {key: broker for key, broker in registrations.items() if key not in session.named_gone}
    if request.body.topics or _asks_for_all(request):
        session.named_gone = frozenset(registrations)
    return unnamed


def live_brokers(
    cache: MetadataCache,
    current: ClusterMetadata,
    listener_name: str,
    gone: Iterable[UpdateMetadataBroker] = (),
) -> list[wire.MetadataBroker]:
    """The live brokers that have this listener, without suspects; and these that are gone."""
    named = {broker.broker_id: broker for broker in gone}
    suspects = cache.suspects
    named |= {key: broker for key, broker in current.brokers.items() if key not in suspects}
    return [
        wire.MetadataBroker(
            node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )
        for broker in named.values()
        if (endpoint := endpoint_of(broker, listener_name)) is not None
    ]


def named_controller(cache: MetadataCache, current: ClusterMetadata) -> BrokerId:
    """The controller to name: -1 while it is gone or suspected."""
    is_alive = current.controller_id in current.brokers and current.controller_id not in cache.suspects
    return current.controller_id if is_alive else NO_BROKER


def _find(
    cache: MetadataCache,
    current: ClusterMetadata,
    requested: wire.MetadataRequestTopic,
    hidden: Container[str],
    codes: Mapping[str, ErrorCode],
) -> wire.MetadataTopic:
    """A topic by its id if the request has one, else by its name.

    As in Kafka a topic id is no secret, but the name of a hidden topic is.
    """
    name = _name(current, requested)
    is_unknown_id = requested.topic_id != NO_TOPIC_ID and not name
    if is_unknown_id or name in hidden:
        code = ErrorCode.UNKNOWN_TOPIC_ID if is_unknown_id else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return wire.MetadataTopic(
            error_code=code, name=requested.name, topic_id=requested.topic_id, partitions=[]
        )
    if name in current.topics:
        return _topic(cache, current, name)
    code = codes.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return wire.MetadataTopic(error_code=_invalidity(name) or code, name=name, partitions=[])


def _invalidity(name: str) -> ErrorCode | None:
    """Why no topic can have this name."""
    try:
        validate_topic_name(name)
    except ApiError as error:
        return error.code
    return None


def _topic(cache: MetadataCache, current: ClusterMetadata, name: str) -> wire.MetadataTopic:
    topic = current.topics[name]
    return wire.MetadataTopic(
        error_code=ErrorCode.NONE,
        name=name,
        topic_id=topic.topic_id,
        is_internal=name in INTERNAL_TOPICS,
        partitions=[
            _partition(cache, current, topic.partitions[index]) for index in sorted(topic.partitions)
        ],
    )


def _partition(
    cache: MetadataCache, current: ClusterMetadata, state: UpdateMetadataPartition
) -> wire.MetadataPartition:
    leader, leader_epoch = cache.leader_of(state)
    alive = current.brokers
    return wire.MetadataPartition(
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


# ---- DescribeCluster (KIP-700)


def handle_describe_cluster(services: Services, request: ApiRequest) -> None:
    body: wire.DescribeClusterRequest = request.body
    if body.endpoint_type != wire.BROKER_ENDPOINTS:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        if body.endpoint_type == wire.CONTROLLER_ENDPOINTS:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        request.respond(
            wire.DescribeClusterResponse(
                error_code=code,
                error_message=f"endpoint type {body.endpoint_type}; expected 1 (brokers)",
                cluster_id=services.cluster_id,
                brokers=[],
            )
        )
        return
    after_first_update(services, request, lambda: _describe_cluster(services, request))


def _describe_cluster(services: Services, request: ApiRequest) -> None:
    cache, current = services.metadata, services.metadata.current
    request.respond(
        wire.DescribeClusterResponse(
            error_code=ErrorCode.NONE,
            cluster_id=services.cluster_id,
            controller_id=named_controller(cache, current),
            brokers=[
                wire.DescribeClusterBroker(
                    broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in live_brokers(cache, current, request.raw.peer.listener_name)
            ],
            cluster_authorized_operations=_cluster_operations(services, request),
        )
    )


def _cluster_operations(services: Services, request: ApiRequest) -> int:
    """The operations on the cluster, if Metadata or DescribeCluster asks for them."""
    if not request.body.include_cluster_authorized_operations:
        return wire.OPERATIONS_UNKNOWN
    return authorized_operations(services, request, ResourceType.CLUSTER)
