"""`barnabas configs describe|alter`: the settings of topics and brokers, while they run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from barnabas.cli.arguments import add_cluster_arguments, chosen_bootstrap, key_values, run_async
from barnabas.cli.exit_codes import NOT_FOUND, OK, USAGE, CommandError, unknown_topic
from barnabas.cli.output import print_json, print_table
from barnabas.client.admin.admin import Admin, Append, ConfigChange, ConfigEntry, ConfigResource, Subtract
from barnabas.common.suggestions import did_you_mean
from barnabas.protocol.messages.configs import ConfigResourceType, ConfigSource

_SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "this broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "all brokers",
    ConfigSource.STATIC_BROKER_CONFIG: "broker at start",
    ConfigSource.DEFAULT_CONFIG: "default",
}


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    describe = actions.add_parser("describe", help="show settings, and the source of each value")
    add_resource_arguments(describe)
    describe.add_argument("names", nargs="*", metavar="SETTING", help="default: all")
    describe.add_argument("--changed", action="store_true", help="only settings that are not the default")
    describe.add_argument("--explain", action="store_true", help="explain each setting")

    alter = actions.add_parser("alter", help="change settings; they take effect at once, on every replica")
    add_resource_arguments(alter)
    add_change_arguments(alter)

    for action in (describe, alter):
        add_cluster_arguments(action, json_help="print JSON")


def add_resource_arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--topic", metavar="TOPIC")
    which.add_argument("--broker", type=int, metavar="ID")
    which.add_argument(
        "--all-brokers", action="store_true", help="the defaults for brokers without a value of their own"
    )


def add_change_arguments(parser: argparse.ArgumentParser) -> None:
    for option, metavar, help_text in (
        ("--set", "KEY=VALUE", "give a setting a value, for example retention.ms=3600000"),
        ("--delete", "KEY", "reset a setting to its default"),
        ("--append", "KEY=VALUE", "add to a setting that is a list, for example cleanup.policy=compact"),
        ("--subtract", "KEY=VALUE", "remove from a setting that is a list"),
    ):
        # `topics create` has --config, as Kafka's tool.
        names = (option, "--config") if option == "--set" else (option,)
        parser.add_argument(
            *names,
            action="append",
            default=[],
            metavar=metavar,
            dest=option.removeprefix("--") + "s",
            help=f"{help_text} (may be repeated)",
        )
    parser.add_argument("--validate-only", action="store_true", help="check it and change nothing")


def run(options: argparse.Namespace) -> int:
    action = {"describe": _describe, "alter": _alter}[options.action]
    run_async(action(options, chosen_bootstrap(options), chosen_resource(options)))
    return OK


def chosen_resource(options: argparse.Namespace) -> ConfigResource:
    if options.topic is not None:
        return ConfigResource.topic(options.topic)
    return ConfigResource.all_brokers() if options.all_brokers else ConfigResource.broker(options.broker)


def chosen_changes(options: argparse.Namespace) -> dict[str, ConfigChange]:
    """The changes by setting; raises CommandError (usage) without changes, or for two of one setting."""
    named: list[tuple[str, ConfigChange]] = [*key_values(options.sets, "--set").items()]
    named += [(name.strip(), None) for name in options.deletes]
    named += [(name, Append(value)) for name, value in key_values(options.appends, "--append").items()]
    named += [(name, Subtract(value)) for name, value in key_values(options.subtracts, "--subtract").items()]
    if not named:
        raise CommandError("nothing to change; expected --set, --delete, --append or --subtract", USAGE)
    changes = dict(named)
    if len(changes) != len(named):
        names = [name for name, _ in named]
        twice = next(name for name in names if names.count(name) > 1)
        raise CommandError(f"{twice} is changed twice; expected one change of each setting", USAGE)
    return changes


async def alter(
    admin: Admin, resource: ConfigResource, changes: Mapping[str, ConfigChange], *, validate_only: bool
) -> None:
    """Change settings; raises CommandError for a missing resource, naming the existing ones."""
    await check_resource(admin, resource)
    await admin.alter_configs({resource: changes}, validate_only=validate_only)


async def check_resource(admin: Admin, resource: ConfigResource) -> None:
    if resource.kind is ConfigResourceType.TOPIC:
        topics = await admin.list_topics(include_internal=True)
        if resource.name not in topics:
            raise unknown_topic(resource.name, topics)
    elif resource.name:
        nodes = [node.node_id for node in (await admin.describe_cluster()).nodes]
        if int(resource.name) not in nodes:
            live = ", ".join(map(str, nodes)) or "none"
            raise CommandError(f"there is no live broker {resource.name}; live are {live}", NOT_FOUND)


async def _alter(options: argparse.Namespace, bootstrap: str, resource: ConfigResource) -> None:
    changes = chosen_changes(options)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await alter(admin, resource, changes, validate_only=options.validate_only)
    report_changes(resource, changes, is_done=not options.validate_only, as_json=options.json)


def report_changes(
    resource: ConfigResource, changes: Mapping[str, ConfigChange], *, is_done: bool, as_json: bool
) -> None:
    if as_json:
        print_json({"resource": str(resource), "changed": is_done, "settings": sorted(changes)})
    else:
        done = "changed" if is_done else "can be changed like this"
        print(f"{resource}: {', '.join(sorted(changes))} {done}")


async def _describe(options: argparse.Namespace, bootstrap: str, resource: ConfigResource) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await check_resource(admin, resource)
        by_name = (await admin.describe_configs(resource, include_documentation=options.explain))[resource]
    entries = [entry for _, entry in sorted(by_name.items())]
    if options.names:
        entries = [_entry_named(name, by_name, resource) for name in options.names]
    if options.changed:
        entries = [entry for entry in entries if not entry.is_default]
    if options.json:
        print_json([_entry_object(entry) for entry in entries])
    elif not entries:
        print(f"{resource}: {'nothing is set' if not by_name else 'everything has its default'}")
    else:
        columns = ["setting", "value", "source", "dynamic"] + (["description"] if options.explain else [])
        print_table(columns, [_row(entry, explain=options.explain) for entry in entries])


def _entry_named(name: str, entries: Mapping[str, ConfigEntry], resource: ConfigResource) -> ConfigEntry:
    if name in entries:
        return entries[name]
    raise CommandError(
        f"{resource} has no setting {name!r}{did_you_mean(name, entries, at_most=3)}", NOT_FOUND
    )


def _row(entry: ConfigEntry, *, explain: bool) -> tuple[object, ...]:
    row = (entry.name, entry.value, _source(entry.source), "no, restart" if entry.is_read_only else "yes")
    return (*row, entry.documentation) if explain else row


def _source(source: ConfigSource) -> str:
    return _SOURCES.get(source, source.name.lower())


def _entry_object(entry: ConfigEntry) -> dict[str, Any]:
    fields: dict[str, Any] = {
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
    if entry.documentation is not None:
        fields["documentation"] = entry.documentation
    return fields
