"""Access control lists as data: the numbers of Kafka's protocol, resource patterns, entries. Pure.

Source: KIP-11, KIP-140, KIP-290; `org.apache.kafka.common.acl` and `…common.resource` have the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from barnabas.common.security.principal import WILDCARD, Principal


class _Number(IntEnum):
    """A number of Kafka's protocol; one that a later version has added is UNKNOWN."""

    # The hash of an Enum is computed in Python, and each decision looks one up.
    __hash__ = int.__hash__

    @classmethod
    def _missing_(cls, value: object) -> _Number:
        return cls(0)


class ResourceType(_Number):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Number):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    """In filters alone: the patterns that apply to a resource of this name."""
    LITERAL = 3
    PREFIXED = 4


class Operation(_Number):
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


class Permission(_Number):
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

    def __str__(self) -> str:
        (type_, name, pattern), entry = self
        return (
            f"{pascal_name(entry.permission)} {entry.principal} from {entry.host} "
            f"{pascal_name(entry.operation)} on {pascal_name(type_)}:{pattern.name}:{name}"
        )


SUPPORTED_OPERATIONS: Final[Mapping[ResourceType, frozenset[Operation]]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset({Operation.READ, Operation.DESCRIBE, Operation.DELETE}),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
            Operation.ALTER,
            Operation.DESCRIBE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.DESCRIBE, Operation.WRITE}),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}
"""The operations that APIs ask for on each type of resource, as in `AclEntry.supportedOperations`."""

IMPLIES: Final[Mapping[Operation, Operation]] = {
    Operation.READ: Operation.DESCRIBE,
    Operation.WRITE: Operation.DESCRIBE,
    Operation.DELETE: Operation.DESCRIBE,
    Operation.ALTER: Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: Operation.DESCRIBE_CONFIGS,
}
"""An operation that is allowed, and the one that is therefore allowed too. A denial implies nothing."""


def pascal_name(member: IntEnum) -> str:
    """The name of a number as Kafka writes it in znodes and logs, such as ``DescribeConfigs``."""
    return "".join(word.capitalize() for word in member.name.split("_"))


class AclFilter(NamedTuple):
    """Chooses ACLs. None and the members ANY fit everything; a principal is a text such as ``User:alice``."""

    type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def fits(self, binding: AclBinding) -> bool:
        return self.fits_resource(binding.resource) and self.fits_entry(binding.entry)

    def fits_resource(self, resource: ResourcePattern) -> bool:
        if self.type not in (ResourceType.ANY, resource.type):
            return False
        if self.pattern is PatternType.MATCH:
            return self.name is None or applies_to(resource, self.name)
        return self.pattern in (PatternType.ANY, resource.pattern) and self.name in (None, resource.name)

    def fits_entry(self, entry: AclEntry) -> bool:
        return (
            self.principal in (None, str(entry.principal))
            and self.host in (None, entry.host)
            and self.operation in (Operation.ANY, entry.operation)
            and self.permission in (Permission.ANY, entry.permission)
        )


def applies_to(resource: ResourcePattern, name: str) -> bool:
    """Whether the ACLs of a pattern apply to the resource of a name."""
    if resource.pattern is PatternType.PREFIXED:
        return name.startswith(resource.name)
    return resource.name in (WILDCARD, name)
