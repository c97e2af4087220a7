"""Known mistakes around producers, stable offsets and aborted transactions in logs; see `planted`."""

from __future__ import annotations

from typing import Any

from barnabas.broker.log import recovery
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_transactions import LogTransactions
from barnabas.broker.log.producer_state import ProducerState, ProducerStates
from barnabas.broker.replication import markers
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.ids import Offset
from tests.simulation.planted import SetAttr, found_in


@found_in("markers", 0)
@found_in("exactly once", 0)
def everything_committed_is_stable(setattr_: SetAttr) -> None:
    setattr_(Log, "first_unstable_offset", lambda self, high_watermark: None)


@found_in("markers", 0)
def an_uncommitted_marker_ends_its_transaction(setattr_: SetAttr) -> None:
    """The marker is in the leader's log, and may still be truncated."""

    def hasty(self: LogTransactions, high_watermark: int) -> int | None:
        return next(iter(self._ongoing.values()), None)

    setattr_(LogTransactions, "first_unstable_offset", hasty)


@found_in("markers", 4)
def the_log_start_passes_the_last_stable_offset(setattr_: SetAttr) -> None:
    setattr_(Partition, "log_start_moved", lambda self: None)


@found_in("markers", 180)
def only_transactions_that_begin_in_the_range_are_aborted(setattr_: SetAttr) -> None:
    """A reader that begins within an aborted transaction sees the rest of its records."""
    aborted_transactions = Log.aborted_transactions

    def narrow(self: Log, start: int, end: int, **named: bool) -> Any:
        found = aborted_transactions(self, start, end, **named)
        return [one for one in found if one.first_offset >= start]

    setattr_(Log, "aborted_transactions", narrow)


@found_in("markers", 0)
@found_in("exactly once", 17)
def a_marker_is_answered_before_it_is_replicated(setattr_: SetAttr) -> None:
    """Its transaction stays open if the next leader does not have it."""
    setattr_(markers, "_ACKS_ALL", 1)


@found_in("idempotence", 0)
def duplicates_are_not_recognized(setattr_: SetAttr) -> None:
    setattr_(ProducerState, "find", lambda self, header: None)


@found_in("idempotence", 0)
def any_sequence_is_accepted(setattr_: SetAttr) -> None:
    setattr_(ProducerStates, "check", lambda *_, **options: [])


@found_in("idempotence", 0)
def followers_learn_nothing(setattr_: SetAttr) -> None:
    follow = Log.append_as_follower

    def forgetful(self: Log, *arguments: Any) -> Any:
        states = self.producers
        self.producers = ProducerStates()
        try:
            return follow(self, *arguments)
        finally:
            self.producers = states

    setattr_(Log, "append_as_follower", forgetful)


@found_in("idempotence", 13)
def a_restart_loses_the_producers(setattr_: SetAttr) -> None:
    setattr_(recovery, "load_producers", lambda *_: ProducerStates())


@found_in("idempotence", 1008)
def truncated_batches_are_still_known(setattr_: SetAttr) -> None:
    setattr_(ProducerStates, "cut", lambda self, end: True)


@found_in("idempotence", 0)
def a_duplicate_is_acknowledged_at_once(setattr_: SetAttr) -> None:
    """The original batch may not be on all replicas yet."""
    append = Partition.append_as_leader

    def hasty(self: Partition, *arguments: Any, **named: Any) -> Any:
        done = append(self, *arguments, **named)
        return done if done.record_count else done._replace(last_offset=Offset(-1))

    setattr_(Partition, "append_as_leader", hasty)
