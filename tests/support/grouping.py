"""One group under test: manual time, answers by token, and appends that the test settles.

A test names members by short names: ``rig.join("m")`` sends the member id that m got last. `stable`,
`complete` and `prepare` bring a group into a state.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from barnabas.broker.coordinators.groups.group import Group, JoinOptions
from barnabas.broker.coordinators.groups.members import Client
from barnabas.broker.coordinators.groups.offsets import Commit
from barnabas.broker.coordinators.groups.rebalance import GroupState
from barnabas.broker.coordinators.groups.records import GroupMetadataValue, GroupRecord, OffsetAndMetadata
from barnabas.broker.coordinators.state_machine import Append, Clock, Moment
from barnabas.broker.coordinators.topic_coordinator import TopicCoordinator
from barnabas.protocol.consumer_protocol import Subscription, encode_subscription
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tests.support.defaults import CONFIG

OLD_CLIENT = JoinOptions(requires_known_member_id=False, can_skip_assignment=False)
NEW_CLIENT = JoinOptions()
STATIC = {"group_instance_id": "i"}
WALL_MS = 1_700_000_000_000


def subscription(*topics: str) -> bytes:
    return encode_subscription(Subscription(topics))


def run_once(coordinator: TopicCoordinator[Any]) -> bool:
    """Do one piece of work of the coordinator's thread, which does not run; False without any work."""
    work = coordinator._next_work()
    if work is not None:
        work()
    return work is not None


class GroupRig:
    def __init__(self, group: Group | None = None, **settings: Any) -> None:
        self.now_ms = 0.0
        self.wall_ahead_ms = 0
        self.moment = Clock(lambda: self.now_ms, lambda: WALL_MS + int(self.now_ms) + self.wall_ahead_ms)
        self.config = dataclasses.replace(CONFIG, **{"group_initial_rebalance_delay_ms": 0, **settings})
        self.answers: dict[str, Any] = {}
        """Answers that the test has not looked at, by token."""
        self.ids: dict[str, str] = {}
        """The member ids, by name."""
        self.appends: list[Append] = []
        """The appends that are not settled."""
        self._count = itertools.count(1)
        self.group = group or Group("g", self.config, self.moment(), self.new_id)

    def new_id(self) -> str:
        return str(next(self._count))

    @property
    def state(self) -> GroupState:
        return self.group.state

    def apply(self, event: Callable[[Group, Moment], None]) -> None:
        """Apply an event as a shard does."""
        event(self.group, self.moment())
        effects = self.group.outbox.take()
        self.appends += effects.appends
        for token, response in effects.answers:
            assert token not in self.answers, f"{token} is answered twice"
            self.answers[token] = response
            if isinstance(response, JoinGroupResponse) and response.member_id:
                self.ids[token] = response.member_id

    def answer(self, token: str) -> Any:
        """The answer, or None while the request waits."""
        return self.answers.pop(token, None)

    def error(self, token: str) -> ErrorCode | None:
        response = self.answer(token)
        return None if response is None else ErrorCode(response.error_code)

    def committed_error(self) -> ErrorCode:
        """The error of a commit of one partition."""
        error: ErrorCode = self.answer("commit").popitem()[1]
        return error

    def settle(self, error: ErrorCode = ErrorCode.NONE, base_offset: int = 1) -> None:
        """Report the outcome of the oldest append."""
        number = self.appends.pop(0).number
        assert number is not None
        self.apply(lambda group, now: group.outbox.settle(number, error, base_offset, now))

    def stored(self) -> GroupMetadataValue:
        """The generation in the last append."""
        (record,) = self.appends[-1].records
        assert isinstance(record, GroupRecord)
        assert record.value is not None
        return record.value

    def pass_time(self, ms: float) -> None:
        """Tick at each deadline, as a broker does."""
        end_ms = self.now_ms + ms
        while self.group.next_deadline_ms <= end_ms:
            self.now_ms = max(self.group.next_deadline_ms, self.now_ms)
            self.apply(lambda group, now: group.tick(now))
        self.now_ms = end_ms

    # ---- requests; keyword arguments replace their fields

    def join(self, name: str, options: JoinOptions = OLD_CLIENT, token: str = "", **values: Any) -> None:
        protocols = values.pop("protocols", {"range": subscription("t")})
        fields = {
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 30_000,
            "member_id": self.ids.get(name, ""),
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name=n, metadata=m) for n, m in protocols.items()],
        }
        client = Client(f"client-{name}", "/10.0.0.1")
        request = JoinGroupRequest(**{**fields, **values})
        self.apply(lambda group, now: group.join(request, client, token or name, now, options))

    def _caller(self, name: str) -> dict[str, Any]:
        return {
            "group_id": "g",
            "generation_id": self.group.generation_id,
            "member_id": self.ids.get(name, name),
        }

    def sync(self, name: str, token: str = "", **values: Any) -> None:
        """``given`` maps names to assignments."""
        assignments = [
            SyncGroupRequestAssignment(member_id=self.ids.get(member, member), assignment=assignment)
            for member, assignment in values.pop("given", {}).items()
        ]
        request = SyncGroupRequest(**{**self._caller(name), "assignments": assignments, **values})
        self.apply(lambda group, now: group.sync(request, token or name, now))

    def heartbeat(self, name: str, **values: Any) -> ErrorCode:
        request = HeartbeatRequest(**{**self._caller(name), **values})
        return self.group.heartbeat(request, self.moment())

    def leave(self, *names: str) -> list[ErrorCode]:
        leaving = [MemberIdentity(member_id=self.ids.get(name, name)) for name in names]
        self.apply(lambda group, now: group.leave(leaving, "leave", now))
        return [ErrorCode(member.error_code) for member in self.answers.pop("leave").members]

    def offset(self, number: int, metadata: str = "") -> OffsetAndMetadata:
        return OffsetAndMetadata(number, self.moment().wall_ms, metadata=metadata)

    def commit(self, name: str, token: str = "commit", **values: Any) -> None:
        fields = {
            "offsets": {TopicPartition("t", 0): self.offset(7)},
            "member_id": self.ids.get(name, name),
            "generation_id": self.group.generation_id,
        }
        self.apply(lambda group, now: group.commit(Commit(**{**fields, **values}), token, now))

    def commit_from_outside(self, token: str = "commit", **values: Any) -> None:
        self.commit("", token, **{"member_id": "", "generation_id": -1, **values})

    # ---- requests that are answered at once, with an error or without

    def join_error(self, name: str, options: JoinOptions = OLD_CLIENT, **values: Any) -> ErrorCode | None:
        self.join(name, options, **values)
        return self.error(name)

    def sync_error(self, name: str, **values: Any) -> ErrorCode | None:
        self.sync(name, **values)
        return self.error(name)

    def commit_error(self, name: str, **values: Any) -> ErrorCode:
        self.commit(name, **values)
        return self.committed_error()

    # ---- whole rounds

    def prepare(self, *names: str, **values: Any) -> None:
        """To PreparingRebalance: all but the first have joined again."""
        self.stable(*names, **values)
        for name in names[1:]:
            self.join(name, protocols={"range": subscription("t", "more")})

    def complete(self, *names: str, **values: Any) -> None:
        """To CompletingRebalance, with the first as leader; no member has sent its SyncGroup."""
        for name in names:
            self.join(name, **values.get(name, {}))
        for name in names:
            # A JoinGroup that does not wait was answered for an earlier generation.
            if self.state is GroupState.PREPARING_REBALANCE and self.answer(name) is not None:
                self.join(name, **values.get(name, {}))
        for name in names:
            assert self.error(name) is ErrorCode.NONE
        assert self.state is GroupState.COMPLETING_REBALANCE

    def stable(self, *names: str, **values: Any) -> None:
        """To Stable: the assignment of each member is its own name."""
        self.complete(*names, **values)
        for name in names:
            static = values.get(name, {}).get("group_instance_id")
            self.sync(name, given={other: other.encode() for other in names}, group_instance_id=static)
        self.settle()
        for name in names:
            assert self.answer(name).assignment == name.encode()
        assert self.state is GroupState.STABLE
