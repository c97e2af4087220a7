"""Transactions in the log of one replica: their batches and their markers, written on the leader's side."""

from barnabas.broker.log.appending import AppendResult, ProducedBatches, parse_produced
from barnabas.broker.log.producer_state import AppendOrigin
from barnabas.broker.replication.partition import Partition
from barnabas.protocol.record_batch import parse_header
from barnabas.protocol.records import MarkerType
from tests.support.logs import PRODUCER_ID, marker, produced

OTHER_ID = PRODUCER_ID + 1


def write(
    partition: Partition,
    sequence: int = 0,
    count: int = 1,
    *,
    producer_id: int = PRODUCER_ID,
    epoch: int = 0,
    size: int = 20,
    timestamp_ms: int = 0,
) -> AppendResult:
    """Append a batch of a transaction that its coordinator has confirmed."""
    guard = partition.log.begin_verification(producer_id, epoch)
    data = produced(
        sequence,
        count,
        producer_id=producer_id,
        epoch=epoch,
        size=size,
        timestamp_ms=timestamp_ms,
        is_transactional=True,
    )
    return partition.append_as_leader(
        parse_produced(data),
        require_all=False,
        now_ms=0,
        wall_clock_ms=0,
        guards=None if guard is None else {producer_id: guard},
    )


def end(
    partition: Partition, *, committed: bool, producer_id: int = PRODUCER_ID, epoch: int = 0
) -> AppendResult:
    """Append the marker of a transaction."""
    marker_type = MarkerType.COMMIT if committed else MarkerType.ABORT
    data = marker(marker_type, producer_id=producer_id, epoch=epoch)
    return partition.append_as_leader(
        ProducedBatches(memoryview(data), [(0, parse_header(data))]),
        require_all=False,
        now_ms=0,
        wall_clock_ms=0,
        origin=AppendOrigin.MARKERS,
    )
