"""Reads of a log without its lock, beside the changes that hold it.

Beside a truncation or a removal, an error says nothing about the log, and a result may be composed of old and
new bytes. So the rule for all who change a log: every change but an append replaces `log_segments` before it
overwrites bytes, and before it releases the lock. A read whose segments were replaced meanwhile is made once
more, under the lock; the second result is the log's own.

A damaged index is rebuilt by the read that finds it, without the lock, because that reads a whole segment.
The segment takes the new index under the lock, and only if nothing has changed meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from barnabas.broker.log.indexes import IndexDamaged, OffsetIndex
from barnabas.broker.log.log_segments import LogSegments
from barnabas.broker.log.open_files import NotCached
from barnabas.broker.log.storage_errors import StorageError
from barnabas.protocol.errors import ApiError

T = TypeVar("T")


class Changing(Protocol):
    """A log, as a reader sees it."""

    lock: threading.RLock
    log_segments: LogSegments
    is_closed: bool


def look_up(log: Changing, read: Callable[[LogSegments], T], *, may_wait: bool = True) -> T:
    """The result of reading the segments. Any thread.

    Raises the errors of the read, and NotCached instead of waiting for the lock without `may_wait`.
    """
    segments, fault = log.log_segments, None
    try:
        result = _read_and_repair(log, read, segments)
        if log.log_segments is segments:
            return result
    except (IndexDamaged, StorageError):
        # Perhaps of an index that was rebuilt or loaded meanwhile.
        pass
    except ApiError as error:
        fault = error
    if not may_wait:
        raise NotCached
    with log.lock:
        if fault is not None and log.log_segments is segments:
            raise fault
        return _read_and_repair(log, read, log.log_segments)


def _read_and_repair(log: Changing, read: Callable[[LogSegments], T], segments: LogSegments) -> T:
    """Read, and rebuild each damaged index on the way."""
    for _ in segments.all:
        try:
            return read(segments)
        except IndexDamaged as damaged:
            if log.log_segments is not segments or log.is_closed:
                raise
            _rebuild(log, segments, damaged.index)
    return read(segments)


def _rebuild(log: Changing, segments: LogSegments, index: OffsetIndex) -> None:
    for segment in segments.all:
        if segment.offset_index is not index:
            continue
        rebuilt = segment.rebuilt()
        with log.lock:
            is_same = log.log_segments is segments and segment.offset_index is index
            if is_same and not (index.is_loaded or log.is_closed):
                segment.take_indexes(rebuilt)
