"""The demo's consumer group: three processes share the topic, and one of them is killed half way.

The checks are for at-least-once delivery: every acknowledged record was read by a member, with the bytes that
were sent, and no committed offset covers an unread record. Records that the dead member had read but not
committed are redelivered to another; that is counted, but not a fault. On the demo's event loop.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from barnabas.cli.demo.ledger import Finding, Ledger
from barnabas.cli.demo.screen import ProgressLine
from barnabas.cli.exit_codes import CommandError

MEMBERS: Final = 3
KILL_AT: Final = 0.5

_STALL_S: Final = 30.0
_LONGEST_LEAVE_S: Final = 10.0
_LINE_LIMIT_BYTES: Final = 1 << 20


class GroupAudit:
    """Compares the records that the members report, by partition and offset, with the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._acknowledged = ledger.checksums_by_place()
        self._seen_by: dict[tuple[int, int], int] = {}
        self.changed = Finding()
        self.again: dict[int, int] = {}
        """The number of redelivered records, by the member that had read them first."""

    def take(self, member: int, partition: int, offset: int, checksum: int) -> None:
        place = (partition, offset)
        expected = self._acknowledged.get(place)
        if expected is not None and checksum != expected:
            self.changed.add(f"{partition}, offset {offset}: other bytes than were acknowledged there")
        if place in self._seen_by:
            first = self._seen_by[place]
            self.again[first] = self.again.get(first, 0) + 1
        else:
            self._seen_by[place] = member

    @property
    def seen(self) -> int:
        """The number of different records read."""
        return len(self._seen_by)

    def unseen(self) -> Finding:
        """Acknowledged records that no member read."""
        found = Finding()
        for partition, offset in self._acknowledged.keys() - self._seen_by.keys():
            found.add(f"offset {offset} of {partition}")
        return found

    def covered_unseen(self, committed: Mapping[int, int]) -> Finding:
        """Offsets below a committed one that no member read."""
        found = Finding()
        for partition, end in committed.items():
            for offset in range(end):
                if (partition, offset) not in self._seen_by:
                    found.add(f"offset {offset} of {partition}, committed up to {end}")
        return found


class GroupMember:
    """One member's process, and the partitions that it last reported as its own."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.owned: set[int] = set()
        self._process = process

    def allow_reading(self) -> None:
        self._write(b"read\n")

    def ask_to_leave(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def kill(self) -> None:
        """Send SIGKILL, after which it can neither report nor leave the group."""
        self._process.kill()
        await self._process.wait()

    async def ended(self) -> int:
        """Wait for the exit code; a member that does not leave is killed."""
        try:
            return await asyncio.wait_for(self._process.wait(), _LONGEST_LEAVE_S)
        except TimeoutError:
            await self.kill()
            return await self._process.wait()

    def end_now(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def listen(self, audit: GroupAudit, changed: Callable[[], object]) -> None:
        """Read the member's reports until it ends; an incomplete last line is ignored."""
        output = self._process.stdout
        while output is not None and (line := await output.readline()).endswith(b"\n"):
            said = json.loads(line)
            self.owned = set(said.get("owned", self.owned))
            for partition, offset, checksum in said.get("seen", ()):
                audit.take(self.number, partition, offset, checksum)
            changed()

    def _write(self, line: bytes) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write(line)


class GroupRun:
    """All members from their start to their end; `run` once. The figures are set when it returns."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        partitions: Collection[int],
        audit: GroupAudit,
        say: Callable[[str], None],
    ) -> None:
        self.victim = MEMBERS
        self.seconds = 0.0
        self.rebalance_ms = 0.0
        """From the kill until the others own every partition of the dead member."""
        self._words = [sys.executable, "-m", "barnabas.cli.demo.member", bootstrap, topic, group]
        self._partitions = set(partitions)
        self._audit = audit
        self._say = say
        self._changed = asyncio.Event()
        self._members: list[GroupMember] = []
        self._listeners: list[asyncio.Task[None]] = []

    async def run(self, total: int, progress: ProgressLine) -> list[int]:
        """Read ``total`` records and kill a member half way; returns the exit codes of the others.

        Raises CommandError if progress stops before the end.
        """
        try:
            for number in range(1, MEMBERS + 1):
                await self._start(number)
            await self._until(self._all_have_a_share, "the members do not share the topic")
            self._say(f"shares of the members: {self._shares(self._members)}")
            started = time.monotonic()
            for member in self._members:
                member.allow_reading()
            await self._until(lambda: self._audit.seen >= total * KILL_AT, "nothing comes", progress)
            others = await self._kill_one()
            await self._until(lambda: self._audit.seen >= total, "records are missing", progress)
            self.seconds = time.monotonic() - started
            for member in others:
                member.ask_to_leave()
            return [await member.ended() for member in others]
        finally:
            for member in self._members:
                member.end_now()
            await asyncio.gather(*self._listeners, return_exceptions=True)

    async def _start(self, number: int) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=_LINE_LIMIT_BYTES
        )
        member = GroupMember(number, process)
        self._members.append(member)
        self._listeners.append(asyncio.create_task(member.listen(self._audit, self._changed.set)))

    async def _kill_one(self) -> list[GroupMember]:
        victim = next(member for member in self._members if member.number == self.victim)
        others = [member for member in self._members if member is not victim]
        killed_at = time.monotonic()
        await victim.kill()
        self._say(f"member {victim.number} is dead (SIGKILL); it owned partitions {sorted(victim.owned)}")
        await self._until(
            lambda: set().union(*(member.owned for member in others)) == self._partitions,
            f"the partitions of member {victim.number} are not taken over",
        )
        self.rebalance_ms = (time.monotonic() - killed_at) * 1000
        self._say(f"shares of the others after {self.rebalance_ms:.0f} ms: {self._shares(others)}")
        return others

    def _all_have_a_share(self) -> bool:
        owned = [partition for member in self._members for partition in member.owned]
        return all(member.owned for member in self._members) and sorted(owned) == sorted(self._partitions)

    @staticmethod
    def _shares(members: Iterable[GroupMember]) -> list[list[int]]:
        return [sorted(member.owned) for member in members]

    async def _until(
        self, condition: Callable[[], bool], otherwise: str, progress: ProgressLine | None = None
    ) -> None:
        """Wait for a condition. Raises CommandError with ``otherwise`` if no member reports for long."""
        while not condition():
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), _STALL_S)
            except TimeoutError:
                raise CommandError(f"{otherwise}: no member said anything for {_STALL_S:.0f} s") from None
            if progress is not None:
                progress.update(self._audit.seen)
