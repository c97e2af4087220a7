"""One way to append to a log, for all tests."""

from __future__ import annotations

from barnabas.broker.log.appending import AppendResult, parse_produced
from barnabas.broker.log.log import Log
from barnabas.protocol.record_batch import Buffer


def append_batches(log: Log, records: Buffer, leader_epoch: int = 0, now_ms: int = 0) -> AppendResult:
    """Append batches as the leader does with a producer's request."""
    return log.append_as_leader(parse_produced(records), leader_epoch, now_ms)
