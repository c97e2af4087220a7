"""Settings of topics and brokers, and the requests that show and change them.

Requests for a broker's own settings go to that broker; those for topics and for the defaults of all brokers
go to any broker. Belongs to the event loop of the client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from barnabas.client.admin.base import AdminBase, error_of, raise_errors
from barnabas.client.arguments import check_mapping, several
from barnabas.client.ask import ToBroker
from barnabas.protocol.errors import ApiError, InvalidConfiguration
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages import configs as wire

_SOURCE_WORDS: Final = {
    wire.ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    wire.ConfigSource.DYNAMIC_BROKER_CONFIG: "this broker",
    wire.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers",
    wire.ConfigSource.STATIC_BROKER_CONFIG: "broker at start",
    wire.ConfigSource.DEFAULT_CONFIG: "default",
}


class ConfigResource(NamedTuple):
    """A topic, a broker or all brokers. Made by `topic`, `broker` or `all_brokers`."""

    kind: wire.ConfigResourceType
    name: str

    @classmethod
    def topic(cls, name: str) -> ConfigResource:
        return cls(wire.ConfigResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int) -> ConfigResource:
        return cls(wire.ConfigResourceType.BROKER, str(broker_id))

    @classmethod
    def all_brokers(cls) -> ConfigResource:
        """The defaults for brokers without a value of their own."""
        return cls(wire.ConfigResourceType.BROKER, "")

    def __str__(self) -> str:
        if self.kind is wire.ConfigResourceType.TOPIC:
            return f"topic {self.name}"
        return f"broker {self.name}" if self.name else "all brokers"


class ConfigSynonym(NamedTuple):
    """A possible source of a value."""

    name: str
    value: str | None
    source: wire.ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """The effective value of a setting, and its source. A sensitive ``value`` is None."""

    name: str
    value: str | None
    source: wire.ConfigSource
    type: wire.ConfigType
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None

    @property
    def source_words(self) -> str:
        return _SOURCE_WORDS.get(self.source, self.source.name.lower())

    @property
    def is_default(self) -> bool:
        return self.source is wire.ConfigSource.DEFAULT_CONFIG


class Append(NamedTuple):
    """Add to a setting that is a list."""

    value: str


class Subtract(NamedTuple):
    """Remove from a setting that is a list."""

    value: str


ConfigChange = str | Append | Subtract | None
"""A new value, a change of a list, or None to go back to the default."""


class ConfigAdmin(AdminBase):
    """The methods of `Admin` for settings."""

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource] | ConfigResource,
        names: Iterable[str] | str | None = None,
        *,
        include_documentation: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """The settings of topics and brokers, all or the named ones, by resource and name.

        Raises a resource's own error for a single resource, and TopicErrors if some of several failed.
        """
        chosen = several("resources", resources, ConfigResource)
        keys = None if names is None else several("names", names, str)
        configs: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        errors: dict[str, ApiError] = {}
        for route, own in self._by_broker(chosen):
            request = wire.DescribeConfigsRequest(
                resources=[
                    wire.DescribeConfigsResource(
                        resource_type=item.kind, resource_name=item.name, configuration_keys=keys
                    )
                    for item in own
                ],
                include_synonyms=True,
                include_documentation=include_documentation,
            )
            for result in (await self._ask(route, request, timeout_ms)).response.results:
                resource = ConfigResource(wire.ConfigResourceType(result.resource_type), result.resource_name)
                if error := error_of(result, str(resource)):
                    errors[str(resource)] = error
                else:
                    configs[resource] = {item.name: _entry(item) for item in result.configs}
        raise_errors({**{str(resource): configs[resource] for resource in configs}, **errors}, len(chosen))
        return configs

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, ConfigChange]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Change settings one by one: a new value, None for the default, `Append` or `Subtract` for lists.

        The settings of one resource change together or not at all. Raises as `describe_configs`.
        """
        check_mapping("changes", changes, "resources to settings")
        several("changes", changes, ConfigResource)
        for settings in changes.values():
            check_mapping("changes of a resource", settings, "settings to values")
        outcomes: dict[str, ApiError | None] = {str(resource): None for resource in changes}
        for route, own in self._by_broker(changes):
            request = wire.IncrementalAlterConfigsRequest(
                resources=[
                    wire.IncrementalAlterConfigsResource(
                        resource_type=item.kind,
                        resource_name=item.name,
                        configs=[_alteration(name, change) for name, change in changes[item].items()],
                    )
                    for item in own
                ],
                validate_only=validate_only,
            )
            # Changes are idempotent, so a retry is harmless.
            for result in (await self._ask(route, request, timeout_ms)).response.responses:
                resource = ConfigResource(wire.ConfigResourceType(result.resource_type), result.resource_name)
                outcomes[str(resource)] = error_of(result, str(resource))
        raise_errors(outcomes, len(changes))

    def _by_broker(
        self, resources: Iterable[ConfigResource]
    ) -> Iterator[tuple[ToBroker, list[ConfigResource]]]:
        """The resources that any broker can answer for, and those of each broker."""
        by_broker: dict[str, list[ConfigResource]] = {}
        for resource in resources:
            is_broker = resource.kind is wire.ConfigResourceType.BROKER
            by_broker.setdefault(resource.name if is_broker else "", []).append(resource)
        for broker, own in by_broker.items():
            if broker and not broker.isdecimal():
                text = f"broker {broker!r}: expected the id of a broker, a whole number"
                raise InvalidConfiguration(text)
            yield ToBroker(self._open(), node_id=BrokerId(int(broker)) if broker else None), own


def _entry(result: wire.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        result.name,
        result.value,
        _member_or_unknown(wire.ConfigSource, result.config_source),
        _member_or_unknown(wire.ConfigType, result.config_type),
        result.read_only,
        result.is_sensitive,
        tuple(
            ConfigSynonym(synonym.name, synonym.value, _member_or_unknown(wire.ConfigSource, synonym.source))
            for synonym in result.synonyms
        ),
        result.documentation,
    )


def _member_or_unknown(kind: Any, number: int) -> Any:
    """The member of an enum, or its UNKNOWN for a number that a later version has added."""
    return kind(number) if number in kind._value2member_map_ else kind.UNKNOWN


def _alteration(name: str, change: ConfigChange) -> wire.IncrementalAlterableConfig:
    if change is None:
        return wire.IncrementalAlterableConfig(name=name, config_operation=wire.ConfigOperation.DELETE)
    if isinstance(change, Append):
        operation, value = wire.ConfigOperation.APPEND, change.value
    elif isinstance(change, Subtract):
        operation, value = wire.ConfigOperation.SUBTRACT, change.value
    else:
        operation, value = wire.ConfigOperation.SET, change
    return wire.IncrementalAlterableConfig(name=name, config_operation=operation, value=value)
