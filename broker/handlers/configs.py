"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs: the settings in ZooKeeper.

Reading and writing them blocks, so it runs on the slow-work thread. DescribeConfigs returns the settings that
are in ZooKeeper at that moment; each broker applies a change some milliseconds later. As in Apache Kafka, a
broker describes and alters no other broker's settings; topics and the defaults of all brokers are served by
any broker.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial

from barnabas.broker.config import describe as config_rules
from barnabas.broker.config.dynamic import ConfigLayers, changed_tls, is_per_broker
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.authorization import check
from barnabas.broker.handlers.services import Services
from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol.errors import ApiError, ErrorCode, ErrorTexts, InvalidConfiguration, api_error
from barnabas.protocol.messages import configs as wire
from barnabas.protocol.topic_names import validate_topic_name
from barnabas.zookeeper.configs import ALL_BROKERS, Entity, EntityKind

logger = logging.getLogger(__name__)

Settings = Mapping[str, str]


# Which resource


def _entity(services: Services, request: ApiRequest, operation: Operation, kind: int, name: str) -> Entity:
    """The resource of a request, if the principal may do the operation on it.

    Raises INVALID_REQUEST, for topics as Metadata does, or the authorization errors.
    """
    if kind == wire.ConfigResourceType.TOPIC:
        check(services, request, operation, ResourceType.TOPIC, name)
        validate_topic_name(name)
        if name not in services.metadata.current.topics:
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {name!r} does not exist")
        return Entity.topic(name)
    if kind != wire.ConfigResourceType.BROKER:
        raise api_error(ErrorCode.INVALID_REQUEST, f"resource type {kind}; expected 2 (topic) or 4 (broker)")
    check(services, request, operation, ResourceType.CLUSTER)
    own = str(services.config.broker_id)
    if name not in ("", own):
        raise api_error(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {own}; expected its id or the empty name for all brokers, not {name!r}",
        )
    return Entity.broker(services.config.broker_id) if name else ALL_BROKERS


def _layers(services: Services, stored: Mapping[Entity, Settings]) -> ConfigLayers:
    layers, problems = ConfigLayers.of(services.config, stored[_own(services)], stored[ALL_BROKERS])
    if problems:
        logger.error("dynamic settings that are not usable: %s", "; ".join(problems))
    return layers


def _own(services: Services) -> Entity:
    return Entity.broker(services.config.broker_id)


# Describing


def handle_describe(services: Services, request: ApiRequest) -> None:
    body: wire.DescribeConfigsRequest = request.body
    # Each resource once, as named last: otherwise few bytes could request gigabytes.
    resources = {(resource.resource_type, resource.resource_name): resource for resource in body.resources}
    entities: dict[tuple[int, str], Entity | ApiError] = {}
    kept = ErrorTexts()
    for kind, name in resources:
        try:
            entities[kind, name] = _entity(services, request, Operation.DESCRIBE_CONFIGS, kind, name)
        except ApiError as error:
            entities[kind, name] = kept.kept(error)
    requested = {entity for entity in entities.values() if isinstance(entity, Entity)}
    stored: Mapping[Entity, Settings] | ApiError
    try:
        stored = services.configs.values(requested | {_own(services), ALL_BROKERS})
    except ApiError as error:
        stored = error
    results = []
    texts = ErrorTexts()
    for (kind, name), resource in resources.items():
        result = wire.DescribeConfigsResult(error_code=ErrorCode.NONE, resource_type=kind, resource_name=name)
        entity = entities[kind, name]
        if isinstance(entity, ApiError):
            result.error_code, result.error_message = entity.code, texts.of(entity)
        elif isinstance(stored, ApiError):
            result.error_code, result.error_message = stored.code, texts.of(stored)
        else:
            result.configs = _described(services, resource, entity, stored)
            for setting in result.configs:
                setting.synonyms = setting.synonyms if body.include_synonyms else []
                setting.documentation = setting.documentation if body.include_documentation else None
        results.append(result)
    request.respond(wire.DescribeConfigsResponse(results=results))


def _described(
    services: Services,
    resource: wire.DescribeConfigsResource,
    entity: Entity,
    stored: Mapping[Entity, Settings],
) -> list[wire.DescribeConfigsResourceResult]:
    # An empty list of names requests all, as Kafka's older clients mean it. Each setting is looked for in a
    # set: a request may name a hundred thousand.
    names = frozenset(resource.configuration_keys or ()) or None
    layers = _layers(services, stored)
    if entity.kind is EntityKind.TOPIC:
        return config_rules.describe_topic(stored[entity], layers, names)
    if entity == ALL_BROKERS:
        return config_rules.describe_all_brokers(layers, names)
    return config_rules.describe_broker(layers, names)


# Altering


def handle_alter(services: Services, request: ApiRequest) -> None:
    """AlterConfigs and IncrementalAlterConfigs."""
    body: wire.AlterConfigsRequest | wire.IncrementalAlterConfigsRequest = request.body
    counts = Counter((resource.resource_type, resource.resource_name) for resource in body.resources)
    responses = []
    texts = ErrorTexts()
    for resource in body.resources:
        kind, name = resource.resource_type, resource.resource_name
        response = wire.AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE, resource_type=kind, resource_name=name
        )
        try:
            if counts[kind, name] > 1:
                raise api_error(ErrorCode.INVALID_REQUEST, f"resource {name!r} is named more than once")
            entity = _entity(services, request, Operation.ALTER_CONFIGS, kind, name)
            refused = sorted(filter(is_per_broker, {entry.name for entry in resource.configs}))
            if refused and entity == ALL_BROKERS:
                raise api_error(
                    ErrorCode.INVALID_REQUEST,
                    f"Cannot update these configs at default cluster level: {', '.join(refused)}",
                )
            _change(services, entity, resource, validate_only=body.validate_only)
        except ApiError as error:
            response.error_code, response.error_message = error.code, texts.of(error)
        responses.append(response)
    request.respond(request.body.response_type(responses=responses))


def _change(
    services: Services,
    entity: Entity,
    resource: wire.AlterConfigsResource | wire.IncrementalAlterConfigsResource,
    *,
    validate_only: bool,
) -> None:
    stored = services.configs.values({entity, _own(services), ALL_BROKERS})
    layers = _layers(services, stored)
    alter = partial(
        config_rules.altered,
        wire.ConfigResourceType(resource.resource_type),
        alterations=[
            config_rules.Alteration(
                entry.name, getattr(entry, "config_operation", wire.ConfigOperation.SET), entry.value
            )
            for entry in resource.configs
        ],
        layers=layers,
        replaces=isinstance(resource, wire.AlterConfigsResource),
    )

    def edit(current: Settings) -> Settings:
        settings = alter(current)
        if entity == _own(services):
            _check_certificates(services, layers, settings)
        return settings

    if validate_only:
        edit(stored[entity])
        return
    services.configs.change(entity, edit)
    logger.info("settings of %s were changed", entity.path)


def _check_certificates(services: Services, layers: ConfigLayers, settings: Settings) -> None:
    """As in Kafka, new key stores and trust stores are tried before the settings are written."""
    after, _ = ConfigLayers.of(layers.static, settings, layers.all_brokers)
    for name, config in changed_tls(layers, after).items():
        try:
            services.check_certificate(name, config)
        except InvalidConfiguration as error:
            raise api_error(ErrorCode.INVALID_CONFIG, str(error)) from error
