"""The offset at which each leader epoch began: the file `leader-epoch-checkpoint` and its copy in memory.

It decides where a follower truncates (KIP-101, KIP-279). Invariant: epochs and start offsets both rise
strictly from entry to entry. If a compaction removed the first batches of an epoch, nobody knows its first
offset from the batches: it lies between the end of the batch before and the first batch that is left. Then
the lowest possible offset counts, because a follower must not keep records that the leader never had.
Written under the log's lock; readers see an immutable tuple and need none.
The file is replaced on every change without waiting for the disk: after a crash of the machine, recovery
takes the epochs from the batches themselves; `fsync` makes it durable. An epoch that a leader begins is
written with its first record; a restart may forget it before, for the next epoch begins at the same offset.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.log.checkpoints import encode_checkpoint, parse_checkpoint, parse_number, read_text
from barnabas.broker.log.file_system import EPOCH_CHECKPOINT, FILE_SYSTEM, FileSystem, SyncState
from barnabas.broker.log.storage_errors import CheckpointDamaged, storage_error
from barnabas.protocol.ids import NO_LEADER_EPOCH, NO_OFFSET, LeaderEpoch, Offset
from barnabas.protocol.invariants import invariant
from barnabas.protocol.record_batch import BatchHeader


class EpochEntry(NamedTuple):
    """An epoch and the first offset written in it."""

    epoch: LeaderEpoch
    start_offset: Offset


class EpochStart(NamedTuple):
    """The first batch of an epoch in the log: the epoch began within `end_before` to `base_offset`."""

    epoch: int
    end_before: int
    """The end of the batch before, or the base of the first segment."""
    base_offset: int


class EpochEndOffset(NamedTuple):
    """An epoch and the offset after its last record; (-1, -1) if unknown."""

    epoch: LeaderEpoch
    end_offset: Offset


UNDEFINED = EpochEndOffset(NO_LEADER_EPOCH, NO_OFFSET)


class EpochCache:
    """The epochs of one log, oldest first."""

    __slots__ = ("_files", "_in_file", "entries", "path", "sync_state")

    def __init__(self, folder: Path, files: FileSystem = FILE_SYSTEM) -> None:
        self.path = folder / EPOCH_CHECKPOINT
        self._files = files
        self.entries: tuple[EpochEntry, ...] = ()
        self._in_file: tuple[EpochEntry, ...] = ()
        self.sync_state = SyncState(is_synced=False)

    @classmethod
    def load(cls, folder: Path, files: FileSystem = FILE_SYSTEM) -> EpochCache:
        """Read the file of a partition's folder; empty if there is no file.

        Raises CheckpointDamaged, LogDirFailure.
        """
        cache = cls(folder, files)
        text = read_text(cache.path)
        if text is None:
            return cache
        entries = tuple(
            EpochEntry(LeaderEpoch(parse_number(epoch, cache.path)), Offset(parse_number(offset, cache.path)))
            for epoch, offset in parse_checkpoint(text, 2, cache.path)
        )
        for before, after in pairwise(entries):
            if before.epoch >= after.epoch or before.start_offset >= after.start_offset:
                raise CheckpointDamaged(f"{cache.path}: {after} does not follow {before}")
        cache.entries = cache._in_file = entries
        return cache

    @property
    def latest_epoch(self) -> LeaderEpoch:
        """The newest epoch, or -1."""
        entries = self.entries
        return entries[-1].epoch if entries else NO_LEADER_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEndOffset:
        """The largest known epoch that is not above the requested one, and where it ends.

        The newest epoch ends at the log's end. An epoch older than all known ones ends where the oldest known
        one begins. An epoch newer than all known ones is UNDEFINED.
        """
        entries = self.entries
        if not entries or epoch < 0 or epoch > entries[-1].epoch:
            return UNDEFINED
        following = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        if following == len(entries):
            return EpochEndOffset(entries[-1].epoch, Offset(log_end_offset))
        largest = entries[following - 1].epoch if following else LeaderEpoch(epoch)
        return EpochEndOffset(largest, entries[following].start_offset)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """The epoch in which an offset was written, or -1 if it is older than all known epochs."""
        entries = self.entries
        following = bisect_right(entries, offset, key=lambda entry: entry.start_offset)
        return entries[following - 1].epoch if following else NO_LEADER_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that an epoch begins at an offset, unless it is not newer than the latest.

        An epoch without records, because the next begins at the same offset, is dropped.
        Raises LogDirFailure.
        """
        if epoch > self.latest_epoch:
            self._replace(self._with(epoch, start_offset))

    def begin(self, epoch: int, start_offset: int) -> None:
        """As `assign`, for an epoch without records: the file gets it by `begin_batches`.

        A broker that comes to lead a thousand partitions has no thousand files to replace before it may.
        """
        if epoch > self.latest_epoch:
            self.entries = self._with(epoch, start_offset)

    def begin_batches(self, batches: Sequence[tuple[int, BatchHeader]], log_end_offset: int) -> None:
        """Bring the file up to date before batches, each (position, header), are appended at a log's end.

        An epoch begins where the batch before its first one ends. Raises LogDirFailure.
        """
        if self.entries is not self._in_file:
            self._replace(self.entries)
        for _, header in batches:
            entries = self.entries
            if not entries or header.partition_leader_epoch > entries[-1].epoch:
                self.assign(header.partition_leader_epoch, log_end_offset)
            log_end_offset = header.base_offset + header.last_offset_delta + 1

    def _with(self, epoch: int, start_offset: int) -> tuple[EpochEntry, ...]:
        invariant(epoch >= 0 and start_offset >= 0, "epoch %d cannot start at offset %d", epoch, start_offset)
        kept = (entry for entry in self.entries if entry.start_offset < start_offset)
        return (*kept, EpochEntry(LeaderEpoch(epoch), Offset(start_offset)))

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that begin at or after a log's new end. Raises LogDirFailure."""
        kept = tuple(entry for entry in self.entries if entry.start_offset < end_offset)
        if len(kept) != len(self.entries):
            self._replace(kept)

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that end before a log's new start. The epoch of that offset now begins there.

        Raises LogDirFailure.
        """
        kept = [entry for entry in self.entries if entry.start_offset > start_offset]
        in_force = len(self.entries) - len(kept) - 1
        if in_force >= 0:
            kept.insert(0, self.entries[in_force]._replace(start_offset=Offset(start_offset)))
        if tuple(kept) != self.entries:
            self._replace(tuple(kept))

    def correct(self, starts: Sequence[EpochStart], end_offset: int | None) -> None:
        """Add the epochs of batches, in order.

        Entries that begin at or after the first one are replaced, unless they fit the batches. Raises
        LogDirFailure.
        """
        stored: dict[int, int] = dict(self.entries)
        found: list[tuple[int, int]] = []
        for epoch, end_before, base_offset in starts:
            start_offset = stored.get(epoch, NO_OFFSET)
            found.append((epoch, start_offset if end_before <= start_offset <= base_offset else end_before))
        entries = self.entries
        if found:
            entries = tuple(entry for entry in entries if entry.start_offset < found[0][1])
        for epoch, start_offset in found:
            if epoch > (entries[-1].epoch if entries else NO_LEADER_EPOCH):
                kept = tuple(entry for entry in entries if entry.start_offset < start_offset)
                entries = (*kept, EpochEntry(LeaderEpoch(epoch), Offset(start_offset)))
        if end_offset is not None:
            entries = tuple(entry for entry in entries if entry.start_offset <= end_offset)
        if entries != self.entries:
            self._replace(entries)

    def copy_from(self, other: EpochCache) -> None:
        """Take over all epochs of an equal log. Raises LogDirFailure."""
        if self.entries != other.entries:
            self._replace(other.entries)

    def clear(self) -> None:
        """Drop all epochs. Raises LogDirFailure."""
        if self.entries:
            self._replace(())

    def fsync(self) -> None:
        """Force the file to disk if it changed since the last sync; not its folder. Raises OSError.

        Needs no lock. It does not write the file: an epoch that begins meanwhile would be a second writer.
        """
        try:
            self.sync_state.sync(self.path, self._files)
        except FileNotFoundError:
            # The file was never written.
            return

    def _replace(self, entries: tuple[EpochEntry, ...]) -> None:
        before = self.entries
        self.entries = entries
        if entries == self._in_file:
            self._in_file = entries
            return
        try:
            self._files.write_atomically(self.path, encode_checkpoint(entries), durable=False)
            self._in_file = entries
        except OSError as error:
            self.entries = before
            raise storage_error(self.path, error) from error
        finally:
            self.sync_state.note_change()
