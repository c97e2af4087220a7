"""`barnabas configs describe|alter`: the settings of topics and brokers, while they run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from barnabas.cli.action import Column, Row, actions, answer, arg, flag, one_of, repeated, show
from barnabas.cli.arguments import key_values, on_cluster
from barnabas.cli.exit_codes import NOT_FOUND, USAGE, CommandError, check_topics
from barnabas.client.admin.admin import Admin, Append, ConfigChange, ConfigEntry, ConfigResource, Subtract
from barnabas.common.suggestions import did_you_mean
from barnabas.protocol.messages.configs import ConfigResourceType

_RESOURCE = one_of(
    arg("--topic", "TOPIC"),
    arg("--broker", "ID", type=int),
    flag("--all-brokers", "the defaults for brokers without a value of their own"),
    required=True,
)
CHANGES = (
    # `topics create` has --config, as Kafka's tool.
    repeated(
        "--set --config", "KEY=VALUE", "give a setting a value, for example retention.ms=3600000", dest="sets"
    ),
    repeated("--delete", "KEY", "reset a setting to its default", dest="deletes"),
    repeated(
        "--append",
        "KEY=VALUE",
        "add to a setting that is a list, for example cleanup.policy=compact",
        dest="appends",
    ),
    repeated("--subtract", "KEY=VALUE", "remove from a setting that is a list", dest="subtracts"),
    flag("--validate-only", "check it and change nothing"),
)
"""The arguments of a change of settings, for `check_changes`."""


def chosen_resource(options: argparse.Namespace) -> ConfigResource:
    if options.topic is not None:
        return ConfigResource.topic(options.topic)
    return ConfigResource.all_brokers() if options.all_brokers else ConfigResource.broker(options.broker)


def check_changes(options: argparse.Namespace) -> None:
    """Set `options.changes` by setting; raises CommandError without changes, or for two of one setting."""
    named: list[tuple[str, ConfigChange]] = [*key_values(options.sets, "--set").items()]
    named += [(name.strip(), None) for name in options.deletes]
    named += [(name, Append(value)) for name, value in key_values(options.appends, "--append").items()]
    named += [(name, Subtract(value)) for name, value in key_values(options.subtracts, "--subtract").items()]
    if not named:
        raise CommandError("nothing to change; expected --set, --delete, --append or --subtract", USAGE)
    options.changes = dict(named)
    if len(options.changes) != len(named):
        names = [name for name, _ in named]
        twice = next(name for name in names if names.count(name) > 1)
        raise CommandError(f"{twice} is changed twice; expected one change of each setting", USAGE)


async def alter(options: argparse.Namespace, admin: Admin) -> None:
    """Change settings; raises CommandError for a missing resource, naming the existing ones."""
    resource = chosen_resource(options)
    await check_resource(admin, resource)
    await admin.alter_configs({resource: options.changes}, validate_only=options.validate_only)
    names = sorted(options.changes)
    value = {"resource": str(resource), "changed": not options.validate_only, "settings": names}
    done = "can be changed like this" if options.validate_only else "changed"
    answer(options, value, f"{resource}: {', '.join(names)} {done}")


async def check_resource(admin: Admin, resource: ConfigResource) -> None:
    if resource.kind is ConfigResourceType.TOPIC:
        check_topics([resource.name], await admin.list_topics(include_internal=True))
    elif resource.name:
        nodes = [node.node_id for node in (await admin.describe_cluster()).nodes]
        if int(resource.name) not in nodes:
            live = ", ".join(map(str, nodes)) or "none"
            raise CommandError(f"there is no live broker {resource.name}; live are {live}", NOT_FOUND)


async def _describe(options: argparse.Namespace, admin: Admin) -> None:
    resource = chosen_resource(options)
    await check_resource(admin, resource)
    by_name = (await admin.describe_configs(resource, include_documentation=options.explain))[resource]
    entries = [entry for _, entry in sorted(by_name.items())]
    if options.names:
        entries = [_entry_named(name, by_name, resource) for name in options.names]
    if options.changed:
        entries = [entry for entry in entries if not entry.is_default]
    columns: dict[str, Column] = {
        "setting": "name",
        "value": "value",
        "source": lambda row: by_name[row["name"]].source_words,
        "dynamic": lambda row: "no, restart" if row["read_only"] else "yes",
    }
    if options.explain:
        columns["description"] = lambda row: row.get("documentation")
    nothing = f"{resource}: {'nothing is set' if not by_name else 'everything has its default'}"
    show(options, [_row(entry) for entry in entries], columns, nothing)


def _entry_named(name: str, entries: Mapping[str, ConfigEntry], resource: ConfigResource) -> ConfigEntry:
    if name in entries:
        return entries[name]
    raise CommandError(
        f"{resource} has no setting {name!r}{did_you_mean(name, entries, at_most=3)}", NOT_FOUND
    )


def _row(entry: ConfigEntry) -> Row:
    row = {
        "name": entry.name,
        "value": entry.value,
        "source": entry.source.name,
        "type": entry.type.name,
        "read_only": entry.is_read_only,
        "sensitive": entry.is_sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source.name}
            for synonym in entry.synonyms
        ],
    }
    return row if entry.documentation is None else row | {"documentation": entry.documentation}


add_arguments = actions(
    on_cluster(
        "describe",
        "show settings, and the source of each value",
        _describe,
        _RESOURCE,
        arg("names", "SETTING", "default: all", nargs="*"),
        flag("--changed", "only settings that are not the default"),
        flag("--explain", "explain each setting"),
    ),
    on_cluster(
        "alter",
        "change settings; they take effect at once, on every replica",
        alter,
        _RESOURCE,
        *CHANGES,
        check=check_changes,
    ),
)
