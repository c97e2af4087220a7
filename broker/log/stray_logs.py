"""Stray logs, which no topic claims: their folders are renamed ``<topic>-<partition>.<id>-stray`` and kept.

The controller names all partitions that a broker hosts. A log beyond them belongs to a topic that is gone, or
only seems gone: its znode was removed by hand, or ZooKeeper was restored from an old backup. So nothing is
deleted. The log is closed and on disk before its folder is renamed. If a topic of the same id claims the
partition again, the log is reopened as it was. It is deleted on the controller's order, or by hand.

Any thread.
"""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.broker.log.checkpoints import OffsetCheckpoint, read_partition_metadata
from barnabas.broker.log.file_system import FileSystem, unique_name
from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import CheckpointDamaged, StorageCallFailed, disk_work
from barnabas.protocol.ids import Offset, TopicId, TopicPartition

logger = logging.getLogger(__name__)

STRAY_SUFFIX: Final = "-stray"
LOG_START_FILE: Final = "log-start-offset-checkpoint"
"""A file in a stray's folder: the log dir's checkpoint entry for it."""
_STRAY_NAME = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)\.[0-9a-f]{32}-stray")


class StrayLog(NamedTuple):
    """``partition`` holds only the beginning of a topic name that is too long for the folder's name.

    ``topic_id`` is None if the log is older than topic ids.
    """

    partition: TopicPartition
    topic_id: TopicId | None
    folder: Path


class StrayLogs:
    """The stray logs of a broker, by folder."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._strays: dict[Path, StrayLog] = {}

    def all(self) -> list[StrayLog]:
        with self._lock:
            return sorted(self._strays.values(), key=lambda stray: (stray.partition, stray.folder))

    def notice(self, folder: Path) -> bool:
        """Whether a folder is a stray's; a stray is remembered. Raises LogDirFailure."""
        match = _STRAY_NAME.fullmatch(folder.name)
        if match is None:
            return False
        try:
            topic_id = read_partition_metadata(folder)
        except CheckpointDamaged as error:
            logger.error("%s cannot be reopened: %s", folder, error)
            return True
        partition = TopicPartition(match["topic"], int(match["partition"]))
        logger.warning("%s belongs to no known topic; it is kept", folder)
        with self._lock:
            self._strays[folder] = StrayLog(partition, topic_id, folder)
        return True

    def add(self, log: Log, now_ms: int) -> Path:
        """Close a log and rename its folder; returns the new one.

        After a StorageCallFailed the folder has its former name. Raises StorageError.
        """
        log.close(now_ms)
        # A reader that still holds it must not mistake the folder of a new log of that name for its own.
        log.abandon()
        name = log.topic_partition
        folder = log.folder.with_name(unique_name(name, STRAY_SUFFIX))
        OffsetCheckpoint(log.folder / LOG_START_FILE, self._files).write({name: log.log_start_offset})
        with disk_work(log.folder):
            self._files.rename(log.folder, folder)
        with self._lock:
            self._strays[folder] = StrayLog(name, log.topic_id, folder)
        try:
            with disk_work(folder):
                self._files.fsync(folder.parent)
        except StorageCallFailed as failure:
            # After a power cut it may have its former name, and is set aside again.
            logger.warning("the renaming of %s may not be on disk: %s", folder, failure)
        return folder

    def take_up(self, partition: TopicPartition, topic_id: TopicId | None) -> None:
        """Rename the stray of that very topic, if there is one, back to the folder of its partition.

        `start_of` returns its log start. Raises StorageError; the caller may retry.
        """
        with self._lock:
            stray = self._find(partition, topic_id)
        if stray is None:
            return
        with disk_work(stray.folder):
            self._files.rename(stray.folder, stray.folder.with_name(str(partition)))
            with self._lock:
                self._strays.pop(stray.folder, None)
            self._files.fsync(stray.folder.parent)
        logger.warning("the topic of %s is back; reopening its log from %s", partition, stray.folder)

    def start_of(self, partition: TopicPartition, folder: Path) -> Offset:
        """The start of the log in a folder before it is first opened; 0 unless it was set aside."""
        try:
            return OffsetCheckpoint(folder / LOG_START_FILE, self._files).read().get(partition, Offset(0))
        except CheckpointDamaged as error:
            logger.warning("treated as empty: %s", error)
            return Offset(0)

    def pop(self, partition: TopicPartition, topic_id: TopicId | None) -> StrayLog | None:
        """Forget the stray of that very topic, if there is one; the caller uses its folder."""
        with self._lock:
            stray = self._find(partition, topic_id)
            return None if stray is None else self._strays.pop(stray.folder)

    def _find(self, partition: TopicPartition, topic_id: TopicId | None) -> StrayLog | None:
        for stray in self._strays.values():
            is_same = topic_id is not None and stray.topic_id == topic_id
            if _is_named(stray, partition, exactly=not is_same) and (is_same or stray.topic_id is None):
                return stray
        return None


def _is_named(stray: StrayLog, partition: TopicPartition, *, exactly: bool) -> bool:
    if exactly:
        return stray.partition == partition
    return stray.partition.partition == partition.partition and partition.topic.startswith(
        stray.partition.topic
    )
