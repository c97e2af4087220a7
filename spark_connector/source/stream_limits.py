"""How far a micro-batch reads: rules from the offsets of a stream and its limits to the end of a batch.

`share_offsets` follows Spark's Kafka source, so that a query which moves over has batches of the same size.
The limit of bytes is Barnabas' own. No request tells how many bytes lie between two
offsets, so `ByteWalk` looks at the sizes of record batches at some places of a partition and
calculates the stretches between them from the sizes at both ends.

Pure: the caller makes the requests and reads the clock.

Source of the first rule: KafkaMicroBatchStream.scala of Apache Spark 4.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from barnabas.client.admin.peek import BatchSize
from barnabas.protocol.ids import TopicPartition
from barnabas.spark_connector.source.stream_offsets import Positions

STRETCHES: Final = 16
"""The number of stretches into which a partition's share of the bytes is divided."""
PIECE_BYTES: Final = 64 * 1024
"""The bytes that one look asks for."""
MAX_PIECE_BYTES: Final = 16 * 1024 * 1024
SAMPLED_SHARE: Final = 0.8
"""The part of a larger share that is aimed at, since samples of uneven sizes are often too low."""
ENOUGH_BATCHES: Final = 8
"""Of so many batches at a place the mean is taken."""
MAX_HALVINGS: Final = 4
"""How often a stretch is halved."""
MAX_ROUNDS: Final = 64
"""A bound for the requests of one batch; a walk that is not done then ends the batch where it is."""


def available(start: Positions, latest: Positions) -> int:
    """The number of offsets between two positions."""
    return sum(max(0, latest[tp] - start[tp]) for tp in latest)


def share_offsets(limit: int, start: Positions, latest: Positions) -> dict[TopicPartition, int]:
    """The end of a batch of about ``limit`` offsets, shared by the number that each partition has.

    A small partition gets one offset at least, so a batch may have a few more than the limit.
    """
    sizes = {tp: end - start[tp] for tp, end in latest.items() if end > start[tp]}
    total = float(sum(sizes.values()))
    ends = dict(latest)
    for tp, size in sizes.items():
        share = limit * (size / total)
        rounded = math.ceil(share) if share < 1 else math.floor(share)
        ends[tp] = min(latest[tp], start[tp] + rounded)
    return ends


class ByteWalk:
    """Finds ends so that the record batches of all partitions have about ``limit`` bytes in the log.

    Each partition has a share by its number of offsets, and gets one offset at least. While `is_done` is
    false, look at `positions` with `piece_bytes` and pass what was found to `found`.

    A share of up to `STRETCHES` times `PIECE_BYTES` is measured in whole, to the part of a record batch. In a
    larger one each stretch counts with the mean of the sizes at its ends; where they differ much, it is
    halved. The result was 0.8 to 1.0 of the limit with sizes that are even, grow or change once, and 0.7 to
    1.4 with records of 10 bytes to 100 kB in any order. A burst of large records inside a stretch is missed.
    """

    def __init__(self, limit: int, start: Positions, latest: Positions) -> None:
        sizes = {tp: end - start[tp] for tp, end in latest.items() if end > start[tp]}
        total = sum(sizes.values())
        self._walks = {
            tp: _PartitionWalk(start[tp], latest[tp], limit * size / total) for tp, size in sizes.items()
        }
        self._latest = latest
        self._rounds = 0

    @property
    def is_done(self) -> bool:
        return self._rounds >= MAX_ROUNDS or all(walk.end is not None for walk in self._walks.values())

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Where to look next, those first that an answer had no room for."""
        walks = {tp: walk for tp, walk in self._walks.items() if walk.end is None}
        return {tp: walks[tp].position for tp in sorted(walks, key=lambda tp: -walks[tp].piece_bytes)}

    @property
    def piece_bytes(self) -> int:
        return max(walk.piece_bytes for walk in self._walks.values() if walk.end is None)

    def found(self, batches: Mapping[TopicPartition, Sequence[BatchSize]]) -> None:
        """Take the record batches at the positions; a partition may have none if there was no room."""
        self._rounds += 1
        for tp in self.positions:
            self._walks[tp].found(batches.get(tp, ()))

    @property
    def ends(self) -> dict[TopicPartition, int]:
        return {
            tp: latest if (walk := self._walks.get(tp)) is None else walk.reached
            for tp, latest in self._latest.items()
        }


class _Sample(NamedTuple):
    """The record batches found at a place, and their bytes per offset."""

    position: int
    batches: list[BatchSize]
    density: float
    halvings: int
    """The number of times that the stretch before it was halved."""


class _PartitionWalk:
    """The walk over one partition: ``_bytes`` ≤ ``_share`` until ``end`` is set."""

    def __init__(self, start: int, latest: int, share: float) -> None:
        self._start = start
        self._latest = latest
        self._share = share if share <= STRETCHES * PIECE_BYTES else SAMPLED_SHARE * share
        self._bytes = 0.0
        self._checked = start
        """The offset up to which the bytes are counted."""
        self._density = 0.0
        """Bytes per offset before it."""
        self._ahead: list[_Sample] = []
        """Samples after a stretch that is still looked into, the nearest at the end."""
        self.position = start
        self.piece_bytes = PIECE_BYTES
        self.end: int | None = None

    @property
    def reached(self) -> int:
        """The end, if the walk is over; else the offset up to which it came, one after the start at least."""
        return self.end if self.end is not None else max(self._start + 1, self._checked)

    def found(self, batches: Collection[BatchSize]) -> None:
        pieces = [
            _part(batch, max(batch.base_offset, self.position), min(batch.next_offset, self._latest))
            for batch in batches
            if batch.next_offset > self.position and batch.base_offset < self._latest
        ]
        if not pieces:
            if batches:
                # Only later ones: a compacted log has holes.
                pieces = [BatchSize(self.position, self._latest, 0)]
            else:
                self.piece_bytes = min(MAX_PIECE_BYTES, 4 * self.piece_bytes)
                return
        self.piece_bytes = PIECE_BYTES
        # An answer ends before a batch that does not fit, so a mean of few batches leaves out the large ones.
        sampled = pieces if len(pieces) >= ENOUGH_BATCHES else pieces[:1]
        density = sum(piece.size_bytes for piece in sampled) / (sampled[-1].next_offset - self.position)
        halvings = self._ahead[-1].halvings + 1 if self._ahead else 0
        self._ahead.append(_Sample(self.position, pieces, density, halvings))
        while self._ahead and self.end is None:
            if self._is_unclear(self._ahead[-1]):
                self.position = (self._checked + self._ahead[-1].position) // 2
                return
            self._take(self._ahead.pop())
        if self.end is None:
            # By the mean, because the next size would count more after a small one than after a large one.
            mean = max(1.0, self._bytes) / (self._checked - self._start)
            skipped = (self._share / STRETCHES - PIECE_BYTES) / mean
            self.position = min(self._latest - 1, self._checked + max(0, int(skipped)))

    def _is_unclear(self, sample: _Sample) -> bool:
        """Whether the end is in the stretch before a sample, and the sizes at its ends differ much.

        Other stretches are not looked into: that would happen where a sample is large by chance, and make it
        count for less.
        """
        length = sample.position - self._checked
        difference = abs(sample.density - self._density) * length
        return (
            self._checked > self._start
            and length > 1
            and sample.halvings < MAX_HALVINGS
            and difference > self._share / (STRETCHES if self._is_last(sample) else 4)
        )

    def _is_last(self, sample: _Sample) -> bool:
        mean = (self._density + sample.density) / 2
        return self._bytes + mean * (sample.position - self._checked) > self._share

    def _take(self, sample: _Sample) -> None:
        if self._checked < sample.position:
            larger = max(self._density, sample.density)
            mean = (self._density + sample.density) / 2
            self._add(self._checked, sample.position, larger if self._is_last(sample) else mean)
        for piece in sample.batches:
            if self.end is None and piece.next_offset > self._checked:
                # A hole in the offsets before a batch has no bytes.
                self._add(max(self._checked, piece.base_offset), piece.next_offset, _density(piece))
        self._density = sample.density

    def _add(self, first: int, last: int, density: float) -> None:
        """Count the bytes of [first, last); end the walk where the share is used up, or at the end."""
        more = (last - first) * density
        if self._bytes + more <= self._share:
            self._bytes += more
            self._checked = last
            if last >= self._latest:
                self.end = self._latest
            return
        fitting = int((self._share - self._bytes) / density)
        self.end = max(self._start + 1, min(last, first + fitting))


def _part(batch: BatchSize, first: int, last: int) -> BatchSize:
    """The part of a batch between two offsets."""
    share = (last - first) / (batch.next_offset - batch.base_offset)
    return BatchSize(first, last, math.ceil(batch.size_bytes * share))


def _density(piece: BatchSize) -> float:
    return piece.size_bytes / (piece.next_offset - piece.base_offset)
