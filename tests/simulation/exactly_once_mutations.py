"""Known mistakes in the parts of transactions, planted on purpose: histories over several brokers find each.

See `mutations` for their form. Mistakes in the rules of one transactional id are in
`transaction_mutations`, and cheaper to find there.
"""

from __future__ import annotations

from typing import Any

from barnabas.broker.coordinators import transaction_markers, transaction_shard
from barnabas.broker.coordinators.transaction_markers import MarkerQueue
from barnabas.broker.coordinators.transaction_records import TransactionMetadata
from barnabas.broker.coordinators.transaction_state import TransactionState
from barnabas.broker.coordinators.transaction_verification import TransactionVerification
from barnabas.broker.log.log import Log
from barnabas.protocol.errors import ErrorCode
from tests.simulation.log_transaction_mutations import (
    a_marker_is_answered_before_it_is_replicated,
    everything_committed_is_stable,
)
from tests.simulation.mutations import Mutation, SetAttr
from tests.simulation.transaction_mutations import (
    a_transaction_is_complete_with_the_first_marker,
    epochs_are_not_checked,
)


def markers_have_an_earlier_epoch(setattr_: SetAttr) -> None:
    """The logs have a later one, and refuse them."""
    marker = transaction_markers._Part.marker

    def stale(self: Any) -> Any:
        built = marker(self)
        return built._replace(producer_epoch=max(0, built.producer_epoch - 1))

    setattr_(transaction_markers._Part, "marker", stale)


def coordinators_are_not_asked(setattr_: SetAttr) -> None:
    """A leader begins a transaction that its coordinator does not know of."""
    setattr_(TransactionVerification, "asks", lambda self, adds: False)


def readers_get_no_aborted_transactions(setattr_: SetAttr) -> None:
    setattr_(Log, "aborted_transactions", lambda self, start, end, **_: [])


def an_ongoing_transaction_is_loaded_without_its_partitions(setattr_: SetAttr) -> None:
    read = transaction_shard.read_value

    def forgetful(data: bytes) -> TransactionMetadata:
        value = read(data)
        is_ongoing = value.state is TransactionState.ONGOING
        return value._replace(partitions=frozenset()) if is_ongoing else value

    setattr_(transaction_shard, "read_value", forgetful)


def a_refused_marker_counts_as_written(setattr_: SetAttr) -> None:
    """By a broker that does not lead the partition any more."""
    written = frozenset({*transaction_markers._WRITTEN, ErrorCode.NOT_LEADER_OR_FOLLOWER})
    setattr_(transaction_markers, "_WRITTEN", written)


def a_lost_marker_is_not_sent_again(setattr_: SetAttr) -> None:
    setattr_(MarkerQueue, "_retry", lambda self, part, leaders, pause_ms: None)


MUTATIONS: dict[Mutation, int] = {
    a_lost_marker_is_not_sent_again: 4,
    a_marker_is_answered_before_it_is_replicated: 7,
    a_refused_marker_counts_as_written: 4,
    a_transaction_is_complete_with_the_first_marker: 11,
    an_ongoing_transaction_is_loaded_without_its_partitions: 0,
    coordinators_are_not_asked: 0,
    epochs_are_not_checked: 0,
    everything_committed_is_stable: 0,
    markers_have_an_earlier_epoch: 0,
    readers_get_no_aborted_transactions: 0,
}
"""The search starts at the given seed to save time."""
