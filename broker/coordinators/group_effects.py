"""The inputs and outputs of a group's rules, as plain data.

In: events with a `Moment`. Out: `Effects`, which the caller carries out: it queues the appends in order while
it holds the group's lock; it may send the answers later and in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from barnabas.broker.coordinators.group_records import OffsetAndMetadata, Record
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.invariants import invariant
from barnabas.protocol.messages.groups import (
    NO_GENERATION,
    NO_MEMBER,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

Token = Any
"""Where to send an answer. A group keeps it and returns it once, with the answer. It is never None."""

CommitResponse = dict[TopicPartition, ErrorCode]
"""The outcome of each partition of a commit."""

Response = JoinGroupResponse | SyncGroupResponse | LeaveGroupResponse | CommitResponse


class Moment(NamedTuple):
    """The time by both clocks: ``monotonic_ms`` for deadlines, ``wall_ms`` for stored records."""

    monotonic_ms: float
    wall_ms: int


Settled = Callable[[ErrorCode, int, Moment], None]
"""Takes the outcome of an append: NONE and the offset of its first record, or the error of the log."""


class Client(NamedTuple):
    """The client of a member, for people to read."""

    client_id: str
    client_host: str


class JoinOptions(NamedTuple):
    """The options that the version of a JoinGroup request implies.

    ``requires_known_member_id``: a dynamic member first gets an id to join with (version 4, KIP-394).
    ``can_skip_assignment``: a leader understands that the current assignment stays (version 9, KIP-814).
    """

    requires_known_member_id: bool = True
    can_skip_assignment: bool = True


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets to commit, by a member or by a client outside the group (generation -1, no member id)."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    generation_id: int = NO_GENERATION


class Answer(NamedTuple):
    token: Token
    response: Response


class Append(NamedTuple):
    """Records to append as one batch, with acks=all.

    Pass the outcome with the ``number`` to `Group.appended` exactly once. Without a number the records are
    tombstones of state that the group has already dropped: they must be written while this broker leads.
    """

    number: int | None
    records: tuple[Record, ...]


@dataclass(slots=True)
class Effects:
    """The consequences of an event."""

    answers: list[Answer] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)


class Outbox:
    """Collects the effects of one group's events, and keeps what has to happen when an append is settled."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._effects = Effects()
        self._unsettled: dict[int, Settled] = {}
        self._next_number = 1

    def answer(self, token: Token, response: Response) -> None:
        self._effects.answers.append(Answer(token, response))

    def append(self, records: Sequence[Record], settled: Settled) -> None:
        self._unsettled[self._next_number] = settled
        self._effects.appends.append(Append(self._next_number, tuple(records)))
        self._next_number += 1

    def append_tombstones(self, records: Sequence[Record]) -> None:
        if records:
            self._effects.appends.append(Append(None, tuple(records)))

    def settle(self, number: int, error: ErrorCode, base_offset: int, now: Moment) -> None:
        invariant(number in self._unsettled, "group %s has no append %d in flight", self._group_id, number)
        self._unsettled.pop(number)(error, base_offset, now)

    def take(self) -> Effects:
        effects, self._effects = self._effects, Effects()
        return effects


_APPEND_ERRORS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_TOO_LARGE: Final = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_FETCH_SIZE,
)
_COMMIT_ERRORS: Final = {
    **_APPEND_ERRORS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
}
_REMOVAL_ERRORS: Final = {
    **_COMMIT_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
_GENERATION_ERRORS: Final = {
    **_APPEND_ERRORS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
}


def commit_error(error: ErrorCode) -> ErrorCode:
    """The answer to a commit that could not be appended."""
    return _COMMIT_ERRORS.get(error, error)


def removal_error(error: ErrorCode) -> ErrorCode:
    """The answer to a deletion whose tombstones were not replicated; a time-out is retriable here."""
    return _REMOVAL_ERRORS.get(error, error)


def generation_error(error: ErrorCode) -> ErrorCode:
    """The answer to members whose generation could not be appended."""
    return _GENERATION_ERRORS.get(error, error)
