"""The bounds of the broker, all in one place: how much a peer may hold, ask and cost.

`ConnectionLimits` is what one connection may; the others are what all of them may together, beside the
settings (`queued.max.request.bytes`, `queued.max.requests`, `socket.request.max.bytes`, `max.connections` …).
Those of messages are in `barnabas.protocol`: of a head and its elements in `schema`, of a batch in
`record_walk` and `compression`, of error texts in `errors`.
docs/guarantees.md says what happens at each bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# The workers of each lane that has a fixed number
RECORDS_WORKERS: Final = 2
"""Decompressed records take a multiple of their size: the number of threads bounds the memory."""
DISK_WORKERS: Final = 4
CONTROL_WORKERS: Final = 1

# Network threads
MAX_ON_NETWORK_THREAD: Final = 500
"""Partitions of one Produce or Fetch, and batches of a Produce in the native protocol. A larger one runs on a
worker, and a waiting fetch on a thread of its own."""

MAX_PRODUCED_BATCHES: Final = 1_000
"""Of a partition, in a request in the native protocol; Kafka's has one."""

# Before a peer is known
MAX_UNAUTHENTICATED: Final = 1_000
"""Connections in a TLS handshake or before the end of SASL's exchange; as many again on the brokers' own
listener. One takes up to some 200 KB."""
LEAST_UNAUTHENTICATED: Final = 100
"""If the limit of open files or `max.connections` is low, half of it counts, but not less than this:
otherwise peers that stay unknown would reach that limit first, and keep everybody out."""
MAX_UNAUTHENTICATED_REQUESTS: Final = 10
"""Unanswered requests of such a connection, with at most the bytes of two of the longest. Clients send one at
a time; those that wait for the pause after a failure would add up."""

ADOPTIONS_RUN_NS: Final = 100_000
HANDSHAKES_RUN_NS: Final = 200_000
"""How long a network thread may take new connections over, and continue TLS handshakes and logins, in a turn
of its loop: a request of a known peer waits for about two turns. More costs latency and gains nothing."""

SLICE_OPERATIONS: Final = 16
SLICE_PARTITIONS: Final = 100
"""Waiting requests that are checked or expired in a turn of a loop, and their partitions: about a millisecond
for fetches."""

# Requests that wait for an event
MAX_WAITING: Final = 100_000
"""In each purgatory."""
MAX_WAITING_FOR_TOPICS: Final = 10_000
MAX_WAITING_PARTITIONS: Final = 500_000
"""Of all requests in a purgatory; one takes up to about 600 bytes."""
MAX_SESSION_PARTITIONS: Final = 500_000
"""In all fetch sessions of consumers, and in that of each follower; a partition takes about 500 bytes."""
MAX_PARTITIONS_OF_SESSION: Final = 10_000
"""In one fetch session of a consumer. An eviction closes it on the thread of another fetch."""

MAX_NEW_CONFIGS_BYTES: Final = 4 * 1024 * 1024
"""Of the settings in an answer to CreateTopics; some 2,000 topics have so much."""

# Groups
MAX_NEW_GROUPS: Final = 2_000
"""Of one partition of the offsets topic: without a generation and an offset. Each takes about 3 KB."""
MAX_MEMBER_PROTOCOLS: Final = 100
"""Of one JoinGroup. Clients have a handful of assignors."""
MAX_GROUP_METADATA_BYTES: Final = 16 * 1024 * 1024
"""Of the protocols of all members. The record of a group, with one protocol of each, is at most a batch."""

MAX_GROUPS_BYTES: Final = 512 * 1024 * 1024
"""About what all groups may take, without their offsets."""

# Old records, which an answer holds as copies
MAX_COLD_BYTES: Final = 4 * 1024 * 1024
"""In one answer."""
POOLED_SMALL_BLOCKS: Final = 64
POOLED_LARGE_BLOCKS: Final = 32
MAX_UNPOOLED_BYTES: Final = 64 * 1024 * 1024
COLD_READERS: Final = 4
"""Threads that read old records."""
MAX_WAITING_FOR_COLD_READERS: Final = 1_000
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
"""Of the indexes of sealed segments that stay in memory: those of 32 GB of log."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection."""

    max_in_flight: int = 100
    max_in_flight_bytes: int = 16 * 1024 * 1024
    max_unwritten_bytes: int = 1024 * 1024
    run_ns: int = 2_000_000
    """How long it may run requests on the network thread before others have their turn."""

    authentication_ms: int = 10_000
    """How long the TLS handshake and SASL's exchange may take together."""

    # While connections wait for memory
    always_bytes: int = 64 * 1024
    """It may hold so much even then."""
    longest_hold_ns: int = 30_000_000_000
    """How long its requests may hold more than that, except those that wait for a worker; and how long an
    incomplete frame may wait for memory."""
    begun_grace_ns: int = 10_000_000_000
    """After this, a frame that it has begun must have come at the slowest rate or faster."""
    beyond_grace_ns: int = 2_000_000_000
    """The same for the frame that is received although the memory is full."""
    slowest_bytes_per_s: int = 1_000_000
