"""The states of a transactional id, and the moves between them, as a table.

Pure data; any thread. Source: ``TransactionMetadata.scala`` in Apache Kafka; from 4.0 on, a producer may also
abort when it has begun nothing (KIP-890).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from barnabas.protocol.invariants import InvariantViolation


class TransactionState(Enum):
    """The values are the names that clients see. The place of a state, from 0 on, is its number in logs."""

    EMPTY = "Empty"
    """The id has a producer, which has begun nothing."""
    ONGOING = "Ongoing"
    """Partitions have been added."""
    PREPARE_COMMIT = "PrepareCommit"
    """The decision to commit is in the log; markers are being written."""
    PREPARE_ABORT = "PrepareAbort"
    """The decision to abort is in the log; markers are being written."""
    COMPLETE_COMMIT = "CompleteCommit"
    """All markers are written."""
    COMPLETE_ABORT = "CompleteAbort"
    """All markers are written."""
    DEAD = "Dead"
    """The id has expired, or has moved to another coordinator; the object must not be used any more."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """The coordinator has decided to fence the producer and to abort; the log does not have it yet."""


_S = TransactionState
NEXT_STATES: Final = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT, _S.PREPARE_EPOCH_FENCE}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT, _S.DEAD}),
    _S.DEAD: frozenset(),
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.PREPARE_ABORT}),
}

DECIDED: Final = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The outcome of the transaction is fixed, and the next transaction begins after its completion."""
IDLE: Final = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""No transaction is ongoing; only then may an id expire."""
COMPLETION_OF: Final = {
    _S.PREPARE_COMMIT: _S.COMPLETE_COMMIT,
    _S.PREPARE_ABORT: _S.COMPLETE_ABORT,
}


class IllegalTransition(InvariantViolation):
    """The table has no such move of a transactional id."""


def check_move(transactional_id: str, state: TransactionState, target: TransactionState) -> None:
    """Raises IllegalTransition."""
    if target not in NEXT_STATES[state]:
        raise IllegalTransition(
            f"transactional id {transactional_id!r} cannot go from {state.value} to {target.value}"
        )
