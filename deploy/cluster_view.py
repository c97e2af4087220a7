"""The state of a cluster as a command or the live page sees it, and its problems with the remedy of each.

The view is joined from the metadata, from what each broker says of its replicas, and, for a cluster of this
machine, from its processes. A problem that many partitions share is one sentence, so that a person sees the
cause, such as a process that is down or a log dir that is offline, before its consequences. Only reads.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.client.admin.admin import Admin, ClusterDescription, ConfigResource
from barnabas.client.admin.log_dirs import BrokerReplicas
from barnabas.client.admin.placement import PartitionReassignment
from barnabas.client.metadata import PartitionInfo, TopicInfo
from barnabas.common.fault_rules import FAULTS_CLIENT_ID
from barnabas.common.texts import count, first_of
from barnabas.deploy.faults import has_full_disk
from barnabas.deploy.links import Rule, broken_text
from barnabas.deploy.local_broker import LocalBroker
from barnabas.deploy.process import DeployError
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.server import process_problem
from barnabas.deploy.state import LINKS, ZOOKEEPER
from barnabas.protocol.errors import BarnabasError, ClusterAuthorizationFailedError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.replicas import FollowerDescription, ReplicaDescription

_TIMEOUT_MS: Final = 2_000
VIEW_SETTINGS: Final[Mapping[str, Any]] = {
    "client_id": FAULTS_CLIENT_ID,
    "request_timeout_ms": _TIMEOUT_MS,
    "socket_connection_setup_timeout_ms": 1_000,
}
"""Settings of the admin client of a view: a broker that does not answer delays it by two seconds at most, and
no fault rule hits it."""
_MIN_ISR: Final = "min.insync.replicas"
_SHOWN_NAMES: Final = 3
_FULL_BYTES: Final = 1 << 20
"""A disk with less space left than this is full: a segment's index alone needs more."""


class RemoteReplica(NamedTuple):
    """A follower as its leader knows it, from its fetches in the present leader epoch.

    All None for the leader itself, and if the leader does not say it. `isr_change`: ``joining`` or
    ``leaving`` while ZooKeeper has not confirmed a change.
    """

    remote_log_end_offset: int | None = None
    fetched_ms_ago: int | None = None
    caught_up_ms_ago: int | None = None
    isr_change: str | None = None


UNKNOWN_REMOTE: Final = RemoteReplica()


def _remote(follower: FollowerDescription) -> RemoteReplica:
    return RemoteReplica(
        known(follower.log_end_offset),
        known(follower.fetched_ms_ago),
        known(follower.caught_up_ms_ago),
        "joining" if follower.is_joining else "leaving" if follower.is_leaving else None,
    )


def known(value: int) -> int | None:
    """None for the -1 of an unknown offset, size or time."""
    return value if value >= 0 else None


@dataclass(kw_only=True)
class PartitionView:
    """A partition by metadata, and its replicas as their brokers report them (absent: no answer)."""

    info: PartitionInfo
    replicas: dict[int, ReplicaDescription] = field(default_factory=dict)
    moving: PartitionReassignment | None = None
    is_internal: bool = False
    min_isr: int | None = None
    """``min.insync.replicas`` of the topic; None if it was not asked for."""

    @property
    def name(self) -> str:
        return f"{self.info.topic}-{self.info.partition}"

    @property
    def added_in_sync(self) -> list[int]:
        """The replicas that a reassignment adds and that are in sync; once all are, it ends."""
        return [] if self.moving is None else sorted(set(self.moving.adding) & set(self.info.isr))

    @property
    def not_in_sync(self) -> list[int]:
        """The replicas that should be in sync: not those that a reassignment adds."""
        if len(self.info.isr) == len(self.info.replicas):
            # The usual case: the ISR holds replicas alone.
            return []
        added = set() if self.moving is None else set(self.moving.adding)
        return sorted(set(self.info.replicas) - set(self.info.isr) - added)

    @property
    def is_under_min_isr(self) -> bool:
        """True if a leader refuses writes with acks=all. More than all replicas cannot be demanded."""
        if self.min_isr is None or self.info.leader < 0:
            return False
        return len(self.info.isr) < min(self.min_isr, len(self.info.replicas))

    def remotes(self) -> dict[int, RemoteReplica]:
        """The followers of which the leader tells."""
        leader = self.replicas.get(self.info.leader)
        return {} if leader is None else {each.broker_id: _remote(each) for each in leader.followers}

    @property
    def has_problem(self) -> bool:
        return self.info.leader < 0 or bool(self.not_in_sync)

    def progress(self) -> str:
        """The phase of the reassignment."""
        if self.moving is None:
            return ""
        listed = [f"to {_listed(self.moving.target)}"]
        if self.moving.adding:
            in_sync = f"{len(self.added_in_sync)} of {len(self.moving.adding)} in sync"
            listed.append(f"adding {_listed(self.moving.adding)} ({in_sync})")
        if self.moving.removing:
            listed.append(f"removing {_listed(self.moving.removing)}")
        return f"{self.name} is being reassigned {', '.join(listed)}"


@dataclass(kw_only=True)
class ZooKeeperView:
    """ZooKeeper of a cluster of this machine. `state`: ``running``, ``paused``, ``gone`` or ``silent``.

    `pid` is None if another program runs it.
    """

    endpoint: str
    state: str
    pid: int | None = None


@dataclass(kw_only=True)
class ClusterView:
    """The state of a cluster, joined from the answers of its brokers.

    ``processes`` and ``zookeeper`` are the cluster's on this machine, if it was started here, `full_disk` is
    their directory if its disk is full. ``moves_error`` is set if the controller did not say which
    partitions are being reassigned, ``unreachable`` if no broker answered.
    """

    cluster_id: str | None
    controller_id: int
    brokers: list[BrokerReplicas]
    """The brokers in the metadata; one that did not answer has an error."""
    partitions: list[PartitionView]
    processes: list[LocalBroker] = field(default_factory=list)
    zookeeper: ZooKeeperView | None = None
    links: str | None = None
    """The state of the process of links, if the cluster has them."""
    broken_links: Sequence[Rule] = ()
    full_brokers: Sequence[int] = ()
    """The brokers whose disk is played full (`faults.py`)."""
    is_stopped: bool = False
    """Whether the cluster is one of this machine of which no process runs."""
    dir_words: str = ""
    """The option that names the directory of the processes in an advised command."""
    full_disk: str | None = None
    moves_error: str | None = None
    unreachable: str | None = None

    @property
    def members(self) -> set[int]:
        return {broker.node.node_id for broker in self.brokers}

    def problems(self) -> list[str]:
        """The problems of the cluster, one sentence each, causes first."""
        if self.is_stopped:
            # A single process of a stopped cluster cannot be restarted.
            other = "" if self.unreachable else ", and another cluster answers at its address"
            return [
                *self._problems_of_disk(),
                f"the cluster is stopped{other}: `barnabas up{self.dir_words}`",
            ]
        return [
            *self._problems_of_disk(),
            *self._problems_of_machine(),
            *self._problems_of_requests(),
            *self._problems_of_brokers(),
            *self._problems_of_log_dirs(),
            *self._problems_of_partitions(),
        ]

    def _problems_of_disk(self) -> list[str]:
        if self.full_disk is None:
            return []
        return [f"the disk of {self.full_disk} is full: make room, then restart what has ended"]

    def _problems_of_machine(self) -> list[str]:
        problems = []
        zookeeper = self.zookeeper
        if zookeeper is not None and zookeeper.state != "running":
            silent = f"ZooKeeper does not answer at {zookeeper.endpoint}: see its log"
            problems.append(process_problem(ZOOKEEPER, zookeeper.state, self.dir_words) or silent)
        if self.links is not None and (problem := process_problem(LINKS, self.links, self.dir_words)):
            problems.append(problem)
        problems += [
            f"the disk of broker {id} is full: `barnabas restart {id}{self.dir_words}` gives it room"
            for id in self.full_brokers
        ]
        if self.broken_links:
            broken = first_of([broken_text(rule) for rule in self.broken_links], _SHOWN_NAMES)
            problems.append(
                f"links are broken ({broken}): mend them on the page Faults, or all with "
                f"`barnabas restart links{self.dir_words}`"
            )
        return problems

    def _problems_of_requests(self) -> list[str]:
        hit = [broker.node.node_id for broker in self.brokers if broker.fault_rules]
        end = f"`barnabas faults clear{self.dir_words}` removes them"
        return [f"{_brokers(hit)} {'have' if len(hit) > 1 else 'has'} fault rules: {end}"] if hit else []

    def _problems_of_brokers(self) -> list[str]:
        problems = []
        words = self.dir_words
        members = self.members
        paused = set()
        for process in self.processes:
            state = process.state
            if state == "paused":
                paused.add(int(process.id))
            if problem := process_problem(str(process.id), state, words):
                problems.append(problem)
            elif process.id not in members and self.unreachable is None:
                problems.append(
                    f"broker {process.id} runs but has not joined the cluster: "
                    f"see `barnabas logs {process.id}{words}`"
                )
        problems += [
            f"broker {broker.node.node_id} does not answer: {broker.error} (its log says what it does)"
            for broker in self.brokers
            if is_silent(broker) and broker.node.node_id not in paused
        ]
        if refusing := [broker.node.node_id for broker in self.brokers if is_refused(broker)]:
            problems.append(
                f"{_brokers(refusing)} may not tell this user the state of replicas: grant it the operation "
                "describe on the cluster"
            )
        local = {process.id for process in self.processes}
        named = {broker_id for partition in self.partitions for broker_id in partition.info.replicas}
        problems += [
            f"broker {broker_id} has replicas and is not in the cluster: start it"
            for broker_id in sorted(named - members - local)
        ]
        if self.unreachable is not None:
            problems.append(self.unreachable)
        elif self.controller_id < 0:
            problems.append("there is no controller: a broker becomes it as soon as ZooKeeper answers")
        elif self.moves_error is not None and not (
            self._problems_of_machine() or self.controller_id in self._silent | {*refusing}
        ):
            problems.append(f"the controller does not list the reassignments: {self.moves_error}")
        return problems

    @property
    def _silent(self) -> set[int]:
        """The brokers that do not answer, or do not run."""
        processes = {int(process.id) for process in self.processes if process.state != "running"}
        return processes | {broker.node.node_id for broker in self.brokers if is_silent(broker)}

    def _problems_of_log_dirs(self) -> list[str]:
        offline: dict[tuple[int, str, str], list[str]] = defaultdict(list)
        failed: dict[tuple[int, str], list[str]] = defaultdict(list)
        uncleanable: dict[tuple[int, str], list[str]] = defaultdict(list)
        for partition in self.partitions:
            for broker_id, replica in partition.replicas.items():
                if replica.is_offline and replica.log_dir and replica.failure:
                    offline[broker_id, replica.log_dir, replica.failure].append(partition.name)
                elif replica.failure:
                    failed[broker_id, replica.failure].append(partition.name)
                if replica.cleaning_problem:
                    uncleanable[broker_id, replica.cleaning_problem].append(partition.name)
        local = {int(process.id) for process in self.processes}
        problems = [
            f"broker {broker_id}: log dir {log_dir} is offline, {count(len(names), 'replica')} with it: "
            f"{reason} (mend it, then restart the broker"
            f"{f': `barnabas restart {broker_id}{self.dir_words}`' if broker_id in local else ''})"
            for (broker_id, log_dir, reason), names in offline.items()
        ]
        problems += [f"{_named(names)} on broker {id}: {text}" for (id, text), names in failed.items()]
        problems += [
            f"{_named(names)} on broker {id} cannot be compacted: {text}"
            for (id, text), names in uncleanable.items()
        ]
        return problems

    def _problems_of_partitions(self) -> list[str]:
        problems = []
        leaderless = [partition for partition in self.partitions if partition.info.leader < 0]
        if leaderless:
            last = {broker_id for partition in leaderless for broker_id in partition.info.isr}
            remedy = f": start {_brokers(last)}" if last else ""
            problems.append(f"{_subject(leaderless, 'has', 'have')} no leader{remedy}")
        refusing = [partition for partition in self.partitions if partition.is_under_min_isr]
        if refusing:
            missing = {broker_id for partition in refusing for broker_id in partition.not_in_sync}
            problems.append(
                f"{_subject(refusing, 'is', 'are')} below {_MIN_ISR}: writes with acks=all "
                f"are refused until one of {_brokers(missing)} is in sync"
            )
        behind: dict[int, list[PartitionView]] = defaultdict(list)
        for partition in self.partitions:
            for broker_id in partition.not_in_sync:
                behind[broker_id].append(partition)
        for broker_id, partitions in sorted(behind.items()):
            problem = f"{_subject(partitions, 'is', 'are')} not in sync on broker {broker_id}"
            # Otherwise the cause is named already.
            if broker_id in self.members - self._silent:
                problem += " (it catches up, or its log says why not)"
            problems.append(problem)
        return problems


def is_refused(broker: BrokerReplicas) -> bool:
    """Whether the broker answers, but this user may not see its replicas."""
    return isinstance(broker.error, ClusterAuthorizationFailedError)


def is_silent(broker: BrokerReplicas) -> bool:
    return broker.error is not None and not is_refused(broker)


def _listed(brokers: Iterable[int]) -> str:
    return ", ".join(map(str, brokers))


def _brokers(ids: Iterable[int]) -> str:
    ids = sorted(ids)
    return f"broker{'s' * (len(ids) > 1)} {_listed(ids)}"


def _subject(partitions: Sequence[PartitionView], one: str, several: str) -> str:
    """The names of the partitions with the verb."""
    return (
        f"{_named([partition.name for partition in partitions])} {one if len(partitions) == 1 else several}"
    )


def _named(names: Sequence[str]) -> str:
    """``t-0``, or ``52 partitions (t-0, t-1, t-2, … 49 more)``."""
    if len(names) == 1:
        return names[0]
    rest = len(names) - _SHOWN_NAMES
    return f"{len(names)} partitions ({', '.join(names[:_SHOWN_NAMES])}{f', … {rest} more' * (rest > 0)})"


async def fetch_view(admin: Admin, topics: Sequence[str] | None = None) -> ClusterView:
    """The view of all topics, or of some. Raises NoBrokerReachable, and ApiError for an unknown topic."""
    cluster = await admin.describe_cluster()
    described = await admin.describe_topics(topics)
    answers, (moves, moves_error) = await asyncio.gather(
        admin.describe_replicas(topics), fetch_moves(admin, cluster.controller_id)
    )
    min_isr = await fetch_min_isr(admin, short_topics(described))
    return join_view(cluster, described, answers, moves, min_isr=min_isr, moves_error=moves_error)


def join_view(
    cluster: ClusterDescription,
    described: Mapping[str, TopicInfo],
    answers: list[BrokerReplicas],
    moves: Mapping[TopicPartition, PartitionReassignment],
    *,
    min_isr: Mapping[str, int],
    moves_error: str | None = None,
) -> ClusterView:
    """The view from the answers of the brokers. `min_isr`: of the topics that were asked for."""
    replicas: dict[TopicPartition, dict[int, ReplicaDescription]] = defaultdict(dict)
    for one in answers:
        for tp, replica in one.replicas.items():
            replicas[tp][one.node.node_id] = replica
    partitions = [
        PartitionView(
            info=info,
            replicas=replicas[tp],
            moving=moves.get(tp),
            is_internal=topic.is_internal,
            min_isr=min_isr.get(info.topic),
        )
        for _, topic in sorted(described.items())
        for info in topic.partitions
        for tp in [TopicPartition(info.topic, info.partition)]
    ]
    return ClusterView(
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        brokers=answers,
        partitions=partitions,
        moves_error=moves_error,
    )


def unreachable_view(error: BarnabasError) -> ClusterView:
    """The view of a cluster of which no broker answers; its processes may say why."""
    return ClusterView(cluster_id=None, controller_id=-1, brokers=[], partitions=[], unreachable=str(error))


async def add_machine(view: ClusterView, cluster: RunningCluster, dir_words: str) -> None:
    """Add the processes and the disk of a cluster of this machine."""
    add_processes(view, cluster, dir_words)
    view.zookeeper = await asyncio.to_thread(zookeeper_view, cluster)
    view.broken_links = await asyncio.to_thread(broken_links, cluster)


def add_processes(view: ClusterView, cluster: RunningCluster, dir_words: str) -> None:
    """As `add_machine`, without ZooKeeper and the links, whose answers take time."""
    view.processes, view.dir_words = cluster.brokers, dir_words
    view.is_stopped = not cluster.is_running
    view.full_brokers = [id for id in cluster.broker_ids if has_full_disk(cluster, id)]
    if cluster.has_links:
        view.links = cluster.link_server.state
    with suppress(OSError):  # the directory may have been removed under the cluster
        if shutil.disk_usage(cluster.directory).free < _FULL_BYTES:
            view.full_disk = str(cluster.directory)


def zookeeper_view(cluster: RunningCluster) -> ZooKeeperView:
    """Blocks until ZooKeeper answers, at most half a second for each server."""
    process = cluster.zookeeper_process
    state = "running" if process is None else process.state
    if state == "running" and not cluster.zookeeper.is_serving():
        state = "silent"
    pid = None if process is None or state == "gone" else process.pid
    return ZooKeeperView(endpoint=cluster.zookeeper_connect, state=state, pid=pid)


def broken_links(cluster: RunningCluster) -> Sequence[Rule]:
    """Blocks until the proxies answer. None are known without them; then their end is the problem."""
    with suppress(DeployError):
        if cluster.has_links:
            return cluster.links.rules()
    return ()


def short_topics(described: Mapping[str, TopicInfo]) -> list[str]:
    """The topics with replicas that are not in sync, whose ``min.insync.replicas`` matters."""
    return sorted(
        name
        for name, topic in described.items()
        if any(len(info.isr) < len(info.replicas) for info in topic.partitions)
    )


async def fetch_moves(
    admin: Admin, controller_id: int
) -> tuple[dict[TopicPartition, PartitionReassignment], str | None]:
    """The reassignments under way, or why they are unknown."""
    if controller_id < 0:
        return {}, None
    try:
        return await admin.list_partition_reassignments(timeout_ms=_TIMEOUT_MS), None
    except BarnabasError as error:
        return {}, str(error)


async def fetch_min_isr(admin: Admin, topics: Sequence[str]) -> dict[str, int]:
    """``min.insync.replicas`` of each topic; empty if no broker says so in time."""
    if not topics:
        return {}
    resources = [ConfigResource.topic(name) for name in topics]
    try:
        described = await admin.describe_configs(resources, [_MIN_ISR], timeout_ms=_TIMEOUT_MS)
    except BarnabasError:
        # The brokers that do not answer are a problem of their own.
        return {}
    return {
        resource.name: int(value)
        for resource, entries in described.items()
        if (value := entries[_MIN_ISR].value) is not None
    }
