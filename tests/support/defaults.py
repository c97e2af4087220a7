"""The settings that a broker passes to its parts, made from the declared defaults."""

from dataclasses import replace
from typing import Any

from barnabas.broker.config.load import config_from
from barnabas.broker.config.settings import BrokerConfig
from barnabas.broker.config.topic_config import TopicConfig
from barnabas.controller.term import ControllerSettings

REQUIRED = {"broker.id": "1", "zookeeper.connect": "localhost:2181", "log.dirs": "/data"}


def make_config(**settings: object) -> BrokerConfig:
    """Settings by Kafka's names, with underscores: ``num_io_threads=2``."""
    return config_from(REQUIRED | {name.replace("_", "."): str(value) for name, value in settings.items()})


CONFIG = make_config()


def log_config(**changes: Any) -> TopicConfig:
    return replace(CONFIG.topics, **changes)


def controller_settings(**changes: Any) -> ControllerSettings:
    settings = ControllerSettings(
        inter_broker_listener_name=CONFIG.inter_broker_listener_name,
        delete_topic_enable=CONFIG.delete_topic_enable,
        unclean_leader_election_enable=CONFIG.topics.unclean_leader_election_enable,
        auto_leader_rebalance_enable=CONFIG.auto_leader_rebalance_enable,
        leader_imbalance_check_interval_seconds=CONFIG.leader_imbalance_check_interval_seconds,
        leader_imbalance_per_broker_percentage=CONFIG.leader_imbalance_per_broker_percentage,
        request_timeout_ms=CONFIG.controller_socket_timeout_ms,
    )
    return replace(settings, **changes)
