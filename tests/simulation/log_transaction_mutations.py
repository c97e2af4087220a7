"""Known mistakes around stable offsets and aborted transactions, put into the code on purpose.

Only histories of the profile "markers" find them; see `mutations`.
"""

from __future__ import annotations

from typing import Any

from barnabas.broker.log.log import Log
from barnabas.broker.log.log_transactions import LogTransactions
from barnabas.broker.replication import markers
from barnabas.broker.replication.partition import Partition
from tests.simulation.mutations import Mutation, SetAttr


def everything_committed_is_stable(setattr_: SetAttr) -> None:
    setattr_(Log, "first_unstable_offset", lambda self, high_watermark: None)


def an_uncommitted_marker_ends_its_transaction(setattr_: SetAttr) -> None:
    """The marker is in the leader's log, and may still be truncated."""

    def hasty(self: LogTransactions, high_watermark: int) -> int | None:
        return next(iter(self._ongoing.values()), None)

    setattr_(LogTransactions, "first_unstable_offset", hasty)


def the_log_start_passes_the_last_stable_offset(setattr_: SetAttr) -> None:
    setattr_(Partition, "log_start_moved", lambda self: None)


def only_transactions_that_begin_in_the_range_are_aborted(setattr_: SetAttr) -> None:
    """A reader that begins within an aborted transaction sees the rest of its records."""
    aborted_transactions = Log.aborted_transactions

    def narrow(self: Log, start: int, end: int, **named: bool) -> Any:
        found = aborted_transactions(self, start, end, **named)
        return [one for one in found if one.first_offset >= start]

    setattr_(Log, "aborted_transactions", narrow)


def a_marker_is_answered_before_it_is_replicated(setattr_: SetAttr) -> None:
    """Its transaction stays open if the next leader does not have it."""
    setattr_(markers, "_ACKS_ALL", 1)


FOUND_IN_TRANSACTIONS: dict[Mutation, int] = {
    everything_committed_is_stable: 0,
    an_uncommitted_marker_ends_its_transaction: 0,
    the_log_start_passes_the_last_stable_offset: 0,
    only_transactions_that_begin_in_the_range_are_aborted: 180,
    a_marker_is_answered_before_it_is_replicated: 0,
}
"""Like `mutations.FOUND_BY_CHANCE`."""
