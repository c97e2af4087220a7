"""The state of the live page, from one view of the cluster and the state before. Pure: no I/O, no clock.

The state is plain data as JSON has it, since it is sent as it is. Unknown values are None: a replica whose
broker does not answer has no offsets, rather than old ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from barnabas.client.admin.log_dirs import BrokerLogDirs
from barnabas.deploy.cluster_view import UNKNOWN_REMOTE, ClusterView, PartitionView, is_silent, known
from barnabas.protocol.messages.replicas import ReplicaDescription

State = dict[str, Any]

KEYED: Final = ("brokers", "partitions", "groups", "transactions")
"""Parts that are merged entry by entry."""
_SILENT_REPLICA: Final[State] = {
    "log_start_offset": None,
    "high_watermark": None,
    "last_stable_offset": None,
    "log_end_offset": None,
    "remote_log_end_offset": None,
    "leader_epoch": None,
    "size_bytes": None,
    "is_offline": None,
    "failure": None,
    "caught_up_ms_ago": None,
}


@dataclass(kw_only=True)
class Look:
    """The answers that one tick of the sampler has."""

    time_ms: int
    view: ClusterView
    cpu_percent: Mapping[int, float] = field(default_factory=dict)
    log_dirs: Mapping[int, BrokerLogDirs] = field(default_factory=dict)


def state_of(look: Look, before: State | None, last: Look | None = None) -> State:
    """The whole state, without the parts that are added by name and without marks, gaps and series.

    `last`: the look that `before` is of. What it has as well is not put into words again.
    """
    view = look.view
    if is_another(view.cluster_id, before):
        before = None
    if view.unreachable is None:
        partitions = _partitions(look, before, last)
    else:
        partitions = _leaderless(before)
    return {
        "time_ms": look.time_ms,
        "cluster_id": view.cluster_id or (before or {}).get("cluster_id"),
        "controller": view.controller_id if view.controller_id >= 0 else None,
        "problems": view.problems(),
        "zookeeper": None
        if view.zookeeper is None
        else {"endpoint": view.zookeeper.endpoint, "state": view.zookeeper.state, "pid": view.zookeeper.pid},
        "brokers": _brokers(look, before),
        "partitions": partitions,
    }


def is_another(cluster_id: str | None, before: State | None) -> bool:
    """Whether a cluster is not the one of the state before: another one was started at its address."""
    return (
        before is not None
        and None
        not in (
            cluster_id,
            before["cluster_id"],
        )
        and cluster_id != before["cluster_id"]
    )


def _leaderless(before: State | None) -> State:
    """While no broker answers, the known partitions stay in sight with nothing that is known of them now."""
    partitions = {} if before is None else before["partitions"]
    return {
        name: _kept(
            partition,
            partition
            | {
                "leader": None,
                "records_per_s": None,
                "replicas": dict.fromkeys(partition["replicas"], _SILENT_REPLICA),
            },
        )
        for name, partition in partitions.items()
    }


def _kept(was: State | None, entry: State) -> State:
    """The object of the state before, if it is equal: that need not be compared again."""
    return was if was is not None and was == entry else entry


def _partition(partition: PartitionView, time_ms: int, before: State | None) -> State:
    info, moving = partition.info, partition.moving
    leader = info.leader if info.leader >= 0 else None
    leads = partition.replicas.get(info.leader)
    end = None if leads is None else known(leads.log_end_offset)
    earlier = None if before is None else before["partitions"].get(partition.name)
    rate = None
    if earlier is not None and before is not None and end is not None and earlier["leader"] == leader:
        then = earlier["replicas"].get(str(leader), _SILENT_REPLICA)["log_end_offset"]
        seconds = (time_ms - before["time_ms"]) / 1000
        if then is not None and seconds > 0:
            rate = round(max(0, end - then) / seconds, 1)
    min_isr = partition.min_isr
    if min_isr is None and earlier is not None:
        min_isr = earlier["min_isr"]
    return {
        "topic": info.topic,
        "partition": info.partition,
        "is_internal": partition.is_internal,
        "leader": leader,
        "leader_epoch": info.leader_epoch,
        "isr": list(info.isr),
        "min_isr": min_isr,
        "records_per_s": rate,
        "is_under_min_isr": partition.is_under_min_isr,
        "replicas": _replicas(partition),
        "moves_to": None if moving is None else list(moving.target),
    }


def _partitions(look: Look, before: State | None, last: Look | None) -> State:
    """The entries; one that cannot have changed since the last look is not made again."""
    earlier: State = {} if before is None else before["partitions"]
    seen = {} if last is None or last.view.unreachable else {each.name: each for each in last.view.partitions}
    partitions = {}
    for partition in look.view.partitions:
        name = partition.name
        was = earlier.get(name)
        # The rate of the look before may be of records that have come before it.
        if was is None or was["records_per_s"] != 0 or not _is_same(partition, seen.get(name)):
            was = _kept(was, _partition(partition, look.time_ms, before))
        partitions[name] = was
    return partitions


def _is_same(partition: PartitionView, seen: PartitionView | None) -> bool:
    """Whether a partition shows what it showed in the last look."""
    if seen is None:
        return False
    mine, theirs = partition.replicas, seen.replicas
    return (
        (partition.info, partition.moving, partition.min_isr) == (seen.info, seen.moving, seen.min_isr)
        and mine.keys() == theirs.keys()
        and all(
            replica == theirs[id] or _shown(replica) == _shown(theirs[id]) for id, replica in mine.items()
        )
    )


def _shown(replica: ReplicaDescription) -> tuple[object, ...]:
    """The age of a follower's last fetch differs in every look, and is shown only if it lacks records."""
    end = replica.log_end_offset
    return (
        *(replica.leader_epoch, replica.log_start_offset, replica.high_watermark, end),
        *(replica.last_stable_offset, replica.size_bytes, replica.is_offline, replica.failure),
        [
            (each.broker_id, each.log_end_offset, 0 if each.log_end_offset == end else each.caught_up_ms_ago)
            for each in replica.followers
        ],
    )


def _replicas(partition: PartitionView) -> State:
    remotes, leader = partition.remotes(), partition.replicas.get(partition.info.leader)
    entries = {}
    for id in partition.info.replicas:
        replica = partition.replicas.get(id)
        if replica is None:
            entries[str(id)] = _SILENT_REPLICA
            continue
        remote = remotes.get(id, UNKNOWN_REMOTE)
        has_all = leader is not None and remote.remote_log_end_offset == leader.log_end_offset
        entries[str(id)] = {
            "log_start_offset": known(replica.log_start_offset),
            "high_watermark": known(replica.high_watermark),
            "last_stable_offset": known(replica.last_stable_offset),
            "log_end_offset": known(replica.log_end_offset),
            "remote_log_end_offset": remote.remote_log_end_offset,
            "leader_epoch": known(replica.leader_epoch),
            "size_bytes": known(replica.size_bytes),
            "is_offline": replica.is_offline,
            "failure": replica.failure or None,
            # The age of the last fetch would differ in every look.
            "caught_up_ms_ago": 0 if has_all else remote.caught_up_ms_ago,
        }
    return entries


def _brokers(look: Look, before: State | None) -> State:
    """The brokers of the metadata and of this machine, and those with replicas; absent ones are gone.

    While no broker answers, those of the state before.
    """
    view = look.view
    answers = {int(answer.node.node_id): answer for answer in view.brokers}
    processes = {int(process.id): process for process in view.processes}
    earlier: State = {} if before is None else before["brokers"]
    leaders = Counter(int(partition.info.leader) for partition in view.partitions)
    replicas = Counter(int(id) for partition in view.partitions for id in partition.info.replicas)
    brokers = {}
    last = map(int, earlier) if view.unreachable is not None else ()
    for id in sorted({*answers, *processes, *replicas, *last}):
        answer, process, was = answers.get(id), processes.get(id), earlier.get(str(id), {})
        state = process.state if process is not None else "gone" if answer is None else "running"
        if state == "running" and (answer is None or is_silent(answer)):
            state = "silent"
        endpoint = answer.node.endpoint if answer else process.endpoint if process else None
        dirs = look.log_dirs.get(id)
        volumes = {} if dirs is None else {(d.total_bytes, d.usable_bytes) for d in dirs.log_dirs}
        known = [(total, free) for total, free in volumes if total is not None and free is not None]
        brokers[str(id)] = {
            "id": id,
            "endpoint": str(endpoint) if endpoint else was.get("endpoint"),
            "rack": answer.node.rack if answer else was.get("rack"),
            "state": state,
            "pid": process.process.pid if process and process.process and state != "gone" else None,
            "is_controller": id == view.controller_id,
            "leaders": leaders[id],
            "replicas": replicas[id],
            "size_bytes": sum(r.size_bytes for r in answer.replicas.values() if r.size_bytes > 0)
            if answer and not answer.error
            else None,
            "disk_free_bytes": min((free for _, free in known), default=None),
            "disk_total_bytes": min(((free, total) for total, free in known), default=(None, None))[1],
            "cpu_percent": look.cpu_percent.get(id) if state == "running" else None,
            "error": str(answer.error) if answer and answer.error else None,
        }
    return brokers


def figures_of(state: State, before: State | None) -> dict[str, tuple[str, float]]:
    """The newest point of each series: name → (unit, value). A rate needs the state before."""
    if before is None or is_another(state["cluster_id"], before):
        return {}
    seconds = (state["time_ms"] - before["time_ms"]) / 1000
    if seconds <= 0:
        return {}
    records = sum(partition["records_per_s"] or 0 for partition in state["partitions"].values())
    grown = 0
    for name, partition in state["partitions"].items():
        was = before["partitions"].get(name)
        if was is partition or was is None:
            continue
        leader = str(partition["leader"])
        earlier = was["replicas"].get(leader, _SILENT_REPLICA)
        present = partition["replicas"].get(leader, _SILENT_REPLICA)
        if present["size_bytes"] is not None and earlier["size_bytes"] is not None:
            # A log that retention has shortened has not written less than nothing.
            grown += max(0, present["size_bytes"] - earlier["size_bytes"])
    return {
        "records_in": ("records/s", round(records, 1)),
        "bytes_in": ("bytes/s", round(grown / seconds, 1)),
    }


def changes(state: State, before: State) -> State:
    """The entries that differ, and ``gone``: by part, the names of entries that are no more."""
    changed: State = {
        name: value
        for name, value in state.items()
        if name not in KEYED and (name not in before or before[name] != value)
    }
    gone = {}
    for part in KEYED:
        if part not in state:
            continue
        entries, earlier = state[part], before.get(part, {})
        if differing := {name: entry for name, entry in entries.items() if earlier.get(name) != entry}:
            changed[part] = differing
        if removed := [name for name in earlier if name not in entries]:
            gone[part] = removed
    return {**changed, "gone": gone} if gone else changed
