"""`barnabas acls grant|revoke|list`: the rights of users, in fewer words than Kafka's own tool needs.

A resource is written ``topic:orders``, or ``topic:orders*`` for all names with this beginning; ``topic:*``
are all topics. ``cluster`` has no name.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Final

from barnabas.cli.action import Row, actions, answer, arg, flag, repeated, show
from barnabas.cli.arguments import on_cluster
from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from barnabas.client.admin.admin import Admin
from barnabas.common.security.acl import (
    ANY_HOST,
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    AclBinding,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from barnabas.common.security.principal import USER, WILDCARD, Principal
from barnabas.common.suggestions import suggestion
from barnabas.common.texts import count


def _word(member: Operation | ResourceType | Permission) -> str:
    return member.name.lower().replace("_", "-")


_TYPES: Final = {_word(kind): kind for kind in SUPPORTED_OPERATIONS}
_OPERATIONS: Final = {_word(operation): operation for operation in Operation if operation > Operation.ANY}
"""By the words of the command."""
_RESOURCES_HELP: Final = "TYPE:NAME, or TYPE:PREFIX*, or cluster; the types are " + ", ".join(_TYPES)

_EXAMPLES: Final = (
    "examples: `barnabas acls grant alice read,write topic:orders 'group:g*'`, "
    "`barnabas acls grant bob read 'topic:*' --host 10.0.0.7`, "
    "`barnabas acls grant eve all topic:secret --deny`, `barnabas acls grant carol create,describe cluster`"
)


def principal_of(text: str) -> Principal:
    """A user by name, or ``User:name``; raises CommandError (usage)."""
    if text.startswith(f"{USER}:"):
        text = text.removeprefix(f"{USER}:")
    if not text:
        raise CommandError("expected the name of a user", USAGE)
    return Principal.user(text)


def operations_of(text: str) -> list[Operation]:
    """``read,write``; raises CommandError (usage)."""
    chosen = []
    for word in text.lower().split(","):
        name = word.strip().replace("_", "-")
        if name not in _OPERATIONS:
            raise CommandError(f"operation {word!r}{suggestion(name, _OPERATIONS)}", USAGE)
        chosen.append(_OPERATIONS[name])
    return list(dict.fromkeys(chosen))


def resource_of(text: str) -> ResourcePattern:
    """``topic:orders``, ``group:g*``, ``cluster``; raises CommandError (usage)."""
    word, _, name = text.partition(":")
    kind = _TYPES.get(word.lower().replace("_", "-"))
    if kind is None:
        hint = suggestion(word, _TYPES)
        raise CommandError(f"{text!r}: expected {_RESOURCES_HELP}{hint}", USAGE)
    if kind is ResourceType.CLUSTER and name in ("", CLUSTER_NAME):
        return ResourcePattern(kind, CLUSTER_NAME)
    if kind is ResourceType.CLUSTER or not name:
        raise CommandError(f"{text!r}: expected {'cluster' if name else f'{word}:NAME'}", USAGE)
    if name.endswith(WILDCARD) and name != WILDCARD:
        return ResourcePattern(kind, name.removesuffix(WILDCARD), PatternType.PREFIXED)
    return ResourcePattern(kind, name)


def resource_text(resource: ResourcePattern) -> str:
    """As `resource_of` reads it."""
    if resource.type is ResourceType.CLUSTER:
        return _word(resource.type)
    is_prefix = resource.pattern is PatternType.PREFIXED
    return f"{_word(resource.type)}:{resource.name}{WILDCARD if is_prefix else ''}"


def bindings_of(
    principal: Principal,
    operations: Sequence[Operation],
    resources: Sequence[ResourcePattern],
    hosts: Iterable[str] = (ANY_HOST,),
    permission: Permission = Permission.ALLOW,
) -> list[AclBinding]:
    """Each operation on each resource that has it. Raises CommandError (usage) if none has the operation."""
    bindings = []
    for operation in operations:
        fitting = [
            resource
            for resource in resources
            if operation is Operation.ALL or operation in SUPPORTED_OPERATIONS[resource.type]
        ]
        if not fitting:
            named = ", ".join(map(resource_text, resources))
            raise CommandError(f"there is no operation {_word(operation)} on {named}", USAGE)
        bindings += [
            AclBinding(resource, AclEntry(principal, host, operation, permission))
            for resource in fitting
            for host in hosts
        ]
    return bindings


def _check(options: argparse.Namespace) -> None:
    """Set `options.bindings`."""
    options.bindings = bindings_of(
        principal_of(options.user),
        operations_of(options.operations),
        [resource_of(text) for text in options.resources],
        options.hosts or [ANY_HOST],
        Permission.DENY if options.deny else Permission.ALLOW,
    )


def _check_revoke(options: argparse.Namespace) -> None:
    """Set `options.filters`."""
    principal = str(principal_of(options.user))
    if options.all:
        if options.operations or options.hosts or options.deny:
            raise CommandError("--all is every ACL of the user: leave out the rest", USAGE)
        options.filters = [AclFilter(principal=principal)]
        return
    if not options.operations or not options.resources:
        raise CommandError("name operations and resources, as `acls grant` does, or give --all", USAGE)
    _check(options)
    options.filters = [
        AclFilter(
            resource.type,
            resource.name,
            resource.pattern,
            str(entry.principal),
            entry.host,
            entry.operation,
            entry.permission,
        )
        for resource, entry in options.bindings
    ]


async def _grant(options: argparse.Namespace, admin: Admin) -> None:
    await admin.create_acls(options.bindings)
    rows = [_row(binding) for binding in options.bindings]
    answer(options, rows, *(_line(row) for row in rows))


async def _revoke(options: argparse.Namespace, admin: Admin) -> None:
    removed = await admin.delete_acls(options.filters)
    if not removed:
        named = f"see `barnabas acls list {options.user}`"
        raise CommandError(f"there is no such ACL of {options.user}; {named}", NOT_FOUND)
    rows = [_row(binding) for binding in removed]
    answer(options, rows, f"{count(len(rows), 'ACL')} removed", *(f"  {_line(row)}" for row in rows))


def _check_list(options: argparse.Namespace) -> None:
    principal = str(principal_of(options.user)) if options.user else None
    chosen = [resource_of(text) for text in options.resources]
    options.filters = [
        AclFilter(
            resource.type,
            resource.name,
            # All that apply to a name; a prefix names its own ACLs.
            PatternType.MATCH if resource.pattern is PatternType.LITERAL else resource.pattern,
            principal,
        )
        for resource in chosen
    ] or [AclFilter(principal=principal)]


async def _list(options: argparse.Namespace, admin: Admin) -> None:
    listed = {binding for each in options.filters for binding in await admin.describe_acls(each)}
    rows = [
        _row(binding) for binding in sorted(listed, key=lambda binding: (binding.entry.principal, binding))
    ]
    show(
        options,
        rows,
        {
            "user": lambda row: row["principal"].removeprefix(f"{USER}:"),
            "permission": "permission",
            "operation": "operation",
            "resource": "resource",
            "host": "host",
        },
        "no ACLs",
    )


def _row(binding: AclBinding) -> Row:
    resource, entry = binding
    return {
        "principal": str(entry.principal),
        "permission": _word(entry.permission),
        "operation": _word(entry.operation),
        "resource": resource_text(resource),
        "resource_type": _word(resource.type),
        "resource_name": resource.name,
        "pattern_type": resource.pattern.name.lower(),
        "host": entry.host,
    }


def _line(row: Row) -> str:
    host = "" if row["host"] == ANY_HOST else f" from {row['host']}"
    return f"{row['principal']}: {row['permission']} {row['operation']} on {row['resource']}{host}"


_USER = arg("user", "USER", f"the name of a user, or '{WILDCARD}' for all")
_HOSTS = repeated("--host", "ADDRESS", "only from this address; default: from everywhere", dest="hosts")

add_arguments = actions(
    on_cluster(
        "grant",
        "let a user do something, or with --deny forbid it",
        _grant,
        _USER,
        arg("operations", "OPERATION,…", ", ".join(_OPERATIONS)),
        arg("resources", "RESOURCE", _RESOURCES_HELP, nargs="+"),
        _HOSTS,
        flag("--deny", "a denial, which beats every permission"),
        check=_check,
        epilog=_EXAMPLES,
    ),
    on_cluster(
        "revoke",
        "remove ACLs",
        _revoke,
        _USER,
        arg("operations", "OPERATION,…", "as they were granted", nargs="?"),
        arg("resources", "RESOURCE", "as they were granted", nargs="*"),
        _HOSTS,
        flag("--deny", "the denial, not the permission"),
        flag("--all", "all ACLs of the user, denials too"),
        check=_check_revoke,
        epilog="examples: `barnabas acls revoke alice write topic:a`, `barnabas acls revoke alice --all`",
    ),
    on_cluster(
        "list",
        "list ACLs",
        _list,
        arg("user", "USER", "default: all", nargs="?"),
        arg("resources", "RESOURCE", "only ACLs that apply to these", nargs="*"),
        check=_check_list,
        epilog="examples: `barnabas acls list`, `barnabas acls list alice topic:orders`",
    ),
)
