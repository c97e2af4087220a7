"""Chooses the partition of a record. Pure except for random choices; used on the producer's own thread.

A key is hashed with murmur2, as by Java's client, so that both put it into the same partition. The strategies
differ for records without a key; ``round_robin`` and ``random`` ignore keys.

Source: Kafka's `BuiltInPartitioner` and KIP-480 for the behaviour; murmur2 by Austin Appleby (public domain).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Final

from barnabas.protocol.errors import InvalidConfiguration

KeyPartitioner = Callable[[bytes | None, int], int]

_MASK: Final = 0xFFFFFFFF
_M: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash with Kafka's seed, as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    rest = length - whole
    if rest:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a key in Java's client: the hash with its sign bit cleared, modulo the count."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class KeyCache:
    """Remembers the partitions of recent keys, because hashing a key in Python costs more than sending it.

    Bounded: it is cleared at ``max_keys`` keys, or at ``max_bytes`` bytes of keys.
    """

    def __init__(self, partition_count: int, max_keys: int = 65_536, max_bytes: int = 4_194_304) -> None:
        self._partition_count = partition_count
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._partitions: dict[bytes, int] = {}
        self._bytes = 0

    def partition(self, key: bytes) -> int:
        partition = self._partitions.get(key)
        if partition is None:
            self._bytes += len(key)
            if len(self._partitions) >= self._max_keys or self._bytes > self._max_bytes:
                self._partitions.clear()
                self._bytes = len(key)
            partition = self._partitions[bytes(key)] = partition_of_key(key, self._partition_count)
        return partition


def _in_turn() -> KeyPartitioner:
    turns = itertools.count()
    return lambda key, partition_count: next(turns) % partition_count


def _anywhere(key: bytes | None, partition_count: int) -> int:
    return random.randrange(partition_count)


def _by_key_or_anywhere(key: bytes | None, partition_count: int) -> int:
    return random.randrange(partition_count) if key is None else partition_of_key(key, partition_count)


STICKY: Final = "sticky"
MURMUR2: Final = "murmur2"
PARTITIONERS: Final[dict[str, Callable[[], KeyPartitioner | None]]] = {
    STICKY: lambda: None,
    MURMUR2: lambda: _by_key_or_anywhere,
    "round_robin": _in_turn,
    "random": lambda: _anywhere,
}
"""By name. ``sticky`` has no function, because it depends on the accumulator's batches."""


def make_partitioner(chosen: str | KeyPartitioner) -> KeyPartitioner | None:
    """The function of a partitioner by name or itself; None for sticky."""
    return chosen if callable(chosen) else PARTITIONERS[chosen]()


def check_partition(partition: object, partition_count: int, topic: str) -> int:
    """A partition that exists. Raises InvalidConfiguration for any other value."""
    if type(partition) is not int or not 0 <= partition < partition_count:
        raise InvalidConfiguration(
            f"partition {partition!r} of topic {topic!r}: expected a number from 0 to {partition_count - 1}"
        )
    return partition
