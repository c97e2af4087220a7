"""The coordinator of groups of every client is killed (-9): each group continues, and commits."""

import itertools
import time
from contextlib import ExitStack

import pytest

from barnabas.deploy.local import LocalCluster
from tests.support.waiting import wait_for

from ..cluster.tools import KILLED
from . import table
from .clients import CLIENTS, ClientError, Unavailable
from .conftest import EXTERNAL, Spare, StartDriver, make_bench
from .features import Bench
from .group_features import Member, committed, wait, wait_read, written
from .wire import have_offsets_topic_made

ROW = "groups: kill -9 of the coordinator"
PARTITIONS = 2
COORDINATOR_MOVES = (14, 15, 16)
"""COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR."""
COMMITS_AGAIN_WITH_THE_NEXT_RECORDS = {"kafkajs"}
"""Clients that do not send a lost commit again. kafkajs that tries to rejoin while the new coordinator loads
its groups keeps its generation and sends heartbeats to it, but commits to the former coordinator, until the
commits of later records have failed often enough for it to start again."""
BETWEEN_RECORDS_S = 2.0


def group_of(bench: Bench, coordinator: int) -> str:
    """The name of a group that this broker coordinates."""
    names = (bench.name() for _ in itertools.count())
    return next(
        name
        for name in names
        if bench.ask_reference("describe_group", group=name)["coordinator"] == coordinator
    )


def has_committed(bench: Bench, group: str, topic: str, count: int) -> bool:
    """Whether the group has committed so many records of each partition; False without a coordinator."""
    try:
        return committed(bench, group, topic) == all_of(count)
    except ClientError as error:
        if error.code not in COORDINATOR_MOVES:
            raise
        return False


def wait_committed(bench: Bench, group: str, topic: str, count: int, write_more: bool) -> int:
    """Wait until the group has committed so many records of each partition; returns their count.

    ``write_more``: write another record to each partition every ``BETWEEN_RECORDS_S`` until then.
    """
    written_at = time.monotonic()

    def is_committed() -> bool:
        nonlocal count, written_at
        if has_committed(bench, group, topic, count):
            return True
        if write_more and time.monotonic() - written_at > BETWEEN_RECORDS_S:
            written(bench, topic, PARTITIONS, 1)
            count, written_at = count + 1, time.monotonic()
        return False

    wait_for(is_committed, lambda: f"{group} has not committed {count} records")
    return count


def all_of(count: int) -> dict[str, int]:
    return {str(partition): count for partition in range(PARTITIONS)}


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(EXTERNAL), reason="kills brokers, and COMPAT_BOOTSTRAP names a cluster of others")
def test_every_clients_group_continues_when_its_coordinator_is_killed(
    start_cluster: object, driver_of: StartDriver, spare: Spare
) -> None:
    cluster: LocalCluster = start_cluster(settings=KILLED)
    have_offsets_topic_made(cluster.bootstrap)
    bench = make_bench(cluster.bootstrap, "confluent-kafka", driver_of, spare)
    topic = bench.topic(PARTITIONS)
    victim = bench.brokers[0]
    with ExitStack() as stack:
        members: dict[str, Member] = {}
        groups: dict[str, str] = {}
        for name in CLIENTS:
            groups[name] = group_of(bench, victim)
            try:
                member = Member(bench, groups[name], name, topics=[topic], auto_commit=True)
            except Unavailable:
                continue
            members[name] = stack.enter_context(member)
        places = written(bench, topic, PARTITIONS, 10)
        for member in members.values():
            wait_read([member], places)
        cluster.kill(victim)
        bench.bootstrap = ",".join(str(broker.endpoint) for broker in cluster.brokers if broker.id != victim)
        places = written(bench, topic, PARTITIONS, 10)
        count = 20
        for name, member in members.items():
            wait_read([member], places)
            wait(
                [member],
                lambda member=member: len(member.assigned) == PARTITIONS,
                f"{name} lost its partitions",
            )
            # A commit under way to the killed coordinator is lost with it.
            count = wait_committed(
                bench, groups[name], topic, count, write_more=name in COMMITS_AGAIN_WITH_THE_NEXT_RECORDS
            )
            member.stop()
            assert committed(bench, groups[name], topic) == all_of(count), name
            table.check(table.FEATURES, ROW, name, "yes")
