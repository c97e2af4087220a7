"""The processes that serve a cluster, and their CPU and memory, read from ``/proc``.

What it is for: comparing clusters that somebody else started, by nothing but their ports. Linux only.

Guarantees. Reads only. A process is counted once however many of the ports it listens on, and one that may
not be looked into (another user's) is never taken for absent: `pids_listening` then raises.

Any thread.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.protocol.errors import LocalError

MB: Final = 1_000_000
_LISTENING: Final = "0A"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class PeerError(LocalError):
    """Another system could not be fetched, started or reached; the text says what to do about it."""


class Memory(NamedTuple):
    """Memory of a process in MB: all that is resident, and the part that no file stands behind."""

    resident_mb: float
    anonymous_mb: float


def listening_inodes(table: str, ports: Collection[int]) -> set[int]:
    """The inodes of the sockets listening on these ports, from the text of ``/proc/net/tcp`` or ``tcp6``."""
    found = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) in ports:
            found.add(int(fields[9]))
    return found


def socket_inode(link: str) -> int | None:
    """The inode in the text of a descriptor's link, such as ``socket:[4026]``; None if it is no socket."""
    if not (link.startswith("socket:[") and link.endswith("]")):
        return None
    return int(link[8:-1])


def cpu_seconds_of(stat: str) -> float:
    """CPU seconds, the kernel's on its behalf too, from the text of ``/proc/<pid>/stat`` (proc(5))."""
    # The command name (field 2) may hold blanks and brackets; all after the last ")" is plain.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def memory_of(status: str) -> Memory:
    """Memory from the text of ``/proc/<pid>/status``; raises LookupError when it holds none (a zombie)."""
    found = {}
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "RssAnon"):
            found[name] = int(value.split()[0]) * 1024 / MB
    if len(found) != 2:
        raise LookupError("no VmRSS and RssAnon: the process has ended")
    return Memory(found["VmRSS"], found["RssAnon"])


def ports_of(bootstrap: str) -> list[int]:
    """The ports of ``host:port,host:port…``; raises ValueError naming a part that is not so."""
    found = []
    for part in bootstrap.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not (colon and host and port.isdigit()):
            raise ValueError(f"{part!r}: expected host:port")
        found.append(int(port))
    return found


def pids_listening(ports: Sequence[int]) -> list[int]:
    """The pids of the processes that listen on these TCP ports here, in the order of the ports.

    Raises PeerError naming a port that nobody here listens on, or nobody that this user may look into.
    """
    tables = [path.read_text() for path in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")) if path.exists()]
    wanted = {inode: port for port in ports for table in tables for inode in listening_inodes(table, {port})}
    by_port = {wanted[inode]: pid for pid, inode in _sockets() if inode in wanted}
    missing = sorted(set(ports) - set(by_port))
    if missing:
        raise PeerError(
            f"no process here that may be looked into listens on port {', '.join(map(str, missing))}; "
            "name the brokers' pids"
        )
    return list(dict.fromkeys(by_port[port] for port in ports))


def _sockets() -> Iterator[tuple[int, int]]:
    """Pid and inode of every socket of every process that may be looked into."""
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            entries = os.listdir(process / "fd")
        except OSError:
            # It has ended, or is another user's; the caller notices when one that it needs is missing.
            continue
        for entry in entries:
            try:
                inode = socket_inode(os.readlink(process / "fd" / entry))
            except OSError:
                # Closed since it was listed (the listing's own descriptor always is), or not ours to read.
                continue
            if inode is not None:
                yield int(process.name), inode


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds that these processes have used together; raises OSError when one of them has ended."""
    return sum(cpu_seconds_of(Path(f"/proc/{pid}/stat").read_text()) for pid in pids)


def memory(pid: int) -> Memory:
    """Memory of a process; raises OSError or LookupError when it has ended."""
    return memory_of(Path(f"/proc/{pid}/status").read_text())
