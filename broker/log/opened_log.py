"""What a log is made of when it is opened: the folder, whose it is, and all that recovery finds in it.

Runs on one thread, before anybody else knows the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.log.epoch_cache import EpochCache
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.log_config import LogConfig
from barnabas.broker.log.log_segments import LogSegments
from barnabas.broker.log.partition_metadata import read_partition_metadata, write_partition_metadata
from barnabas.broker.log.producer_snapshot import ProducerSnapshots
from barnabas.broker.log.producer_state import ProducerStates
from barnabas.broker.log.recovery import load_producers, recover_log
from barnabas.broker.log.segment import Segment
from barnabas.broker.log.storage_errors import CheckpointDamaged, disk_work
from barnabas.protocol.errors import ErrorCode, api_error
from barnabas.protocol.ids import TopicId


class OpenedLog(NamedTuple):
    """The parts of a log, which agree with each other."""

    segments: LogSegments
    """At least one."""
    epochs: EpochCache
    snapshots: ProducerSnapshots
    producers: ProducerStates
    topic_id: TopicId | None
    log_start_offset: int
    recovery_point: int


def open_log_folder(
    folder: Path,
    config: LogConfig,
    *,
    now_ms: int,
    topic_id: TopicId | None,
    recovery_point: int,
    log_start_offset: int,
    is_clean: bool,
    files: FileSystem,
) -> OpenedLog:
    """Open a folder's log with recovery, or create it, the folder included; as `Log.open` says."""
    with disk_work(folder):
        files.mkdir(folder)
    stored_id = read_partition_metadata(folder)
    if topic_id is not None and stored_id not in (None, topic_id):
        raise api_error(
            ErrorCode.INCONSISTENT_TOPIC_ID, f"{folder} belongs to topic id {stored_id}, not {topic_id}"
        )
    kept, epochs, snapshots = recover_log(
        folder,
        config,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        is_clean=is_clean,
        now_ms=now_ms,
        files=files,
    )
    if kept and kept[-1].next_offset < log_start_offset:
        _remove_deleted(kept, epochs, snapshots, folder, log_start_offset, is_clean=is_clean)
        kept = []
    if not kept:
        kept = [Segment.create(folder, log_start_offset, now_ms, config, files)]
        if log_start_offset:
            # A recovery point at that offset must never be on disk without the segment.
            with disk_work(folder):
                files.fsync(folder)
    if topic_id is not None and stored_id is None:
        # Forces the folder to disk, which also covers the name of a first segment.
        write_partition_metadata(folder, topic_id, files)
    segments = LogSegments.of(kept)
    start = max(log_start_offset, segments.bases[0])
    epochs.truncate_from_start(start)
    end = segments.active.next_offset
    producers = ProducerStates()
    # A clean stop leaves a snapshot; where there is none, the log is of before there were any.
    if snapshots.offsets or not is_clean:
        producers = load_producers(snapshots, segments, now_ms)
    return OpenedLog(
        segments,
        epochs,
        snapshots,
        producers,
        stored_id or topic_id,
        start,
        end if is_clean else min(recovery_point, end),
    )


def _remove_deleted(
    segments: Sequence[Segment],
    epochs: EpochCache,
    snapshots: ProducerSnapshots,
    folder: Path,
    log_start_offset: int,
    *,
    is_clean: bool,
) -> None:
    """Remove all files of a log that ends before its start: it was deleted on purpose.

    But a clean stop leaves the start within the log, so a file is damaged or missing: CheckpointDamaged.
    """
    if is_clean:
        raise CheckpointDamaged(
            f"{folder}: the log ends at offset {segments[-1].next_offset}, "
            f"its checkpoint has the start {log_start_offset}"
        )
    for segment in segments:
        segment.remove()
    epochs.clear()
    snapshots.remove_above(-1)
