"""The state of a log's idempotent producers (KIP-98, KIP-360): the rules for their batches, and snapshots.

Every batch of such a producer carries its id, an epoch and the sequence number of its first record. The rules
are Kafka 3.9's, and pure:

- a batch that repeats one of its producer's last five is a duplicate: it is not written again, and the
  response has the offset of the first append;
- any other batch must continue the sequence, wrapping from 2^31 - 1 to 0, or begin with 0 in a newer epoch;
- an older epoch is refused;
- an unknown producer (its state has expired, or its records were deleted) may begin with any sequence.

The states follow from the appended batches, so each replica derives them itself. A file `<offset>.snapshot`
has the states of a log that ended at that offset. It only saves time, so a damaged one is reported and
removed. No snapshot lies beyond the log's end, because it would describe truncated batches.

The format is Kafka's: version 2 bytes, CRC-32C 4, count 4, then entries of 46 bytes, all big endian; the CRC
covers the bytes after it. Kafka writes one entry for each producer, with its last batch. Here a producer has
an entry for each of its last five batches, oldest first. Kafka's reader uses the last entry, so each side can
read the other's files, and a restart forgets no batch that may be sent again. States keep their batches as
these entries: a partition may have 100,000 producers, and a snapshot is then little more than one copy.

Read and changed under the log's lock. Source: `ProducerStateManager` of Kafka 3.9.
"""

from __future__ import annotations

import logging
import os
import struct
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from barnabas.broker.log.file_system import (
    FILE_SYSTEM,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    FileSystem,
    segment_name,
)
from barnabas.broker.log.storage_errors import CheckpointDamaged, Operation, disk_work, storage_error
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.record_batch import TRANSACTIONAL_MASK, BatchHeader

logger = logging.getLogger(__name__)

MAX_SEQUENCE: Final = (1 << 31) - 1
_BATCHES_COMPARED: Final = 5
"""The number of batches that duplicates are compared with: an idempotent producer's limit in flight."""
_BATCHES_KEPT: Final = 2 * _BATCHES_COMPARED
"""Twice as many, so that a truncation of all batches in flight leaves the ones before them."""
_NONE: Final = -1
"""No coordinator epoch, no sequence, no offset."""

_ENTRY: Final = struct.Struct(">qhiqiqiq")
"""A batch in a snapshot: producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator
epoch, and the first offset of the transaction under way or -1."""
_LAST: Final = struct.Struct(">iq")
_LAST_FROM_END: Final = _ENTRY.size - 10
"""Positions of the newest batch's last sequence and last offset, from the end of the bytes."""
_COMPARED_BYTES: Final = _BATCHES_COMPARED * _ENTRY.size
_KEPT_BYTES: Final = _BATCHES_KEPT * _ENTRY.size
_EVICTED_AT_ONCE: Final = 16
"""Evict a 16th more than necessary; otherwise each new producer would search for the oldest."""
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_MANY: Final = 1_000
"""Writing more producers takes milliseconds, too long under a log's lock."""
_PIECE: Final = 1_000


class RecentBatch(NamedTuple):
    """A batch that was appended: its sequence numbers and offsets, first and last, and its max timestamp."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerState:
    """One producer. Invariant: the batches are in the order of their offsets, and all of this epoch."""

    __slots__ = (
        "_marks",
        "_packed",
        "epoch",
        "has_earlier",
        "last_append_ms",
        "producer_id",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        # The batches as snapshot entries, oldest first.
        self._packed = b""
        # Timestamp, coordinator epoch and first offset of the transaction; None if they are the newest
        # batch's timestamp and no transaction.
        self._marks: tuple[int, int, int] | None = None
        self.has_earlier = False
        """Whether the log may hold earlier batches of this producer than the ones kept here, of any epoch."""
        self.last_append_ms = _NONE
        """The time when this broker appended the last batch; record timestamps may be years old."""

    @property
    def recent(self) -> tuple[RecentBatch, ...]:
        """Oldest first."""
        return tuple(
            RecentBatch((sequence - delta) & MAX_SEQUENCE, sequence, offset - delta, offset, timestamp_ms)
            for _, _, sequence, offset, delta, timestamp_ms, _, _ in _ENTRY.iter_unpack(self._packed)
        )

    @property
    def last_sequence(self) -> int:
        packed = self._packed
        sequence: int = _LAST.unpack_from(packed, len(packed) - _LAST_FROM_END)[0] if packed else _NONE
        return sequence

    @property
    def last_offset(self) -> int:
        packed = self._packed
        offset: int = _LAST.unpack_from(packed, len(packed) - _LAST_FROM_END)[1] if packed else _NONE
        return offset

    @property
    def timestamp_ms(self) -> int:
        """The timestamp of the last write, from its batch."""
        if self._marks is not None:
            return self._marks[0]
        return self.recent[-1].timestamp_ms if self._packed else _NONE

    @property
    def coordinator_epoch(self) -> int:
        return _NONE if self._marks is None else self._marks[1]

    @property
    def current_transaction_first_offset(self) -> int:
        return _NONE if self._marks is None else self._marks[2]

    def entries(self) -> bytes:
        """The snapshot entries: the batches to compare duplicates with, or one entry without a batch."""
        if self._marks is None and self._packed:
            return self._packed[-_COMPARED_BYTES:]
        timestamp_ms, coordinator_epoch, first_offset = self._marks or (_NONE, _NONE, _NONE)
        entries = list(_ENTRY.iter_unpack(self._packed[-_COMPARED_BYTES:]))
        entries = entries or [(self.producer_id, self.epoch, _NONE, _NONE, 0, timestamp_ms, _NONE, _NONE)]
        last = (*entries.pop()[:5], timestamp_ms, coordinator_epoch, first_offset)
        return b"".join(_ENTRY.pack(*entry[:6], coordinator_epoch, _NONE) for entry in entries) + _ENTRY.pack(
            *last
        )

    def mark(self, timestamp_ms: int, coordinator_epoch: int, transaction_first_offset: int) -> None:
        """Set the values that no batch carries: last write, coordinator epoch, start of the transaction."""
        self._marks = (timestamp_ms, coordinator_epoch, transaction_first_offset)

    def find(self, header: BatchHeader) -> RecentBatch | None:
        """The same batch, if it is among the last five of the same epoch."""
        if header.producer_epoch != self.epoch:
            return None
        first, last = header.base_sequence, _last_sequence_of(header)
        for batch in reversed(self.recent[-_BATCHES_COMPARED:]):
            if batch.base_sequence == first and batch.last_sequence == last:
                return batch
        return None

    def add(self, last_sequence: int, last_offset: int, delta: int, timestamp_ms: int) -> None:
        """Add the newest batch; `delta` is the distance of its offsets, first to last."""
        packed = self._packed
        if len(packed) >= _KEPT_BYTES:
            packed = packed[_ENTRY.size - _KEPT_BYTES :]
            self.has_earlier = True
        self._packed = packed + _ENTRY.pack(
            self.producer_id, self.epoch, last_sequence, last_offset, delta, timestamp_ms, _NONE, _NONE
        )
        if self._marks is not None:
            self._marks = (timestamp_ms, *self._marks[1:])

    def keep(self, batches: int) -> None:
        """Forget all batches except the oldest `batches`."""
        self._packed = self._packed[: batches * _ENTRY.size]
        self._marks = None

    def begin_epoch(self, epoch: int) -> None:
        """Forget the batches of another epoch."""
        self.has_earlier = self.has_earlier or bool(self._packed)
        self._packed = b""
        self.epoch = epoch


class ProducerStates:
    """All producers of one log."""

    __slots__ = ("_by_id",)

    def __init__(self, states: Iterable[ProducerState] = ()) -> None:
        self._by_id = {state.producer_id: state for state in states}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(self._by_id.values())

    def get(self, producer_id: int) -> ProducerState | None:
        return self._by_id.get(producer_id)

    def have(self, batches: Iterable[tuple[int, BatchHeader]]) -> bool:
        """Whether all these batches are duplicates."""
        return all(
            (state := self._by_id.get(header.producer_id)) is not None and state.find(header) is not None
            for _, header in batches
        )

    def check(self, batches: Sequence[tuple[int, BatchHeader]]) -> list[RecentBatch]:
        """Check whether the batches of one request may be appended; changes nothing.

        Returns the first appends of the leading batches that are duplicates, usually an empty list. Raises
        OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, or INVALID_RECORD for
        contradictory fields.
        """
        duplicates: list[RecentBatch] = []
        # (epoch, last sequence) of each producer after the earlier batches of this request.
        ahead: dict[int, tuple[int, int]] | None = None
        for index, (_, header) in enumerate(batches):
            producer_id = header.producer_id
            if producer_id < 0 and not header.attributes & TRANSACTIONAL_MASK:
                continue
            if (
                header.base_sequence < 0
                or header.producer_epoch < 0
                or header.attributes & TRANSACTIONAL_MASK
            ):
                raise _nonsense(header)
            position = None if ahead is None else ahead.get(producer_id)
            state = self._by_id.get(producer_id)
            if position is None and state is not None:
                position = (state.epoch, state.last_sequence)
            if position is not None and not _follows(header, *position):
                duplicate = None if state is None else state.find(header)
                if duplicate is None:
                    raise _refusal(header, *position)
                if len(duplicates) < index:
                    raise api_error(
                        ErrorCode.INVALID_RECORD,
                        f"{_batch(header)} is a duplicate, but the batch before it in the request is not",
                    )
                duplicates.append(duplicate)
                continue
            if index + 1 < len(batches):
                if ahead is None:
                    ahead = {}
                ahead[producer_id] = (header.producer_epoch, _last_sequence_of(header))
        return duplicates

    def note(self, header: BatchHeader, now_ms: int) -> None:
        """Record an appended batch with a producer id.

        The leader has checked it. Transaction markers have no sequence.
        """
        epoch = header.producer_epoch
        state = self._by_id.get(header.producer_id)
        if state is None:
            state = self._by_id[header.producer_id] = ProducerState(header.producer_id, epoch)
        elif state.epoch != epoch:
            state.begin_epoch(epoch)
        state.last_append_ms = now_ms
        base_sequence = header.base_sequence
        if base_sequence < 0:
            state.mark(header.max_timestamp, state.coordinator_epoch, state.current_transaction_first_offset)
            return
        delta = header.last_offset_delta
        state.add(
            (base_sequence + delta) & MAX_SEQUENCE, header.base_offset + delta, delta, header.max_timestamp
        )

    def cut(self, end_offset: int) -> bool:
        """Drop all batches at or above an offset, where the log was truncated.

        Returns False and changes nothing if that needs older batches than are kept; the caller must then
        rebuild the states from the log.
        """
        truncated: list[tuple[ProducerState, int]] = []
        for state in self._by_id.values():
            if state.last_offset < end_offset:
                continue
            kept = sum(batch.last_offset < end_offset for batch in state.recent)
            if state.coordinator_epoch != _NONE or state.current_transaction_first_offset != _NONE:
                return False
            if kept < _BATCHES_COMPARED and state.has_earlier:
                return False
            truncated.append((state, kept))
        for state, kept in truncated:
            if kept:
                state.keep(kept)
            else:
                del self._by_id[state.producer_id]
        return True

    def images(self) -> list[bytes]:
        """Each producer's bytes as in `ProducerState.entries`, older batches first; nothing is copied."""
        return [
            state._packed if state._marks is None and state._packed else state.entries()
            for state in self._by_id.values()
        ]

    def bound(self, most: int) -> int:
        """Evict the producers that have not written for longest if there are too many; returns their number.

        Producers in a transaction stay. Evicts a 16th at once, so that the average cost of a new producer is
        small.
        """
        if len(self._by_id) <= most:
            return 0
        idle = [state for state in self._by_id.values() if state.current_transaction_first_offset == _NONE]
        idle.sort(key=attrgetter("last_append_ms"))
        evicted = idle[: len(self._by_id) - most + most // _EVICTED_AT_ONCE]
        for state in evicted:
            del self._by_id[state.producer_id]
        return len(evicted)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Drop producers that have not written for that long, except in transactions; returns the number."""
        expired = [
            state.producer_id
            for state in self._by_id.values()
            if now_ms - state.last_append_ms >= expiration_ms
            and state.current_transaction_first_offset == _NONE
        ]
        for producer_id in expired:
            del self._by_id[producer_id]
        return len(expired)


def _follows(header: BatchHeader, epoch: int, last_sequence: int) -> bool:
    """Whether a batch continues a producer that is at this epoch and sequence (-1: nothing in this epoch)."""
    if header.producer_epoch == epoch:
        return header.base_sequence == (last_sequence + 1) & MAX_SEQUENCE
    return header.producer_epoch > epoch and header.base_sequence == 0


def _last_sequence_of(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) & MAX_SEQUENCE


def _refusal(header: BatchHeader, epoch: int, last_sequence: int) -> ApiError:
    if header.producer_epoch < epoch:
        return api_error(
            ErrorCode.INVALID_PRODUCER_EPOCH, f"{_batch(header)}: the producer already has epoch {epoch}"
        )
    expected = (last_sequence + 1) & MAX_SEQUENCE if header.producer_epoch == epoch else 0
    return api_error(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{_batch(header)}: expected sequence {expected}"
    )


def _nonsense(header: BatchHeader) -> ApiError:
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        return api_error(
            ErrorCode.INVALID_RECORD,
            f"{_batch(header)}: with a producer id, neither epoch nor sequence may be below 0",
        )
    return api_error(ErrorCode.INVALID_TXN_STATE, f"{_batch(header)} belongs to no ongoing transaction")


def _batch(header: BatchHeader) -> str:
    return (
        f"the batch with sequence {header.base_sequence} of producer {header.producer_id} "
        f"epoch {header.producer_epoch}"
    )


def encode_snapshot(states: Iterable[ProducerState]) -> bytes:
    entries = b"".join([state.entries() for state in states])
    body = _COUNT.pack(len(entries) // _ENTRY.size) + entries
    return _HEAD.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes, source: object) -> list[ProducerState]:
    """The producers of a snapshot file; `source` names it in errors. Raises CheckpointDamaged."""
    if len(data) < _HEAD.size + _COUNT.size:
        raise CheckpointDamaged(f"{source}: {len(data)} bytes are not a snapshot")
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CheckpointDamaged(f"{source}: version {version}, expected {_VERSION}")
    computed = crc32c(memoryview(data)[_HEAD.size :])
    if crc != computed:
        raise CheckpointDamaged(f"{source}: the CRC is {crc:#010x}, its bytes have {computed:#010x}")
    (count,) = _COUNT.unpack_from(data, _HEAD.size)
    entries = memoryview(data)[_HEAD.size + _COUNT.size :]
    if count < 0 or len(entries) != count * _ENTRY.size:
        raise CheckpointDamaged(f"{source}: {count} entries in {len(entries)} bytes")
    states: dict[int, ProducerState] = {}
    for entry in _ENTRY.iter_unpack(entries):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, *transaction = entry
        state = states.get(producer_id)
        if state is None or state.epoch != epoch:
            state = states[producer_id] = ProducerState(producer_id, epoch)
            state.has_earlier = True
        if last_offset >= 0:
            state.add(last_sequence, last_offset, delta, timestamp_ms)
        if last_offset < 0 or transaction != [_NONE, _NONE]:
            state.mark(timestamp_ms, *transaction)
    return list(states.values())


class _KeptSnapshot(NamedTuple):
    offset: int
    images: list[bytes]


class ProducerSnapshots:
    """The snapshot files of one partition's folder, by offset."""

    __slots__ = ("_being_written", "_files", "_kept", "_offsets", "_unsynced", "folder", "has_removed")

    def __init__(self, folder: Path, offsets: Iterable[int] = (), files: FileSystem = FILE_SYSTEM) -> None:
        self.folder = folder
        self._files = files
        self._offsets = sorted(offsets)
        self._unsynced = set(self._offsets)
        self.has_removed = False
        """Whether a power cut may bring a removed snapshot back; cleared after a sync of the folder."""
        # A snapshot too large to write under the lock; `write_kept` writes it.
        self._kept: _KeptSnapshot | None = None
        self._being_written: _KeptSnapshot | None = None

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(self._offsets)

    def path(self, offset: int) -> Path:
        return self.folder / segment_name(offset, SNAPSHOT_SUFFIX)

    def write(self, offset: int, states: Iterable[ProducerState]) -> bool:
        """Write the states of a log that ends at an offset; False if that was done or the log has no record.

        Atomic, but not safe from a power cut before `fsync`. Raises LogDirFailure.
        """
        if not self._is_new(offset):
            return False
        path = self.path(offset)
        with disk_work(path):
            self._files.write_atomically(path, encode_snapshot(states), durable=False)
        # The kept one is older.
        self._kept = None
        insort(self._offsets, offset)
        self._unsynced.add(offset)
        return True

    def write_or_keep(self, offset: int, states: ProducerStates) -> None:
        """Write a snapshot, or keep references to many producers; `write_kept` writes them without the lock.

        A crash in between only costs time: an older snapshot and the batches after it give the same state.
        """
        if len(states) <= _MANY:
            self.write(offset, states)
        elif self._is_new(offset):
            self._kept = _KeptSnapshot(offset, states.images())

    def write_kept(self, lock: AbstractContextManager[object]) -> None:
        """Write the kept snapshot if it still fits the log; holds the lock only briefly. Raises OSError."""
        with lock:
            kept = self._kept
            if kept is None or kept is self._being_written:
                return
            self._being_written = kept
        path = self.path(kept.offset)
        # A name that `write`, which may run meanwhile, does not use.
        written = path.with_name(f"{path.name}.kept{TEMPORARY_SUFFIX}")
        try:
            self._write_images(written, kept.images)
            with lock:
                if self._kept is kept:
                    self._files.rename(written, path)
                    insort(self._offsets, kept.offset)
                    self._unsynced.add(kept.offset)
                    self._kept = None
        finally:
            if self._being_written is kept:
                self._being_written = None
            self._files.unlink(written, missing_ok=True)

    def _is_new(self, offset: int) -> bool:
        return offset > 0 and not (self._offsets and self._offsets[-1] >= offset)

    def _write_images(self, path: Path, images: list[bytes]) -> None:
        """Write in pieces, because one large copy would hold the interpreter lock too long."""
        count = sum(min(len(image), _COMPARED_BYTES) for image in images) // _ENTRY.size
        head = _COUNT.pack(count)
        crc = crc32c(head)
        position = _HEAD.size + len(head)
        descriptor = self._files.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            for start in range(0, len(images), _PIECE):
                piece = b"".join([image[-_COMPARED_BYTES:] for image in images[start : start + _PIECE]])
                crc = crc32c(piece, crc)
                self._files.write_all(descriptor, piece, position)
                position += len(piece)
            self._files.write_all(descriptor, _HEAD.pack(_VERSION, crc) + head, 0)
        finally:
            os.close(descriptor)

    def load_newest(self) -> tuple[int, list[ProducerState]] | None:
        """The newest sound snapshot, with its offset; damaged ones are removed. Raises LogDirFailure."""
        while self._offsets:
            offset = self._offsets[-1]
            path = self.path(offset)
            try:
                return offset, decode_snapshot(path.read_bytes(), path)
            except CheckpointDamaged as error:
                logger.warning("a damaged snapshot of the producers is removed: %s", error)
            except FileNotFoundError:
                logger.warning("%s: the snapshot of the producers is missing", path)
            except OSError as error:
                raise storage_error(path, error, Operation.READ) from error
            self._remove(self._offsets[-1:])
        return None

    def remove_above(self, offset: int) -> None:
        """Remove the snapshots of a log end above an offset. Raises LogDirFailure."""
        if self._kept is not None and self._kept.offset > offset:
            self._kept = None
        self._remove(self._offsets[bisect_right(self._offsets, offset) :])

    def remove_below(self, offset: int) -> None:
        """Remove the snapshots of a log end below an offset. Raises LogDirFailure."""
        if self._kept is not None and self._kept.offset < offset:
            self._kept = None
        self._remove([at for at in self._offsets if at < offset])

    def remove_strays(self, segment_bases: Iterable[int]) -> None:
        """Remove all but the newest snapshot at whose offset no segment begins. Raises LogDirFailure."""
        bases = set(segment_bases)
        self._remove([offset for offset in self._offsets[:-1] if offset not in bases])

    @property
    def is_synced(self) -> bool:
        return not self._unsynced

    def note_synced(self) -> None:
        """All snapshots in the folder were synced earlier."""
        self._unsynced.clear()

    def fsync(self) -> None:
        """Sync the snapshots that changed; not the folder. Needs no lock. Raises OSError."""
        for offset in tuple(self._unsynced):
            self._files.fsync(self.path(offset))
            self._unsynced.discard(offset)

    def _remove(self, offsets: Iterable[int]) -> None:
        for offset in list(offsets):
            path = self.path(offset)
            with disk_work(path, Operation.CHANGE):
                self._files.unlink(path, missing_ok=True)
            self._offsets.remove(offset)
            self._unsynced.discard(offset)
            self.has_removed = True
