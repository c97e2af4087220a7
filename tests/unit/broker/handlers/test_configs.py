"""DescribeConfigs and the alter requests: which resource, which settings, and errors one by one."""

from typing import Any

import pytest

from barnabas.broker.config import describe as config_rules
from barnabas.common.settings import setting_text
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import BrokerId
from barnabas.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    ConfigOperation,
    ConfigResourceType,
    ConfigSource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from barnabas.zookeeper.configs import ALL_BROKERS, Entity
from tests.support.building import led_by, metadata
from tests.support.serving import USABLE_CERTIFICATE, Serving

TOPIC, BROKER = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
THE_TOPIC = Entity.topic("topic")
MYSELF = Entity.broker(BrokerId(1))


@pytest.fixture
def hosting(serving: Serving) -> Serving:
    """A cluster of brokers 1 and 2 with one topic."""
    serving.managed.metadata.update(metadata({1: 10, 2: 20}, led_by(1)))
    return serving


def describe(serving: Serving, kind: int, name: str, *keys: str, version: int | None = None) -> Any:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=version is None or version >= 3
    )
    [result] = serving.call(request, version=version).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def alter(
    serving: Serving, kind: int, name: str, *, validate_only: bool = False, **changes: str | None
) -> Any:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterableConfig(
                        name=key.replace("_", "."),
                        config_operation=ConfigOperation.SET if value is not None else ConfigOperation.DELETE,
                        value=value,
                    )
                    for key, value in changes.items()
                ],
            )
        ],
        validate_only=validate_only,
    )
    [response] = serving.call(request).responses
    return response


@pytest.mark.parametrize("version", [None, 1, 2, 3, 4])
def test_a_topic_shows_its_settings_and_their_sources(hosting: Serving, version: int | None) -> None:
    hosting.configs.stored = {
        THE_TOPIC: {"retention.ms": "5"},
        ALL_BROKERS: {"log.segment.bytes": "100"},
        MYSELF: {"min.insync.replicas": "2"},
    }
    result = describe(hosting, TOPIC, "topic", version=version)
    settings = {config.name: (config.value, config.config_source) for config in result.configs}
    assert settings["retention.ms"] == ("5", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert settings["segment.bytes"] == ("100", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    assert settings["min.insync.replicas"] == ("2", ConfigSource.DYNAMIC_BROKER_CONFIG)
    assert settings["compression.type"] == ("producer", ConfigSource.DEFAULT_CONFIG)


@pytest.mark.parametrize("synonyms", [True, False])
@pytest.mark.parametrize("documentation", [True, False])
def test_only_the_requested_parts_are_described(
    hosting: Serving, synonyms: bool, documentation: bool
) -> None:
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="topic")
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=synonyms, include_documentation=documentation
    )
    (topic,) = hosting.call(request).results
    (retention,) = (config for config in topic.configs if config.name == "retention.ms")
    assert (bool(retention.synonyms), retention.documentation is not None) == (synonyms, documentation)


def test_a_resource_that_is_named_often_is_described_once(hosting: Serving) -> None:
    """Otherwise a few bytes could request gigabytes."""
    resources = [
        DescribeConfigsResource(resource_type=TOPIC, resource_name="topic", configuration_keys=keys)
        for keys in (None, ["retention.ms"])
    ]
    (topic,) = hosting.call(DescribeConfigsRequest(resources=resources)).results
    assert [config.name for config in topic.configs] == ["retention.ms"]


def test_the_names_of_a_request_are_not_searched_for_each_setting(
    hosting: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search through 131,072 of them takes milliseconds, and a broker has hundreds of settings."""
    given: list[object] = []
    monkeypatch.setattr(config_rules, "describe_all_brokers", lambda layers, names: given.append(names) or [])
    keys = ["a", "b", "a"]
    resource = DescribeConfigsResource(resource_type=BROKER, resource_name="", configuration_keys=keys)
    hosting.call(DescribeConfigsRequest(resources=[resource]))
    assert given == [frozenset({"a", "b"})]


def test_a_broker_shows_itself_and_the_defaults_of_all(hosting: Serving) -> None:
    hosting.configs.stored = {ALL_BROKERS: {"log.segment.bytes": "100"}}
    [own] = describe(hosting, BROKER, "1", "fetch.max.bytes").configs
    assert (own.value, own.config_source, own.read_only) == ("2048", ConfigSource.STATIC_BROKER_CONFIG, True)
    [shared] = describe(hosting, BROKER, "").configs
    assert (shared.name, shared.value, shared.read_only) == ("log.segment.bytes", "100", False)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nosuch", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (ConfigResourceType.BROKER_LOGGER, "1", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_unknown_and_foreign_resources_are_refused(
    hosting: Serving, kind: int, name: str, code: ErrorCode
) -> None:
    described = describe(hosting, kind, name)
    assert (described.error_code, described.configs) == (code, [])
    assert described.error_message
    assert alter(hosting, kind, name, retention_ms="1").error_code == code


def test_settings_are_changed_one_by_one_and_the_rest_stays(hosting: Serving) -> None:
    hosting.configs.stored = {THE_TOPIC: {"retention.ms": "5", "segment.ms": "6"}}
    response = alter(hosting, TOPIC, "topic", retention_ms=None, segment_bytes="100")
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    assert hosting.configs.stored[THE_TOPIC] == {"segment.ms": "6", "segment.bytes": "100"}
    assert alter(hosting, BROKER, "", log_retention_ms="7").error_code == ErrorCode.NONE
    assert hosting.configs.stored[ALL_BROKERS] == {"log.retention.ms": "7"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listener.security.protocol.map", "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT"),
        # It has no effect, and librdkafka's own tests change it.
        ("sasl.kerberos.min.time.before.relogin", "58000"),
    ],
)
def test_settings_of_listeners_are_those_of_one_broker(hosting: Serving, name: str, value: str) -> None:
    changed = {name.replace(".", "_"): value}
    assert alter(hosting, BROKER, "1", **changed).error_code == ErrorCode.NONE
    refused = alter(hosting, BROKER, "", **changed)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert refused.error_message.endswith(f"at default cluster level: {name}")


def test_a_validated_change_is_checked_and_not_written(hosting: Serving) -> None:
    assert alter(hosting, TOPIC, "topic", validate_only=True, retention_ms="7").error_code == ErrorCode.NONE
    refused = alter(hosting, TOPIC, "topic", validate_only=True, retention_ms="-7")
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert "retention.ms='-7': expected a whole number, at least -1" in refused.error_message
    assert hosting.configs.stored == {}


def test_alter_configs_replaces_all_settings_of_each_resource_that_is_not_refused(hosting: Serving) -> None:
    hosting.configs.stored = {THE_TOPIC: {"retention.ms": "5", "segment.ms": "6"}}
    settings = [AlterableConfig(name="segment.bytes", value="100")]
    unknown, known = (
        AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=settings)
        for name in ("nosuch", "topic")
    )
    for version in (0, 1, 2):
        request = AlterConfigsRequest(resources=[unknown, known])
        codes = [response.error_code for response in hosting.call(request, version=version).responses]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert hosting.configs.stored[THE_TOPIC] == {"segment.bytes": "100"}
    both = hosting.call(AlterConfigsRequest(resources=[known, known])).responses
    assert [response.error_code for response in both] == [ErrorCode.INVALID_REQUEST] * 2


def test_without_zookeeper_the_request_times_out(hosting: Serving) -> None:
    hosting.configs.trouble = api_error(ErrorCode.REQUEST_TIMED_OUT, "no connection to ZooKeeper")
    for result in (describe(hosting, TOPIC, "topic"), alter(hosting, TOPIC, "topic", retention_ms="1")):
        assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "no connection to ZooKeeper" in result.error_message


def test_a_full_queue_of_slow_work_closes_the_connection(hosting: Serving) -> None:
    hosting.slow.is_full = True
    connection = hosting.send(DescribeConfigsRequest(resources=[]))
    assert connection.closed is not None
    assert "wait for ZooKeeper" in connection.closed


def test_certificates_are_tried_before_their_settings_are_written(hosting: Serving) -> None:
    location = "listener.name.ssl.ssl.keystore.location"
    own = setting_text(hosting.config.listeners)
    protocols = setting_text({**hosting.config.listener_security_protocol_map, "SSL": "SSL"})
    added = {"listeners": f"{own},SSL://:9093", "listener.security.protocol.map": protocols}
    refused = alter(hosting, BROKER, "1", **added, **{location: "/other.pem"})
    assert refused.error_message == "listener SSL: /other.pem cannot be used"
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert MYSELF not in hosting.configs.stored
    taken = alter(hosting, BROKER, "1", **added, **{location: USABLE_CERTIFICATE})
    assert taken.error_code == ErrorCode.NONE
    for validate_only in (True, False):
        again = alter(hosting, BROKER, "1", validate_only=validate_only, **{location: "/other.pem"})
        assert again.error_message == "listener SSL: /other.pem cannot be used"
    assert hosting.configs.stored[MYSELF][location] == USABLE_CERTIFICATE


def test_certificates_that_remain_are_not_tried_again(hosting: Serving) -> None:
    location = "listener.name.ssl.ssl.keystore.location"
    own = setting_text(hosting.config.listeners)
    protocols = setting_text({**hosting.config.listener_security_protocol_map, "SSL": "SSL"})
    # As if the file had changed since.
    hosting.configs.stored[MYSELF] = {
        "listeners": f"{own},SSL://:9093",
        "listener.security.protocol.map": protocols,
        location: "/other.pem",
    }
    assert alter(hosting, BROKER, "1", max_connections="7").error_code == ErrorCode.NONE
