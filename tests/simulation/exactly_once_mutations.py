"""Known mistakes in the parts of transactions, planted on purpose: histories over several brokers find each.

See `mutations` for their form. Mistakes in the rules of one transactional id are in
`transaction_mutations`, and cheaper to find there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.broker.coordinators import transaction_markers, transaction_shard
from barnabas.broker.coordinators.offsets import GroupOffsets
from barnabas.broker.coordinators.transaction_markers import MarkerQueue
from barnabas.broker.coordinators.transaction_records import TransactionMetadata
from barnabas.broker.coordinators.transaction_state import TransactionState
from barnabas.broker.coordinators.transaction_verification import TransactionVerification
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_transactions import LogTransactions
from barnabas.broker.replication.markers import TransactionMarker
from barnabas.protocol.errors import ErrorCode
from tests.simulation.exactly_once_judge import Promise
from tests.simulation.exactly_once_world import DATA
from tests.simulation.planted import SetAttr, found_in


@found_in("exactly once", 0)
def markers_have_an_earlier_epoch(setattr_: SetAttr) -> None:
    """The logs have a later one, and refuse them."""
    marker = transaction_markers._Part.marker

    def stale(self: Any) -> Any:
        built = marker(self)
        return built._replace(producer_epoch=max(0, built.producer_epoch - 1))

    setattr_(transaction_markers._Part, "marker", stale)


@found_in("exactly once", 0)
def coordinators_are_not_asked(setattr_: SetAttr) -> None:
    """A leader begins a transaction that its coordinator does not know of."""
    setattr_(TransactionVerification, "asks", lambda self, adds: False)


@found_in("exactly once", 1)
def readers_get_no_aborted_transactions(setattr_: SetAttr) -> None:
    setattr_(Log, "aborted_transactions", lambda self, start, end, **_: [])


@found_in("exactly once", 3)
def an_ongoing_transaction_is_loaded_without_its_partitions(setattr_: SetAttr) -> None:
    read = transaction_shard.read_value

    def forgetful(data: bytes) -> TransactionMetadata:
        value = read(data)
        is_ongoing = value.state is TransactionState.ONGOING
        return value._replace(partitions=frozenset()) if is_ongoing else value

    setattr_(transaction_shard, "read_value", forgetful)


@found_in("exactly once", 6)
def a_refused_marker_counts_as_written(setattr_: SetAttr) -> None:
    """By a broker that does not lead the partition any more."""
    written = frozenset({*transaction_markers._WRITTEN, ErrorCode.NOT_LEADER_OR_FOLLOWER})
    setattr_(transaction_markers, "_WRITTEN", written)


@found_in("exactly once", 6)
def a_lost_marker_is_not_sent_again(setattr_: SetAttr) -> None:
    setattr_(MarkerQueue, "_retry", lambda self, part, leaders, pause_ms: None)


@found_in("exactly once", 216)
def a_transaction_is_continued_in_the_other_protocol(setattr_: SetAttr) -> None:
    """Found in this code, and as in Kafka: the markers of the former transaction may be on their way."""
    setattr_(LogTransactions, "continues", lambda self, producer_id, *, adds: True)


@found_in("exactly once", 9, alone=Promise.G1A)
def every_transaction_is_committed(setattr_: SetAttr) -> None:
    _mark(setattr_, lambda marker: marker._replace(committed=True))


@found_in("exactly once", 0, alone=Promise.COMPLETENESS)
def every_transaction_is_aborted(setattr_: SetAttr) -> None:
    _mark(setattr_, lambda marker: marker._replace(committed=False))


@found_in("exactly once", 6, alone=Promise.ATOMICITY)
def one_partition_gets_an_abort(setattr_: SetAttr) -> None:
    """If its leader gets no other markers."""

    def but_one(marker: TransactionMarker) -> TransactionMarker:
        return marker._replace(committed=marker.committed and set(marker.partitions) != {DATA[2]})

    _mark(setattr_, but_one)


def _mark(setattr_: SetAttr, change: Callable[[TransactionMarker], TransactionMarker]) -> None:
    marker = transaction_markers._Part.marker
    setattr_(transaction_markers._Part, "marker", lambda self: change(marker(self)))


@found_in("exactly once", 19, alone=Promise.G1B)
def pending_offsets_count_at_once(setattr_: SetAttr) -> None:
    load_pending = GroupOffsets.load_pending

    def hasty(self: GroupOffsets, producer_id: int, partition: Any, committed: Any) -> None:
        load_pending(self, producer_id, partition, committed)
        self.load(partition, committed)

    setattr_(GroupOffsets, "load_pending", hasty)


@found_in("exactly once", 6, alone=Promise.OFFSETS)
def pending_offsets_count_after_an_abort(setattr_: SetAttr) -> None:
    _end_offsets(setattr_, is_commit=True)


@found_in("exactly once", 0, alone=Promise.OFFSETS)
def pending_offsets_are_dropped_by_a_commit(setattr_: SetAttr) -> None:
    _end_offsets(setattr_, is_commit=False)


def _end_offsets(setattr_: SetAttr, *, is_commit: bool) -> None:
    ended = GroupOffsets.transaction_ended
    setattr_(
        GroupOffsets,
        "transaction_ended",
        lambda self, end: ended(self, end._replace(is_commit=is_commit)),
    )


@found_in("exactly once", 2, alone=Promise.OFFSETS)
def pending_offsets_are_stable(setattr_: SetAttr) -> None:
    setattr_(GroupOffsets, "_is_unstable", lambda self, partition: False)
