"""`barnabas topics create|list|describe|alter|add-partitions|delete`."""

from __future__ import annotations

import argparse
from typing import Any

from barnabas.cli import configs
from barnabas.cli.arguments import (
    SHORT_MAX,
    add_cluster_arguments,
    chosen_bootstrap,
    key_values,
    number,
    run_async,
)
from barnabas.cli.exit_codes import OK, USAGE, CommandError, unknown_topic
from barnabas.cli.output import print_json, print_table
from barnabas.client.admin.admin import Admin, ConfigResource, NewPartitions, NewTopic
from barnabas.client.metadata import PartitionInfo, TopicInfo
from barnabas.protocol.errors import ApiError, ErrorCode


def add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    create = actions.add_parser("create", help="create a topic")
    create.add_argument("topic")
    create.add_argument("--partitions", type=number(1), default=-1, metavar="N", help="default: the brokers'")
    create.add_argument(
        "--replication-factor",
        type=number(1, SHORT_MAX),
        default=-1,
        metavar="N",
        help="default: the brokers'",
    )
    create.add_argument(
        "--config",
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the topic, for example min.insync.replicas=2 (may be repeated)",
    )
    create.add_argument("--if-not-exists", action="store_true", help="an existing topic is not an error")

    listing = actions.add_parser("list", help="list topics")
    listing.add_argument("--internal", action="store_true", help="internal topics too")

    describe = actions.add_parser("describe", help="show partitions, leaders and in-sync replicas")
    describe.add_argument("topics", nargs="*", metavar="TOPIC", help="default: all")

    alter = actions.add_parser("alter", help="change a topic's settings; they take effect on every replica")
    alter.add_argument("topic")
    configs.add_change_arguments(alter)

    add_partitions = actions.add_parser("add-partitions", help="add partitions to a topic")
    add_partitions.add_argument("topic")
    add_partitions.add_argument("total", type=number(1), metavar="TOTAL", help="the new total of partitions")
    add_partitions.add_argument(
        "--replicas",
        action="append",
        metavar="ID,ID,…",
        help="the brokers of a new partition, the preferred leader first (once for each new partition)",
    )
    add_partitions.add_argument("--validate-only", action="store_true", help="check it and change nothing")

    delete = actions.add_parser("delete", help="delete topics and their records")
    delete.add_argument("topics", nargs="+", metavar="TOPIC")

    for action in (create, listing, describe, alter, add_partitions, delete):
        add_cluster_arguments(action, json_help="print JSON")


def run(options: argparse.Namespace) -> int:
    action = {
        "create": _create,
        "list": _list,
        "describe": _describe,
        "alter": _alter,
        "add-partitions": _add_partitions,
        "delete": _delete,
    }[options.action]
    run_async(action(options, chosen_bootstrap(options)))
    return OK


async def _create(options: argparse.Namespace, bootstrap: str) -> None:
    topic = NewTopic(
        options.topic,
        num_partitions=options.partitions,
        replication_factor=options.replication_factor,
        configs=key_values(options.config, "--config"),
    )
    async with Admin(bootstrap_servers=bootstrap) as admin:
        created = True
        try:
            await admin.create_topics(topic)
        except ApiError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS or not options.if_not_exists:
                raise
            created = False
        if options.json:
            described = (await admin.describe_topics(options.topic))[options.topic]
            print_json({"created": created} | topic_object(described))
        else:
            print(f"topic {options.topic} {'created' if created else 'exists already'}")


async def _list(options: argparse.Namespace, bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        names = await admin.list_topics(include_internal=options.internal)
    if options.json:
        print_json(names)
    else:
        for name in names:
            print(name)


async def _describe(options: argparse.Namespace, bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        topics = await admin.describe_topics(options.topics or None)
    if options.json:
        print_json([topic_object(topic) for topic in topics.values()])
        return
    for topic in topics.values():
        replicas = max((len(partition.replicas) for partition in topic.partitions), default=0)
        print(f"{topic.name}  {len(topic.partitions)} partitions  {replicas} replicas each  {topic.topic_id}")
        rows = [
            (
                str(partition.partition),
                str(partition.leader) if partition.leader >= 0 else "none",
                ",".join(map(str, partition.replicas)),
                ",".join(map(str, partition.isr)),
                ",".join(map(str, partition.offline_replicas)),
            )
            for partition in topic.partitions
        ]
        print_table(("partition", "leader", "replicas", "isr", "offline"), rows)
    if not topics:
        print("no topics")


async def _alter(options: argparse.Namespace, bootstrap: str) -> None:
    resource, changes = ConfigResource.topic(options.topic), configs.chosen_changes(options)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await configs.alter(admin, resource, changes, validate_only=options.validate_only)
    configs.report_changes(resource, changes, is_done=not options.validate_only, as_json=options.json)


async def _add_partitions(options: argparse.Namespace, bootstrap: str) -> None:
    assignments = None if options.replicas is None else [_broker_ids(text) for text in options.replicas]
    async with Admin(bootstrap_servers=bootstrap) as admin:
        existing = await admin.list_topics(include_internal=True)
        if options.topic not in existing:
            raise unknown_topic(options.topic, existing)
        await admin.create_partitions(
            {options.topic: NewPartitions(options.total, assignments)}, validate_only=options.validate_only
        )
        described = (await admin.describe_topics(options.topic))[options.topic]
    if options.json:
        print_json({"changed": not options.validate_only} | topic_object(described))
    elif options.validate_only:
        print(f"topic {options.topic} can have {options.total} partitions")
    else:
        print(f"topic {options.topic} has {len(described.partitions)} partitions")


def _broker_ids(text: str) -> list[int]:
    ids = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in ids):
        raise CommandError(f"--replicas {text!r}: expected broker ids separated by commas, as 1,2,3", USAGE)
    return [int(part) for part in ids]


async def _delete(options: argparse.Namespace, bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap) as admin:
        # Check first, so that nothing is deleted if one of the names is misspelt.
        existing = await admin.list_topics(include_internal=True)
        for name in options.topics:
            if name not in existing:
                raise unknown_topic(name, existing)
        await admin.delete_topics(options.topics)
    if options.json:
        print_json({"deleted": options.topics})
    else:
        for name in options.topics:
            print(f"topic {name} deleted")


def topic_object(topic: TopicInfo) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "is_internal": topic.is_internal,
        "partitions": [_partition_object(partition) for partition in topic.partitions],
    }


def _partition_object(partition: PartitionInfo) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "leader": partition.leader if partition.leader >= 0 else None,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "offline_replicas": list(partition.offline_replicas),
    }
