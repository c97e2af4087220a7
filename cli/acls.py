"""`barnabas acls grant|revoke|list`: the rights of users, in fewer words than Kafka's own tool needs.

`common/security/rights.py` says how they are written.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from barnabas.cli.action import Row, actions, answer, arg, flag, repeated, show
from barnabas.cli.arguments import on_cluster
from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError
from barnabas.client.admin.admin import Admin
from barnabas.common.security.acl import ANY_HOST, AclBinding, AclFilter, PatternType, Permission
from barnabas.common.security.principal import USER, WILDCARD
from barnabas.common.security.rights import (
    OPERATIONS,
    RESOURCES_HELP,
    bindings_of,
    operations_of,
    principal_of,
    resource_of,
    resource_text,
    word_of,
)
from barnabas.common.texts import count

_EXAMPLES: Final = (
    "examples: `barnabas acls grant alice read,write topic:orders 'group:g*'`, "
    "`barnabas acls grant bob read 'topic:*' --host 10.0.0.7`, "
    "`barnabas acls grant eve all topic:secret --deny`, `barnabas acls grant carol create,describe cluster`"
)


@contextmanager
def _as_usage() -> Iterator[None]:
    """A right that means nothing is a wrong usage of the command."""
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error), USAGE) from None


@_as_usage()
def _check(options: argparse.Namespace) -> None:
    """Set `options.bindings`."""
    options.bindings = bindings_of(
        principal_of(options.user),
        operations_of(options.operations),
        [resource_of(text) for text in options.resources],
        options.hosts or [ANY_HOST],
        Permission.DENY if options.deny else Permission.ALLOW,
    )


@_as_usage()
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


@_as_usage()
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
        "permission": word_of(entry.permission),
        "operation": word_of(entry.operation),
        "resource": resource_text(resource),
        "resource_type": word_of(resource.type),
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
        arg("operations", "OPERATION,…", ", ".join(OPERATIONS)),
        arg("resources", "RESOURCE", RESOURCES_HELP, nargs="+"),
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
