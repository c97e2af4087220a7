"""A member of a group that is a kcat (``-G``), which commits by itself only; there are no admin commands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from member import (
    HEARTBEAT_INTERVAL_MS,
    METADATA_MAX_AGE_MS,
    Member,
    Wish,
    member_commands,
)
from stdio import Unsupported

KCAT = os.environ.get("KCAT", "kcat")
_REBALANCED = re.compile(r" rebalanced.*? (assign|revoke)\w*.*: (.*)$")
"""``… rebalanced (memberid m): assigned: …`` or ``… rebalanced: incremental assignment of n … (m, …): …``"""
_PARTITION = re.compile(r"(\S+) \[(\d+)\]")
_TIMEOUT_S = 40.0


def settings_of(settings: Mapping[str, Any]) -> list[str]:
    """librdkafka's settings as kcat's arguments."""
    return [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]


class KcatMember(Member):
    def __init__(self, wish: Wish) -> None:
        super().__init__()
        settings = {
            "auto.offset.reset": "earliest",
            "enable.auto.commit": str(wish.auto_commit).lower(),
            "session.timeout.ms": wish.session_timeout_ms,
            "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
            "partition.assignment.strategy": wish.strategy,
        }
        if wish.instance is not None:
            settings["group.instance.id"] = wish.instance
        subscribed = [wish.regex] if wish.regex else wish.topics or []
        command = [KCAT, "-b", wish.bootstrap, *settings_of(settings), "-u", "-f", "%t %p %o\n"]
        self._process = subprocess.Popen(
            [*command, "-G", wish.group, *subscribed],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._read, self._listen)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def commit(self, how: str) -> None:
        raise Unsupported("kcat commits by itself")

    def stop(self) -> dict[str, Any]:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(_TIMEOUT_S)
        for thread in self._threads:
            thread.join(_TIMEOUT_S)
        return self.notes.status()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                topic, partition, offset = line.split()
                self.notes.read.append((topic, int(partition), int(offset)))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
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


def no_admin(**_: Any) -> None:
    raise Unsupported("kcat has no admin commands")


GROUP_COMMANDS = member_commands(KcatMember) | {
    "list_groups": no_admin,
    "describe_group": no_admin,
    "delete_group": no_admin,
    "group_offsets": no_admin,
    "set_group_offsets": no_admin,
    "delete_group_offsets": no_admin,
}
