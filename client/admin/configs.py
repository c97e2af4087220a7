"""Settings of topics and brokers, and the requests that show and change them.

Requests for a broker's own settings go to that broker; those for topics and for the defaults of all brokers
go to any broker. Belongs to the event loop of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from barnabas.client.cluster import Cluster
from barnabas.protocol.errors import ApiError, BarnabasError, ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.configs import (
    ConfigOperation,
    ConfigResourceType,
    ConfigSource,
    ConfigType,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from barnabas.protocol.schema import RequestOf

R = TypeVar("R")


class ConfigResource(NamedTuple):
    """A topic, a broker or all brokers. Made by `topic`, `broker` or `all_brokers`."""

    kind: ConfigResourceType
    name: str

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        return cls(ConfigResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int) -> ConfigResource:
        return cls(ConfigResourceType.BROKER, str(broker_id))

    @classmethod
    def all_brokers(cls) -> ConfigResource:
        """The defaults for brokers without a value of their own."""
        return cls(ConfigResourceType.BROKER, "")

    def __str__(self) -> str:
        if self.kind is ConfigResourceType.TOPIC:
            return f"topic {self.name}"
        return f"broker {self.name}" if self.name else "all brokers"


class ConfigSynonym(NamedTuple):
    """A possible source of a value."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The effective value of a setting, and its source. A sensitive ``value`` is None."""

    name: str
    value: str | None
    source: ConfigSource
    type: ConfigType
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        return self.source is ConfigSource.DEFAULT_CONFIG


class Append(NamedTuple):
    """Add to a setting that is a list."""

    value: str


class Subtract(NamedTuple):
    """Remove from a setting that is a list."""

    value: str


ConfigChange = str | Append | Subtract | None
"""A new value, a change of a list, or None to go back to the default."""
_ANY_BROKER: Final = ""


async def describe_configs(
    cluster: Cluster,
    resources: Iterable[ConfigResource],
    names: Iterable[str] | None,
    *,
    documentation: bool,
    timeout_ms: int,
) -> tuple[dict[ConfigResource, dict[str, ConfigEntry]], dict[ConfigResource, ApiError]]:
    """The settings by resource and name, and the errors by resource."""
    keys = None if names is None else list(names)
    configs: dict[ConfigResource, dict[str, ConfigEntry]] = {}
    errors: dict[ConfigResource, ApiError] = {}
    for broker, chosen in _by_broker(resources).items():
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=item.kind, resource_name=item.name, configuration_keys=keys
                )
                for item in chosen
            ],
            include_synonyms=True,
            include_documentation=documentation,
        )
        response = await _ask(cluster, broker, request, timeout_ms)
        for result in response.results:
            resource = ConfigResource(ConfigResourceType(result.resource_type), result.resource_name)
            if result.error_code != ErrorCode.NONE:
                errors[resource] = api_error(result.error_code, result.error_message or str(resource))
            else:
                configs[resource] = {item.name: _entry(item) for item in result.configs}
    return configs, errors


async def alter_configs(
    cluster: Cluster,
    changes: Mapping[ConfigResource, Mapping[str, ConfigChange]],
    *,
    validate_only: bool,
    timeout_ms: int,
) -> dict[ConfigResource, ApiError]:
    """Change settings one by one; returns errors by resource. A failed resource keeps all its settings."""
    errors: dict[ConfigResource, ApiError] = {}
    for broker, chosen in _by_broker(changes).items():
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=item.kind,
                    resource_name=item.name,
                    configs=[_alteration(name, change) for name, change in changes[item].items()],
                )
                for item in chosen
            ],
            validate_only=validate_only,
        )
        response = await _ask(cluster, broker, request, timeout_ms)
        for result in response.responses:
            if result.error_code != ErrorCode.NONE:
                resource = ConfigResource(ConfigResourceType(result.resource_type), result.resource_name)
                errors[resource] = api_error(result.error_code, result.error_message or str(resource))
    return errors


def _by_broker(resources: Iterable[ConfigResource]) -> dict[str, list[ConfigResource]]:
    by_broker: dict[str, list[ConfigResource]] = {}
    for resource in resources:
        is_broker = resource.kind is ConfigResourceType.BROKER
        by_broker.setdefault(resource.name if is_broker else _ANY_BROKER, []).append(resource)
    return by_broker


async def _ask(cluster: Cluster, broker: str, request: RequestOf[R], timeout_ms: int) -> R:
    """Ask one broker, or the first that answers. Changes are idempotent, so a retry is harmless."""
    retries = cluster.config.make_retries(timeout_ms)
    attempt = 0
    while True:
        node_id = _node(cluster, broker, attempt)
        attempt += 1
        try:
            left_ms = retries.left_ms(cluster.config.request_timeout_ms)
            return await cluster.request(node_id, request, timeout_ms=left_ms)
        except BarnabasError as error:
            await cluster.refresh_after(error, retries)


def _node(cluster: Cluster, broker: str, attempt: int) -> BrokerId:
    if broker:
        if not broker.isdecimal():
            raise InvalidConfiguration(f"broker {broker!r}: expected the id of a broker, a whole number")
        return BrokerId(int(broker))
    nodes = sorted(cluster.nodes)
    return nodes[attempt % len(nodes)] if nodes else cluster.cache.controller_id


def _entry(result: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        result.name,
        result.value,
        _member_or_unknown(ConfigSource, result.config_source),
        _member_or_unknown(ConfigType, result.config_type),
        result.read_only,
        result.is_sensitive,
        tuple(
            ConfigSynonym(synonym.name, synonym.value, _member_or_unknown(ConfigSource, synonym.source))
            for synonym in result.synonyms
        ),
        result.documentation,
    )


def _member_or_unknown(kind: Any, number: int) -> Any:
    """The member of an enum, or its UNKNOWN for a number that a later version has added."""
    return kind(number) if number in kind._value2member_map_ else kind.UNKNOWN


def _alteration(name: str, change: ConfigChange) -> IncrementalAlterableConfig:
    if change is None:
        return IncrementalAlterableConfig(name=name, config_operation=ConfigOperation.DELETE)
    if isinstance(change, Append):
        operation, value = ConfigOperation.APPEND, change.value
    elif isinstance(change, Subtract):
        operation, value = ConfigOperation.SUBTRACT, change.value
    else:
        operation, value = ConfigOperation.SET, change
    return IncrementalAlterableConfig(name=name, config_operation=operation, value=value)
