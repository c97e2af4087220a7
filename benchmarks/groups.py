"""Consumer groups: how fast they form, how much they commit, how soon they mend, how fast they are loaded.

On three brokers: 200 consumers in one process join one group with 200 partitions, from the first poll until
each has one; 1,000 groups of one member each join and sync over one connection per broker; offsets are
committed, one per request and 100 per request, by 64 groups with one request each under way (acks=all, three
replicas, as always with groups); a member that is a process gets SIGKILL, until the others own everything. By
itself: 1 M offset records from a log on disk to groups, as new leaders read them: all of different keys, and
of 10,000 keys, before and after the log is compacted. And for real: on three brokers 1 M offsets are
committed into one partition, whose leader gets SIGKILL, until another one answers OffsetFetch and a member's
Heartbeat, the finding of it included.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

from barnabas.broker.compaction.cleaning import clean
from barnabas.broker.compaction.offset_map import OffsetMap
from barnabas.broker.coordinators.groups.coordinator import groups_of
from barnabas.broker.coordinators.groups.records import OffsetAndMetadata, OffsetRecord, to_bytes
from barnabas.broker.coordinators.loading import last_records
from barnabas.broker.log.appending import parse_produced
from barnabas.broker.log.log import Log
from barnabas.broker.log.recovery import LogLoader
from barnabas.client.admin.admin import Admin, NewTopic
from barnabas.client.cluster import Cluster
from barnabas.client.config import ConsumerConfig
from barnabas.client.consumer.consumer import Consumer
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ApiError, ErrorCode, raise_for
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.find_coordinator import FindCoordinatorRequest
from barnabas.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from barnabas.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from barnabas.protocol.messages.partitions import TopicPartitionIndexes
from barnabas.protocol.schema import RequestOf
from benchmarks.support import Figure, Options, run, running_cluster, tell, temporary_folder
from tests.support.batches import build_batch
from tests.support.defaults import log_config

R = TypeVar("R")

_TOPIC: Final = "wide"
_SMALL: Final = "narrow"
_SMALL_PARTITIONS: Final = 6
_COMMITTERS: Final = 64
_OFFSETS_PER_COMMIT: Final = 100
_GROUPS_AT_ONCE: Final = 100
_OFFSETS_SEGMENT_BYTES: Final = 16 << 20
_MAP_BYTES: Final = 64 << 20
_LOADED_GROUPS: Final = 1_000
_RECORDS_PER_BATCH: Final = 500
_DEADLINE_S: Final = 60.0
_SESSION_TIMEOUT_MS: Final = 3_000
_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


# -- members -----------------------------------------------------------------------------------------------


async def _until(consumers: Sequence[Consumer], shares: Callable[[], bool]) -> None:
    """Poll all of them until they have their shares."""
    is_over = asyncio.Event()

    async def poll(consumer: Consumer) -> None:
        while not is_over.is_set():
            await consumer.poll(100)
            if shares():
                is_over.set()

    async with asyncio.timeout(_DEADLINE_S):
        await asyncio.gather(*map(poll, consumers))


async def _members(bootstrap: str, group: str, members: int) -> float:
    """The seconds until this number of members of one group have a partition each."""
    async with AsyncExitStack() as stack:
        consumers = [
            await stack.enter_async_context(Consumer(bootstrap_servers=bootstrap, group_id=group))
            for _ in range(members)
        ]
        for consumer in consumers:
            consumer.subscribe([_TOPIC])
        started = time.perf_counter()
        await _until(consumers, lambda: all(len(consumer.assignment()) == 1 for consumer in consumers))
        return time.perf_counter() - started


async def _mended(bootstrap: str, group: str) -> float:
    """The seconds from the SIGKILL of one of three members until the others have its partitions."""
    settings: dict[str, Any] = {"session_timeout_ms": _SESSION_TIMEOUT_MS, "heartbeat_interval_ms": 300}
    words = [sys.executable, "-m", "barnabas", "consume", _SMALL, "--group", group, "-b", bootstrap]
    words += [f"--set={name}={value}" for name, value in settings.items()]
    async with (
        Consumer(bootstrap_servers=bootstrap, group_id=group, **settings) as first,
        Consumer(bootstrap_servers=bootstrap, group_id=group, **settings) as second,
    ):
        others = [first, second]
        for consumer in others:
            consumer.subscribe([_SMALL])

        def share() -> int:
            return sum(len(consumer.assignment()) for consumer in others)

        victim = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
        )
        try:
            await _until(others, lambda: share() == _SMALL_PARTITIONS * 2 // 3)
        finally:
            victim.kill()
            killed_at = time.perf_counter()
            await victim.wait()
        await _until(others, lambda: share() == _SMALL_PARTITIONS)
        return time.perf_counter() - killed_at


# -- groups without consumers ------------------------------------------------------------------------------


async def _coordinators(cluster: Cluster, groups: Iterable[str]) -> dict[str, BrokerId]:
    keys = list(groups)
    await cluster.refresh()
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            answer = await cluster.request(
                next(iter(cluster.cache.nodes)), FindCoordinatorRequest(coordinator_keys=keys)
            )
            if all(found.error_code == ErrorCode.NONE for found in answer.coordinators):
                return {found.key: BrokerId(found.node_id) for found in answer.coordinators}
            await asyncio.sleep(0.05)


async def _ask(cluster: Cluster, node: BrokerId, message: RequestOf[R], code_of: Callable[[R], int]) -> R:
    """The answer; asked again while its coordinator is still getting ready. Raises ApiError."""
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            answer = await cluster.request(node, message)
            try:
                raise_for(code_of(answer), str(node))
                return answer
            except ApiError as error:
                if error.code not in _AGAIN:
                    raise
            await asyncio.sleep(0.05)


async def _join(cluster: Cluster, node: BrokerId, group: str) -> HeartbeatRequest:
    """Make a stable group of one member; what that says to stay in it."""
    member_id = ""
    while True:
        joined = await cluster.request(
            node,
            JoinGroupRequest(
                group_id=group,
                session_timeout_ms=60_000,
                rebalance_timeout_ms=60_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
        )
        if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            break
        member_id = joined.member_id
    raise_for(joined.error_code, group)
    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")
    request = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[assignment],
    )
    await _ask(cluster, node, request, lambda answer: answer.error_code)
    return HeartbeatRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)


async def _many_groups(cluster: Cluster, groups: Sequence[str]) -> float:
    """The seconds until all of these groups are stable."""
    coordinators = await _coordinators(cluster, groups)
    waiting = iter(groups)

    async def join_some() -> None:
        for group in waiting:
            await _join(cluster, coordinators[group], group)

    started = time.perf_counter()
    await _all(join_some() for _ in range(_GROUPS_AT_ONCE))
    return time.perf_counter() - started


async def _all(works: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*works)


async def _commit(cluster: Cluster, node: BrokerId, group: str, numbers: Iterable[int], offset: int) -> None:
    """Commit one offset for some partitions."""
    partitions = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=offset) for number in numbers
    ]
    topic = OffsetCommitRequestTopic(name=_TOPIC, partitions=partitions)
    await _ask(
        cluster,
        node,
        OffsetCommitRequest(group_id=group, topics=[topic]),
        lambda answer: max(one.error_code for one in answer.topics[0].partitions),
    )


async def _commits(cluster: Cluster, name: str, seconds: float, offsets_each: int) -> float:
    """The offsets that the groups commit per second, with this number in each request."""
    groups = [f"{name}-{number}" for number in range(_COMMITTERS)]
    coordinators = await _coordinators(cluster, groups)
    done = 0

    async def commit_once(group: str, offset: int) -> None:
        await _commit(cluster, coordinators[group], group, range(offsets_each), offset)

    async def commit_on(group: str, until: float) -> None:
        nonlocal done
        offset = 0
        while time.perf_counter() < until:
            offset += 1
            await commit_once(group, offset)
            done += offsets_each

    await _all(commit_once(group, 0) for group in groups)
    started = time.perf_counter()
    await _all(commit_on(group, started + seconds) for group in groups)
    return done / (time.perf_counter() - started)


# -- loading -----------------------------------------------------------------------------------------------


def _committed(folder: Path, commits: int, offsets: int) -> Log:
    """A log with this number of commits of so many offsets, in turn."""
    config = log_config(cleanup_policy=("compact",), segment_bytes=_OFFSETS_SEGMENT_BYTES)
    log = Log.open(TopicPartition("__consumer_offsets", 0), LogLoader(folder / "offsets", config, now_ms=0))
    for first in range(0, commits, _RECORDS_PER_BATCH):
        made = (
            OffsetRecord(
                f"group-{number % offsets % _LOADED_GROUPS}",
                TopicPartition(_TOPIC, number % offsets // _LOADED_GROUPS),
                OffsetAndMetadata(number, 1_000),
            )
            for number in range(first, min(commits, first + _RECORDS_PER_BATCH))
        )
        log.append_as_leader(parse_produced(build_batch(map(to_bytes, made))), 0, 0)
    return log


def _load(log: Log, offsets: int) -> float:
    """The seconds from a log to the groups that have its committed offsets."""
    started = time.perf_counter()
    records = last_records(log, lambda: True)
    assert records is not None
    found = groups_of(records, log.topic_partition)
    seconds = time.perf_counter() - started
    loaded = sum(len(group.offsets) for group in found.values())
    if loaded != offsets:
        raise RuntimeError(f"{loaded} offsets were loaded of {offsets}")
    return seconds


def _loading(options: Options) -> list[Figure]:
    records, offsets = options.amount(1_000_000, 100_000), options.amount(10_000, 1_000)
    loaded: list[float] = []
    before: list[float] = []
    after: list[float] = []
    for _ in range(options.rounds):
        with temporary_folder(options) as folder:
            log = _committed(folder, records, records)
            loaded.append(_load(log, records))
            log.abandon()
        with temporary_folder(options) as folder:
            log = _committed(folder, records, offsets)
            before.append(_load(log, offsets))
            log.roll(0)
            clean(
                log,
                log.log_end_offset,
                offset_map=OffsetMap(_MAP_BYTES),
                now_ms=0,
                pause=lambda size_bytes: None,
            )
            after.append(_load(log, offsets))
            log.abandon()
    name = f"loading {records:,} commits of {offsets:,} offsets"
    return [
        Figure.of(f"loading {records:,} offset records", loaded, "s", at_most=10),
        Figure.of(name, before, "s"),
        Figure.of(f"{name}, compacted", after, "s", at_most=0.2),
    ]


# -- loading after a coordinator's death -------------------------------------------------------------------


async def _fill(cluster: Cluster, groups: int, partitions: int) -> tuple[BrokerId, HeartbeatRequest]:
    """Commit an offset of every partition for every group; who coordinates them, and a member's heartbeat."""
    names = [f"group-{number}" for number in range(groups)]
    (node,) = set((await _coordinators(cluster, names)).values())
    waiting = iter(names)

    async def commit_some() -> None:
        for group in waiting:
            await _commit(cluster, node, group, range(partitions), 7)

    await _all(commit_some() for _ in range(_COMMITTERS))
    return node, await _join(cluster, node, "member")


async def _taken_over(running: LocalCluster, groups: int, partitions: int) -> float:
    """The seconds from the SIGKILL of the coordinator of all groups until another one serves them."""
    async with Admin(bootstrap_servers=running.bootstrap) as admin:
        await admin.create_topics([NewTopic(_TOPIC, partitions, 1)])
    cluster = Cluster(ConsumerConfig.of({"bootstrap_servers": running.bootstrap}))
    await cluster.start()
    try:
        victim, beat = await _fill(cluster, groups, partitions)
    finally:
        cluster.close()
    others = [broker for broker in running.brokers if broker.id != victim]
    bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in others)
    cluster = Cluster(ConsumerConfig.of({"bootstrap_servers": bootstrap}))
    await cluster.start()
    last = f"group-{groups - 1}"
    topics = [TopicPartitionIndexes(name=_TOPIC, partition_indexes=[partitions - 1])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=last, topics=topics)])
    try:
        await cluster.refresh()
        running.kill(victim)
        killed_at = time.perf_counter()
        while True:
            # It may still be the dead one that is named.
            node = (await _coordinators(cluster, [last]))[last]
            if node != victim:
                break
            await asyncio.sleep(0.02)
        found = await _ask(cluster, node, request, lambda answer: answer.groups[0].error_code)
        await _ask(cluster, node, beat, lambda answer: answer.error_code)
        seconds = time.perf_counter() - killed_at
    finally:
        cluster.close()
    (one,) = found.groups[0].topics[0].partitions
    if one.committed_offset != 7:
        raise RuntimeError(f"the new coordinator knows {one.committed_offset} instead of 7")
    return seconds


def _takeovers(options: Options) -> Figure:
    groups, partitions = options.amount(5_000, 500), 200
    rounds = []
    for _ in range(options.rounds):
        with running_cluster(options, offsets_topic_num_partitions="1") as running:
            rounds.append(uvloop.run(_taken_over(running, groups, partitions)))
        tell(f"a coordinator of {groups * partitions:,} offsets was replaced in {rounds[-1]:.1f} s")
    return Figure.of(
        f"kill of the coordinator of {groups * partitions:,} offsets until another one serves them",
        rounds,
        "s",
        at_most=10,
    )


# -- all of it ---------------------------------------------------------------------------------------------


async def _measure(bootstrap: str, options: Options) -> list[Figure]:
    members, groups = options.amount(200, 50), options.amount(1_000, 200)
    seconds = options.amount(10, 3)
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics([NewTopic(_TOPIC, members, 1), NewTopic(_SMALL, _SMALL_PARTITIONS, 1)])
    cluster = Cluster(ConsumerConfig.of({"bootstrap_servers": bootstrap}))
    await cluster.start()
    rounds: dict[str, list[float]] = {"joined": [], "groups": [], "single": [], "batched": [], "mended": []}
    try:
        # The topic of the offsets is made by the first who asks for it.
        await _commits(cluster, "first", 0.1, 1)
        for number in range(options.rounds):
            rounds["joined"].append(await _members(bootstrap, f"members-{number}", members))
            names = [f"one-of-many-{number}-{group}" for group in range(groups)]
            rounds["groups"].append(await _many_groups(cluster, names))
            rounds["single"].append(await _commits(cluster, f"single-{number}", seconds, 1))
            each = min(members, _OFFSETS_PER_COMMIT)
            rounds["batched"].append(await _commits(cluster, f"batched-{number}", seconds, each))
            rounds["mended"].append(await _mended(bootstrap, f"mended-{number}") * 1000)
            tell(", ".join(f"{name} {found[-1]:.1f}" for name, found in rounds.items()))
    finally:
        cluster.close()
    return [
        Figure.of(f"{members} members of one group are stable", rounds["joined"], "s", at_most=3),
        Figure.of(f"{groups} groups of one member are stable", rounds["groups"], "s"),
        Figure.of("offset commits, one per request", rounds["single"], "offsets/s", at_least=3_000),
        Figure.of(f"offset commits, {each} per request", rounds["batched"], "offsets/s", at_least=20_000),
        Figure.of(
            "kill of a member until the others have its partitions",
            rounds["mended"],
            "ms",
            at_most=_SESSION_TIMEOUT_MS + 1_000,
            note=f"session timeout {_SESSION_TIMEOUT_MS} ms",
        ),
    ]


def measure(options: Options) -> list[Figure]:
    with running_cluster(options, group_min_session_timeout_ms="1000") as cluster:
        figures = uvloop.run(_measure(cluster.bootstrap, options))
    return [*figures, *_loading(options), _takeovers(options)]


if __name__ == "__main__":
    run(__doc__, measure)
