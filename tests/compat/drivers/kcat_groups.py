"""A member of a group that is a kcat (``-G``), which commits by itself only; there are no admin commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from typing import Any

from member import HEARTBEAT_INTERVAL_MS, METADATA_MAX_AGE_MS, SESSION_TIMEOUT_MS, Notes
from stdio import Unsupported

KCAT = os.environ.get("KCAT", "kcat")
_REBALANCED = re.compile(r" rebalanced.*? (assign|revoke)\w*.*: (.*)$")
"""``… rebalanced (memberid m): assigned: …`` or ``… rebalanced: incremental assignment of n … (m, …): …``"""
_PARTITION = re.compile(r"(\S+) \[(\d+)\]")
_TIMEOUT_S = 40.0


class KcatMember:
    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: list[str] | None = None,
        pattern: str | None = None,
        strategy: str = "range",
        instance: str | None = None,
        auto_commit: bool = False,
    ) -> None:
        self.notes = Notes()
        settings = {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": str(auto_commit).lower(),
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
            "partition.assignment.strategy": strategy,
        }
        if instance is not None:
            settings["group.instance.id"] = instance
        options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        subscribed = [f"^{pattern}"] if pattern else topics or []
        command = [KCAT, "-b", bootstrap, *options, "-u", "-f", "%t %p %o\n", "-G", group, *subscribed]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._listen)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(_TIMEOUT_S)
        for thread in self._threads:
            thread.join(_TIMEOUT_S)
        return self.notes.status()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                topic, partition, offset = line.split()
                self.notes.read.append((topic, int(partition), int(offset)))

    def _listen(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                found = _REBALANCED.search(line)
                if found is None:
                    continue
                told = [(topic, int(index)) for topic, index in _PARTITION.findall(found[2])]
                others = [one for one in self.notes.assigned if one not in told]
                if found[1] == "assign":
                    self.notes.assigned = others + told
                else:
                    self.notes.taken += told
                    self.notes.assigned = others


current: list[KcatMember] = []


def member_start(**wish: Any) -> None:
    current.append(KcatMember(**wish))


def member_status() -> dict[str, Any]:
    return current[-1].notes.status()


def member_commit(**_: Any) -> None:
    raise Unsupported("kcat commits by itself")


def member_pid() -> int:
    return current[-1].process.pid


def member_stop() -> dict[str, Any]:
    return current.pop().stop()


def no_admin(**_: Any) -> None:
    raise Unsupported("kcat has no admin commands")


GROUP_COMMANDS = {
    "member_start": member_start,
    "member_status": member_status,
    "member_commit": member_commit,
    "member_pid": member_pid,
    "member_stop": member_stop,
    "list_groups": no_admin,
    "describe_group": no_admin,
    "delete_group": no_admin,
    "group_offsets": no_admin,
    "set_group_offsets": no_admin,
    "delete_group_offsets": no_admin,
}
