"""The table of a broker's logs: by partition, current and future ones, the log dirs that hold them, and the
checkpoints of these.

The lock order: a log's, then `checkpoint_lock`, then `lock`. `lock`
guards the dictionaries and the counts. A checkpoint writer holds `checkpoint_lock` while it reads the logs'
offsets and writes the file, so that an older state never replaces a newer one. A single lookup takes no lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.future_log import FutureLog
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_bounds import Bound
from barnabas.broker.log.log_dir import LogDir
from barnabas.broker.log.storage_errors import LogDirFailure, Operation, disk_work
from barnabas.protocol.ids import TopicPartition

logger = logging.getLogger(__name__)


class LogTable:
    def __init__(self, dirs: Sequence[LogDir], files: FileSystem) -> None:
        self._files = files
        self.lock = threading.Lock()
        self.checkpoint_lock = threading.Lock()
        self.logs: dict[TopicPartition, Log] = {}
        self.futures: dict[TopicPartition, FutureLog] = {}
        """The copies of logs that move to another log dir; each has a current log in `logs`."""
        self.dirs: dict[Path, LogDir] = {log_dir.path: log_dir for log_dir in dirs}
        self.offline_dirs: dict[Path, LogDirFailure] = {}
        self.doomed: dict[Path, int] = {}
        """The folders to be removed, each with its due time (ms)."""

    def all_logs(self) -> list[Log]:
        with self.lock:
            return list(self.logs.values())

    def online_dirs(self) -> list[LogDir]:
        return [log_dir for path, log_dir in self.dirs.items() if path not in self.offline_dirs]

    def logs_in(self, log_dir: LogDir) -> list[Log]:
        return [log for log in self.all_logs() if log.folder.parent == log_dir.path]

    def _saved_in(self, log_dir: LogDir) -> list[Log]:
        """The logs of a dir, and those that move to it: its checkpoints must hold for them after the swap."""
        with self.lock:
            moving = [future.current for future in self.futures.values() if future.path == log_dir.path]
        return [*self.logs_in(log_dir), *moving]

    def count(self, log: Log) -> None:
        """Count an opened log in its dir, and let it save its bounds there. Under the lock."""
        log.on_bounds_lowered = self._save_lowered_bounds
        self.dirs[log.folder.parent].log_count += 1

    def doom(self, folder: Path, name: str, due_ms: int) -> None:
        """Give a folder the name of a deleted log's, to be removed later. Raises LogDirFailure."""
        doomed = folder.with_name(name)
        with disk_work(folder, Operation.CHANGE):
            self._files.rename(folder, doomed)
            self._files.fsync(doomed.parent)
        with self.lock:
            self.doomed[doomed] = due_ms

    def remove_doomed(self, now_ms: int) -> int:
        """Remove the folders that are due; returns their number."""
        with self.lock:
            due = [folder for folder, due_ms in self.doomed.items() if due_ms <= now_ms]
            for folder in due:
                del self.doomed[folder]
        for folder in due:
            try:
                self._files.rmtree(folder)
            except OSError as error:
                logger.error("%s could not be removed: %s", folder, error)
        return len(due)

    # Checkpoints

    def _save_lowered_bounds(self, log: Log) -> None:
        """Write the checkpoints, which must never promise more than the log holds.

        Raises LogDirFailure in the truncating caller.
        """
        log_dir = self.dirs.get(log.folder.parent)
        if log_dir is None:
            return
        later = [bound for bound in Bound if log.bounds.is_later_promised(bound)]
        self.write_bounds(log_dir, {*later, Bound.RECOVERY_POINT})

    def write_bounds(self, log_dir: LogDir, bounds: Collection[Bound] = tuple(Bound)) -> None:
        """Write the checkpoints of these bounds. Raises LogDirFailure."""
        for bound in sorted(bounds):
            with self.checkpoint_lock:
                offsets = [(log, log.bounds.promise(bound)) for log in self._saved_in(log_dir)]
                # As in Kafka, the log start has an entry only if records were deleted.
                is_listed = bound is Bound.RECOVERY_POINT
                log_dir.bounds[bound].write(
                    {log.topic_partition: offset for log, offset in offsets if offset > 0 or is_listed}
                )
                for log, offset in offsets:
                    if log.folder.parent == log_dir.path:
                        log.bounds.promised(bound, offset)

    def write_delete_horizons(self, log_dir: LogDir) -> None:
        """Raises LogDirFailure."""
        with self.checkpoint_lock:
            horizons = {log.topic_partition: log.bounds.delete_horizon_ms for log in self._saved_in(log_dir)}
            log_dir.delete_horizons.write({key: ms for key, ms in horizons.items() if ms is not None})

    def lower_first_dirty_offsets(self, log_dir: LogDir) -> None:
        """Save the offsets of logs that end before them, before the next records count as cleaned."""
        if any(log.bounds.is_later_promised(Bound.FIRST_DIRTY) for log in self.logs_in(log_dir)):
            self.write_bounds(log_dir, [Bound.FIRST_DIRTY])

    def write_high_watermarks(self, log_dir: LogDir, high_watermarks: Mapping[TopicPartition, int]) -> None:
        with self.checkpoint_lock:
            keys = [log.topic_partition for log in self._saved_in(log_dir)]
            log_dir.high_watermarks.write(
                {key: high_watermarks[key] for key in keys if key in high_watermarks}
            )
