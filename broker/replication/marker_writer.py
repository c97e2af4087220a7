"""Writes the markers that end transactions into the partitions that this broker leads.

A marker is a control batch of one record, appended with acks=all. It ends its producer's transaction in one
partition; without an ongoing one it changes nothing, so a coordinator may repeat it. The callers are the
handler of WriteTxnMarkers, and the coordinators of this broker, which need no socket.

Guarantee: an outcome without an error means that the marker is on all in-sync replicas, and that the
listeners were called for each transaction with offsets that it ended. Any thread; `write` may append on the
caller's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.log.appending import ProducedBatches
from barnabas.broker.log.producer_state import AppendOrigin
from barnabas.protocol.batch_builder import build_marker
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.invariants import InvariantViolation
from barnabas.protocol.messages.features import EPOCH_PER_TRANSACTION
from barnabas.protocol.messages.produce import PartitionProduceResponse
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import MarkerType
from barnabas.protocol.topic_names import OFFSETS_TOPIC

if TYPE_CHECKING:
    from barnabas.broker.replication.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

_ACKS_ALL: Final = -1

MarkerOutcome = dict[TopicPartition, ErrorCode]
MarkersAnswer = Callable[[list[MarkerOutcome]], None]
"""Takes one outcome for each marker, in the order of the markers."""
OffsetsEnded = Callable[[Mapping[int, int], int, bool], None]
"""Takes the markers' offsets in partitions of ``__consumer_offsets``, the producer id, True for a commit."""


class TransactionMarker(NamedTuple):
    """The end of one producer's transaction in some partitions.

    ``coordinator_epoch`` is the leader epoch of the coordinator's partition; a tool repeats the last one.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    partitions: Sequence[TopicPartition]
    transaction_version: int = 0


class _Written(NamedTuple):
    """A batch that is appended to one partition."""

    marker: int
    """The index of its marker in the call."""
    partition: TopicPartition


class TransactionMarkers:
    """The ``listeners`` are called without any lock, before the answer. A listener that fails makes the
    outcome UNKNOWN_SERVER_ERROR, so that the coordinator writes the marker again.
    """

    def __init__(self, replicas: ReplicaManager) -> None:
        self.listeners: list[OffsetsEnded] = []
        self._replicas = replicas

    def write(self, markers: Sequence[TransactionMarker], timeout_ms: int, answer: MarkersAnswer) -> None:
        """Append the markers, and call ``answer`` once: when all are replicated or refused, or time is up.

        The errors are those of a produce with acks=all, INVALID_PRODUCER_EPOCH, and
        TRANSACTION_COORDINATOR_FENCED for a marker of a coordinator that another one has replaced.
        """
        now_ms = wall_clock_ms()
        outcomes: list[MarkerOutcome] = [{} for _ in markers]
        # The offsets of the markers in partitions of the offsets topic.
        offsets: list[dict[TopicPartition, int]] = [{} for _ in markers]
        by_origin: dict[AppendOrigin, list[_Written]] = {}
        for number, marker in enumerate(markers):
            written = by_origin.setdefault(_origin(marker), [])
            written += [_Written(number, partition) for partition in marker.partitions]
        lock, unanswered = threading.Lock(), len(by_origin) + 1

        def answered(written: Sequence[_Written], responses: Sequence[PartitionProduceResponse]) -> None:
            """Take the answer of one append; several threads may call it at once."""
            nonlocal unanswered
            for (number, partition), response in zip(written, responses, strict=True):
                outcomes[number][partition] = ErrorCode(response.error_code)
                if partition.topic == OFFSETS_TOPIC and response.error_code == ErrorCode.NONE:
                    offsets[number][partition] = response.base_offset
            with lock:
                unanswered -= 1
                is_last = not unanswered
            if is_last:
                for marker, outcome, ended in zip(markers, outcomes, offsets, strict=True):
                    if ended:
                        self._tell(marker, outcome, ended)
                answer(outcomes)

        for origin, written in by_origin.items():
            batches = [(one.partition, _encode(markers[one.marker], now_ms)) for one in written]
            self._replicas.append(_ACKS_ALL, timeout_ms, batches, partial(answered, written), origin=origin)
        # The caller may be no worker, which would wake them after its request.
        self._replicas.wake_followers()
        answered((), ())

    def _tell(
        self, marker: TransactionMarker, outcome: MarkerOutcome, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Tell the listeners which transactions with offsets have ended."""
        ended = {partition.partition: offset for partition, offset in offsets.items()}
        try:
            for listener in self.listeners:
                listener(ended, marker.producer_id, marker.committed)
        except InvariantViolation:
            raise
        except Exception:
            logger.critical("the offsets of producer %d did not end", marker.producer_id, exc_info=True)
            outcome.update(dict.fromkeys(offsets, ErrorCode.UNKNOWN_SERVER_ERROR))


def _origin(marker: TransactionMarker) -> AppendOrigin:
    if marker.transaction_version >= EPOCH_PER_TRANSACTION:
        return AppendOrigin.RAISED_MARKERS
    return AppendOrigin.MARKERS


def _encode(marker: TransactionMarker, now_ms: int) -> ProducedBatches:
    kind = MarkerType.COMMIT if marker.committed else MarkerType.ABORT
    data = build_marker(marker.producer_id, marker.producer_epoch, kind, marker.coordinator_epoch, now_ms)
    return ProducedBatches(memoryview(data), [(0, parse_header(data))])
