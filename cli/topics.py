"""`barnabas topics create|list|describe|alter|add-partitions|delete|delete-records`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from barnabas.cli import configs
from barnabas.cli.action import Row, actions, answer, arg, flag, one_of, pick, repeated, show
from barnabas.cli.arguments import SHORT_MAX, key_values, number, on_cluster, partitions_of
from barnabas.cli.exit_codes import USAGE, CommandError, check_topics
from barnabas.cli.output import print_json, print_table
from barnabas.client.admin.admin import Admin, ConfigResource, NewPartitions, NewTopic
from barnabas.client.admin.offset_reset import (
    ToOffset,
    plan_start,
    time_ms,
)
from barnabas.client.errors import TopicErrors
from barnabas.client.metadata import PartitionInfo, TopicInfo
from barnabas.client.offsets import LATEST
from barnabas.common.settings import LONG_MAX
from barnabas.common.texts import count
from barnabas.protocol.errors import ApiError, TopicAlreadyExistsError
from barnabas.protocol.messages.configs import ConfigSource


def _check_create(options: argparse.Namespace) -> None:
    options.config = key_values(options.config, "--config")


async def _create(options: argparse.Namespace, admin: Admin) -> None:
    topic = NewTopic(
        options.topic,
        num_partitions=options.partitions,
        replication_factor=options.replication_factor,
        configs=options.config,
    )
    created = True
    try:
        await admin.create_topics(topic)
    except TopicAlreadyExistsError:
        if not options.if_not_exists:
            raise
        created = False
    if options.json:
        described = (await admin.describe_topics(options.topic))[options.topic]
        print_json({"created": created} | topic_object(described))
    else:
        print(f"topic {options.topic} {'created' if created else 'exists already'}")


async def _list(options: argparse.Namespace, admin: Admin) -> None:
    names = await admin.list_topics(include_internal=options.internal)
    answer(options, names, *names)


async def _describe(options: argparse.Namespace, admin: Admin) -> None:
    topics = await admin.describe_topics(options.topics or None)
    settings = await _own_settings(admin, topics)
    if options.json:
        print_json([topic_object(topic) | {"settings": settings.get(name)} for name, topic in topics.items()])
        return
    for topic in topics.values():
        replicas = count(
            max((len(partition.replicas) for partition in topic.partitions), default=0), "replica"
        )
        print(f"{topic.name}  {count(len(topic.partitions), 'partition')}  {replicas} each  {topic.topic_id}")
        if own := settings.get(topic.name):
            print("settings:", ", ".join(f"{name}={value}" for name, value in sorted(own.items())))
        rows = [
            (
                str(partition.partition),
                str(partition.leader) if partition.leader >= 0 else "none",
                *(
                    ",".join(map(str, brokers))
                    for brokers in (partition.replicas, partition.isr, partition.offline_replicas)
                ),
            )
            for partition in topic.partitions
        ]
        print_table(("partition", "leader", "replicas", "isr", "offline"), rows)
    if not topics:
        print("no topics")


async def _own_settings(admin: Admin, topics: Iterable[str]) -> dict[str, dict[str, str | None]]:
    """The settings of the topics themselves, by topic, without topics whose settings the user may not see."""
    names = {str(resource): resource.name for resource in map(ConfigResource.topic, topics)}
    if not names:
        return {}
    found: dict[str, Any] = {}
    try:
        described = await admin.describe_configs([ConfigResource.topic(name) for name in names.values()])
        found.update((str(resource), entries) for resource, entries in described.items())
    except TopicErrors as failed:
        found.update(failed.results)
    except ApiError:
        return {}
    return {
        names[resource]: {
            entry.name: entry.value
            for entry in entries.values()
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        for resource, entries in found.items()
    }


def _check_add_partitions(options: argparse.Namespace) -> None:
    if options.replicas is not None:
        options.replicas = [_broker_ids(text) for text in options.replicas]


async def _add_partitions(options: argparse.Namespace, admin: Admin) -> None:
    check_topics([options.topic], await admin.list_topics(include_internal=True))
    await admin.create_partitions(
        {options.topic: NewPartitions(options.total, options.replicas)}, validate_only=options.validate_only
    )
    described = (await admin.describe_topics(options.topic))[options.topic]
    total = options.total if options.validate_only else len(described.partitions)
    done = f"{'can have' if options.validate_only else 'has'} {count(total, 'partition')}"
    value = {"changed": not options.validate_only} | topic_object(described)
    answer(options, value, f"topic {options.topic} {done}")


def _broker_ids(text: str) -> list[int]:
    ids = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in ids):
        raise CommandError(f"--replicas {text!r}: expected broker ids separated by commas, as 1,2,3", USAGE)
    return [int(part) for part in ids]


async def _delete(options: argparse.Namespace, admin: Admin) -> None:
    # Check first, so that nothing is deleted if one of the names is misspelt.
    check_topics(options.topics, await admin.list_topics(include_internal=True))
    await admin.delete_topics(options.topics)
    answer(options, {"deleted": options.topics}, *(f"topic {name} deleted" for name in options.topics))


async def _delete_records(options: argparse.Namespace, admin: Admin) -> None:
    topic = (await admin.describe_topics(options.topic))[options.topic]
    plan = await plan_start(admin, partitions_of(topic, options.partition), options.until)
    if not options.dry_run:
        await admin.delete_records({tp: after for tp, (before, after) in plan.items() if after > before})
    rows: list[Row] = [
        tp._asdict() | {"before": before, "after": after, "deleted": after - before}
        for tp, (before, after) in plan.items()
    ]
    if not options.json:
        total = sum(row["deleted"] for row in rows)
        print(f"topic {options.topic}: {count(total, 'offset')} {'would be ' * options.dry_run}deleted")
    value = {"topic": options.topic, "changed": not options.dry_run, "partitions": rows}
    show(options, rows, ("partition", "before", "after", "deleted"), value=value)


def _check_delete_records(options: argparse.Namespace) -> None:
    options.until = LATEST
    if options.before is not None:
        options.until = ToOffset(options.before)
    elif options.before_time is not None:
        options.until = time_ms(options.before_time)


def topic_object(topic: TopicInfo) -> Row:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "is_internal": topic.is_internal,
        "partitions": [_partition_object(partition) for partition in topic.partitions],
    }


def _partition_object(partition: PartitionInfo) -> Row:
    fields = pick(partition, "partition leader leader_epoch replicas isr offline_replicas")
    return fields | {"leader": partition.leader if partition.leader >= 0 else None}


add_arguments = actions(
    on_cluster(
        "create",
        "create a topic",
        _create,
        arg("topic"),
        arg("--partitions", "N", "default: the brokers'", type=number(1), default=-1),
        arg("--replication-factor", "N", "default: the brokers'", type=number(1, SHORT_MAX), default=-1),
        repeated("--config --set", "KEY=VALUE", "a setting of the topic, for example min.insync.replicas=2"),
        flag("--if-not-exists", "an existing topic is not an error"),
        check=_check_create,
    ),
    on_cluster("list", "list topics", _list, flag("--internal", "internal topics too")),
    on_cluster(
        "describe",
        "show partitions, leaders, in-sync replicas, and settings of the topic itself",
        _describe,
        arg("topics", "TOPIC", "default: all", nargs="*"),
    ),
    on_cluster(
        "alter",
        "change a topic's settings; they take effect on every replica",
        configs.alter,
        arg("topic"),
        *configs.CHANGES,
        check=configs.check_changes,
    ),
    on_cluster(
        "add-partitions",
        "add partitions to a topic",
        _add_partitions,
        arg("topic"),
        arg("total", "TOTAL", "the new total of partitions", type=number(1)),
        arg(
            "--replicas",
            "ID,ID,…",
            "the brokers of a new partition, the preferred leader first (once for each new partition)",
            action="append",
        ),
        flag("--validate-only", "check it and change nothing"),
        check=_check_add_partitions,
    ),
    on_cluster("delete", "delete topics and their records", _delete, arg("topics", "TOPIC", nargs="+")),
    on_cluster(
        "delete-records",
        "delete the oldest records of a topic, so that its logs begin later",
        _delete_records,
        arg("topic", "TOPIC"),
        repeated("--partition", "P", "default: all partitions", type=number(0), default=None),
        one_of(
            arg("--before", "OFFSET", "records before this offset", type=number(0, LONG_MAX)),
            arg("--before-time", "TIME", "records before the first one since 2025-01-31T12:00:00, in UTC"),
            flag("--all", "all records that are there now"),
            required=True,
        ),
        flag("--dry-run", "show the starts and change nothing"),
        check=_check_delete_records,
    ),
)
