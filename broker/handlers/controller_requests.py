"""The requests about topics, leaders, replicas and feature levels that the controller's broker serves.

CreateTopics, CreatePartitions, DeleteTopics, ElectLeaders, AlterPartitionReassignments and
ListPartitionReassignments; also UpdateFeatures, which any broker serves. Work in ZooKeeper blocks, so it runs
on the slow-work thread.

After a change of topics the answer waits in the purgatory until this broker's metadata has a leader for every
partition, or no longer has the topic, or until the timeout. Internal topics may be deleted, as in Apache
Kafka, and are recreated when they are needed. ElectLeaders is answered when all brokers know the new leaders.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from barnabas.broker.base.limits import MAX_NEW_CONFIGS_BYTES
from barnabas.broker.cluster.features import updated
from barnabas.broker.config import describe as config_rules
from barnabas.broker.config.dynamic import ConfigLayers
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorization import add_refusals, permitted
from barnabas.broker.handlers.known_errors import known_error
from barnabas.broker.handlers.services import Services
from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol.errors import MAX_TEXTS_LENGTH, ApiError, ErrorCode, ErrorTexts, api_error
from barnabas.protocol.ids import NO_BROKER, NO_TOPIC_ID, TopicId, TopicPartition
from barnabas.protocol.messages import features, placement
from barnabas.protocol.messages import topics as wire
from barnabas.protocol.partition_entries import entries, in_topics, outcomes_in_topics, partitions_of
from barnabas.protocol.schema import APIS, MAX_HEAD_BYTES, ApiKey, wire_fields
from barnabas.protocol.topic_names import INTERNAL_TOPICS
from barnabas.zookeeper.configs import ALL_BROKERS, Entity
from barnabas.zookeeper.features import Levels, Registrations
from barnabas.zookeeper.znodes import ReplicaAssignment

logger = logging.getLogger(__name__)

_NOT_CONTROLLER: Final = "this broker is not the controller; Metadata names the one that is"
_TOO_LONG: Final = "the answer would be too long for a message: name fewer topics"

_RESULT_BYTES: Final = 60
"""The most that a result takes in a native message without its name, text and settings."""
_CONFIG_BYTES: Final = 12
_CREATE_IS_STRICT_SINCE: Final = 6
"""Clients of earlier versions do not know THROTTLING_QUOTA_EXCEEDED: they only wait (KIP-599)."""
_GROWTH_IS_STRICT_SINCE: Final = 3
_DELETION_IS_STRICT_SINCE: Final = 5
_UTF8_BYTES: Final = 4
"""The most that a character takes."""
_Result = wire.CreatableTopicResult | wire.CreatePartitionsTopicResult | wire.DeletableTopicResult
_Handle = Callable[[Services, ApiRequest], None]


def _by_controller(result_class: type[Any]) -> Callable[[_Handle], _Handle]:
    """Run a handler on the slow-work thread if the active controller is in this process.

    Else each topic is refused; also if the answer might not fit into a native message.
    """

    def decorate(work: _Handle) -> _Handle:
        def handle(services: Services, request: ApiRequest) -> None:
            code, text = ErrorCode.NOT_CONTROLLER, _NOT_CONTROLLER
            if services.controller.is_active:
                if request.api_version is not None or _fits(request.body.topics, request.api_key):
                    request.run_slowly(services.slow_work, work, services, request)
                    return
                code, text = ErrorCode.POLICY_VIOLATION, _TOO_LONG
            texts, results = ErrorTexts(), []
            for topic in request.body.topics:
                named = {"topic_id": topic.topic_id} if isinstance(topic, wire.DeleteTopicState) else {}
                text_or_none = texts.take(text)
                results.append(
                    result_class(name=topic.name, error_code=code, error_message=text_or_none, **named)
                )
            _respond(request, results)

        return handle

    return decorate


def _respond(request: ApiRequest, results: Sequence[_Result]) -> None:
    response_class = APIS[request.api_key].response
    results_field = next(name for name, wire, _ in wire_fields(response_class) if wire.is_array)
    request.respond(response_class(**{results_field: results}))


def _fits(topics: Collection[Any], api_key: ApiKey) -> bool:
    reserved = MAX_TEXTS_LENGTH * _UTF8_BYTES
    if api_key is ApiKey.CREATE_TOPICS:
        reserved += MAX_NEW_CONFIGS_BYTES
    return (
        reserved + sum(_RESULT_BYTES + len((each.name or "").encode()) for each in topics) <= MAX_HEAD_BYTES
    )


def _respond_when_done(
    services: Services,
    request: ApiRequest,
    results: Sequence[_Result],
    awaited: Sequence[tuple[_Result, Callable[[], bool]]],
    text: str,
) -> None:
    """Answer when the awaited topics are done; at the deadline, with an error for those that are not."""

    def remaining() -> list[_Result]:
        return [result for result, is_done in awaited if not is_done()]

    def on_deadline() -> None:
        texts = ErrorTexts(used=sum(len(result.error_message or "") for result in results))
        for result in remaining():
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.error_message = texts.take(text)

    request.answer_when(
        lambda: not remaining(),
        lambda: _respond(request, results),
        purgatory=services.topic_purgatory,
        keys=[str(result.name) for result, _ in awaited],
        wait_ms=request.body.timeout_ms,
        on_deadline=on_deadline,
    )


def _is_served(services: Services, name: str, topic_id: TopicId, num_partitions: int) -> bool:
    """Whether each of the topic's partitions has a leader."""
    topic = services.metadata.current.topics.get(name)
    if topic is None or topic.topic_id != topic_id or len(topic.partitions) < num_partitions:
        return False
    return all(services.metadata.leader_of(tp)[0] != NO_BROKER for tp in topic.partitions.values())


# Creating


@_by_controller(wire.CreatableTopicResult)
def handle_create_topics(services: Services, request: ApiRequest) -> None:
    body: wire.CreateTopicsRequest = request.body
    results = services.topics.create_topics(
        body.topics, validate_only=body.validate_only, charge=request.charge_mutation(_CREATE_IS_STRICT_SINCE)
    )
    created = [result for result in results if result.error_code == ErrorCode.NONE]
    awaited = [
        (result, partial(_is_served, services, result.name, TopicId(result.topic_id), result.num_partitions))
        for result in created
        if not body.validate_only
    ]
    names = [result.name for result in created]
    shown = permitted(
        services, request, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, names, logs_denied=False
    )
    for result in created:
        if result.name not in shown:
            result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            result.num_partitions = result.replication_factor = -1
    described = [result for result in created if result.name in shown]
    if described:
        _describe_configs(services, body.topics, described)
    text = "the topic is made, but not every partition has a leader yet"
    _respond_when_done(services, request, results, awaited, text)


def _describe_configs(
    services: Services,
    topics: Collection[wire.CreatableTopic],
    created: Collection[wire.CreatableTopicResult],
) -> None:
    """Add the settings of the new topics to their results (KIP-525), or the error that hides them."""
    own = Entity.broker(services.config.broker_id)
    try:
        stored = services.configs.values({own, ALL_BROKERS})
    except ApiError as error:
        for result in created:
            result.topic_config_error_code = error.code
        return
    layers, _ = ConfigLayers.of(services.config, stored[own], stored[ALL_BROKERS])
    configs = {topic.name: topic.configs for topic in topics}
    left = MAX_NEW_CONFIGS_BYTES
    for result in created:
        if left < 0:
            result.topic_config_error_code = ErrorCode.MESSAGE_TOO_LARGE
            continue
        overrides = {
            config.name: config.value for config in configs.get(result.name, ()) if config.value is not None
        }
        described = [
            wire.CreatableTopicConfigResult(
                name=config.name,
                value=config.value,
                read_only=config.read_only,
                config_source=config.config_source,
                is_sensitive=config.is_sensitive,
            )
            for config in config_rules.describe_topic(overrides, layers)
        ]
        left -= sum(
            _CONFIG_BYTES + len(config.name) + len((config.value or "").encode()) for config in described
        )
        if left < 0:
            result.topic_config_error_code = ErrorCode.MESSAGE_TOO_LARGE
        else:
            result.configs = described


# Adding partitions


@_by_controller(wire.CreatePartitionsTopicResult)
def handle_create_partitions(services: Services, request: ApiRequest) -> None:
    body: wire.CreatePartitionsRequest = request.body
    others = [topic for topic in body.topics if topic.name not in INTERNAL_TOPICS]
    grown = services.topics.create_partitions(
        others, validate_only=body.validate_only, charge=request.charge_mutation(_GROWTH_IS_STRICT_SINCE)
    )
    internal = {topic.name: None for topic in body.topics if topic.name in INTERNAL_TOPICS}
    refused = list(map(_refused_growth, internal))
    awaited = [
        (result, partial(_is_served, services, result.name, topic_id, num_partitions))
        for result, topic_id, num_partitions in grown
        if result.error_code == ErrorCode.NONE and not body.validate_only
    ]
    text = "the partitions are added, but not every partition has a leader yet"
    _respond_when_done(services, request, [result for result, _, _ in grown] + refused, awaited, text)


def _refused_growth(name: str) -> wire.CreatePartitionsTopicResult:
    """Apache Kafka lets internal topics grow, and after the next restart looks for groups in wrong places."""
    return wire.CreatePartitionsTopicResult(
        name=name,
        error_code=ErrorCode.INVALID_TOPIC_EXCEPTION,
        error_message=f"{name} cannot grow: the number of its partitions decides where every group is, and "
        "committed offsets would no longer be found",
    )


# Deleting


def handle_delete_topics(services: Services, request: ApiRequest) -> None:
    body: wire.DeleteTopicsRequest = request.body
    # Older versions have only names.
    body.topics += [wire.DeleteTopicState(name=name) for name in body.topic_names]
    if services.authorizer is not None:
        add_refusals(request, _refuse_deletions(services, request))
    _delete(services, request)


def _refuse_deletions(services: Services, request: ApiRequest) -> list[wire.DeletableTopicResult]:
    """Take the topics out of the request that the principal may not delete; returns their results.

    A topic id is no secret, but the name that belongs to it is: it is not answered.
    """
    body: wire.DeleteTopicsRequest = request.body
    by_id = services.metadata.current.topic_names
    topics = {
        (topic.name, topic.topic_id): topic.name or by_id.get(TopicId(topic.topic_id), "")
        for topic in body.topics
    }
    named = [name for name in topics.values() if name]
    deletable = permitted(services, request, Operation.DELETE, ResourceType.TOPIC, named)
    refused = {
        key: ErrorCode.TOPIC_AUTHORIZATION_FAILED if name else ErrorCode.UNKNOWN_TOPIC_ID
        for key, name in topics.items()
        if name not in deletable and key != (None, NO_TOPIC_ID)
    }
    body.topics = [topic for topic in body.topics if (topic.name, topic.topic_id) not in refused]
    return [
        wire.DeletableTopicResult(name=name, topic_id=topic_id, error_code=code)
        for (name, topic_id), code in refused.items()
    ]


@_by_controller(wire.DeletableTopicResult)
def _delete(services: Services, request: ApiRequest) -> None:
    body: wire.DeleteTopicsRequest = request.body
    charge = request.charge_mutation(_DELETION_IS_STRICT_SINCE)
    results = services.topics.delete_topics(body.topics, charge=charge)
    for result in results:
        result.error_code = known_error(request, ErrorCode(result.error_code))
    awaited = [
        (result, partial(_is_gone, services, result.name, TopicId(result.topic_id)))
        for result in results
        if result.error_code == ErrorCode.NONE and result.name is not None
    ]
    text = "the deletion is under way; it continues when all its brokers are back"
    _respond_when_done(services, request, results, awaited, text)


def _is_gone(services: Services, name: str, topic_id: TopicId) -> bool:
    topic = services.metadata.current.topics.get(name)
    return topic is None or topic.topic_id != topic_id


# ---- ElectLeaders


def handle_elect_leaders(services: Services, request: ApiRequest) -> None:
    body: placement.ElectLeadersRequest = request.body
    partitions = None if body.topic_partitions is None else partitions_of(body.topic_partitions)

    def answer(code: ErrorCode, outcomes: Mapping[TopicPartition, ApiError | None]) -> None:
        if code != ErrorCode.NONE:
            # Version 0 has no error of the whole request.
            outcomes = dict.fromkeys(partitions or (), api_error(code))
        results = outcomes_in_topics(placement.ReplicaElectionResult, outcomes)
        request.respond(placement.ElectLeadersResponse(error_code=code, replica_election_results=results))

    if body.election_type not in set(placement.ElectionType):
        answer(ErrorCode.INVALID_REQUEST, {})
        return
    services.controller.elect_leaders(
        partitions, is_unclean=body.election_type == placement.ElectionType.UNCLEAN, done=answer
    )


# ---- Reassignments


def handle_alter_reassignments(services: Services, request: ApiRequest) -> None:
    body: placement.AlterPartitionReassignmentsRequest = request.body
    targets: dict[TopicPartition, Sequence[int] | None] = {
        tp: entry.replicas for tp, entry in entries(body.topics)
    }
    twice = api_error(ErrorCode.INVALID_REQUEST, "a partition is named twice in one request")
    counts = Counter(partitions_of(body.topics))
    doubled = {tp: twice for tp, count in counts.items() if count > 1}
    for tp in doubled:
        del targets[tp]

    def answer(code: ErrorCode, outcomes: Mapping[TopicPartition, ApiError | None]) -> None:
        results = outcomes_in_topics(placement.ReassignableTopicResponse, {**outcomes, **doubled})
        request.respond(
            placement.AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=body.allow_replication_factor_change,
                error_code=code,
                error_message=_text(code),
                responses=results if code == ErrorCode.NONE else [],
            )
        )

    services.controller.alter_reassignments(
        targets, answer, may_change_factor=body.allow_replication_factor_change
    )


def handle_list_reassignments(services: Services, request: ApiRequest) -> None:
    body: placement.ListPartitionReassignmentsRequest = request.body
    requested = None if body.topics is None else set(partitions_of(body.topics))

    def answer(code: ErrorCode, under_way: Mapping[TopicPartition, ReplicaAssignment]) -> None:
        listed = (
            (tp, _ongoing(tp, assignment))
            for tp, assignment in sorted(under_way.items())
            if requested is None or tp in requested
        )
        request.respond(
            placement.ListPartitionReassignmentsResponse(
                error_code=code,
                error_message=_text(code),
                topics=in_topics(placement.OngoingTopicReassignment, listed),
            )
        )

    services.controller.list_reassignments(answer)


def _ongoing(tp: TopicPartition, assignment: ReplicaAssignment) -> placement.OngoingPartitionReassignment:
    return placement.OngoingPartitionReassignment(
        partition_index=tp.partition,
        replicas=list(assignment.replicas),
        adding_replicas=list(assignment.adding),
        removing_replicas=list(assignment.removing),
    )


def _text(code: ErrorCode) -> str | None:
    return None if code == ErrorCode.NONE else api_error(code).text


# ---- UpdateFeatures


def handle_update_features(services: Services, request: ApiRequest) -> None:
    """Changes the levels of features by compare-and-set in ZooKeeper (KIP-584).

    All updates of a request take effect, or none. The answering broker knows the new levels before it
    answers; the others learn of them from ZooKeeper within milliseconds.
    """
    body: features.UpdateFeaturesRequest = request.body
    for update in body.feature_updates:
        # Version 0 has a flag in place of the type.
        if update.allow_downgrade:
            update.upgrade_type = features.UpgradeType.SAFE_DOWNGRADE.value

    def edit(levels: Levels, registrations: Registrations) -> Levels:
        result = updated(levels, body.feature_updates, registrations)
        return levels if body.validate_only else result

    try:
        services.features.change(edit)
    except ApiError as error:
        request.respond(features.UpdateFeaturesResponse(error_code=error.code, error_message=error.text))
        return
    if not body.validate_only:
        levels = {update.feature: update.max_version_level for update in body.feature_updates}
        logger.info("%s changed the levels of features: %s", request, levels)
    results = [features.UpdatableFeatureResult(feature=update.feature) for update in body.feature_updates]
    request.respond(features.UpdateFeaturesResponse(results=results))
