"""The snapshot files of a log's producers: their states when the log ended at an offset.

A file `<offset>.snapshot` only saves time: the states follow from the batches, so a damaged one is reported
and removed. No snapshot lies beyond the log's end, because it would describe truncated batches.

The format is Kafka's: version 2 bytes, CRC-32C 4, count 4, then entries of 46 bytes, all big endian; the CRC
covers the bytes after it. Kafka writes one entry for each producer, with its last batch and its ongoing
transaction. Here a producer has an entry for each of its last five batches, oldest first. Kafka's reader uses
the last entry, so each side can read the other's files, and a restart forgets no batch that may be sent
again.

Changed under the log's lock. Source: `ProducerStateManager` of Kafka 3.9.
"""

from __future__ import annotations

import logging
import os
import struct
from bisect import bisect_right, insort
from collections.abc import Iterable
from contextlib import AbstractContextManager
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
from barnabas.broker.log.producer_state import (
    NONE,
    SNAPSHOT_ENTRY,
    ProducerImage,
    ProducerState,
    ProducerStates,
    entries_of,
    entry_count,
)
from barnabas.broker.log.storage_errors import CheckpointDamaged, Operation, disk_work, storage_error

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_MANY: Final = 1_000
"""Writing more producers takes milliseconds, too long under a log's lock."""
_PIECE: Final = 1_000


def encode_snapshot(states: Iterable[ProducerState]) -> bytes:
    entries = b"".join([state.entries() for state in states])
    body = _COUNT.pack(len(entries) // SNAPSHOT_ENTRY.size) + entries
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
    if count < 0 or len(entries) != count * SNAPSHOT_ENTRY.size:
        raise CheckpointDamaged(f"{source}: {count} entries in {len(entries)} bytes")
    states: dict[int, ProducerState] = {}
    for entry in SNAPSHOT_ENTRY.iter_unpack(entries):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, *transaction = entry
        state = states.get(producer_id)
        if state is None or state.epoch != epoch:
            state = states[producer_id] = ProducerState(producer_id, epoch)
            state.has_earlier = True
        if last_offset >= 0:
            state.add(last_sequence, last_offset, delta, timestamp_ms)
        else:
            state.mark(timestamp_ms, NONE)
        state.coordinator_epoch, state.current_transaction_first_offset = transaction
    return list(states.values())


class _KeptSnapshot(NamedTuple):
    offset: int
    images: list[ProducerImage]


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
        """Write a snapshot, or keep the values of many producers, which `write_kept` writes without the lock.

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

    def _write_images(self, path: Path, images: list[ProducerImage]) -> None:
        """Write in pieces, because one large copy would hold the interpreter lock too long."""
        head = _COUNT.pack(sum(map(entry_count, images)))
        crc = crc32c(head)
        position = _HEAD.size + len(head)
        descriptor = self._files.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        try:
            for start in range(0, len(images), _PIECE):
                piece = b"".join(map(entries_of, images[start : start + _PIECE]))
                crc = crc32c(piece, crc)
                self._files.write_all(descriptor, piece, position)
                position += len(piece)
            self._files.write_all(descriptor, _HEAD.pack(_VERSION, crc) + head, 0)
        finally:
            os.close(descriptor)

    def load_newest(self, at_most: int | None = None) -> tuple[int, list[ProducerState]] | None:
        """The newest sound snapshot, with its offset; damaged ones are removed. Raises LogDirFailure.

        With `at_most`, of those up to that offset.
        """
        while self._offsets:
            count = len(self._offsets) if at_most is None else bisect_right(self._offsets, at_most)
            if not count:
                return None
            offset = self._offsets[count - 1]
            path = self.path(offset)
            try:
                return offset, decode_snapshot(path.read_bytes(), path)
            except CheckpointDamaged as error:
                logger.warning("a damaged snapshot of the producers is removed: %s", error)
            except FileNotFoundError:
                logger.warning("%s: the snapshot of the producers is missing", path)
            except OSError as error:
                raise storage_error(path, error, Operation.READ) from error
            self._remove([offset])
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
