"""The states of a group and the moves between them, as one table.

An illegal move raises and changes nothing. Plain functions, for any thread.

Source: KIP-62, the states that Kafka's DescribeGroups names.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from barnabas.protocol.invariants import InvariantViolation


class GroupState(Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    """No members; offsets may be there, and are all that a group has which only stores them."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are called together; their JoinGroup requests wait."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation has begun; SyncGroup requests wait for the leader's assignment."""
    STABLE = "Stable"
    """The assignment is stored and handed out."""
    DEAD = "Dead"
    """Deleted, or moved to another coordinator; the object is of no more use."""


NEXT_STATES: Final = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.COMPLETING_REBALANCE, GroupState.EMPTY, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class IllegalTransition(InvariantViolation):
    """A group was to go where its state does not lead."""


def moved(group_id: str, state: GroupState, target: GroupState) -> GroupState:
    """The target, if the table allows the move. Raises IllegalTransition."""
    if target not in NEXT_STATES[state]:
        raise IllegalTransition(f"group {group_id!r} cannot go from {state.value} to {target.value}")
    return target
