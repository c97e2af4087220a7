"""The cost of ACLs: the broker's CPU of a produce request with 1,000 ACLs and without an authorizer.

Three clusters of one broker get the same requests over sockets, in turns: two without an authorizer and one
with ACLs of many users on topics, prefixes of topics and all topics. Each turn has a request's CPU of every
broker, in all of its threads and in the kernel, and so a ratio; the figure is the median of the ratios. The
two brokers without an authorizer show how much two brokers differ by themselves.

Then single decisions, in this process. A decision is remembered with the session; one for a resource that
the session has not named before looks into the table.

By itself, on a quiet machine: `python -m benchmarks.authorization`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import permutations

import uvloop

from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.session import Session
from barnabas.client.admin.admin import Admin
from barnabas.common.security.acl import (
    ANY_HOST,
    AclBinding,
    AclEntry,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from barnabas.common.security.principal import ANONYMOUS, Principal
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.schema import ApiKey
from benchmarks.load import Target, create_topic, encoded_batch, encoded_request, load
from benchmarks.support import (
    Figure,
    Options,
    broker_pids,
    cpu_seconds,
    new_cluster,
    run,
    tell,
    temporary_folder,
)

_TOPIC = "topic"
_IN_FLIGHT = 4
_ACLS = 1_000
_WITHOUT, _AGAIN, _WITH = "without an authorizer", "another without", f"with {_ACLS} ACLs"
_SETTINGS: Mapping[str, Mapping[str, str]] = {
    _WITHOUT: {},
    _AGAIN: {},
    _WITH: {
        "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
        # For the broker's own requests, and for the client that makes the topic and the ACLs.
        "allow_everyone_if_no_acl_found": "true",
    },
}


def _bindings(count: int) -> Iterator[AclBinding]:
    """ACLs of many users on names, prefixes and all topics; the peer may write to the topic."""
    chosen = random.Random(count)
    writes = AclEntry(ANONYMOUS, ANY_HOST, Operation.WRITE, Permission.ALLOW)
    yield AclBinding(ResourcePattern(ResourceType.TOPIC, _TOPIC), writes)
    for number in range(count - 1):
        kind = chosen.choice([PatternType.LITERAL, PatternType.PREFIXED])
        name = chosen.choice([f"topic-{number}", f"t{number % 50}", "*"])
        entry = AclEntry(Principal.user(f"user-{number}"), ANY_HOST, Operation.READ, Permission.ALLOW)
        yield AclBinding(ResourcePattern(ResourceType.TOPIC, name, kind), entry)


# Over sockets


async def _prepare(cluster: LocalCluster, acls: list[AclBinding]) -> None:
    await create_topic(cluster.bootstrap, _TOPIC, [1], [1])
    if acls:
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_acls(acls)


async def _turn(cluster: LocalCluster, frame: bytes, count: int) -> float:
    """The broker's CPU nanoseconds of each of these requests."""
    pids = broker_pids(cluster)
    before = cpu_seconds(*pids)
    await load([Target(cluster.broker(1).endpoint, [frame])], count, _IN_FLIGHT)
    return (cpu_seconds(*pids) - before) * 1e9 / count


async def cpu_of_turns(
    clusters: Mapping[str, LocalCluster], topic: str, turns: int, count: int
) -> dict[str, list[float]]:
    """The broker's CPU of a produce request of 1 KB, by the name of the cluster, at each turn."""
    frame = encoded_request(topic, 0, encoded_batch(1_200), 1)
    found: dict[str, list[float]] = {kind: [] for kind in clusters}
    orders = list(permutations(clusters))
    for turn in range(turns + 1):
        # Each comes after each other one as often, lest the order count.
        for kind in orders[turn % len(orders)]:
            each = await _turn(clusters[kind], frame, count)
            if turn:
                found[kind].append(each)
    return found


def more_percent(found: Mapping[str, list[float]], kind: str, than: str) -> float:
    """How many percent more a request costs in one cluster than in another."""
    ratios = [each / other for each, other in zip(found[kind], found[than], strict=True)]
    return (statistics.median(ratios) - 1) * 100


async def _turns(clusters: Mapping[str, LocalCluster], turns: int, count: int) -> dict[str, list[float]]:
    for kind, cluster in clusters.items():
        await _prepare(cluster, list(_bindings(_ACLS)) if kind is _WITH else [])
    return await cpu_of_turns(clusters, _TOPIC, turns, count)


def _round(options: Options) -> dict[str, list[float]]:
    """The CPU of a request at each turn, of clusters of their own."""
    turns, count = options.amount(200, 60), options.amount(1_000, 500)
    with ExitStack() as stack:
        clusters = {}
        for kind, settings in _SETTINGS.items():
            folder = stack.enter_context(temporary_folder(options))
            clusters[kind] = stack.enter_context(new_cluster(folder, options, brokers=1, **settings))
        return uvloop.run(_turns(clusters, turns, count))


def _requests(options: Options) -> list[Figure]:
    rounds = []
    for number in range(options.rounds):
        tell(f"produce of 1 KB with and without ACLs, round {number + 1} of {options.rounds}")
        rounds.append(_round(options))
    cpu = [statistics.median(found[_WITHOUT]) / 1_000 for found in rounds]
    return [
        Figure.of("produce of 1 KB, no authorizer: CPU of the broker", cpu, "µs"),
        Figure.of(
            f"  with {_ACLS} ACLs, more",
            [more_percent(found, _WITH, _WITHOUT) for found in rounds],
            "%",
            at_most=3.0,
        ),
        Figure.of(
            "  another broker without, more", [more_percent(found, _AGAIN, _WITHOUT) for found in rounds], "%"
        ),
    ]


# Decisions


def _authorizer(count: int) -> Authorizer:
    authorizer = Authorizer()
    acls: dict[ResourcePattern, set[AclEntry]] = {}
    for resource, entry in _bindings(count):
        acls.setdefault(resource, set()).add(entry)
    authorizer.replace(acls)
    return authorizer


def _each_ns(work: Callable[[int], object], count: int) -> float:
    began_ns = time.thread_time_ns()
    for number in range(count):
        work(number)
    return (time.thread_time_ns() - began_ns) / count


def _decisions(options: Options, count: int) -> list[Figure]:
    authorizer, session = _authorizer(count), Session("10.0.0.1")

    def ask(name: str) -> bool:
        return authorizer.allows(session, Operation.WRITE, ResourceType.TOPIC, name, ApiKey.PRODUCE)

    def is_known(_: int) -> bool:
        known = authorizer.known_topics(session, Operation.WRITE)
        return known is not None and known.issuperset((_TOPIC,))

    assert ask(_TOPIC)
    assert is_known(0)
    known = _each_ns(is_known, options.amount(200_000, 20_000))
    new = _each_ns(lambda number: ask(f"topic-{number}x"), options.amount(50_000, 5_000))
    return [
        Figure(name=f"a remembered decision, {count} ACLs", measured=known, unit="ns"),
        Figure(name=f"a new decision, {count} ACLs", measured=new, unit="ns"),
    ]


def measure(options: Options) -> list[Figure]:
    return [*_requests(options), *_decisions(options, _ACLS), *_decisions(options, 10 * _ACLS)]


if __name__ == "__main__":
    run(__doc__, measure)
