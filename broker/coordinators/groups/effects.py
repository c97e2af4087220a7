"""The inputs and outputs of a group's rules, as plain data; `effects` has what transactions share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Never

from barnabas.broker.coordinators import state_machine as effects
from barnabas.broker.coordinators.groups.records import OffsetAndMetadata, Record
from barnabas.broker.coordinators.state_machine import TransactionalProducer
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.groups import NO_GENERATION, NO_MEMBER

Append = effects.Append[Record]
Effects = effects.Effects[Record, Never]
Outbox = effects.Outbox[Record, Never]

CommitResponse = dict[TopicPartition, ErrorCode]
"""The outcome of each partition of a commit."""


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


class TransactionEnd(NamedTuple):
    """The marker that ends a transaction in a partition of the offsets topic."""

    producer_id: int
    marker_offset: int
    is_commit: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets to commit, by a member or by a client outside the group (generation -1, no member id).

    With a ``producer`` they are committed in its transaction.
    """

    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    generation_id: int = NO_GENERATION
    producer: TransactionalProducer | None = None


_COMMIT_ERRORS: Final = {
    **effects.APPEND_ERRORS,
    # The confirmation of a transaction can fail so. Clients then retry here, without looking for the
    # coordinator.
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    **dict.fromkeys(effects.TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
}
_REMOVAL_ERRORS: Final = {
    **_COMMIT_ERRORS,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
_GENERATION_ERRORS: Final = {
    **effects.APPEND_ERRORS,
    **dict.fromkeys(effects.TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
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
