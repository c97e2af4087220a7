"""Forces the files of a log to disk: each changed file once, then the folder. Any thread."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from barnabas.broker.log.epoch_cache import EpochCache
from barnabas.broker.log.file_system import FileSystem
from barnabas.broker.log.producer_snapshot import ProducerSnapshots
from barnabas.broker.log.segment import Segment


def are_synced(segments: Iterable[Segment], snapshots: ProducerSnapshots, epochs: EpochCache) -> bool:
    return (
        snapshots.is_synced and epochs.sync_state.is_synced and all(segment.is_synced for segment in segments)
    )


def sync_all(
    segments: Iterable[Segment],
    snapshots: ProducerSnapshots,
    epochs: EpochCache,
    folder: Path,
    files: FileSystem,
) -> None:
    """Force all unsynced changes to disk. Raises OSError, also if a file was removed meanwhile."""
    for segment in segments:
        segment.fsync()
    snapshots.fsync()
    epochs.fsync()
    files.fsync(folder)
