"""Access control lists as data: the numbers of Kafka's protocol, resource patterns, entries. Pure.

Source: KIP-11, KIP-140, KIP-290; `org.apache.kafka.common.acl` and `…common.resource` have the numbers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from barnabas.common.security.principal import WILDCARD, Principal


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    """In filters alone: the patterns that apply to a resource of this name."""
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
ANY_HOST: Final = WILDCARD


class ResourcePattern(NamedTuple):
    """The resources of an ACL: one by its name, all of a type (the literal name ``*``), or a prefix."""

    type: ResourceType
    name: str
    pattern: PatternType = PatternType.LITERAL


class AclEntry(NamedTuple):
    """One permission of one principal from one host; the host is an address, or `ANY_HOST`."""

    principal: Principal
    host: str
    operation: Operation
    permission: Permission


class AclBinding(NamedTuple):
    resource: ResourcePattern
    entry: AclEntry
