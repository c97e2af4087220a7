"""The table of a broker's logs: by partition, current and future ones, and the log dirs that hold them.

`LogManager` and `FutureLogs` share it. The lock order: a log's, then `checkpoint_lock`, then `lock`. `lock`
guards the dictionaries and the counts. A checkpoint writer holds `checkpoint_lock` while it reads the logs'
offsets and writes the file, so that an older state never replaces a newer one. A single lookup takes no lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.future_log import FutureLog
from barnabas.broker.log.log import Log
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
        """The logs that move to another log dir; each has a current log in `logs`."""
        self.dirs: dict[Path, LogDir] = {log_dir.path: log_dir for log_dir in dirs}
        self.offline_dirs: dict[Path, LogDirFailure] = {}
        self.doomed: dict[Path, int] = {}
        """The folders to be removed, each with its due time (ms)."""

    def open_logs(self) -> list[Log]:
        """All logs, current and future ones."""
        with self.lock:
            return [*self.logs.values(), *(future.log for future in self.futures.values())]

    def online_dirs(self) -> list[LogDir]:
        return [log_dir for path, log_dir in self.dirs.items() if path not in self.offline_dirs]

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
