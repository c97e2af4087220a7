"""One folder of `log.dirs`: its lock, its identity, its checkpoints, and the mark of a clean stop.

One process at a time owns a log dir (an advisory lock on `.lock`, which the system releases when the process
dies). `meta.properties` ties the folder to a broker id and a cluster id, so that a disk put into the wrong
broker is refused, and each dir has an id. Opened and closed by one thread, which may use others.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from barnabas.broker.log.checkpoints import OffsetCheckpoint, encode_lines, encode_topic_id, read_text
from barnabas.broker.log.file_system import (
    DELETED_SUFFIX,
    FILE_SYSTEM,
    FileSystem,
    parse_future_name,
    parse_partition_name,
)
from barnabas.broker.log.log import Log
from barnabas.broker.log.log_bounds import Bound
from barnabas.broker.log.storage_errors import Operation, disk_work, storage_error
from barnabas.protocol.errors import InvalidConfiguration
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition

logger = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"
META_FILE: Final = "meta.properties"
CLEAN_SHUTDOWN_FILE: Final = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
DELETE_HORIZON_CHECKPOINT: Final = "delete-horizon-checkpoint"
"""The cleaner's own: when it may remove tombstones and markers that it has kept, by partition."""
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
_FILES: Final = {
    Bound.START: LOG_START_CHECKPOINT,
    Bound.FIRST_DIRTY: CLEANER_CHECKPOINT,
    Bound.RECOVERY_POINT: RECOVERY_POINT_CHECKPOINT,
}
_META_VERSION: Final = "0"
_DIRECTORY_ID: Final = "directory.id"
_SYNC_ALL_FROM: Final = 64
"""With this many unsynced logs, one sync of the whole file system is faster than one per file."""

T = TypeVar("T")


class CleanMark(NamedTuple):
    """The mark of a clean stop, by the names of partitions' folders."""

    damaged: Collection[str] = ()
    """The logs that were not open at the stop, so that their state is unknown. All others were closed."""
    segments: Mapping[str, int] = MappingProxyType({})
    """The number of segment files of each closed log; an earlier version did not count them."""


def _parse_mark(text: str) -> CleanMark | None:
    """None if `text` is no mark."""
    try:
        content = json.loads(text)
    except ValueError:
        return None
    if not isinstance(content, dict) or content.get("version") != 0:
        return None
    damaged, segments = content.get("damaged", []), content.get("segments", {})
    is_mark = (
        isinstance(damaged, list)
        and all(isinstance(name, str) for name in damaged)
        and isinstance(segments, dict)
        and all(isinstance(count, int) for count in segments.values())
    )
    return CleanMark(damaged, segments) if is_mark else None


class ScannedLog(NamedTuple):
    """A partition's folder, with its checkpoint entries and the last stop's record, as `LogLoader` takes
    them.
    """

    key: TopicPartition
    folder: Path
    recovery_point: int
    log_start_offset: int
    is_clean: bool
    segments_at_stop: int | None = None
    first_dirty_offset: int = 0
    delete_horizon_ms: int | None = None


def folds_case(path: Path) -> bool:
    """Whether the file system takes names that differ in case alone for one, as on macOS by default."""
    # Unlike `Path.exists`, it raises no error for a log dir that cannot be read.
    return os.path.exists(path / LOCK_FILE.upper())


class DirScan(NamedTuple):
    """The folders of a log dir: logs, future logs, and deleted logs."""

    logs: list[ScannedLog]
    futures: list[tuple[TopicPartition, Path]]
    deleted: list[Path]


class LogDir:
    """A locked log dir; `release` unlocks it."""

    def __init__(self, path: Path, lock_descriptor: int, files: FileSystem) -> None:
        self.path = path
        self._files = files
        self.bounds = {bound: OffsetCheckpoint(path / name, files) for bound, name in _FILES.items()}
        self.high_watermarks = OffsetCheckpoint(path / HIGH_WATERMARK_CHECKPOINT, files)
        self.checkpoints = (*self.bounds.values(), self.high_watermarks)
        self.delete_horizons = OffsetCheckpoint(path / DELETE_HORIZON_CHECKPOINT, files)
        self.log_count = 0
        """How many logs of this dir are online; changed by the manager, under its lock."""
        self._lock_descriptor: int | None = lock_descriptor
        self.directory_id = ""
        """Kafka's ``directory.id``; set once the identity has been checked."""

    @classmethod
    def acquire(cls, path: Path, files: FileSystem = FILE_SYSTEM) -> LogDir:
        """Create the folder if it is missing, and lock it.

        Raises InvalidConfiguration if another process has it, LogDirFailure if the disk refuses.
        """
        with disk_work(path):
            files.mkdir_durably(path)
            descriptor = files.open(path / LOCK_FILE, os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise InvalidConfiguration(
                f"log.dirs: {path} is in use by another process; only one broker may use it"
            ) from error
        return cls(path, descriptor, files)

    def check_identity(self, broker_id: BrokerId, cluster_id: str) -> None:
        """Compare `meta.properties` with this broker's ids, or write it into a new dir.

        Older brokers wrote no ``directory.id``; such a dir gets one. Raises InvalidConfiguration naming both
        ids when the dir belongs elsewhere, LogDirFailure.
        """
        stored = self.read_meta()
        expected = {"broker.id": str(broker_id), "cluster.id": cluster_id, "version": _META_VERSION}
        meta = expected if stored is None else stored
        for name, value in expected.items():
            if meta.get(name) != value:
                raise InvalidConfiguration(
                    f"{self.path / META_FILE} has {name}={meta.get(name)}, this broker has {name}={value}; "
                    "the folder belongs to another broker or cluster"
                )
        if not meta.get(_DIRECTORY_ID):
            meta = {**meta, _DIRECTORY_ID: encode_topic_id(TopicId(uuid.uuid4()))}
            lines = [f"{name}={value}" for name, value in sorted(meta.items())]
            with disk_work(self.path):
                self._files.write_atomically(self.path / META_FILE, encode_lines(lines), durable=True)
        self.directory_id = meta[_DIRECTORY_ID]

    def read_meta(self) -> dict[str, str] | None:
        """The pairs of `meta.properties`; None if there is no file. Raises LogDirFailure."""
        text = read_text(self.path / META_FILE, errors="replace")
        if text is None:
            return None
        pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
        return {name.strip(): value.strip() for name, value in pairs}

    def take_clean_mark(self) -> CleanMark | None:
        """Read and remove the mark of a clean stop, so that a later crash shows.

        Raises LogDirFailure.
        """
        mark = self.read_clean_mark()
        try:
            self._files.unlink(self.path / CLEAN_SHUTDOWN_FILE)
            self._files.fsync(self.path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(self.path, error) from error
        return mark

    def read_clean_mark(self) -> CleanMark | None:
        """The mark of a clean stop, which stays."""
        path = self.path / CLEAN_SHUTDOWN_FILE
        text = read_text(path, errors="replace")
        mark = None if text is None else _parse_mark(text)
        if text is not None and mark is None:
            logger.warning("%s cannot be parsed, so the stop counts as unclean: %r", path, text[:100])
        return mark

    def put_clean_mark(self, mark: CleanMark) -> None:
        """Record that the logs were closed and are on disk. Raises LogDirFailure.

        The file is Kafka's, with keys of our own, which Kafka ignores.
        """
        content: dict[str, object] = {"version": 0, "brokerEpoch": "-1"}
        if mark.damaged:
            content["damaged"] = sorted(mark.damaged)
        if mark.segments:
            content["segments"] = dict(mark.segments)
        with disk_work(self.path):
            text = encode_lines([json.dumps(content)])
            self._files.write_atomically(self.path / CLEAN_SHUTDOWN_FILE, text, durable=True)

    def folders(self) -> list[Path]:
        """Raises LogDirFailure."""
        with disk_work(self.path, Operation.READ):
            return sorted(path for path in self.path.iterdir() if path.is_dir())

    def scan(self, is_stray: Callable[[Path], bool], mark: CleanMark | None) -> DirScan:
        """The logs with the last stop's record, and the folders of deleted logs.

        Raises what `take_clean_mark` raises.
        """
        bounds = {bound: checkpoint.read_or_empty() for bound, checkpoint in self.bounds.items()}
        # Read now, so that its entries can be kept.
        self.high_watermarks.read_or_empty()
        horizons = self.delete_horizons.read_or_empty()
        scan = DirScan([], [], [])
        for folder in self.folders():
            if folder.name.endswith(DELETED_SUFFIX):
                scan.deleted.append(folder)
            elif future := parse_future_name(folder.name):
                scan.futures.append((future, folder))
            elif key := parse_partition_name(folder.name):
                is_clean = mark is not None and folder.name not in mark.damaged
                segments = mark.segments.get(folder.name) if mark is not None else None
                start, dirty, point = (bounds[bound].get(key, 0) for bound in Bound)
                horizon = horizons.get(key)
                scan.logs.append(ScannedLog(key, folder, point, start, is_clean, segments, dirty, horizon))
            elif not is_stray(folder):
                logger.warning("ignored %s: it is not the folder of a partition", folder)
        return scan

    def forget(self, key: TopicPartition) -> None:
        """Drop the checkpoint entries of an earlier log of that name. Raises LogDirFailure."""
        for checkpoint in self.checkpoints:
            checkpoint.forget(key)

    def release(self) -> None:
        """Unlock the folder; a second call does nothing."""
        descriptor, self._lock_descriptor = self._lock_descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def for_each(items: Collection[T], work: Callable[[T], object], threads: int, name: str) -> None:
    """Do the work for all items on a bounded number of threads; only one thread keeps their order.

    The first failure is raised after all started items have ended; the others are not started.
    """
    threads = min(threads, len(items))
    if threads <= 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix=name) as pool:
        futures = [pool.submit(work, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
        pool.shutdown(cancel_futures=True)
    for future in futures:
        if not future.cancelled():
            future.result()


def close_all(logs: Collection[Log], log_dir: Path, files: FileSystem, threads: int, now_ms: int) -> None:
    """Close all logs of a log dir. Raises LogDirFailure, StorageCallFailed."""
    for_each(logs, Log.write_out, threads, "log-close")
    is_on_disk = False
    if sum(not log.is_synced for log in logs) >= _SYNC_ALL_FROM:
        with disk_work(log_dir, Operation.SYNC):
            is_on_disk = files.sync_all(log_dir)
    for_each(logs, partial(Log.close, now_ms=now_ms, is_on_disk=is_on_disk), threads, "log-close")
