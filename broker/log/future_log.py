"""A future log: the copy of a log in another log dir, which takes its place once it has caught up.

Its folder is `<topic>-<partition>.<unique>-future`. It is filled through the ordinary append of followers, so
batches keep their offsets and epochs, with any gaps that a cleaning has left. A restart begins a new copy.

The swap, under the current log's lock:

1. the current log's folder is renamed `<topic>-<partition>.<unique>-delete`, with the future log's unique
   part, and forced to disk: that is the commit;
2. the future log's folder gets the partition's name, and is forced to disk before the next append.

A start finishes a committed swap, see `interrupted_swaps`. A copy runs on one thread at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from pathlib import Path

from barnabas.broker.log.file_system import (
    DELETED_SUFFIX,
    EPOCH_CHECKPOINT,
    FileSystem,
    parse_future_name,
    unique_name,
    unique_part,
)
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_bounds import Bound
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.storage_errors import Gone, LogDirFailure
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.invariants import invariant


def interrupted_swaps(folders: Sequence[Path]) -> list[tuple[Path, Path]]:
    """The committed swaps that a stop has interrupted, by the folders of all log dirs.

    Each as the future log's folder, and the partition's folder that it must become.
    """
    names = {folder.name for folder in folders}
    deleted = {unique_part(name) for name in names if name.endswith(DELETED_SUFFIX)}
    return [
        (folder, folder.with_name(str(key)))
        for folder in folders
        if (key := parse_future_name(folder.name))
        and unique_part(folder.name) in deleted
        and str(key) not in names
    ]


class FutureLog:
    """``log`` is the future log, ``current`` the log that it copies."""

    def __init__(self, current: Log, loader: LogLoader) -> None:
        """``loader`` makes the empty future log. Raises as `Log.open`."""
        self.current = current
        self.key: TopicPartition = current.topic_partition
        self._cuts = current.bounds.cuts
        """The truncations of the current log when the copy began."""
        self.log = Log.open(self.key, loader)
        try:
            self._assign_topic_id()
        except ApiError:
            self.log.abandon()
            raise
        # Before the first read, which waits for a swap of cleaned segments that has begun.
        current.future = weakref.ref(self.log)

    def __repr__(self) -> str:
        return f"<FutureLog {self.log!r} of {self.current!r} in {self.path}>"

    @property
    def path(self) -> Path:
        """The log dir that the log moves to."""
        return self.log.folder.parent

    @property
    def offset_lag(self) -> int:
        return max(0, self.current.log_end_offset - self.log.log_end_offset)

    def copy(self, max_bytes: int, now_ms: int) -> int:
        """Copy up to that many bytes, or one larger batch; returns the number of copied bytes.

        It may be 0 although the logs differ, if the current log changed meanwhile; after a truncation the
        copy begins again. Raises the errors of `Log.read` and `Log.append_as_follower`.
        """
        current, log, bounds = self.current, self.log, self.current.bounds
        with current.lock:
            cuts, start = bounds.cuts, bounds.start
        if cuts != self._cuts or not log.log_start_offset <= start <= log.log_end_offset:
            log.truncate_fully_and_start_at(start)
            self._cuts = cuts
        try:
            # A copy, because a truncation overwrites what a view shows.
            records = bytes(current.read(log.log_end_offset, max_bytes).records)
        except ApiError:
            if (bounds.cuts, bounds.start) == (cuts, start):
                raise
            return 0
        if bounds.cuts != cuts:
            # A truncation counts before it overwrites anything; without one, the bytes are of one history.
            return 0
        if records:
            log.append_as_follower(records, now_ms)
        log.increment_log_start_offset(start)
        return len(records)

    def catch_up(self, max_bytes: int, now_ms: int) -> bool:
        """Copy the last records, under the current log's lock. False if there are too many.

        Records that are safe on the current log's disk are safe on the future log's too. Raises as `copy`.
        """
        self.copy(max_bytes, now_ms)
        current, log = self.current, self.log
        if log.log_end_offset != current.log_end_offset:
            return False
        if log.recovery_point < current.recovery_point:
            log.flush(now_ms)
        self._assign_topic_id()
        # Its records may not tell all of these.
        log.epoch_cache.copy_from(current.epoch_cache)
        log.snapshots.write_or_keep(log.log_end_offset, current.producers)
        return True

    def _assign_topic_id(self) -> None:
        if self.current.topic_id is not None:
            self.log.assign_topic_id(self.current.topic_id)

    def swap(self, files: FileSystem) -> Path:
        """Let the current log continue in the future log's folder; returns the folder to be removed.

        Under the current log's lock, after `catch_up`. Raises LogDirFailure of the dir in which the log then
        lies; it takes no more records, because a start might not find them.
        """
        current, log, future = self.current, self.log, self.log.folder
        invariant(
            (log.log_start_offset, log.log_end_offset) == (current.log_start_offset, current.log_end_offset),
            "%r has not caught up",
            self,
        )
        target = future.with_name(str(self.key))
        doomed = current.folder.with_name(unique_name(self.key, DELETED_SUFFIX, unique_part(future.name)))
        try:
            files.rename(current.folder, doomed)
            files.fsync(doomed.parent)
            self._continue_in(target)
            files.rename(future, target)
            files.fsync(target.parent)
        except OSError as error:
            current.abandon()
            raise LogDirFailure(current.folder, error) from error
        return doomed

    def _continue_in(self, folder: Path) -> None:
        """Let the current log go on with the files of the future log, whose folder gets its name."""
        current, log = self.current, self.log
        replaced = current.segments
        for segment in log.segments:
            segment.relocate(folder)
        log.epoch_cache.path = folder / EPOCH_CHECKPOINT
        log.snapshots.folder = folder
        log.is_closed = True
        for bound in Bound:
            # The checkpoints of the new dir have it.
            current.bounds.promise(bound)
        # A flush or a cleaning that began before must not take its segments for these.
        current.bounds.cuts += 1
        current.folder, current.epoch_cache, current.snapshots = folder, log.epoch_cache, log.snapshots
        current.last_flush_ms, current.is_folder_durable = log.last_flush_ms, True
        current.log_segments = log.log_segments
        # Last: a reader of such a segment then finds the new ones.
        for segment in replaced:
            segment.abandon(Gone.REPLACED)
