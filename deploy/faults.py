"""The faults that a person, a page or a chaos run injects into a local cluster, as one table.

`inject` does one fault and returns a sentence that says what was done, for a mark beside the time. It blocks
until the fault holds (for a drain: until the moves have begun), within a bounded time. Another entry of the
table ends it.

A full disk is played: the system refuses the running broker every write beyond the first bytes of a file
(RLIMIT_FSIZE), so its log dir goes offline as with a disk without space, and the disk of the user is spared.
Only Linux can limit another process.

Any thread; one fault of a target at a time.
"""

from __future__ import annotations

import asyncio
import enum
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from barnabas.deploy.links import named
from barnabas.deploy.private_files import exclusively
from barnabas.deploy.process import DeployError, wait_until
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.state import LINKS, ZOOKEEPER, ask_restart
from barnabas.protocol.ids import BrokerId

_RESTART_TIMEOUT_S: Final = 60.0
_DRAIN_TIMEOUT_S: Final = 30.0
_SERVE_TIMEOUT_S: Final = 10.0
_FULL_DISK_BYTES: Final = 4096
"""A file may have so many bytes on a disk that is played full: a new segment does not take a record's batch
for long, and no file that has grown takes one."""
DELAY_MS: Final = 200.0


class TargetKind(enum.Enum):
    SERVER = "server"
    """A broker by its id, ``zookeeper``, or ``links``."""
    BROKER = "broker"
    PAIR = "pair"
    """A source and a target of bytes: brokers, ``zookeeper`` and ``client``."""
    ALL_LINKS = "all links"


@dataclass(frozen=True, kw_only=True)
class Aim:
    """`other`: the target of bytes, where `target` is their source."""

    target: str = ""
    other: str = ""
    delay_ms: float = DELAY_MS


@dataclass(frozen=True)
class Fault:
    """`states`: of the server in which it makes sense; `ended_by`: the name of another entry."""

    name: str
    label: str
    does: str
    kind: TargetKind
    inject: Callable[[RunningCluster, Aim], str]
    states: Sequence[str] = ("running",)
    ended_by: str | None = None


def inject(cluster: RunningCluster, name: str, aim: Aim) -> str:
    """Do the fault, and say what was done. Raises DeployError for a name or target that does not exist."""
    fault = FAULTS.get(name)
    if fault is None:
        raise DeployError(f"there is no fault {name!r}; there are {', '.join(FAULTS)}")
    match fault.kind:
        case TargetKind.SERVER | TargetKind.BROKER:
            known = [str(id) for id in cluster.broker_ids]
            if fault.kind is TargetKind.SERVER:
                known += [ZOOKEEPER, LINKS]
            _check("target", aim.target, known)
        case TargetKind.PAIR:
            ends = cluster.link_server.ends
            _check("target", aim.target, ends)
            _check("other", aim.other, [end for end in ends if end != aim.target])
        case TargetKind.ALL_LINKS:
            pass
    return fault.inject(cluster, aim)


def restart_server(cluster: RunningCluster, name: str) -> None:
    """Restart a server, or have the program do it that runs the cluster in the foreground.

    Then `cluster` has the former process, and is to be opened again. Raises DeployError.
    """
    owner, record = cluster.record.owner, cluster.record
    if owner is None or owner.state == "gone":
        # Two at once would each record its own start alone, and the other process would outlive the cluster.
        with exclusively(cluster.directory, _RESTART_TIMEOUT_S):
            cluster.reload()
            if not cluster.is_running:
                raise DeployError(f"the cluster in {cluster.directory} has been stopped")
            cluster.restart_server(name)
    elif record.takes_requests:
        ask_restart(cluster.directory, name, _RESTART_TIMEOUT_S)
    elif owner.pid == os.getpid():
        cluster.restart_server(name)
    else:
        raise DeployError(
            f"the cluster belongs to the program with pid {owner.pid}, and only that one can restart "
            "its processes"
        )


def has_full_disk(cluster: RunningCluster, broker_id: int) -> bool:
    """Whether the broker runs, and its disk is played full."""
    process = cluster.broker(broker_id).process
    if process is None or not process.is_alive or not hasattr(resource, "prlimit"):
        return False
    try:
        return resource.prlimit(process.pid, resource.RLIMIT_FSIZE)[0] == _FULL_DISK_BYTES
    except (ProcessLookupError, PermissionError):
        return False


def _check(field: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise DeployError(f"{field} {value!r}: expected {', '.join(known)}")


# -- what they do ------------------------------------------------------------------------------------------


def _kill(cluster: RunningCluster, aim: Aim) -> str:
    cluster.server(aim.target).kill()
    return f"{named(aim.target)} was killed"


def _stop(cluster: RunningCluster, aim: Aim) -> str:
    timeout_s = cluster.stop_timeout_s
    if cluster.server(aim.target).running_process.terminate(timeout_s):
        return f"{named(aim.target)} was stopped"
    return f"{named(aim.target)} was killed: it had not stopped within {timeout_s:g} s"


def _pause(cluster: RunningCluster, aim: Aim) -> str:
    cluster.server(aim.target).pause()
    return f"{named(aim.target)} was paused"


def _resume(cluster: RunningCluster, aim: Aim) -> str:
    cluster.server(aim.target).resume()
    return f"{named(aim.target)} continues"


def _restart(cluster: RunningCluster, aim: Aim) -> str:
    restart_server(cluster, aim.target)
    return f"{named(aim.target)} was started again{_how_it_came_up(cluster, aim.target)}"


def _drain(cluster: RunningCluster, aim: Aim) -> str:
    # Imported here: commands on local processes need no client.
    from barnabas.client.admin.admin import Admin
    from barnabas.client.admin.drain import is_unknown, plan_drain
    from barnabas.common.texts import count

    async def drain() -> str:
        async with asyncio.timeout(_DRAIN_TIMEOUT_S), Admin(**cluster.client_settings()) as admin:
            moves = await plan_drain(admin, BrokerId(int(aim.target)))
            outcomes = await admin.alter_partition_reassignments(
                {tp: move.after for tp, move in moves.items()}
            )
        refused = [error for error in outcomes.values() if error is not None and not is_unknown(error)]
        if refused:
            raise refused[0]
        if not moves:
            return f"{named(aim.target)} has no replicas"
        return f"{count(len(moves), 'replica')} began to leave {named(aim.target)}"

    try:
        return asyncio.run(drain())
    except TimeoutError:
        raise DeployError(
            f"the cluster did not drain {named(aim.target)} in {_DRAIN_TIMEOUT_S:g} s"
        ) from None


def _fill_disk(cluster: RunningCluster, aim: Aim) -> str:
    _limit_files(cluster, aim.target, _FULL_DISK_BYTES)
    return f"the disk of {named(aim.target)} is full"


def _give_room(cluster: RunningCluster, aim: Aim) -> str:
    # A log dir that is offline stays so until the broker starts again; a new process has no limit.
    restart_server(cluster, aim.target)
    done = f"the disk of {named(aim.target)} has room again, and the broker was started again"
    return done + _how_it_came_up(cluster, aim.target)


def _how_it_came_up(cluster: RunningCluster, name: str) -> str:
    """The rest of a sentence while links are broken, since a restart then does not wait for the others."""
    # The owner may have started the process.
    opened = RunningCluster.open(cluster.directory)
    if name == LINKS or not opened.has_broken_links():
        return ""
    server = opened.server(name)
    wait_until(lambda: server.takes_connections or not server.is_alive, _SERVE_TIMEOUT_S)
    if not server.is_alive:
        return f", and has ended: see `barnabas logs {name}`"
    if not server.takes_connections:
        return f"; {_SERVE_TIMEOUT_S:g} s later it does not serve: links are broken"
    return ", and serves; whether it reaches the others was not checked, as links are broken"


def _limit_files(cluster: RunningCluster, broker: str, most_bytes: int) -> None:
    process = cluster.server(broker).running_process
    if not hasattr(resource, "prlimit"):
        raise DeployError("a full disk cannot be played here: only Linux can limit the files of a process")
    try:
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most_bytes, hard))
    except (OSError, ValueError) as error:
        raise DeployError(f"the files of {named(broker)} cannot be limited: {error}") from error


def _cut(cluster: RunningCluster, aim: Aim) -> str:
    cluster.links.cut(aim.target, aim.other)
    return f"nothing gets from {named(aim.target)} to {named(aim.other)}"


def _sever(cluster: RunningCluster, aim: Aim) -> str:
    cluster.links.sever(aim.target, aim.other)
    return f"{named(aim.target)} and {named(aim.other)} are cut off from each other"


def _slow(cluster: RunningCluster, aim: Aim) -> str:
    cluster.links.delay(aim.target, aim.other, aim.delay_ms)
    return f"bytes from {named(aim.target)} to {named(aim.other)} take {aim.delay_ms:g} ms longer"


def _mend(cluster: RunningCluster, aim: Aim) -> str:
    cluster.links.mend_pair(aim.target, aim.other)
    return f"the link between {named(aim.target)} and {named(aim.other)} works again"


def _mend_all(cluster: RunningCluster, aim: Aim) -> str:
    cluster.links.mend()
    return "all links work again"


_ALIVE: Final = ("running", "paused")
_SERVER, _BROKER, _PAIR = TargetKind.SERVER, TargetKind.BROKER, TargetKind.PAIR

_ROWS: Final = (
    Fault("kill", "Kill", "SIGKILL: it ends at once", _SERVER, _kill, _ALIVE, "restart"),
    Fault("stop", "Stop", "SIGTERM: a broker moves its leaders first", _SERVER, _stop, _ALIVE, "restart"),
    Fault("pause", "Pause", "SIGSTOP: it is silent, its sockets open", _SERVER, _pause, ended_by="resume"),
    Fault("resume", "Resume", "SIGCONT: it continues after a pause", _SERVER, _resume, ("paused",)),
    Fault("restart", "Restart", "stop it if it runs, then start it", _SERVER, _restart, (*_ALIVE, "gone")),
    Fault("drain", "Drain", "move all its replicas to other brokers", _BROKER, _drain),
    Fault("fill-disk", "Fill disk", "its writes to files fail", _BROKER, _fill_disk, ended_by="give-room"),
    Fault("give-room", "Give room", "its files may grow again; it is restarted", _BROKER, _give_room, _ALIVE),
    Fault("cut", "Cut", "hold back all bytes from the one to the other", _PAIR, _cut, ended_by="mend"),
    Fault("sever", "Sever", "hold back all bytes between both", _PAIR, _sever, ended_by="mend"),
    Fault("slow", "Slow", "delay all bytes from the one to the other", _PAIR, _slow, ended_by="mend"),
    Fault("mend", "Mend", "let the link work again, both ways", _PAIR, _mend),
    Fault("mend-all", "Mend all links", "end all cuts and delays", TargetKind.ALL_LINKS, _mend_all),
)
FAULTS: Final = {fault.name: fault for fault in _ROWS}
"""By name; an entry that ends others is a row as well."""
