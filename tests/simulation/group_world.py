"""A world for one group: an offsets log that moves between coordinators, a network, and a clock that jumps.

Everything is decided by one seeded random generator. The log keeps what its high watermark has passed; what
is behind it may be lost when the coordinator moves, and an append may be reported as failed although it is
there. The old coordinator goes on for a while as if nothing had happened. Requests and answers come late, or
not at all.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from barnabas.broker.coordinators.group import Group, LoadedOffset
from barnabas.broker.coordinators.group_effects import (
    Append,
    Client,
    Commit,
    Effects,
    GroupLimits,
    Moment,
)
from barnabas.broker.coordinators.group_log import GroupRecord, Record, StoredGroup
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.join_group import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

Report = Callable[[ErrorCode, int], None]

GROUP_ID = "g"
EPOCH_MS = 1_700_000_000_000
APPEND_TIMEOUT_MS = 5_000


class Entry:
    """One batch of the log; ``commit`` says who committed and in which generation, if it is a commit."""

    def __init__(
        self, epoch: int, records: tuple[Record, ...], commit: Commit | None, report: Report
    ) -> None:
        self.epoch = epoch
        self.records = records
        self.commit = commit
        self._report: Report | None = report

    def settle(self, error: ErrorCode, base_offset: int = -1) -> None:
        """Tell the outcome, unless it was told."""
        report, self._report = self._report, None
        if report is not None:
            report(error, base_offset)


class Token:
    """A request on its way; ``reply`` is called with the answer, unless that gets lost."""

    def __init__(self, what: Any, reply: Callable[[Any], None]) -> None:
        self.what = what
        self.reply = reply
        self.answers = 0


class World:
    """``check`` is called after every event with the coordinator that it touched."""

    def __init__(self, seed: int, limits: GroupLimits) -> None:
        self.random = random.Random(seed)
        self.limits = limits
        self.now_ms = 0
        self.is_faulty = True
        self.log: list[Entry] = []
        self.high_watermark = 0
        self.epoch = 0
        self.stalled_until_ms = 0.0
        self.trace: list[str] = []
        self.waiting: set[Token] = set()
        self.judge: Any = None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)
        self.coordinator = Coordinator(self, 0)
        self.zombie: Coordinator | None = None

    def new_id(self) -> str:
        return str(next(self._ids))

    # ---- time

    def moment(self) -> Moment:
        return Moment(self.now_ms, EPOCH_MS + self.now_ms)

    def at(self, delay_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._order), action))

    def run_until(self, end_ms: float, is_done: Callable[[], bool] = lambda: False) -> None:
        while self._queue and self._queue[0][0] <= end_ms and not is_done():
            self.now_ms, _, action = heapq.heappop(self._queue)
            action()
        if not is_done():
            self.now_ms = end_ms

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms / 1000:.1f} {text}")

    def chance(self, probability: float) -> bool:
        """Whether a fault happens."""
        return self.is_faulty and self.random.random() < probability

    def delay(self) -> float:
        return self.random.uniform(1_000, 20_000) if self.chance(0.03) else self.random.uniform(0, 40)

    # ---- the network

    def send(self, what: Any, reply: Callable[[Any], None]) -> None:
        """Bring a request to whom the sender takes for the coordinator."""
        if self.chance(0.03):
            return
        token = Token(what, reply)

        def arrive() -> None:
            target = self.coordinator
            if self.zombie is not None and self.random.random() < 0.5:
                target = self.zombie
            self.waiting.add(token)
            target.handle(token)
            self.judge.check(target)

        self.at(self.delay(), arrive)

    def answer(self, token: Token, response: Any) -> None:
        token.answers += 1
        if token.answers != 1:
            raise AssertionError(f"answered {token.answers} times: {token.what}: {response}")
        self.waiting.remove(token)
        if not self.chance(0.03):
            self.at(self.delay(), lambda: token.reply(response))

    # ---- the log

    def append(self, coordinator: Coordinator, group: Group, append: Append, commit: Commit | None) -> None:
        number = append.number

        def report(error: ErrorCode, base_offset: int) -> None:
            if number is not None and not coordinator.has_crashed:
                coordinator.carry_out(group, group.appended(number, error, base_offset, self.moment()))
                self.judge.check(coordinator)

        if coordinator.epoch != self.epoch:
            self.at(self.delay(), lambda: report(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1))
            return
        if self.chance(0.04):
            self.at(self.random.uniform(0, 10), lambda: report(ErrorCode.NOT_ENOUGH_REPLICAS, -1))
            return
        entry = Entry(self.epoch, append.records, commit, report)
        self.log.append(entry)
        end = len(self.log)
        self.at(self.random.uniform(0, 20), lambda: self._replicate(entry.epoch, end))

        def give_up() -> None:
            late = ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            entry.settle(self.random.choice(late))

        self.at(APPEND_TIMEOUT_MS, give_up)

    def _replicate(self, epoch: int, end: int) -> None:
        if epoch != self.epoch:
            return
        if self.now_ms < self.stalled_until_ms:
            self.at(self.stalled_until_ms - self.now_ms, lambda: self._replicate(epoch, end))
            return
        for base_offset in range(self.high_watermark, end):
            entry = self.log[base_offset]
            # Outcomes that become known together may be told in any order.
            self.at(self.random.uniform(0, 5), partial(entry.settle, ErrorCode.NONE, base_offset))
        self.high_watermark = max(self.high_watermark, end)

    def move(self) -> None:
        """Another broker becomes the coordinator; the old one learns it late, or has crashed."""
        for entry in self.log[self.high_watermark :]:
            self.at(self.delay(), partial(entry.settle, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        kept = self.random.randint(self.high_watermark, len(self.log))
        self.note(f"move, {len(self.log) - kept} batches lost")
        del self.log[kept:]
        self.high_watermark = kept
        self.epoch += 1
        old = self.coordinator
        if self.zombie is not None:
            self.zombie.unload()
        if self.random.random() < 0.4:
            old.has_crashed = True
            self.waiting = {token for token in self.waiting if token not in old.tokens}
        else:
            self.zombie = old
            self.at(self.random.uniform(0, 8_000), lambda: self._learn(old))
        self.coordinator = Coordinator(self, self.epoch)
        self.coordinator.is_loading = True
        self.at(self.random.uniform(0, 1_000), self.coordinator.load)

    def _learn(self, old: Coordinator) -> None:
        old.unload()
        if self.zombie is old:
            self.zombie = None

    def stored(self) -> tuple[StoredGroup | None, dict[TopicPartition, LoadedOffset]]:
        """What is in the log below the high watermark."""
        group: StoredGroup | None = None
        offsets: dict[TopicPartition, LoadedOffset] = {}
        for base_offset, entry in enumerate(self.log[: self.high_watermark]):
            for record in entry.records:
                if isinstance(record, GroupRecord):
                    group = record.value
                elif record.value is None:
                    offsets.pop(record.partition, None)
                else:
                    offsets[record.partition] = LoadedOffset(record.partition, record.value, base_offset)
        return group, offsets


class Coordinator:
    """What holds the group on one broker: creates, loads, unloads it, and carries out its effects."""

    def __init__(self, world: World, epoch: int) -> None:
        self.world = world
        self.epoch = epoch
        self.group: Group | None = None
        self.is_loading = False
        self.has_crashed = False
        self.is_unloaded = False
        self.tokens: set[Token] = set()
        self._tick_at_ms = float("inf")

    def load(self) -> None:
        self.is_loading = False
        stored, offsets = self.world.stored()
        if (stored is None and not offsets) or self.is_unloaded or self.has_crashed:
            return
        self.group, effects = Group.load(
            GROUP_ID,
            stored,
            offsets.values(),
            self.epoch,
            self.world.limits,
            self.world.moment(),
            self.world.new_id,
        )
        self.carry_out(self.group, effects)

    def unload(self) -> None:
        self.is_unloaded = True
        self.is_loading = False
        group, self.group = self.group, None
        if group is not None and not self.has_crashed:
            self.carry_out(group, group.unload(self.world.moment()))

    def carry_out(self, group: Group, effects: Effects, commit: Commit | None = None) -> None:
        for append in effects.appends:
            self.world.append(self, group, append, commit)
        for token, response in effects.answers:
            self.world.judge.hears(self, token, response)
            self.world.answer(token, response)
        if group.is_dead and self.group is group:
            self.group = None
        deadline_ms = group.next_deadline_ms
        if self.group is group and deadline_ms < self._tick_at_ms:
            self._tick_at_ms = deadline_ms
            self.world.at(max(deadline_ms - self.world.now_ms, 0), self._tick)

    def _tick(self) -> None:
        self._tick_at_ms = float("inf")
        group, now = self.group, self.world.moment()
        if group is None or self.has_crashed:
            return
        self.carry_out(group, group.tick(now))
        if group.next_deadline_ms <= now.monotonic_ms:
            raise AssertionError(f"a deadline of {group.next_deadline_ms} is left at {now.monotonic_ms}")
        self.world.judge.check(self)

    def handle(self, token: Token) -> None:
        """A request, as a broker treats it; a crashed one is silent."""
        if self.has_crashed:
            self.world.waiting.discard(token)
            return
        self.tokens.add(token)
        refusal = None
        if self.is_unloaded:
            refusal = ErrorCode.NOT_COORDINATOR
        elif self.is_loading:
            refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if refusal is not None:
            self.world.answer(token, _refused(token.what, refusal))
            return
        what, world = token.what, self.world
        if self.group is None:
            if not _creates(what):
                self.world.answer(token, _refused(what, ErrorCode.UNKNOWN_MEMBER_ID))
                return
            self.group = Group(GROUP_ID, world.limits, world.moment(), world.new_id)
        group, now = self.group, world.moment()
        if isinstance(what, tuple) and isinstance(what[0], JoinGroupRequest):
            request, options = what
            self.carry_out(group, group.join(request, Client("c", "/h"), token, now, options))
        elif isinstance(what, SyncGroupRequest):
            self.carry_out(group, group.sync(what, token, now))
        elif isinstance(what, HeartbeatRequest):
            world.answer(token, group.heartbeat(what, now))
        elif isinstance(what, MemberIdentity):
            self.carry_out(group, group.leave([what], token, now))
        else:
            self.carry_out(group, group.commit(what, token, now), what)


def _creates(what: Any) -> bool:
    if isinstance(what, tuple):
        return not what[0].member_id
    return isinstance(what, Commit) and what.generation_id < 0


def _refused(what: Any, error: ErrorCode) -> Any:
    if isinstance(what, tuple):
        return JoinGroupResponse(error_code=error, member_id=what[0].member_id)
    if isinstance(what, SyncGroupRequest):
        is_loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS if is_loading else error)
    if isinstance(what, HeartbeatRequest):
        return ErrorCode.NONE if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else error
    if isinstance(what, MemberIdentity):
        gone = MemberResponse(member_id=what.member_id, group_instance_id=None, error_code=error)
        return LeaveGroupResponse(error_code=error, members=[gone])
    return dict.fromkeys(what.offsets, error)
