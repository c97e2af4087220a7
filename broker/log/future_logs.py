"""The future logs of a broker: the logs that move to another of its log dirs, see `future_log`.

The state of a move is its future log, in memory and on disk: it goes on after a restart, and it ends with the
swap, with `drop`, or with the failure of one of the two log dirs. A future log counts as a log of its dir,
and its offsets are in that dir's checkpoints under the partition's name, so they hold after the swap.

Any thread; the locks are those of the table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from barnabas.broker.log.file_system import (
    DELETED_SUFFIX,
    FileSystem,
    future_name,
    parse_future_name,
    unique_name,
)
from barnabas.broker.log.future_log import FutureLog, interrupted_swaps
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_dir import ScannedLog
from barnabas.broker.log.log_table import LogTable
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.storage_errors import (
    CheckpointDamaged,
    LogDirFailure,
    Operation,
    StorageError,
    disk_work,
)
from barnabas.protocol.errors import ApiError, ErrorCode, api_error
from barnabas.protocol.ids import TopicId, TopicPartition

logger = logging.getLogger(__name__)

_CATCH_UPS: Final = 1_000


MakeLoader = Callable[[ScannedLog, int, TopicId | None], LogLoader]
"""(log, now in ms, topic id) → its loader."""


class FutureLogs:
    """Made by `LogManager`."""

    def __init__(self, table: LogTable, files: FileSystem, make_loader: MakeLoader) -> None:
        self._table = table
        self._files = files
        self._make_loader = make_loader
        self.idle: list[ScannedLog] = []
        """Future logs on disk that are not open: their current log is not open either."""
        self.are_swaps_finished = True
        """Whether the folders of deleted logs may be removed: no future log may still take their place."""

    def get(self, key: TopicPartition) -> FutureLog | None:
        """The future log of a partition, or None. Takes no lock."""
        return self._table.futures.get(key)

    def all(self) -> list[FutureLog]:
        with self._table.lock:
            return list(self._table.futures.values())

    def folder_of(self, name: str) -> Path | None:
        """The folder of the future log whose folder has, or had, this name."""
        key = parse_future_name(name)
        future = None if key is None else self.get(key)
        return None if future is None else future.log.folder

    def idle_names(self) -> list[str]:
        return [scanned.folder.name for scanned in self.idle]

    def create(self, key: TopicPartition, path: Path, now_ms: int) -> FutureLog:
        """Begin to move a log to another of the log dirs; a move that is under way goes on.

        Raises KAFKA_STORAGE_ERROR, LogDirFailure.
        """
        table = self._table
        is_left_over = any(scanned.key == key for scanned in self.idle)
        if is_left_over and self.get(key) is None and path not in table.offline_dirs:
            self.drop(key, now_ms)
        with table.checkpoint_lock, table.lock:
            present = table.futures.get(key)
            if present is not None:
                return present
            current = table.logs.get(key)
            if current is None or path in table.offline_dirs:
                raise api_error(ErrorCode.KAFKA_STORAGE_ERROR, f"{key} cannot move to {path}: it is offline")
            if (path / str(key)).exists():
                text = f"{key} cannot move to {path}: there is a folder of that name"
                raise api_error(ErrorCode.KAFKA_STORAGE_ERROR, text)
            table.dirs[path].forget(key)
            folder, start = path / future_name(key), current.log_start_offset
            scanned = ScannedLog(
                key, folder, 0, start, is_clean=True, first_dirty_offset=current.first_dirty_offset
            )
            return self._open(scanned, current, now_ms)

    def _open(self, scanned: ScannedLog, current: Log, now_ms: int) -> FutureLog:
        log = Log.open(scanned.key, self._make_loader(scanned, now_ms, current.topic_id))
        future = self._table.futures[scanned.key] = FutureLog(current, log, scanned.first_dirty_offset)
        self._table.count(log)
        return future

    def drop(self, key: TopicPartition, now_ms: int) -> bool:
        """Give up the move of a log; False if it does not move. Raises LogDirFailure."""
        table = self._table
        with table.lock:
            future = table.futures.pop(key, None)
            folders = [scanned.folder for scanned in self.idle if scanned.key == key]
            self.idle = [scanned for scanned in self.idle if scanned.key != key]
            if future is not None:
                folders.append(future.log.folder)
                table.dirs[future.log.folder.parent].log_count -= 1
        if future is not None:
            future.log.abandon()
        for folder in folders:
            table.doom(folder, unique_name(key, DELETED_SUFFIX), now_ms)
        return bool(folders)

    def forget(self, key: TopicPartition, now_ms: int) -> None:
        """Drop the future log of a partition that leaves this broker."""
        try:
            self.drop(key, now_ms)
        except StorageError as failure:
            # A start sees by its topic id, or by the missing current log, that it is of no use.
            logger.error("the future log of %s is left over: %s", key, failure)

    def replace_current(self, key: TopicPartition, max_bytes: int, now_ms: int) -> bool:
        """Let a log continue in the log dir of its future log; False if that has not caught up.

        Up to `max_bytes` are copied while appends wait. Raises StorageError, and the errors of
        `FutureLog.copy`.
        """
        table, future = self._table, self.get(key)
        if future is None:
            return False
        current, log = future.current, future.log
        log.flush(now_ms)
        start = log.log_start_offset
        table.write_bounds(table.dirs[log.folder.parent])
        # The last records of a busy log come faster than files are forced to disk.
        for _ in range(_CATCH_UPS):
            if future.copy(max_bytes, now_ms) < max_bytes // 2:
                break
        with current.lock, log.lock:
            if current.is_closed or log.is_closed or not future.catch_up(max_bytes, now_ms):
                return False
            if log.log_start_offset != start:
                # The checkpoint has an earlier one: a start would bring deleted records back.
                return False
            with table.checkpoint_lock, table.lock:
                if table.futures.get(key) is not future or table.logs.get(key) is not current:
                    return False
                source = table.dirs[current.folder.parent]
                try:
                    doomed = future.swap(self._files)
                finally:
                    if current.folder.parent != source.path:
                        del table.futures[key]
                        source.log_count -= 1
                table.doomed[doomed] = now_ms + current.config.file_delete_delay_ms
        logger.info("%s has moved from %s to %s", key, source.path, current.folder.parent)
        return True

    def pop_lost(self, path: Path, lost: Iterable[TopicPartition]) -> list[Log]:
        """Under the lock: forget the future logs in a failed dir and of lost logs; their files stay."""
        table = self._table
        keys = [key for key, future in table.futures.items() if future.log.folder.parent == path]
        logs = [table.futures.pop(key).log for key in {*keys, *lost} if key in table.futures]
        for log in logs:
            table.dirs[log.folder.parent].log_count -= 1
            self.idle.append(ScannedLog(log.topic_partition, log.folder, 0, 0, is_clean=False))
        return logs

    # At the start

    def finish_swaps(self) -> list[LogDirFailure]:
        """Finish the moves that the last stop interrupted, before any log is opened.

        Returns the failures of log dirs.
        """
        names: dict[Path, list[str]] = {}
        failures: list[LogDirFailure] = []
        for log_dir in self._table.online_dirs():
            try:
                names[log_dir.path] = log_dir.folder_names()
            except LogDirFailure as failure:
                failures.append(failure)
        for folder, target in interrupted_swaps(names):
            logger.warning("%s takes the place of the log that it was copied from", folder)
            try:
                with disk_work(folder, Operation.CHANGE):
                    self._files.rename(folder, target)
                    self._files.fsync(target.parent)
            except LogDirFailure as failure:
                failures.append(failure)
        # A dir that is offline may hold the log that took the place of a deleted one.
        self.are_swaps_finished = not failures and not self._table.offline_dirs
        return failures

    def load(self, now_ms: int) -> list[LogDirFailure]:
        """Open the future logs, whose moves go on, after all logs; returns the failures of log dirs."""
        scanned_futures, self.idle = self.idle, []
        failures: list[LogDirFailure] = []
        for scanned in scanned_futures:
            try:
                self._load(scanned, now_ms)
            except StorageError as failure:
                logger.error("%s is kept and not used: %s", scanned.folder, failure)
                self.idle.append(scanned)
                if isinstance(failure, LogDirFailure):
                    failures.append(failure)
        for log_dir in self._table.online_dirs():
            self._table.lower_first_dirty_offsets(log_dir)
        return failures

    def _load(self, scanned: ScannedLog, now_ms: int) -> None:
        key, folder = scanned.key, scanned.folder
        current = self._table.logs.get(key)
        if current is None:
            logger.warning("%s is kept and not used: its current log is not open", folder)
            self.idle.append(scanned)
            return
        reason: object = "the log moves to another dir, or lies in this one"
        if self.get(key) is None and current.folder.parent != folder.parent:
            try:
                self._open(scanned, current, now_ms)
                return
            except StorageError:
                raise
            except (ApiError, CheckpointDamaged) as error:
                reason = error
        logger.error("%s is removed, the log stays where it is: %s", folder, reason)
        self._table.doom(folder, unique_name(key, DELETED_SUFFIX), now_ms)
