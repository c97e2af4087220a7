"""One cleaning of a compacted topic by a running broker of either system.

`write` fills a topic that the cleaner must leave alone; `clean` lets the cleaner go and waits until it has
cleaned every sealed segment. Both systems write Kafka's files, so the sealed segments are counted in the log
dir, and the end of a cleaning is read from ``cleaner-offset-checkpoint``. Every record that is left is read
back: a cleaner that kept too much, or too little, raises PeerError. All waits are bounded. One thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from barnabas.broker.log.checkpoints import OffsetCheckpoint
from barnabas.broker.log.log_dir import CLEANER_CHECKPOINT
from barnabas.protocol.ids import TopicPartition
from benchmarks.peers import load
from benchmarks.peers.processes import PeerError, cpu_seconds
from benchmarks.peers.systems import Restartable

SETTINGS: Final = {
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(128 * 1024 * 1024),
    # The cleaner looks for work so often: the most by which a cleaning begins late.
    "log.cleaner.backoff.ms": "20",
}
"""The settings of both systems' brokers. The first two are the defaults of both."""
_SEGMENT_BYTES: Final = 64 * 1024 * 1024
_HELD_MS: Final = 3_600_000
_VALUES: Final = 16
_TIMEOUT_S: Final = 120.0
_LOOK_S: Final = 0.005


class Case(NamedTuple):
    """The records of a topic: their values' size, how many there are, and the order of their keys."""

    name: str
    value_bytes: int
    keys: Sequence[int]

    @classmethod
    def of(cls, name: str, value_bytes: int, count: int, values_of_each_key: int) -> Case:
        """Keys in random order: the same order in every run and for every system."""
        keys = [number % (count // values_of_each_key) for number in range(count)]
        Random(count).shuffle(keys)
        return cls(name, value_bytes, keys)

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys of 16 bytes, and values that do not compress."""
        random = Random(self.value_bytes)
        values = [random.randbytes(self.value_bytes) for _ in range(_VALUES)]
        for number, key in enumerate(self.keys):
            yield b"key-%012d" % key, values[number % _VALUES]


class SealedPart(NamedTuple):
    """All segments of a log but the last one."""

    end_offset: int
    size_bytes: int


class Cleaning(NamedTuple):
    """One cleaning: the bytes and records that it read, its time, and the CPU time of the broker."""

    size_bytes: int
    records: int
    wall_s: float
    cpu_s: float


def records_left(keys: Sequence[int], sealed_end: int) -> int:
    """The number of records that a cleaning of those below `sealed_end` leaves; offsets count from 0.

    The last record of each key below that end stays, and so does everything from that end on: records of the
    active segment remove nothing before them until they are cleaned themselves.
    """
    return len(set(keys[:sealed_end])) + len(keys) - sealed_end


def sealed_part(folder: Path) -> SealedPart:
    """The sealed segments of the log in this folder; raises PeerError if there is no such segment."""
    segments = sorted(folder.glob("*.log"))
    if len(segments) < 2:
        raise PeerError(f"{folder} has {len(segments)} segments: expected a sealed one and the active one")
    *sealed, active = segments
    return SealedPart(int(active.stem), sum(path.stat().st_size for path in sealed))


def cleaned_end(log_dir: Path, topic: str) -> int:
    """The offset up to which partition 0 of the topic is clean, by the log dir's checkpoint; 0 at first."""
    return OffsetCheckpoint(log_dir / CLEANER_CHECKPOINT).read().get(TopicPartition(topic, 0), 0)


def write(system: Restartable, topic: str, case: Case) -> None:
    """Make the topic with one partition and all records of the case, none of which may be cleaned yet."""
    load.create_topic(
        system.bootstrap,
        topic,
        1,
        1,
        cleanup_policy="compact",
        segment_bytes=str(_SEGMENT_BYTES),
        min_cleanable_dirty_ratio="0.01",
        min_compaction_lag_ms=str(_HELD_MS),
    )
    load.produce_keyed(system.bootstrap, topic, case.records())


def _flush(folder: Path) -> None:
    """Bring the segments to the disk, so that it is not busy with them when the cleaner syncs its own."""
    for path in folder.glob("*.log"):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def clean(system: Restartable, topic: str, case: Case) -> Cleaning:
    """Let the cleaner go, wait until every sealed segment is clean, and count the records that are left."""
    ((broker_id, pid),) = system.pids().items()
    log_dir = system.log_dir(broker_id)
    folder = log_dir / f"{topic}-0"
    sealed = sealed_part(folder)
    _flush(folder)
    cpu_s, began = cpu_seconds([pid]), time.perf_counter()
    load.alter_topic(system.bootstrap, topic, min_compaction_lag_ms="0")
    while (end := cleaned_end(log_dir, topic)) < sealed.end_offset:
        if time.perf_counter() - began > _TIMEOUT_S:
            raise PeerError(
                f"{system.name}: {topic} is clean up to {end} after {_TIMEOUT_S:g} s; "
                f"expected {sealed.end_offset}"
            )
        time.sleep(_LOOK_S)
    wall_s, cpu_s = time.perf_counter() - began, cpu_seconds([pid]) - cpu_s
    left, expected = load.count_records(system.bootstrap, topic), records_left(case.keys, sealed.end_offset)
    if left != expected:
        raise PeerError(f"{system.name}: {topic} has {left} records after its cleaning; expected {expected}")
    return Cleaning(sealed.size_bytes, sealed.end_offset, wall_s, cpu_s)
