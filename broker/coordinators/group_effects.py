"""The inputs and outputs of a group's rules, as plain data.

In: events with a `Moment`. Out: `Effects`, which the caller carries out while it holds the group's lock:
append the records in their order, and send the answers (these may go out later and in any order). For any
thread; an `Effects` belongs to its receiver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from barnabas.broker.coordinators.group_log import OffsetAndMetadata, Record
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.join_group import (
    NO_GENERATION,
    NO_MEMBER,
    JoinGroupResponse,
    LeaveGroupResponse,
    SyncGroupResponse,
)

Token = Any
"""Where an answer is to go. A group keeps it and hands it back once, with the answer; it is never None."""

CommitResponse = dict[TopicPartition, ErrorCode]
"""What became of each partition of a commit."""


class Moment(NamedTuple):
    """Now, by both clocks: ``monotonic_ms`` for deadlines, ``wall_ms`` for what is stored. Only the first
    never goes back."""

    monotonic_ms: float
    wall_ms: int


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The broker's settings that groups obey; the defaults are Kafka's."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = (1 << 31) - 1
    initial_rebalance_delay_ms: int = 3_000
    max_offset_metadata_bytes: int = 4_096


class Client(NamedTuple):
    """Who asks: for people to read."""

    client_id: str
    client_host: str


class JoinOptions(NamedTuple):
    """What the version of a JoinGroup request implies.

    ``requires_known_member_id``: a dynamic member is given an id first, to join with (version 4, KIP-394).
    ``can_skip_assignment``: a leader understands that the assignment in force stays (version 9, KIP-814).
    """

    requires_known_member_id: bool = True
    can_skip_assignment: bool = True


@dataclass(frozen=True, slots=True)
class Commit:
    """The offsets that a member, or somebody outside the protocol (generation -1, no member id), commits."""

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    generation_id: int = NO_GENERATION


class Answer(NamedTuple):
    """An answer and where it goes."""

    token: Token
    response: JoinGroupResponse | SyncGroupResponse | LeaveGroupResponse | CommitResponse


class Append(NamedTuple):
    """Records to be appended as one batch, with acks=all.

    ``number`` is for `Group.appended`, which must be told the outcome exactly once; None: they are tombstones
    of what the group has forgotten already, and must be written as long as this broker leads.
    """

    number: int | None
    records: tuple[Record, ...]


@dataclass(slots=True)
class Effects:
    """What is to be done after an event."""

    answers: list[Answer] = field(default_factory=list)
    appends: list[Append] = field(default_factory=list)

    def answer(
        self,
        token: Token,
        response: JoinGroupResponse | SyncGroupResponse | LeaveGroupResponse | CommitResponse,
    ) -> None:
        self.answers.append(Answer(token, response))
