"""The paths of a cluster's znodes, as in Kafka.

Pure. Paths are relative to the chroot, which the ZooKeeper client puts in front of each. Source: the znode
layout of Apache Kafka 3.9 in ZooKeeper mode.
"""

from __future__ import annotations

from typing import Final

from barnabas.protocol.ids import BrokerId, TopicPartition

BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
CLUSTER_ID: Final = "/cluster/id"
SECRET: Final = "/cluster/secret"
"""Not of Kafka. Only brokers may read it, as the credentials of users."""
FEATURES: Final = "/feature"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
DELETE_TOPICS: Final = "/admin/delete_topics"
PREFERRED_ELECTION: Final = "/admin/preferred_replica_election"
REASSIGNMENTS: Final = "/admin/reassign_partitions"
CONFIG: Final = "/config"
TOPIC_CONFIGS: Final = f"{CONFIG}/topics"
CONFIG_CHANGES: Final = f"{CONFIG}/changes"
CONFIG_CHANGE_PREFIX: Final = f"{CONFIG_CHANGES}/config_change_"
ISR_CHANGES: Final = "/isr_change_notification"
ISR_CHANGE_PREFIX: Final = f"{ISR_CHANGES}/isr_change_"
LOG_DIR_EVENTS: Final = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX: Final = f"{LOG_DIR_EVENTS}/log_dir_event_"
ACLS: Final = "/kafka-acl"
PREFIXED_ACLS: Final = "/kafka-acl-extended/prefixed"
ACL_CHANGES: Final = "/kafka-acl-changes"
EXTENDED_ACL_CHANGES: Final = "/kafka-acl-extended-changes"
ACL_CHANGE_PREFIX: Final = "acl_changes_"

PERSISTENT: Final = (
    BROKER_IDS,
    TOPICS,
    "/cluster",
    TOPIC_CONFIGS,
    f"{CONFIG}/brokers",
    f"{CONFIG}/users",
    f"{CONFIG}/clients",
    f"{CONFIG}/ips",
    CONFIG_CHANGES,
    DELETE_TOPICS,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    ACLS,
)
"""The nodes that a cluster's first broker creates."""


def broker_id(broker: BrokerId) -> str:
    return f"{BROKER_IDS}/{broker}"


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def topic_partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(tp: TopicPartition) -> str:
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}"


def leadership(tp: TopicPartition) -> str:
    return f"{TOPICS}/{tp.topic}/partitions/{tp.partition}/state"


def topic_config(name: str) -> str:
    return f"{TOPIC_CONFIGS}/{name}"


def delete_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{name}"
