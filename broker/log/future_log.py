"""A future log: the copy of a log in another log dir, which takes its place once it has caught up.

Its folder is `<topic>-<partition>.<unique>-future`. It is filled through the ordinary append of followers, so
batches keep their offsets and epochs, with any gaps that a cleaning has left.

Invariant: while the current log has not been truncated since `_cuts`, the future log's records are those of
the current log up to its own end. After a truncation, and after a start, the leader epochs of both tell up to
which offset they agree (as KIP-101 does between replicas).

The swap, under the locks of both logs:

1. the current log's folder is renamed `<topic>-<partition>.<unique>-delete`, with the future log's unique
   part, and forced to disk: that is the commit;
2. the future log's folder gets the partition's name, and is forced to disk before the next append.

A start finds the two folders by their unique part, and finishes a committed swap; see `interrupted_swaps`. A
copy runs on one thread at a time. The rules are pure functions.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from barnabas.broker.log.epoch_cache import EpochEntry
from barnabas.broker.log.file_system import (
    DELETED_SUFFIX,
    FileSystem,
    parse_future_name,
    unique_name,
    unique_part,
)
from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import Gone, LogDirFailure
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import Offset
from barnabas.protocol.invariants import invariant

logger = logging.getLogger(__name__)


def common_end(
    current: Sequence[EpochEntry], current_end: int, future: Sequence[EpochEntry], future_end: int
) -> Offset | None:
    """The offset up to which two logs have the same records, by their epochs; None if they share no epoch.

    Two logs that have records of the same epoch agree up to where the shorter one ends that epoch.
    """
    ends = dict(_epoch_ends(current, current_end))
    for epoch, end in reversed(_epoch_ends(future, future_end)):
        if epoch in ends:
            return Offset(min(end, ends[epoch]))
    return None


def _epoch_ends(entries: Sequence[EpochEntry], log_end: int) -> list[tuple[int, int]]:
    ends = [after.start_offset for _, after in pairwise(entries)]
    return [(entry.epoch, end) for entry, end in zip(entries, [*ends, log_end], strict=False)]


def interrupted_swaps(names: Mapping[Path, Collection[str]]) -> list[tuple[Path, Path]]:
    """The committed swaps that a stop has interrupted, by the names in each log dir.

    Each as the future log's folder, and the partition's folder that it must become.
    """
    everywhere = {name for of_dir in names.values() for name in of_dir}
    deleted = {unique_part(name) for name in everywhere if name.endswith(DELETED_SUFFIX)}
    return [
        (path / name, path / str(key))
        for path, of_dir in names.items()
        for name in sorted(of_dir)
        if (key := parse_future_name(name)) and unique_part(name) in deleted and str(key) not in everywhere
    ]


class FutureLog:
    """``log`` is the future log, ``current`` the log that it copies."""

    def __init__(self, current: Log, log: Log, first_dirty_offset: int) -> None:
        """``first_dirty_offset``: all records below it were clean when they were copied, or will be."""
        self.current = current
        self.log = log
        self._first_dirty_offset = first_dirty_offset
        self._cuts: int | None = None
        """The count of the current log's truncations when both logs were last known to agree."""

    def __repr__(self) -> str:
        return f"<FutureLog {self.log!r} of {self.current!r} in {self.log.folder.parent}>"

    @property
    def offset_lag(self) -> int:
        return max(0, self.current.log_end_offset - self.log.log_end_offset)

    @property
    def is_in_active_segment(self) -> bool:
        """Whether the records that are missing are in the current log's last segment."""
        return self.log.log_end_offset >= self.current.segments[-1].base_offset

    def copy(self, max_bytes: int, now_ms: int) -> int:
        """Copy up to that many bytes, or one larger batch; returns the number of copied bytes.

        It may be 0 although the logs differ, if the current log changed meanwhile. Raises the errors of
        `Log.read` and `Log.append_as_follower`.
        """
        cuts = self._align()
        log, current = self.log, self.current
        start = current.log_start_offset
        if log.log_end_offset < start:
            log.truncate_fully_and_start_at(start)
        records = self._read(max_bytes, cuts)
        if records:
            log.append_as_follower(records, now_ms)
        log.increment_log_start_offset(min(start, log.log_end_offset))
        return len(records)

    def _read(self, max_bytes: int, cuts: int) -> bytes:
        current, offset = self.current, self.log.log_end_offset
        if offset >= current.log_end_offset:
            return b""
        try:
            # A copy, because a truncation overwrites what a view shows.
            records = bytes(current.read(offset, max_bytes).records)
        except ApiError:
            if current.bounds.cuts == cuts and current.log_start_offset <= offset:
                raise
            return b""
        # A truncation counts before it overwrites anything, so these bytes are of one history.
        return records if current.bounds.cuts == cuts else b""

    def _align(self) -> int:
        """Truncate the future log to where it agrees with the current one; returns the latter's `cuts`."""
        current, log = self.current, self.log
        if self._cuts == current.bounds.cuts:
            return self._cuts
        with current.lock:
            cuts, start, end = current.bounds.cuts, current.log_start_offset, current.log_end_offset
            epochs = current.epoch_cache.entries
            self._first_dirty_offset = min(self._first_dirty_offset, current.first_dirty_offset)
        agreed = common_end(epochs, end, log.epoch_cache.entries, log.log_end_offset)
        if agreed is None or agreed < start or log.log_start_offset > start:
            if (log.log_start_offset, log.log_end_offset) != (start, start):
                log.truncate_fully_and_start_at(start)
        else:
            log.truncate_to(agreed)
        self._cuts = cuts
        return cuts

    def catch_up(self, max_bytes: int, now_ms: int) -> bool:
        """Copy the last records, under both locks. False if there are too many.

        Records that are safe on the current log's disk are safe on the future log's too. Raises as `copy`.
        """
        self.copy(max_bytes, now_ms)
        current, log = self.current, self.log
        if log.log_end_offset != current.log_end_offset or log.log_start_offset != current.log_start_offset:
            return False
        if log.recovery_point < current.recovery_point:
            log.flush(now_ms)
        if current.topic_id is not None:
            log.assign_topic_id(current.topic_id)
        # Its records may not tell all of these.
        log.epoch_cache.copy_from(current.epoch_cache)
        log.snapshots.write_or_keep(log.log_end_offset, current.producers)
        log.bounds.raise_first_dirty(self._first_dirty_offset, log.bounds.cuts)
        return log.recovery_point >= current.recovery_point

    def swap(self, files: FileSystem) -> Path:
        """Let the current log continue in the future log's folder; returns the folder to be removed.

        Under both locks, after `catch_up`. Raises LogDirFailure: of the current log's dir if the swap was not
        committed; of the other dir if it was undone, or if the log lies there now.
        """
        current, log = self.current, self.log
        key, future = current.topic_partition, log.folder
        invariant(
            (log.log_start_offset, log.log_end_offset) == (current.log_start_offset, current.log_end_offset),
            "%r has not caught up",
            self,
        )
        unique = unique_part(future.name)
        invariant(unique is not None, "%s is not the folder of a future log", future)
        target, doomed = (
            future.with_name(str(key)),
            current.folder.with_name(unique_name(key, DELETED_SUFFIX, unique)),
        )
        self._rename(current.folder, doomed, files)
        try:
            files.rename(future, target)
        except OSError as error:
            self._rename(doomed, current.folder, files)
            raise LogDirFailure(future, error) from error
        self._continue_in(target)
        try:
            files.fsync(target.parent)
        except OSError as error:
            current.abandon()
            raise LogDirFailure(target, error) from error
        return doomed

    def _continue_in(self, folder: Path) -> None:
        """Let the current log go on with the files of the future log, whose folder has been renamed."""
        current, log = self.current, self.log
        replaced = current.segments
        for segment in log.segments:
            segment.relocate(folder)
        log.epoch_cache.relocate(folder)
        log.snapshots.folder = folder
        # A flush or a copy that began before must not take its segments for these.
        log.bounds.cuts = max(current.bounds.cuts, log.bounds.cuts) + 1
        log.is_closed = True
        current.folder, current.bounds = folder, log.bounds
        current.epoch_cache, current.snapshots = log.epoch_cache, log.snapshots
        current.last_flush_ms, current.is_folder_durable = log.last_flush_ms, True
        current.log_segments = log.log_segments
        # Last: a reader of such a segment then finds the new ones.
        for segment in replaced:
            segment.abandon(Gone.REPLACED)

    def _rename(self, source: Path, target: Path, files: FileSystem) -> None:
        """Rename the current log's folder. After a failure no record may be appended: it could be lost."""
        try:
            files.rename(source, target)
            files.fsync(target.parent)
        except OSError as error:
            self.current.abandon()
            raise LogDirFailure(source, error) from error
