"""What one connection may hold, ask and cost, and what all of them may: the bounds of the network layer.

`RequestMemory` is the bound of the process beside that of each connection. The layers below bound what a
request costs: elements in a message (`barnabas.protocol`), waiting requests (`purgatory`), records read into
memory (`log.batch_scan`) and records looked into (`log.record_checks`). docs/guarantees.md lists them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RECORDS_WORKERS: Final = 2
"""Decompressed records take a multiple of their size: the number of threads bounds the memory."""
DISK_WORKERS: Final = 4
CONTROL_WORKERS: Final = 1


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection."""

    max_in_flight: int = 100
    max_in_flight_bytes: int = 16 * 1024 * 1024
    max_unwritten_bytes: int = 1024 * 1024
    run_ns: int = 2_000_000
    """How long it may run requests on the network thread before others have their turn."""

    # While connections wait for memory
    always_bytes: int = 64 * 1024
    """What it may hold even then."""
    longest_hold_ns: int = 30_000_000_000
    """How long its requests may hold more than that, except those that wait for a worker."""
    begun_grace_ns: int = 10_000_000_000
    """After this, a frame that it has begun must have come at the slowest rate or faster."""
    slowest_bytes_per_s: int = 100_000
