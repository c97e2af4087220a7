"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for the settings in ZooKeeper.

Reading and writing them blocks, so it runs on the slow-work thread. Describe returns the settings that are in
ZooKeeper at that moment; each broker applies a change by itself, some milliseconds later. A broker describes
and alters only its own settings, as in Apache Kafka; topics and the defaults of all brokers are served by any
broker.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from barnabas.broker.config import describe as config_rules
from barnabas.broker.config.describe import Alteration
from barnabas.broker.config.dynamic import ConfigLayers
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import Services
from barnabas.broker.handlers.slow import submit
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    ConfigResourceType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from barnabas.protocol.topic_names import validate_topic_name
from barnabas.zookeeper.configs import ALL_BROKERS, Entity, EntityKind

logger = logging.getLogger(__name__)

Settings = Mapping[str, str]
Edit = Callable[[ConfigResourceType, Settings, ConfigLayers], Settings]
"""From the settings that a resource has to those that it is to have; raises ApiError."""


def handle_describe(services: Services, request: ApiRequest) -> None:
    submit(services, request, _describe, services, request)


def handle_alter(services: Services, request: ApiRequest) -> None:
    body: AlterConfigsRequest = request.body
    edits: list[tuple[int, str, Edit]] = [
        (
            one.resource_type,
            one.resource_name,
            partial(_replaced, [(entry.name, entry.value) for entry in one.configs]),
        )
        for one in body.resources
    ]

    def work() -> None:
        responses = _change_all(services, edits, validate_only=body.validate_only)
        request.respond(AlterConfigsResponse(responses=responses))

    submit(services, request, work)


def handle_incremental_alter(services: Services, request: ApiRequest) -> None:
    body: IncrementalAlterConfigsRequest = request.body
    edits: list[tuple[int, str, Edit]] = [
        (
            one.resource_type,
            one.resource_name,
            partial(
                _altered,
                [Alteration(entry.name, entry.config_operation, entry.value) for entry in one.configs],
            ),
        )
        for one in body.resources
    ]

    def work() -> None:
        responses = _change_all(services, edits, validate_only=body.validate_only)
        request.respond(IncrementalAlterConfigsResponse(responses=responses))

    submit(services, request, work)


def _replaced(
    entries: Sequence[tuple[str, str | None]],
    kind: ConfigResourceType,
    current: Settings,
    layers: ConfigLayers,
) -> Settings:
    return config_rules.replacing(kind, entries, current)


def _altered(
    alterations: Sequence[Alteration], kind: ConfigResourceType, current: Settings, layers: ConfigLayers
) -> Settings:
    return config_rules.altered(kind, current, alterations, layers)


# Which resource


def _entity(services: Services, kind: int, name: str) -> Entity:
    """The resource of a request. Raises INVALID_REQUEST, or for topics as Metadata does."""
    if kind == ConfigResourceType.TOPIC:
        validate_topic_name(name)
        if name not in services.metadata.current.topics:
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {name!r} does not exist")
        return Entity.topic(name)
    if kind != ConfigResourceType.BROKER:
        raise api_error(ErrorCode.INVALID_REQUEST, f"resource type {kind}; expected 2 (topic) or 4 (broker)")
    own = str(services.config.broker_id)
    if name not in ("", own):
        raise api_error(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {own}; expected its id or the empty name for all brokers, not {name!r}",
        )
    return Entity.broker(services.config.broker_id) if name else ALL_BROKERS


def _layers(services: Services, found: Mapping[Entity, Settings]) -> ConfigLayers:
    layers, problems = ConfigLayers.of(services.config, found[_own(services)], found[ALL_BROKERS])
    if problems:
        logger.error("dynamic settings that are not usable: %s", "; ".join(problems))
    return layers


def _own(services: Services) -> Entity:
    return Entity.broker(services.config.broker_id)


# Describing


def _describe(services: Services, request: ApiRequest) -> None:
    body: DescribeConfigsRequest = request.body
    # Each once, by what is asked of it last, or few bytes could ask for gigabytes.
    body.resources = list({(one.resource_type, one.resource_name): one for one in body.resources}.values())
    entities: list[Entity | ApiError] = []
    for asked in body.resources:
        try:
            entities.append(_entity(services, asked.resource_type, asked.resource_name))
        except ApiError as error:
            entities.append(error)
    named = {entity for entity in entities if isinstance(entity, Entity)}
    found: Mapping[Entity, Settings] | ApiError
    try:
        found = services.configs.values(named | {_own(services), ALL_BROKERS})
    except ApiError as error:
        found = error
    results = []
    for asked, entity in zip(body.resources, entities, strict=True):
        result = DescribeConfigsResult(
            error_code=ErrorCode.NONE, resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        problem = next((one for one in (entity, found) if isinstance(one, ApiError)), None)
        if problem is not None:
            result.error_code, result.error_message = problem.code, problem.text
        elif isinstance(entity, Entity) and not isinstance(found, ApiError):
            result.configs = config_rules.trimmed(
                _described(services, asked, entity, found),
                synonyms=body.include_synonyms,
                documentation=body.include_documentation,
            )
        results.append(result)
    request.respond(DescribeConfigsResponse(results=results))


def _described(
    services: Services,
    asked: DescribeConfigsResource,
    entity: Entity,
    found: Mapping[Entity, Settings],
) -> list[DescribeConfigsResourceResult]:
    # An empty list of names asks for all, as Kafka's older clients mean it.
    names = asked.configuration_keys or None
    layers = _layers(services, found)
    if entity.kind is EntityKind.TOPIC:
        return config_rules.describe_topic(found[entity], layers, names)
    if entity == ALL_BROKERS:
        return config_rules.describe_all_brokers(layers, names)
    return config_rules.describe_broker(layers, names)


# Altering


def _change_all(
    services: Services, edits: Sequence[tuple[int, str, Edit]], *, validate_only: bool
) -> list[AlterConfigsResourceResponse]:
    counts = Counter((kind, name) for kind, name, _ in edits)
    responses = []
    for kind, name, edit in edits:
        response = AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE, resource_type=kind, resource_name=name
        )
        try:
            if counts[kind, name] > 1:
                raise api_error(ErrorCode.INVALID_REQUEST, f"resource {name!r} is named more than once")
            entity = _entity(services, kind, name)
            _change(services, ConfigResourceType(kind), entity, edit, validate_only)
        except ApiError as error:
            response.error_code, response.error_message = error.code, error.text
        responses.append(response)
    return responses


def _change(
    services: Services, kind: ConfigResourceType, entity: Entity, edit: Edit, validate_only: bool
) -> None:
    found = services.configs.values({entity, _own(services), ALL_BROKERS})
    layers = _layers(services, found)
    if validate_only:
        edit(kind, found[entity], layers)
        return
    services.configs.change(entity, lambda current: edit(kind, current, layers))
    logger.info("settings of %s were changed", entity.path)
