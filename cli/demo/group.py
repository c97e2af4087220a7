"""The demo's consumer group: three processes share the topic, and one of them is killed half way.

``python -m barnabas.cli.demo.group BOOTSTRAP TOPIC GROUP`` is one member. The rest runs on the demo's event
loop; `GroupAudit` judges.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Final

from barnabas.cli.demo.ledger import GroupAudit, checksum_of
from barnabas.cli.exit_codes import CommandError
from barnabas.client import ConsumerRecord, RebalanceListener
from barnabas.client.blocking import Consumer
from barnabas.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from barnabas.cli.demo.screen import Update

MEMBERS: Final = 3
KILL_AT: Final = 0.5

_STALL_S: Final = 30.0
_LONGEST_LEAVE_S: Final = 10.0
_LINE_LIMIT_BYTES: Final = 1 << 20

SESSION_TIMEOUT_MS: Final = 3_000
"""Short, so that a dead member is noticed in seconds; the brokers have to allow it."""

_HEARTBEAT_INTERVAL_MS: Final = 300
_AUTO_COMMIT_INTERVAL_MS: Final = 200
_POLL_MS: Final = 100


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
        self._words = [sys.executable, "-m", "barnabas.cli.demo.group", bootstrap, topic, group]
        self._partitions = set(partitions)
        self._audit = audit
        self._say = say
        self._changed = asyncio.Event()
        self._members: list[GroupMember] = []
        self._listeners: list[asyncio.Task[None]] = []

    async def run(self, total: int, show_progress: Update) -> list[int]:
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
            await self._until(lambda: self._audit.seen >= total * KILL_AT, "nothing comes", show_progress)
            others = await self._kill_one()
            await self._until(lambda: self._audit.seen >= total, "records are missing", show_progress)
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
        self, condition: Callable[[], bool], otherwise: str, show_progress: Update | None = None
    ) -> None:
        """Wait for a condition. Raises CommandError with ``otherwise`` if no member reports for long."""
        while not condition():
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), _STALL_S)
            except TimeoutError:
                raise CommandError(f"{otherwise}: no member said anything for {_STALL_S:.0f} s") from None
            if show_progress is not None:
                show_progress(self._audit.seen)


class _Reader(RebalanceListener):
    """The program of a member, in a process of its own, so that it can be killed.

    It starts to read when a line arrives on its standard input, and leaves the group at the end of that
    input, as when the demo dies. It reports its partitions and the records read on standard output, one JSON
    object a line, *before* the next poll can commit them, so that no unreported record is committed. One
    thread polls, another waits for the input.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._may_read = threading.Event()
        self._is_over = threading.Event()
        self._owned: list[int] | None = None

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        if not self._may_read.is_set():
            self._consumer.pause(*partitions)

    def obey(self) -> None:
        """On a thread of its own: begin at the first line of the input, end with the input."""
        sys.stdin.readline()
        self._may_read.set()
        sys.stdin.read()
        self._is_over.set()

    def run(self) -> None:
        while not self._is_over.is_set():
            if self._may_read.is_set() and (paused := self._consumer.paused()):
                self._consumer.resume(*paused)
            records = self._consumer.poll(_POLL_MS)
            owned = sorted(tp.partition for tp in self._consumer.assignment())
            if owned != self._owned:
                self._owned = owned
                _say({"owned": owned})
            if records:
                _say({"seen": [_seen(record) for record in records]})


def _seen(record: ConsumerRecord) -> tuple[int, int, int]:
    return record.partition, record.offset, checksum_of(record.key or b"", record.value or b"")


def _say(report: dict[str, object]) -> None:
    print(json.dumps(report, separators=(",", ":")), flush=True)


def main() -> None:
    bootstrap, topic, group = sys.argv[1:]
    with Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=_HEARTBEAT_INTERVAL_MS,
        auto_commit_interval_ms=_AUTO_COMMIT_INTERVAL_MS,
    ) as consumer:
        reader = _Reader(consumer)
        threading.Thread(target=reader.obey, daemon=True).start()
        consumer.subscribe([topic], listener=reader)
        reader.run()


if __name__ == "__main__":
    main()
