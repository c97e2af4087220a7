"""Finishes the swaps of segments that a stop interrupted; `segment_swap` has their steps.

A swap whose `.log.swap` exists was committed. Its range is from its base to the end of its last batch, where
the next segment begins: all segments in it are removed, and its indexes are rebuilt. Kafka orders its own
swaps in the same way, so either broker can finish the other's.

Runs on one thread, before any other thread uses the log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from barnabas.broker.log.batch_scan import BatchWalk
from barnabas.broker.log.file_system import (
    CLEANED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    FileSystem,
    segment_base_offset,
    segment_name,
)
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.protocol.errors import ApiError

logger = logging.getLogger(__name__)


class Swap(NamedTuple):
    """A swap that a stop interrupted."""

    path: Path
    """The `.log.swap` file."""
    base_offset: int
    next_offset: int
    """The end of its last batch."""
    position: int
    """The end of its sound batches in the file."""
    fault: str | None
    """Why it cannot be finished, although its file was on disk before the swap began."""
    replaced: list[int]
    """The bases of the segments in its range that still exist."""


def has_files_of_cleanings(folder: Path) -> bool:
    """Whether a cleaning has left any file; quick even with thousands of segments. Raises OSError."""
    return any(name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) for name in os.listdir(folder))


def interrupted_swaps(folder: Path) -> list[Swap]:
    """The swaps to finish in a log's folder; reads their records, and changes nothing.

    Raises OSError, StorageError.
    """
    names = os.listdir(folder)
    bases = {base for name in names if (base := segment_base_offset(name)) is not None}
    found: list[Swap] = []
    for name in sorted(names):
        base = segment_base_offset(name.removesuffix(SWAP_SUFFIX)) if name.endswith(SWAP_SUFFIX) else None
        if base is None:
            continue
        path = folder / name
        walk = BatchWalk(SegmentFile(path, path.stat().st_size), base)
        for _ in walk:
            pass
        end = walk.next_offset
        fault = _fault_of(walk.fault, base, end, bases)
        replaced = sorted(other for other in bases if base <= other < end)
        found.append(Swap(path, base, end, walk.position, fault, replaced))
    return found


def _fault_of(fault: ApiError | None, base: int, end: int, bases: set[int]) -> str | None:
    if fault is not None:
        return str(fault)
    if end == base:
        return "it has no batches"
    # The active segment is never replaced, so there is a next one.
    return None if end in bases else "no segment begins at its end"


def finish_swaps(folder: Path, swaps: Sequence[Swap], files: FileSystem) -> None:
    """Finish sound swaps, and remove all other files of cleanings. Raises OSError."""
    for interrupted in swaps:
        logger.info("%s takes the place of %d segments", interrupted.path, len(interrupted.replaced))
        for base in (*interrupted.replaced, interrupted.base_offset):
            for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
                files.unlink(folder / segment_name(base, suffix), missing_ok=True)
        files.fsync(folder)
        files.rename(interrupted.path, interrupted.path.with_suffix(""))
        files.fsync(folder)
    for path in sorted(folder.iterdir()):
        if path.suffix in (CLEANED_SUFFIX, SWAP_SUFFIX):
            files.unlink(path)
