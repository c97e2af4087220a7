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

from barnabas.broker.config import rules as config_rules
from barnabas.broker.config.layers import ConfigLayers
from barnabas.broker.config.rules import Alteration
from barnabas.broker.handlers.api_request import ApiRequest
from barnabas.broker.handlers.services import ALL_BROKERS, ConfigResource, Services
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


def _resource(services: Services, kind: int, name: str) -> ConfigResource:
    """The resource of a request. Raises INVALID_REQUEST, or for topics as Metadata does."""
    if kind == ConfigResourceType.TOPIC:
        validate_topic_name(name)
        if name not in services.metadata.current.topics:
            raise api_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"the topic {name!r} does not exist")
        return ConfigResource(ConfigResourceType.TOPIC, name)
    if kind != ConfigResourceType.BROKER:
        raise api_error(ErrorCode.INVALID_REQUEST, f"resource type {kind}; expected 2 (topic) or 4 (broker)")
    own = str(services.config.broker_id)
    if name not in ("", own):
        raise api_error(
            ErrorCode.INVALID_REQUEST,
            f"this is broker {own}; expected its id or the empty name for all brokers, not {name!r}",
        )
    return ConfigResource(ConfigResourceType.BROKER, name)


def _layers(services: Services, found: Mapping[ConfigResource, Settings]) -> ConfigLayers:
    layers, problems = ConfigLayers.of(services.config, found[_own(services)], found[ALL_BROKERS])
    if problems:
        logger.error("dynamic settings that are not usable: %s", "; ".join(problems))
    return layers


def _own(services: Services) -> ConfigResource:
    return ConfigResource(ConfigResourceType.BROKER, str(services.config.broker_id))


# Describing


def _describe(services: Services, request: ApiRequest) -> None:
    body: DescribeConfigsRequest = request.body
    # Each once, by what is asked of it last, or few bytes could ask for gigabytes.
    body.resources = list({(one.resource_type, one.resource_name): one for one in body.resources}.values())
    resources: list[ConfigResource | ApiError] = []
    for asked in body.resources:
        try:
            resources.append(_resource(services, asked.resource_type, asked.resource_name))
        except ApiError as error:
            resources.append(error)
    wanted = {one for one in resources if isinstance(one, ConfigResource)} | {_own(services), ALL_BROKERS}
    found: Mapping[ConfigResource, Settings] | ApiError
    try:
        found = services.configs.read(wanted)
    except ApiError as error:
        found = error
    results = []
    for asked, resource in zip(body.resources, resources, strict=True):
        result = DescribeConfigsResult(
            error_code=ErrorCode.NONE, resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        problem = next((one for one in (resource, found) if isinstance(one, ApiError)), None)
        if problem is not None:
            result.error_code, result.error_message = problem.code, problem.text
        elif isinstance(resource, ConfigResource) and not isinstance(found, ApiError):
            result.configs = config_rules.trimmed(
                _described(services, asked, resource, found),
                synonyms=body.include_synonyms,
                documentation=body.include_documentation,
            )
        results.append(result)
    request.respond(DescribeConfigsResponse(results=results))


def _described(
    services: Services,
    asked: DescribeConfigsResource,
    resource: ConfigResource,
    found: Mapping[ConfigResource, Settings],
) -> list[DescribeConfigsResourceResult]:
    # An empty list of names asks for all, as Kafka's older clients mean it.
    names = asked.configuration_keys or None
    layers = _layers(services, found)
    if resource.kind is ConfigResourceType.TOPIC:
        return config_rules.describe_topic(found[resource], layers, names)
    if resource == ALL_BROKERS:
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
            _change(services, _resource(services, kind, name), edit, validate_only=validate_only)
        except ApiError as error:
            response.error_code, response.error_message = error.code, error.text
        responses.append(response)
    return responses


def _change(services: Services, resource: ConfigResource, edit: Edit, *, validate_only: bool) -> None:
    found = services.configs.read({resource, _own(services), ALL_BROKERS})
    layers = _layers(services, found)
    if validate_only:
        edit(resource.kind, found[resource], layers)
        return
    services.configs.change(resource, lambda current: edit(resource.kind, current, layers))
    logger.info("settings of %s %r were changed", resource.kind.name.lower(), resource.name)
