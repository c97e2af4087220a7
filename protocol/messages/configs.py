"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs (KIP-133, KIP-226, KIP-339, KIP-569)."""

from __future__ import annotations

from enum import IntEnum

from barnabas.protocol import schema as s


class ConfigResourceType(IntEnum):
    """The resources that have settings."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigSource(IntEnum):
    """The source of a setting's value."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6


class ConfigType(IntEnum):
    """The type of a setting's values."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigOperation(IntEnum):
    """The operations of IncrementalAlterConfigs; the last two are for settings that are lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@s.message
class DescribeConfigsSynonym:
    """A possible source of the value, under the setting's name there."""

    name: str = s.string()
    value: str | None = s.string(nullable_since=0)
    source: int = s.int8()


@s.message
class DescribeConfigsResourceResult:
    """One setting; ``value`` is None if sensitive or unset, ``config_source`` a `ConfigSource`."""

    name: str = s.string()
    value: str | None = s.string(nullable_since=0)
    read_only: bool = s.boolean(default=False)
    config_source: int = s.int8(default=-1)
    is_sensitive: bool = s.boolean(default=False)
    synonyms: list[DescribeConfigsSynonym] = s.array(DescribeConfigsSynonym, default_factory=list)
    config_type: int = s.int8(since=3, default=ConfigType.UNKNOWN.value)
    documentation: str | None = s.string(since=3, nullable_since=3, default=None)


@s.message
class DescribeConfigsResult:
    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default=None)
    resource_type: int = s.int8()
    resource_name: str = s.string()
    configs: list[DescribeConfigsResourceResult] = s.array(
        DescribeConfigsResourceResult, default_factory=list
    )


@s.message
class DescribeConfigsResponse:
    throttle_time_ms: int = s.int32(default=0)
    results: list[DescribeConfigsResult] = s.array(DescribeConfigsResult)


@s.message
class DescribeConfigsResource:
    """``resource_type`` is a `ConfigResourceType`; ``configuration_keys`` None asks for all settings.

    A broker is named by its id in digits; the empty name means the defaults of all brokers.
    """

    resource_type: int = s.int8()
    resource_name: str = s.string()
    configuration_keys: list[str] | None = s.array(s.WireType.STRING, nullable_since=0, default=None)


@s.request(s.ApiKey.DESCRIBE_CONFIGS, versions=(1, 4), flexible_since=4)
class DescribeConfigsRequest(s.RequestOf[DescribeConfigsResponse]):
    resources: list[DescribeConfigsResource] = s.array(DescribeConfigsResource)
    include_synonyms: bool = s.boolean(default=False)
    include_documentation: bool = s.boolean(since=3, default=False, ignorable=False)


@s.message
class AlterConfigsResourceResponse:
    """The answer for one resource, of AlterConfigs and IncrementalAlterConfigs alike."""

    error_code: int = s.int16()
    error_message: str | None = s.string(nullable_since=0, default=None)
    resource_type: int = s.int8()
    resource_name: str = s.string()


@s.message
class AlterConfigsResponse:
    throttle_time_ms: int = s.int32(default=0)
    responses: list[AlterConfigsResourceResponse] = s.array(AlterConfigsResourceResponse)


@s.message
class AlterableConfig:
    name: str = s.string()
    value: str | None = s.string(nullable_since=0)


@s.message
class AlterConfigsResource:
    """All settings of the resource; a setting that is not named is reset to its default."""

    resource_type: int = s.int8()
    resource_name: str = s.string()
    configs: list[AlterableConfig] = s.array(AlterableConfig)


@s.request(s.ApiKey.ALTER_CONFIGS, versions=(0, 2), flexible_since=2)
class AlterConfigsRequest(s.RequestOf[AlterConfigsResponse]):
    resources: list[AlterConfigsResource] = s.array(AlterConfigsResource)
    validate_only: bool = s.boolean(default=False)


@s.message
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = s.int32(default=0)
    responses: list[AlterConfigsResourceResponse] = s.array(AlterConfigsResourceResponse)


@s.message
class IncrementalAlterableConfig:
    """``config_operation`` is a `ConfigOperation`; DELETE ignores ``value``."""

    name: str = s.string()
    config_operation: int = s.int8()
    value: str | None = s.string(nullable_since=0, default=None)


@s.message
class IncrementalAlterConfigsResource:
    """The settings to change; the others stay unchanged."""

    resource_type: int = s.int8()
    resource_name: str = s.string()
    configs: list[IncrementalAlterableConfig] = s.array(IncrementalAlterableConfig)


@s.request(s.ApiKey.INCREMENTAL_ALTER_CONFIGS, versions=(0, 1), flexible_since=1)
class IncrementalAlterConfigsRequest(s.RequestOf[IncrementalAlterConfigsResponse]):
    resources: list[IncrementalAlterConfigsResource] = s.array(IncrementalAlterConfigsResource)
    validate_only: bool = s.boolean(default=False)
