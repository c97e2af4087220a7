"""The rights of users as people write them: operations ``read,write``, resources ``topic:orders``. Pure.

A resource is written ``topic:orders``, or ``topic:orders*`` for all names with this beginning; ``topic:*``
are all topics. ``cluster`` has no name. All raise ValueError for a text that means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from barnabas.common.security.acl import (
    ANY_HOST,
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclBinding,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from barnabas.common.security.principal import USER, WILDCARD, Principal
from barnabas.common.suggestions import suggestion


def word_of(member: Operation | ResourceType | Permission) -> str:
    return member.name.lower().replace("_", "-")


_TYPES: Final = {word_of(kind): kind for kind in SUPPORTED_OPERATIONS}
OPERATIONS: Final = {word_of(operation): operation for operation in Operation if operation > Operation.ANY}
"""By the words of the command."""
RESOURCES_HELP: Final = "TYPE:NAME, or TYPE:PREFIX*, or cluster; the types are " + ", ".join(_TYPES)


def principal_of(text: str) -> Principal:
    """A user by name, or ``User:name``."""
    if text.startswith(f"{USER}:"):
        text = text.removeprefix(f"{USER}:")
    if not text:
        raise ValueError("expected the name of a user")
    return Principal.user(text)


def operations_of(text: str) -> list[Operation]:
    """``read,write``."""
    chosen = []
    for word in text.lower().split(","):
        name = word.strip().replace("_", "-")
        if name not in OPERATIONS:
            raise ValueError(f"operation {word!r}{suggestion(name, OPERATIONS)}")
        chosen.append(OPERATIONS[name])
    return list(dict.fromkeys(chosen))


def resource_of(text: str) -> ResourcePattern:
    """``topic:orders``, ``group:g*``, ``cluster``."""
    word, _, name = text.partition(":")
    kind = _TYPES.get(word.lower().replace("_", "-"))
    if kind is None:
        hint = suggestion(word, _TYPES)
        raise ValueError(f"{text!r}: expected {RESOURCES_HELP}{hint}")
    if kind is ResourceType.CLUSTER and name in ("", CLUSTER_NAME):
        return ResourcePattern(kind, CLUSTER_NAME)
    if kind is ResourceType.CLUSTER or not name:
        raise ValueError(f"{text!r}: expected {'cluster' if name else f'{word}:NAME'}")
    if name.endswith(WILDCARD) and name != WILDCARD:
        return ResourcePattern(kind, name.removesuffix(WILDCARD), PatternType.PREFIXED)
    return ResourcePattern(kind, name)


def resource_text(resource: ResourcePattern) -> str:
    """As `resource_of` reads it."""
    if resource.type is ResourceType.CLUSTER:
        return word_of(resource.type)
    is_prefix = resource.pattern is PatternType.PREFIXED
    return f"{word_of(resource.type)}:{resource.name}{WILDCARD if is_prefix else ''}"


def bindings_of(
    principal: Principal,
    operations: Sequence[Operation],
    resources: Sequence[ResourcePattern],
    hosts: Iterable[str] = (ANY_HOST,),
    permission: Permission = Permission.ALLOW,
) -> list[AclBinding]:
    """Each operation on each resource that has it. Raises ValueError if no resource has the operation."""
    bindings = []
    for operation in operations:
        fitting = [
            resource
            for resource in resources
            if operation is Operation.ALL or operation in SUPPORTED_OPERATIONS[resource.type]
        ]
        if not fitting:
            named = ", ".join(map(resource_text, resources))
            raise ValueError(f"there is no operation {word_of(operation)} on {named}")
        bindings += [
            AclBinding(resource, AclEntry(principal, host, operation, permission))
            for resource in fitting
            for host in hosts
        ]
    return bindings


def bindings_of_right(user: str, right: str) -> list[AclBinding]:
    """The ACLs of ``read,write topic:orders group:g*``: operations, then resources."""
    operations, *resources = right.split() or [""]
    if not resources:
        raise ValueError(f"{right!r}: expected operations and resources, such as 'read,write topic:orders'")
    try:
        chosen = [resource_of(text) for text in resources]
        return bindings_of(Principal.user(user), operations_of(operations), chosen)
    except ValueError as error:
        raise ValueError(f"{right!r}: {error}") from None
