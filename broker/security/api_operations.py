"""The one table of the operations on resources that each API asks for, as Apache Kafka 3.9. Pure data.

A request without an entry here is not served if the broker has an authorizer. An entry has its questions in
the order in which they are asked. Questions that need more than a name in a list, such as those of Fetch with
its sessions, are asked by the handlers, which may ask for nothing else than their entry.

Source: `KafkaApis.scala`, and "Operations and resources on protocols" in Kafka's documentation. Where the two
differ, the table follows `KafkaApis`; the test that compares this table with the documentation names each.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from barnabas.common.security.acl import Operation, ResourceType
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.schema import ApiKey

_ALTER = Operation.ALTER
_ALTER_CONFIGS = Operation.ALTER_CONFIGS
_CREATE = Operation.CREATE
_DELETE = Operation.DELETE
_DESCRIBE = Operation.DESCRIBE
_DESCRIBE_CONFIGS = Operation.DESCRIBE_CONFIGS
_READ = Operation.READ
_WRITE = Operation.WRITE

_TOPIC = ResourceType.TOPIC
_GROUP = ResourceType.GROUP
_CLUSTER = ResourceType.CLUSTER
_TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID


class Where(Enum):
    """Where the names of a question's resources are, and the answer to a refusal."""

    REQUEST = "request"
    """In a field of the request, or it is the cluster; a refusal answers the whole request."""
    ENTRIES = "entries"
    """In the entries of a list of the request; each refused entry is answered by itself."""
    ANSWER = "answer"
    """In the entries of a list of the answer; refused entries are left out, without a word."""
    HANDLER = "handler"
    """The handler finds and asks for them."""


class Question(NamedTuple):
    """One operation on the resources of one type."""

    operation: Operation
    resource: ResourceType
    where: Where
    field: str = ""
    or_on_cluster: Operation | None = None
    """An operation on the cluster that allows all of it; it is asked first."""


def _cluster(operation: Operation, *, instead: Operation | None = None) -> Question:
    return Question(operation, _CLUSTER, Where.REQUEST, or_on_cluster=instead)


def _one(operation: Operation, resource: ResourceType, field: str) -> Question:
    return Question(operation, resource, Where.REQUEST, field)


def _each(
    operation: Operation, resource: ResourceType, field: str, on_cluster: Operation | None = None
) -> Question:
    return Question(operation, resource, Where.ENTRIES, field, on_cluster)


def _shown(
    operation: Operation, resource: ResourceType, field: str, on_cluster: Operation | None = None
) -> Question:
    return Question(operation, resource, Where.ANSWER, field, on_cluster)


def _asked(operation: Operation, resource: ResourceType) -> Question:
    return Question(operation, resource, Where.HANDLER)


Questions = tuple[Question, ...]
_NOTHING: Final[Questions] = ()
_FROM_BROKERS: Final[Questions] = (_cluster(Operation.CLUSTER_ACTION),)

API_OPERATIONS: Final[Mapping[ApiKey, Questions]] = {
    # ---- records
    ApiKey.PRODUCE: (_asked(_WRITE, _TOPIC), _asked(_WRITE, _TRANSACTIONAL_ID)),
    ApiKey.FETCH: (_asked(Operation.CLUSTER_ACTION, _CLUSTER), _asked(_READ, _TOPIC)),
    # Not in Kafka: a follower's fetch has opened its subscription on the same connection.
    ApiKey.FETCH_PROGRESS: _NOTHING,
    ApiKey.LIST_OFFSETS: (_each(_DESCRIBE, _TOPIC, "topics"),),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_each(_DESCRIBE, _TOPIC, "topics", Operation.CLUSTER_ACTION),),
    ApiKey.DELETE_RECORDS: (_each(_DELETE, _TOPIC, "topics"),),
    # ---- the cluster
    ApiKey.API_VERSIONS: _NOTHING,
    ApiKey.METADATA: (
        _asked(_DESCRIBE, _TOPIC),
        _asked(_CREATE, _CLUSTER),
        _asked(_CREATE, _TOPIC),
        # For the authorized operations alone.
        _asked(_DESCRIBE, _CLUSTER),
    ),
    ApiKey.DESCRIBE_CLUSTER: (_asked(_DESCRIBE, _CLUSTER),),
    ApiKey.UPDATE_FEATURES: (_cluster(_ALTER),),
    ApiKey.DESCRIBE_LOG_DIRS: (_cluster(_DESCRIBE),),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (_cluster(_ALTER),),
    ApiKey.ELECT_LEADERS: (_cluster(_ALTER),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (_cluster(_ALTER),),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (_cluster(_DESCRIBE),),
    # Not in Kafka: as DescribeLogDirs, which shows the same replicas.
    ApiKey.DESCRIBE_REPLICAS: (_cluster(_DESCRIBE),),
    # Not in Kafka: a rule may hit the requests of everybody.
    ApiKey.ALTER_FAULT_RULES: (_cluster(_ALTER),),
    ApiKey.DESCRIBE_FAULT_RULES: (_cluster(_DESCRIBE),),
    # ---- topics
    ApiKey.CREATE_TOPICS: (_each(_CREATE, _TOPIC, "topics", _CREATE), _asked(_DESCRIBE_CONFIGS, _TOPIC)),
    ApiKey.CREATE_PARTITIONS: (_each(_ALTER, _TOPIC, "topics"),),
    ApiKey.DELETE_TOPICS: (_asked(_DELETE, _TOPIC),),
    ApiKey.DESCRIBE_CONFIGS: (_asked(_DESCRIBE_CONFIGS, _CLUSTER), _asked(_DESCRIBE_CONFIGS, _TOPIC)),
    ApiKey.ALTER_CONFIGS: (_asked(_ALTER_CONFIGS, _CLUSTER), _asked(_ALTER_CONFIGS, _TOPIC)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (_asked(_ALTER_CONFIGS, _CLUSTER), _asked(_ALTER_CONFIGS, _TOPIC)),
    # ---- groups
    ApiKey.FIND_COORDINATOR: (_asked(_DESCRIBE, _GROUP), _asked(_DESCRIBE, _TRANSACTIONAL_ID)),
    ApiKey.JOIN_GROUP: (_one(_READ, _GROUP, "group_id"),),
    ApiKey.SYNC_GROUP: (_one(_READ, _GROUP, "group_id"),),
    ApiKey.HEARTBEAT: (_one(_READ, _GROUP, "group_id"),),
    ApiKey.LEAVE_GROUP: (_one(_READ, _GROUP, "group_id"),),
    ApiKey.OFFSET_COMMIT: (_one(_READ, _GROUP, "group_id"), _each(_READ, _TOPIC, "topics")),
    ApiKey.OFFSET_FETCH: (_asked(_DESCRIBE, _GROUP), _asked(_DESCRIBE, _TOPIC)),
    ApiKey.OFFSET_DELETE: (_one(_DELETE, _GROUP, "group_id"), _each(_READ, _TOPIC, "topics")),
    ApiKey.DESCRIBE_GROUPS: (_each(_DESCRIBE, _GROUP, "groups"),),
    ApiKey.LIST_GROUPS: (_shown(_DESCRIBE, _GROUP, "groups", _DESCRIBE),),
    ApiKey.DELETE_GROUPS: (_each(_DELETE, _GROUP, "groups_names"),),
    # ---- transactions
    ApiKey.INIT_PRODUCER_ID: (
        _asked(_WRITE, _TRANSACTIONAL_ID),
        # Without a transactional id: one of these two, the second on any topic.
        _asked(Operation.IDEMPOTENT_WRITE, _CLUSTER),
        _asked(_WRITE, _TOPIC),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        # From brokers, then for nothing else.
        _asked(Operation.CLUSTER_ACTION, _CLUSTER),
        _asked(_WRITE, _TRANSACTIONAL_ID),
        _asked(_WRITE, _TOPIC),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (
        _one(_WRITE, _TRANSACTIONAL_ID, "transactional_id"),
        _one(_READ, _GROUP, "group_id"),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        _one(_WRITE, _TRANSACTIONAL_ID, "transactional_id"),
        _one(_READ, _GROUP, "group_id"),
        _each(_READ, _TOPIC, "topics"),
    ),
    ApiKey.END_TXN: (_one(_WRITE, _TRANSACTIONAL_ID, "transactional_id"),),
    # Only in the native protocol; as EndTxn (KIP-939).
    ApiKey.PREPARE_TXN: (_one(_WRITE, _TRANSACTIONAL_ID, "transactional_id"),),
    ApiKey.WRITE_TXN_MARKERS: (_cluster(Operation.CLUSTER_ACTION, instead=_ALTER),),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        _each(_DESCRIBE, _TRANSACTIONAL_ID, "transactional_ids"),
        # Of the partitions in a transaction.
        _asked(_DESCRIBE, _TOPIC),
    ),
    ApiKey.LIST_TRANSACTIONS: (_shown(_DESCRIBE, _TRANSACTIONAL_ID, "transaction_states"),),
    ApiKey.DESCRIBE_PRODUCERS: (_each(_READ, _TOPIC, "topics"),),
    # ---- security and quotas
    ApiKey.SASL_HANDSHAKE: _NOTHING,
    ApiKey.SASL_AUTHENTICATE: _NOTHING,
    ApiKey.DESCRIBE_ACLS: (_cluster(_DESCRIBE),),
    ApiKey.CREATE_ACLS: (_cluster(_ALTER),),
    ApiKey.DELETE_ACLS: (_cluster(_ALTER),),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (_cluster(_DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CLIENT_QUOTAS: (_cluster(_ALTER_CONFIGS),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (_cluster(_DESCRIBE),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (_cluster(_ALTER),),
    # Refused to everybody.
    ApiKey.CREATE_DELEGATION_TOKEN: _NOTHING,
    ApiKey.RENEW_DELEGATION_TOKEN: _NOTHING,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _NOTHING,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _NOTHING,
    # ---- from brokers
    ApiKey.LEADER_AND_ISR: _FROM_BROKERS,
    ApiKey.STOP_REPLICA: _FROM_BROKERS,
    ApiKey.UPDATE_METADATA: _FROM_BROKERS,
    ApiKey.CONTROLLED_SHUTDOWN: _FROM_BROKERS,
}

DENIED: Final[Mapping[ResourceType, ErrorCode]] = {
    _TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    _GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    _CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    _TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error code for a principal that may not do something with a resource of the type."""
