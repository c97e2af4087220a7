"""All logs of a broker: opened at start, created, deleted, and maintained in passes.

The manager knows no clock and no threads: a scheduler calls the passes (`retention_pass`, `flush_pass`,
`checkpoint_pass`, `expire_producers_pass`, `remove_deleted`) with the time. A log dir that fails goes offline
with all its logs; the others go on. A damaged log is kept out and remembered in `offline_partitions`.

The lock order: a log's, then `_checkpoint_lock`, then `_lock`, which guards the tables and is never held
during disk work on a log, creation aside. A checkpoint writer holds `_checkpoint_lock` while it reads the
logs' offsets and writes the file, so that an older state never replaces a newer one.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from barnabas.broker.config.topic_config import NEVER_MS, TopicConfig
from barnabas.broker.log.checkpoints import read_partition_metadata
from barnabas.broker.log.file_system import (
    DELETED_SUFFIX,
    FILE_SYSTEM,
    MAX_NAME_BYTES,
    FileSystem,
    future_name,
    parse_future_name,
    parse_partition_name,
    unique_name,
)
from barnabas.broker.log.future_log import FutureLog, interrupted_swaps
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_bounds import Bound
from barnabas.broker.log.log_dir import CleanMark, LogDir, ScannedLog, close_all, for_each
from barnabas.broker.log.recovery import LogLoader
from barnabas.broker.log.storage_errors import (
    CheckpointDamaged,
    CorruptLog,
    LogDirFailure,
    LogGone,
    Operation,
    StorageCallFailed,
    StorageError,
    Verdict,
    disk_work,
    storage_error,
    verdict,
)
from barnabas.broker.log.stray_logs import StrayLogs
from barnabas.protocol.errors import ApiError, ErrorCode, InvalidConfiguration, api_error
from barnabas.protocol.ids import BrokerId, Offset, TopicId, TopicPartition

logger = logging.getLogger(__name__)

_MOST_REMEMBERED: Final = 100_000
_CATCH_UPS: Final = 1_000

ConfigOf = Callable[[str], TopicConfig]
"""The configuration of a topic by its name."""


class LogManager:
    """Made by `LogManager.open`; `close` is the clean stop."""

    def __init__(
        self,
        dirs: Sequence[LogDir],
        config_of: ConfigOf,
        files: FileSystem,
        recovery_threads: int,
    ) -> None:
        self._files = files
        self._recovery_threads = recovery_threads
        self._config_of = config_of
        self._lock = threading.Lock()
        self._checkpoint_lock = threading.Lock()
        self._logs: dict[TopicPartition, Log] = {}
        self._dirs: dict[Path, LogDir] = {log_dir.path: log_dir for log_dir in dirs}
        self.offline_dirs: dict[Path, LogDirFailure] = {}
        self._doomed: dict[Path, int] = {}
        """The folders to be removed, each with its due time (ms)."""
        self._preferred_dirs: dict[TopicPartition, Path] = {}
        """The log dir in which a missing log will be created; the latest wishes are kept."""
        self.futures: dict[TopicPartition, FutureLog] = {}
        """The moves of logs to other log dirs; a single lookup takes no lock."""
        self._found_futures: list[tuple[TopicPartition, Path]] = []
        """The future logs of moves that the last stop has interrupted; after the start, those that are left
        because their current log is not open, or was found damaged since."""
        self.offline_partitions: dict[TopicPartition, Exception] = {}
        """The reason for each partition whose log could not be opened, or went offline with its dir."""
        self._kept_out: dict[TopicPartition, ScannedLog] = {}
        """Logs on disk that are not open, so that a deletion of the partition finds them. Those that did not
        open for lack of descriptors or memory (StorageCallFailed) are opened by the next `get_or_open`."""
        self._unread: LogDirFailure | None = None
        """The failure of a dir whose logs are not all known, because it was offline at start."""
        self._deleted: dict[tuple[TopicPartition, TopicId | None], None] = {}
        """The latest deletions, so that a repeated one is confirmed although there is an unread dir."""
        self.strays = StrayLogs(self._files)
        self.on_dir_failed: Callable[[Sequence[TopicPartition]], None] | None = None
        """Called with the partitions of each dir or log that goes offline; without locks, on any thread."""

    @classmethod
    def open(
        cls,
        paths: Iterable[Path],
        *,
        broker_id: BrokerId,
        cluster_id: str,
        config_of: ConfigOf,
        now_ms: int,
        files: FileSystem = FILE_SYSTEM,
        recovery_threads: int = 1,
    ) -> LogManager:
        """Lock the log dirs and open every log in them, with recovery after an unclean stop.

        Raises InvalidConfiguration if a dir is in use or belongs to another broker, or if no dir is usable. A
        dir whose disk fails is offline from the start if others are left; a damaged log is in
        `offline_partitions`. `recovery_threads` threads open and close the logs of each dir.
        """
        dirs: list[LogDir] = []
        failed: dict[Path, LogDirFailure] = {}
        try:
            for path in dict.fromkeys(path.absolute() for path in paths):
                try:
                    log_dir = LogDir.acquire(path, files)
                    dirs.append(log_dir)
                    log_dir.check_identity(broker_id, cluster_id)
                except LogDirFailure as error:
                    logger.error("log dir %s is offline: %s", path, error)
                    failed[path] = error
            usable = [log_dir for log_dir in dirs if log_dir.path not in failed]
            if not usable:
                reasons = "; ".join(str(error) for error in failed.values()) or "no folder is configured"
                raise InvalidConfiguration(f"log.dirs: no usable folder: {reasons}")
            manager = cls(usable, config_of, files, recovery_threads)
            manager.offline_dirs.update(failed)
            manager._finish_swaps()
            online = manager._online_dirs()
            for_each(online, partial(manager._load_dir, now_ms), len(online), "log-dir")
            if not manager.has_online_dir:
                # As Kafka does: a broker without a disk is of no use to its cluster.
                reasons = "; ".join(str(error) for error in manager.offline_dirs.values())
                raise InvalidConfiguration(f"log.dirs: no folder is left that can be used: {reasons}")
            manager._begin_moves_again(now_ms)
            manager._unread = next(iter(manager.offline_dirs.values()), None)
        except BaseException:
            for log_dir in dirs:
                log_dir.release()
            raise
        return manager

    # The table

    def get(self, topic_partition: TopicPartition) -> Log | None:
        """The log of a partition; None if this broker has no online log of it. Takes no lock."""
        return self._logs.get(topic_partition)

    def all_logs(self) -> list[Log]:
        with self._lock:
            return list(self._logs.values())

    def all_futures(self) -> list[FutureLog]:
        with self._lock:
            return list(self.futures.values())

    def get_or_create_without_id(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, now_ms: int, *, is_new: bool = False
    ) -> Log:
        """The log of a partition; a missing log is created in the log dir with the fewest logs.

        A new log has no topic id: `Log.assign_topic_id` waits for the disk, and the caller of many logs lets
        these waits overlap. With `is_new`, the caller knows that the partition was never here, so an offline
        dir cannot hold it. Raises StorageCallFailed, LogDirFailure, or KAFKA_STORAGE_ERROR if the partition's
        log is offline.
        """
        log = self.get_or_open(topic_partition, now_ms)
        return log or self._create(topic_partition, topic_id, now_ms, is_new=is_new)

    def get_or_open(self, topic_partition: TopicPartition, now_ms: int) -> Log | None:
        """The log of a partition, opened now if that failed at start for lack of descriptors or memory.

        It may belong to an earlier topic of that name. Raises StorageCallFailed.
        """
        return self._logs.get(topic_partition) or self._retry_opening(topic_partition, now_ms)

    def _create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, now_ms: int, *, is_new: bool
    ) -> Log:
        with self._checkpoint_lock, self._lock:
            created_meanwhile = self._logs.get(topic_partition)
            if created_meanwhile is not None:
                return created_meanwhile
            reason = self.offline_partitions.get(topic_partition)
            if reason is None and self.offline_dirs and not is_new:
                reason = next(iter(self.offline_dirs.values()))
            if reason is not None:
                raise self._keep_unread(topic_partition, reason)
            try:
                self.strays.take_up(topic_partition, topic_id)
                # The folder of a log that was set aside, or whose creation failed half-way.
                log_dir = self._dir_with(str(topic_partition)) or self._dir_for(topic_partition)
                folder = log_dir.path / str(topic_partition)
                log_start_offset = self.strays.start_of(topic_partition, folder)
                log_dir.forget(topic_partition)
                scanned = ScannedLog(topic_partition, folder, 0, log_start_offset, is_clean=True)
                log = Log.open(topic_partition, self._loader(scanned, now_ms, topic_id))
            except LogDirFailure as failure:
                # The dir may hold files of it, so it must not be created in another dir.
                self.offline_partitions[topic_partition] = failure
                raise
            self._adopt(log)
            return log

    def update_config(self, topics: Collection[str] | None = None) -> None:
        """Apply the current configuration to the logs of these topics, or with None to all logs."""
        for log in self.all_logs():
            name = log.topic_partition.topic
            if topics is None or name in topics:
                log.config = self._config_of(name)

    def set_aside(self, topic_partition: TopicPartition, now_ms: int) -> Path | None:
        """Set a partition's log aside, see `stray_logs`; returns its folder, or None if there is no log.

        Raises StorageError; the partition is offline then, after StorageCallFailed until it is requested.
        """
        with self._lock:
            log = self._pop(topic_partition)
        # After that, no other move can begin.
        self.end_move(topic_partition, now_ms)
        if log is None:
            return None
        scanned = _as_found(log)
        try:
            return self.strays.add(log, now_ms)
        except StorageError as failure:
            log.abandon()
            with self._lock:
                self._keep_out(scanned, failure)
            raise

    def delete(self, topic_partition: TopicPartition, now_ms: int, topic_id: TopicId | None = None) -> bool:
        """Delete a partition's log; False if there is no log. Its folder is renamed now and removed later.

        With `topic_id` only a log of that topic is deleted, also one that was set aside. Existing views stay
        valid. Raises LogDirFailure, or KAFKA_STORAGE_ERROR if the log is on a failed disk, or may be,
        because the next start would load it again.
        """
        kept_out = None
        with self._lock:
            reason = self.offline_partitions.get(topic_partition)
            if isinstance(reason, LogDirFailure):
                text = f"{topic_partition} lies on a failed disk: {reason}"
                raise api_error(ErrorCode.KAFKA_STORAGE_ERROR, text)
            log = self._logs.get(topic_partition)
            present_id = None if topic_id is None else self._topic_id_of(topic_partition)
            is_of_another = present_id not in (None, topic_id)
            stray = None if topic_id is None else self.strays.pop(topic_partition, topic_id)
            if stray is not None or is_of_another:
                log, folder = None, None if stray is None else stray.folder
            else:
                self._pop(topic_partition)
                self._preferred_dirs.pop(topic_partition, None)
                self.offline_partitions.pop(topic_partition, None)
                kept_out = self._kept_out.pop(topic_partition, None)
                folder = log.folder if log is not None else kept_out.folder if kept_out else None
            if self._unread is not None and not is_of_another:
                self._note_deletion(topic_partition, topic_id, self._unread, is_found=folder is not None)
        if stray is None and not is_of_another:
            self.end_move(topic_partition, now_ms)
        if folder is None:
            return False
        if stray is None:
            # First: without the current log, the next start would keep it.
            self._doom_found(topic_partition, now_ms)
        config = self._config_of(topic_partition.topic) if log is None else log.config
        if log is not None:
            log.abandon()
        try:
            self._doom(folder, topic_partition, now_ms + config.file_delete_delay_ms)
        except StorageError as failure:
            with self._lock:
                self.offline_partitions[topic_partition] = failure
            raise
        return True

    def _topic_id_of(self, key: TopicPartition) -> TopicId | None:
        """The topic id of a partition's log, also of a damaged one. Raises LogDirFailure."""
        if (log := self._logs.get(key)) is not None:
            return log.topic_id
        return _stored_topic_id(self._kept_out[key].folder) if key in self._kept_out else None

    def _note_deletion(
        self, key: TopicPartition, topic_id: TopicId | None, reason: LogDirFailure, *, is_found: bool
    ) -> None:
        """Raises KAFKA_STORAGE_ERROR for a log that is found nowhere and was not deleted before."""
        if not is_found and (key, topic_id) not in self._deleted:
            raise self._keep_unread(key, reason)
        self._deleted[key, topic_id] = None
        if len(self._deleted) > _MOST_REMEMBERED:
            del self._deleted[next(iter(self._deleted))]

    def _keep_unread(self, key: TopicPartition, reason: Exception) -> ApiError:
        """The error for a log that may be in an offline dir. For an unread one it is created nowhere else."""
        if self._unread is not None:
            self.offline_partitions.setdefault(key, reason)
        return api_error(ErrorCode.KAFKA_STORAGE_ERROR, f"{key} may lie on a failed disk: {reason}")

    # Moves to another log dir, see `future_log`

    def begin_move(self, key: TopicPartition, path: Path, now_ms: int) -> FutureLog | None:
        """Begin to move a log to another of the log dirs, in place of a move that is under way.

        Returns None if the log is there already, or moves there. Raises INVALID_TOPIC_EXCEPTION for a name
        that is too long, LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR and LogDirFailure if a disk has failed, and
        REPLICA_NOT_AVAILABLE if there is no log; one that is created later will be in that dir.
        """
        if len(future_name(key)) > MAX_NAME_BYTES:
            raise api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{key}: the name is too long to be moved")
        if path not in self._dirs:
            listed = ", ".join(map(str, self._dirs))
            raise api_error(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of the log dirs {listed}")
        with self._lock:
            current, ended = self._logs.get(key), self.futures.get(key)
            reason = self.offline_dirs.get(path) or self.offline_partitions.get(key)
            if reason is None and current is None:
                self._preferred_dirs.pop(key, None)
                self._preferred_dirs[key] = path
                if len(self._preferred_dirs) > _MOST_REMEMBERED:
                    del self._preferred_dirs[next(iter(self._preferred_dirs))]
                text = f"there is no replica of {key} here; one that is created will be in {path}"
                raise api_error(ErrorCode.REPLICA_NOT_AVAILABLE, text)
            if current is None or reason is not None:
                raise api_error(ErrorCode.KAFKA_STORAGE_ERROR, f"{key} cannot move to {path}: {reason}")
            here = current.folder.parent
            if path == (ended.path if ended else here):
                return None
            future = None
            if path != here:
                with disk_work(path, Operation.READ):
                    is_taken = (path / str(key)).exists()
                if is_taken:
                    text = f"{key} cannot move to {path}: there is a folder of that name"
                    raise api_error(ErrorCode.KAFKA_STORAGE_ERROR, text)
                scanned = ScannedLog(key, path / future_name(key), 0, current.log_start_offset, is_clean=True)
                try:
                    future = FutureLog(current, self._loader(scanned, now_ms, current.topic_id))
                except StorageCallFailed:
                    with suppress(OSError):
                        self._files.rmtree(scanned.folder)
                    raise
                self.futures[key] = future
            else:
                del self.futures[key]
        try:
            if ended is not None:
                ended.log.abandon()
                self._doom(ended.log.folder, key, now_ms)
        except StorageError:
            # The next start will begin the ended move again, so this one must not be confirmed.
            self.end_move(key, now_ms)
            raise
        self._doom_found(key, now_ms)
        logger.info("%s is in %s; a move to %s is requested", key, here, path)
        return future

    def end_move(self, key: TopicPartition, now_ms: int) -> None:
        """Give up the move of a log, if it moves."""
        with self._lock:
            future = self.futures.pop(key, None)
        if future is not None:
            future.log.abandon()
            self._guarded(partial(self._doom, future.log.folder, key, now_ms))

    def _doom_found(self, key: TopicPartition, now_ms: int) -> None:
        """Remove the copies of earlier moves that wait for the next start."""
        with self._lock:
            found = [each for each in self._found_futures if each[0] == key]
            self._found_futures = [each for each in self._found_futures if each[0] != key]
        for _, folder in found:
            self._guarded(partial(self._doom, folder, key, now_ms))

    def finish_move(self, future: FutureLog, max_bytes: int, now_ms: int) -> bool:
        """Let a log continue in the log dir of its future log; False if that has not caught up.

        Up to `max_bytes` are copied while appends wait. Raises StorageError, and the errors of
        `FutureLog.copy`.
        """
        key, current, target = future.key, future.current, self._dirs[future.path]
        bounds = current.bounds
        future.log.flush(now_ms)
        saved = bounds.cuts, bounds.start
        self._write_bounds(target)
        # The last records of a busy log come faster than files are forced to disk.
        for _ in range(_CATCH_UPS):
            if future.copy(max_bytes, now_ms) < max_bytes // 2:
                break
        with current.lock:
            if current.is_closed or not future.catch_up(max_bytes, now_ms):
                return False
            with self._checkpoint_lock, self._lock:
                # If not, the checkpoints of the new dir are not those of this log.
                is_saved = (bounds.cuts, bounds.start) == saved
                if not is_saved or self.futures.get(key) is not future or self._logs.get(key) is not current:
                    return False
                source = self._dirs[current.folder.parent]
                try:
                    doomed = future.swap(self._files)
                finally:
                    if current.folder.parent == target.path:
                        del self.futures[key]
                        source.log_count -= 1
                        target.log_count += 1
                self._doomed[doomed] = now_ms + current.config.file_delete_delay_ms
        logger.info("%s has moved from %s to %s", key, source.path, target.path)
        return True

    def _finish_swaps(self) -> None:
        """Finish the swaps that the last stop interrupted, before any log is opened."""
        folders: list[Path] = []
        for log_dir in self._online_dirs():
            with self._dirs_may_fail():
                folders += log_dir.folders()
        for folder, target in interrupted_swaps(folders):
            logger.warning("%s takes the place of the log that it was copied from, as %s", folder, target)
            with self._dirs_may_fail(), disk_work(folder.parent, Operation.CHANGE):
                self._files.rename(folder, target)
                self._files.fsync(target.parent)

    def _begin_moves_again(self, now_ms: int) -> None:
        """Replace the future logs that a stop has interrupted, after all logs are open."""
        found, self._found_futures = self._found_futures, []
        for key, folder in found:
            current = self.get(key)
            if current is None:
                logger.warning("%s is kept and not used: its current log is not open", folder)
                self._found_futures.append((key, folder))
                continue
            try:
                is_same = _stored_topic_id(folder) == current.topic_id
                # In the log's own dir, it would be a request to end the move that was begun again.
                if is_same and folder.parent != current.folder.parent:
                    self.begin_move(key, folder.parent, now_ms)
                self._doom(folder, key, now_ms)
            except LogDirFailure as failure:
                self.fail_dir(failure)
            except ApiError as error:
                logger.error("%s is kept and not used: %s", folder, error)

    def fail_dir(self, failure: LogDirFailure) -> list[TopicPartition]:
        """Take the log dir of a failure offline; returns the partitions that go offline with it.

        Returns nothing for a second failure of the same dir, and for a failure in a deleted log.
        Takes the logs' locks, so the caller must hold none.
        """
        with self._lock:
            path = next((path for path in self._dirs if failure.path.is_relative_to(path)), None)
            if path is None or path in self.offline_dirs:
                return []
            if self._is_of_deleted_log(failure, path):
                logger.info("ignored a failure in a deleted log: %s", failure)
                return []
            self.offline_dirs[path] = failure
            lost = [key for key, log in self._logs.items() if log.folder.parent == path]
            logs = [self._logs.pop(key) for key in lost]
            for key in [key for key, future in self.futures.items() if key in lost or future.path == path]:
                # The folder stays: the next start begins the move again.
                logs.append(self.futures.pop(key).log)
            self.offline_partitions.update(dict.fromkeys(lost, failure))
            for folder in [folder for folder in self._doomed if folder.parent == path]:
                del self._doomed[folder]
        logger.error("log dir %s is offline, %d partitions with it: %s", path, len(lost), failure)
        for log in logs:
            log.abandon()
        if self.on_dir_failed is not None:
            self.on_dir_failed(lost)
        return lost

    def fail_log(self, damage: CorruptLog, log: Log) -> None:
        """Take a log with damaged records offline, as if the start had found them.

        Takes the logs' locks, so the caller must hold none.
        """
        key = log.topic_partition
        log_dir = self._dirs[log.folder.parent]
        # Without its recovery point the next start would take the damage for a torn tail.
        self._guarded(partial(self._write_bounds, log_dir), log)
        with self._lock:
            if self._logs.get(key) is not log or not damage.path.is_relative_to(log.folder):
                # It was deleted or moved, or its dir is offline.
                return
            self._pop(key)
            self._keep_out(_as_found(log), damage)
            logs = [log]
            if (future := self.futures.pop(key, None)) is not None:
                # The folder stays: it may be the last copy.
                self._found_futures.append((key, future.log.folder))
                logs.append(future.log)
        logger.error("%s is offline until the next start: %s", key, damage)
        for each in logs:
            each.abandon()
        if self.on_dir_failed is not None:
            self.on_dir_failed([key])

    def dir_of_offline(self, topic_partition: TopicPartition) -> Path | None:
        """The log dir of an offline partition, or None if it is unknown."""
        reason = self.offline_partitions.get(topic_partition)
        if not isinstance(reason, LogDirFailure | CorruptLog):
            return None
        return next((path for path in self._dirs if reason.path.is_relative_to(path)), None)

    @property
    def dirs(self) -> dict[Path, LogDirFailure | None]:
        """Every log dir, with the failure of an offline one."""
        return {path: self.offline_dirs.get(path) for path in self._dirs}

    @property
    def directory_ids(self) -> tuple[str, ...]:
        """The ids of the log dirs, each locked by this process until `close`."""
        return tuple(log_dir.directory_id for log_dir in self._dirs.values())

    @property
    def has_online_dir(self) -> bool:
        return any(path not in self.offline_dirs for path in self._dirs)

    # Passes, called by a scheduler

    def retention_pass(self, now_ms: int, high_watermark_of: Callable[[TopicPartition], int | None]) -> int:
        """Apply retention to each log with a high watermark; returns the number of deleted segments."""
        count = 0
        for log in self.all_logs():
            high_watermark = high_watermark_of(log.topic_partition)
            if high_watermark is not None:
                count += self._guarded(partial(log.delete_old_segments, now_ms, high_watermark), log)
        return count

    def expire_producers_pass(self, now_ms: int, expiration_ms: int) -> int:
        """Drop the producers that have written nothing for that long; returns their number."""
        count = 0
        for log in self.all_logs():
            if len(log.producers):
                with log.lock:
                    count += log.producers.expire(now_ms, expiration_ms)
        return count

    def least_flush_ms(self) -> int:
        """The smallest `flush.ms` of all logs."""
        return min((log.config.flush_ms for log in self.all_logs()), default=NEVER_MS)

    def flush_pass(self, now_ms: int) -> None:
        for log in self.all_logs():
            if log.config.flush_ms < NEVER_MS and log.is_flush_due(now_ms):
                self._guarded(partial(log.flush, now_ms), log)

    def checkpoint_pass(self, now_ms: int) -> None:
        """Flush sealed segments, so that recovery stays short, and save the checkpoints of the logs."""
        for log in self.all_logs():
            self._guarded(partial(log.flush, now_ms, sealed_only=True), log)
        for log_dir in self._online_dirs():
            self._guarded(partial(self._write_bounds, log_dir))

    def checkpoint_log_starts(self) -> None:
        """Save the log starts, which DeleteRecords and retention raise."""
        for log_dir in self._online_dirs():
            self._guarded(partial(self._write_bounds, log_dir, [Bound.START]))

    def checkpoint_cleaning(self) -> None:
        """Save how far the logs are cleaned, and their delete horizons; called after each cleaning."""
        for log_dir in self._online_dirs():
            self._guarded(partial(self._write_bounds, log_dir, [Bound.FIRST_DIRTY]))
            self._guarded(partial(self._write_delete_horizons, log_dir))

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Save high watermarks, each in the log dir of its partition."""
        for log_dir in self._online_dirs():
            self._guarded(partial(self._write_high_watermarks, log_dir, high_watermarks))

    def load_high_watermarks(self) -> dict[TopicPartition, Offset]:
        """The saved high watermarks; a damaged file counts as empty, and is reported."""
        high_watermarks: dict[TopicPartition, Offset] = {}
        for log_dir in self._online_dirs():
            saved = log_dir.high_watermarks.read_or_empty()
            # A dir that held the partition before may still have an entry.
            high_watermarks |= {
                key: mark for key, mark in saved.items() if self._folder_of(key) == log_dir.path / str(key)
            }
        return high_watermarks

    def remove_deleted(self, now_ms: int) -> int:
        """Remove the folders of deleted partitions whose delay has passed; returns their number."""
        with self._lock:
            due = [folder for folder, due_ms in self._doomed.items() if due_ms <= now_ms]
            for folder in due:
                del self._doomed[folder]
        for folder in due:
            try:
                self._files.rmtree(folder)
            except OSError as error:
                logger.error("%s could not be removed: %s", folder, error)
        return len(due)

    def close(self, now_ms: int) -> None:
        """The clean stop: close every log, save the checkpoints, mark each dir clean and unlock it.

        A dir in which anything goes wrong gets no mark, so the next start recovers it.
        """
        online = self._online_dirs()
        for_each(online, partial(self._close_dir, now_ms), len(online), "log-dir")
        for future in self.all_futures():
            future.log.abandon()
        for log_dir in self._dirs.values():
            log_dir.release()

    def _close_dir(self, now_ms: int, log_dir: LogDir) -> None:
        try:
            logs = self._logs_in(log_dir)
            close_all(logs, log_dir.path, self._files, self._recovery_threads, now_ms)
            self._write_bounds(log_dir)
            segments = {log.folder.name: len(log.segments) for log in logs}
            log_dir.put_clean_mark(CleanMark(list(map(str, self.offline_partitions)), segments))
        except LogDirFailure as failure:
            self.fail_dir(failure)
        except StorageCallFailed as failure:
            logger.error("log dir %s is not closed cleanly: %s", log_dir.path, failure)

    # Checkpoints

    def _saved_in(self, log_dir: LogDir) -> list[Log]:
        """The logs of a dir, and those that move to it: its checkpoints must hold for them after the swap."""
        moving = [future.current for future in self.all_futures() if future.path == log_dir.path]
        return [*self._logs_in(log_dir), *moving]

    def _kept_in(self, log_dir: LogDir) -> list[TopicPartition]:
        """The partitions whose logs could not be opened. Their offsets in the checkpoints say which records
        the logs must still hold, and the next start checks that. Read after the open logs.
        """
        with self._lock:
            return [key for key, log in self._kept_out.items() if log.folder.parent == log_dir.path]

    def _save_lowered_bounds(self, log: Log) -> None:
        """Write the checkpoints, which must never promise more than the log holds.

        Raises LogDirFailure in the truncating caller.
        """
        later = [bound for bound in Bound if log.bounds.is_later_promised(bound)]
        self._write_bounds(self._dirs[log.folder.parent], {*later, Bound.RECOVERY_POINT})

    def _write_bounds(self, log_dir: LogDir, bounds: Collection[Bound] = tuple(Bound)) -> None:
        """Write the checkpoints of these bounds. Raises LogDirFailure, as the other writers."""
        for bound in sorted(bounds):
            with self._checkpoint_lock:
                offsets = [(log, log.bounds.promise(bound)) for log in self._saved_in(log_dir)]
                # As in Kafka, the log start has an entry only if records were deleted.
                is_listed = bound is Bound.RECOVERY_POINT
                log_dir.bounds[bound].write(
                    {log.topic_partition: offset for log, offset in offsets if offset > 0 or is_listed},
                    kept=self._kept_in(log_dir),
                )
                for log, offset in offsets:
                    if log.folder.parent == log_dir.path:
                        log.bounds.promised(bound, offset)

    def _write_delete_horizons(self, log_dir: LogDir) -> None:
        with self._checkpoint_lock:
            horizons = {log.topic_partition: log.bounds.delete_horizon_ms for log in self._saved_in(log_dir)}
            log_dir.delete_horizons.write({key: ms for key, ms in horizons.items() if ms is not None})

    def _lower_first_dirty_offsets(self, log_dir: LogDir) -> None:
        """Save the offsets of logs that end before them, before the next records count as cleaned."""
        if any(log.bounds.is_later_promised(Bound.FIRST_DIRTY) for log in self._logs_in(log_dir)):
            self._write_bounds(log_dir, [Bound.FIRST_DIRTY])

    def _write_high_watermarks(self, log_dir: LogDir, marks: Mapping[TopicPartition, int]) -> None:
        with self._checkpoint_lock:
            keys = [log.topic_partition for log in self._saved_in(log_dir)]
            saved = {key: marks[key] for key in keys if key in marks}
            log_dir.high_watermarks.write(saved, kept=self._kept_in(log_dir))

    # Inside

    @contextmanager
    def _dirs_may_fail(self) -> Iterator[None]:
        """Take a dir offline whose disk fails in the block."""
        try:
            yield
        except LogDirFailure as failure:
            self.fail_dir(failure)

    def _load_dir(self, now_ms: int, log_dir: LogDir) -> None:
        with self._dirs_may_fail():
            scan = log_dir.scan(self.strays.notice, log_dir.take_clean_mark())
            with self._lock:
                self._found_futures += scan.futures
                if not self.offline_dirs:
                    # An offline dir may hold a future log that has to take the place of a deleted log.
                    self._doomed.update(dict.fromkeys(scan.deleted, now_ms))
            for_each(scan.logs, partial(self._load_log, now_ms), self._recovery_threads, "log-recovery")
            self._lower_first_dirty_offsets(log_dir)

    def _load_log(self, now_ms: int, scanned: ScannedLog) -> None:
        key, folder = scanned.key, scanned.folder
        try:
            log = Log.open(key, self._loader(scanned, now_ms))
            with self._lock:
                other = self._folder_of(key)
                if other not in (None, folder):
                    raise InvalidConfiguration(
                        f"{key} lies in two log dirs, {other} and {folder}; remove one of them"
                    )
                self._adopt(log)
        except (LogDirFailure, InvalidConfiguration):
            raise
        except Exception as error:
            is_foreseen = isinstance(error, ApiError | CheckpointDamaged)
            logger.error("%s stays offline: %s", key, error, exc_info=not is_foreseen)
            with self._lock:
                self._keep_out(scanned, error)

    def _keep_out(self, scanned: ScannedLog, reason: Exception) -> None:
        self.offline_partitions[scanned.key] = reason
        self._kept_out[scanned.key] = scanned

    def _loader(self, scanned: ScannedLog, now_ms: int, topic_id: TopicId | None = None) -> LogLoader:
        found = scanned._asdict()
        config = self._config_of(found.pop("key").topic)
        return LogLoader(config=config, now_ms=now_ms, topic_id=topic_id, files=self._files, **found)

    def _retry_opening(self, key: TopicPartition, now_ms: int) -> Log | None:
        """Open a log that could not be opened at start. Raises StorageError."""
        scanned = self._kept_out.get(key)
        is_retried = isinstance(self.offline_partitions.get(key), StorageCallFailed)
        if scanned is None or not is_retried or scanned.folder.parent in self.offline_dirs:
            return None
        self._load_log(now_ms, scanned)
        reason = self.offline_partitions.get(key)
        if self._logs.get(key) is None:
            if isinstance(reason, StorageCallFailed):
                raise reason
            return None
        with self._lock:
            self.offline_partitions.pop(key, None)
            self._kept_out.pop(key, None)
        self._lower_first_dirty_offsets(self._dirs[scanned.folder.parent])
        logger.warning("%s is online: it could not be opened at start", key)
        return self._logs.get(key)

    def _adopt(self, log: Log) -> None:
        self._preferred_dirs.pop(log.topic_partition, None)
        self._logs[log.topic_partition] = log
        log.on_bounds_lowered = self._save_lowered_bounds
        self._dirs[log.folder.parent].log_count += 1

    def _pop(self, key: TopicPartition) -> Log | None:
        """Under the lock."""
        log = self._logs.pop(key, None)
        if log is not None:
            self._dirs[log.folder.parent].log_count -= 1
        return log

    def _guarded(self, work: Callable[[], int | None], log: Log | None = None) -> int:
        """Run a part of a pass. A failing disk goes offline; a log deleted meanwhile is skipped."""
        try:
            return work() or 0
        except StorageCallFailed as failure:
            logger.warning("left to the next pass: %s", failure)
        except ApiError as error:
            if log is None or not log.is_closed:
                if not isinstance(error, LogDirFailure):
                    raise
                self.fail_dir(error)
        return 0

    def _folder_of(self, key: TopicPartition) -> Path | None:
        log = self._logs.get(key)
        if log is not None:
            return log.folder
        return self._kept_out[key].folder if key in self._kept_out else None

    def _is_of_deleted_log(self, failure: LogDirFailure, dir_path: Path) -> bool:
        """Whether a file is missing because its log was deleted; False if the whole log dir is missing."""
        below = failure.path.relative_to(dir_path).parts
        name = below[0] if below else ""
        key = parse_partition_name(name) or parse_future_name(name)
        future = None if key is None else self.futures.get(key)
        folders = () if key is None else (self._folder_of(key), future and future.log.folder)
        is_gone = key is not None and dir_path / name not in folders
        is_there = not is_gone or not dir_path.is_dir()
        return verdict(failure.cause.errno, Operation.READ, is_log_there=is_there) is Verdict.LOG_GONE

    def _dir_with(self, name: str) -> LogDir | None:
        return next((log_dir for log_dir in self._online_dirs() if (log_dir.path / name).is_dir()), None)

    def _online_dirs(self) -> list[LogDir]:
        return [log_dir for path, log_dir in self._dirs.items() if path not in self.offline_dirs]

    def _logs_in(self, log_dir: LogDir) -> list[Log]:
        return [log for log in self.all_logs() if log.folder.parent == log_dir.path]

    def _doom(self, folder: Path, key: TopicPartition, due_ms: int) -> None:
        """Give a folder the name of a deleted log's, to be removed later. Raises LogDirFailure."""
        doomed = folder.with_name(unique_name(key, DELETED_SUFFIX))
        try:
            self._files.rename(folder, doomed)
            self._files.fsync(doomed.parent)
        except OSError as error:
            failure = storage_error(folder, error, Operation.CHANGE, is_log_there=False)
            if not isinstance(failure, LogGone):
                raise failure from error
            logger.warning("cannot delete %s: it does not exist", folder)
        else:
            with self._lock:
                self._doomed[doomed] = due_ms

    def _dir_for(self, key: TopicPartition) -> LogDir:
        """The dir for a new log: the preferred one, or the first of those with the fewest logs."""
        online = self._online_dirs()
        if not online:
            raise api_error(ErrorCode.KAFKA_STORAGE_ERROR, "all log dirs are offline")
        preferred = self._preferred_dirs.get(key)
        moving = Counter(future.path for future in self.futures.values())
        return min(online, key=lambda each: (each.path != preferred, each.log_count + moving[each.path]))


def _as_found(log: Log) -> ScannedLog:
    """The log in its folder, as after an unclean stop."""
    return ScannedLog(log.topic_partition, log.folder, log.recovery_point, log.log_start_offset, False)


def _stored_topic_id(folder: Path) -> TopicId | None:
    """Raises LogDirFailure."""
    try:
        return read_partition_metadata(folder)
    except CheckpointDamaged as error:
        logger.warning("taken for a log without a topic id: %s", error)
        return None
