"""The entries of each kind of file of a log, as `barnabas log dump` prints them, and the damage between them.

Files are opened for reading only, and read by position: a broker may write to them meanwhile. A live segment
or index is longer than its content: zeros after the last entry are no damage. Every batch is checked by its
CRC; every other entry by the rules of its file. Reading ends at the first damaged entry.
"""

from __future__ import annotations

import re
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.broker.log.batch_scan import Window
from barnabas.broker.log.checkpoints import OffsetCheckpoint, encode_topic_id, read_partition_metadata
from barnabas.broker.log.epoch_cache import EpochCache
from barnabas.broker.log.file_system import (
    EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.log_dir import (
    CLEANER_CHECKPOINT,
    DELETE_HORIZON_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from barnabas.broker.log.producer_snapshots import decode_snapshot
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import CheckpointDamaged, StorageError
from barnabas.broker.log.transaction_index import AbortedTransaction, TransactionIndex, entry_fault
from barnabas.protocol.errors import ApiError
from barnabas.protocol.record_batch import HEADER_BYTES, BatchHeader

_ATTEMPTS: Final = 5
_PAUSE_S: Final = 0.02
"""Between the attempts to read a batch that a running broker may be writing."""
_BASED_NAME: Final = re.compile(r"(\d{20})(\.[a-z]+)(\.[a-z]+)?")
"""Base offset, suffix, and the mark of a file that is not or no longer part of the log."""


class Damage(NamedTuple):
    """The position where a file is damaged, and the reason; None for a file that is read whole."""

    position: int | None
    reason: str


class DumpedBatch(NamedTuple):
    """A whole, checked batch and where it begins."""

    position: int
    header: BatchHeader
    data: bytes


Entries = Iterator[dict[str, Any] | Damage]
"""Entries of a file that is no segment, as named fields, and a Damage in place of the first damaged one."""


def read_batches(path: Path) -> Iterator[DumpedBatch | Damage]:
    """The batches of a segment in file order, and a Damage in place of the first damaged one.

    Raises OSError if the file cannot be read.
    """
    size = path.stat().st_size
    window = Window(SegmentFile(path, size), size)
    position = attempts = 0
    while position < size:
        try:
            header = window.check_batch(position)
            at = window.cover(position, header.size_bytes)
        except StorageError as error:
            raise error.cause from None
        except ApiError as error:
            # A running broker may be writing the batch, or it may have cut the unused end of the file.
            attempts += 1
            size = path.stat().st_size
            window = Window(SegmentFile(path, size), size)
            if position >= size or _is_unused(window, position):
                return
            if attempts == _ATTEMPTS:
                yield Damage(position, str(error))
                return
            time.sleep(_PAUSE_S)
            continue
        yield DumpedBatch(position, header, bytes(window.data[at : at + header.size_bytes]))
        position += header.size_bytes
        attempts = 0


def _is_unused(window: Window, position: int) -> bool:
    """Whether no batch begins there: brokers extend a file ahead of its records; a clean stop cuts it."""
    at = window.cover(position, HEADER_BYTES)
    return not any(window.data[at : at + HEADER_BYTES])


def file_type(path: Path) -> str | None:
    """The ``type`` of a file's entries in JSON; None for a file that is not of a log or log dir."""
    kind = _KINDS.get(path.name) or _KINDS.get(_suffix(path))
    return None if kind is None else kind[0]


def read_entries(path: Path) -> Entries:
    """The entries of a file that is no segment. Raises OSError if it cannot be read."""
    # Raises FileNotFoundError; the readers of checkpoints take a missing file for an empty one.
    path.stat()
    try:
        yield from (_KINDS.get(path.name) or _KINDS[_suffix(path)])[1](path)
    except CheckpointDamaged as error:
        yield Damage(None, str(error).removeprefix(f"{path}: "))
    except StorageError as error:
        raise error.cause from None


def base_offset_of(path: Path) -> int | None:
    """The offset in a file's name, also for the files of an unfinished cleaning or deletion."""
    match = _BASED_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def _suffix(path: Path) -> str:
    match = _BASED_NAME.fullmatch(path.name)
    return match[2] if match else path.suffix


def _index_entries(path: Path, entry: struct.Struct) -> Iterator[tuple[int, tuple[int, ...]] | Damage]:
    """(position, entry) up to the unused rest, which is zeros."""
    data = path.read_bytes()
    whole = len(data) - len(data) % entry.size
    for position in range(0, whole, entry.size):
        fields = entry.unpack_from(data, position)
        if not any(fields) and not any(data[position:]):
            return
        yield position, fields
    if whole < len(data):
        yield Damage(whole, f"{len(data) - whole} bytes are left, an entry has {entry.size}")


def _read_index(entry: struct.Struct, names: tuple[str, str], path: Path) -> Entries:
    """Entries of two fields that both rise; the offset is relative to the base in the file's name."""
    base = base_offset_of(path)
    if base is None:
        yield Damage(None, "its name is not the base offset of a segment")
        return
    previous = (-1, -1)
    for item in _index_entries(path, entry):
        if isinstance(item, Damage):
            yield item
            return
        position, (first, second) = item
        if first <= previous[0] or second < previous[1]:
            yield Damage(position, f"entry ({first}, {second}) does not rise above {previous}")
            return
        previous = first, second
        fields = dict(zip(names, (first, second), strict=True))
        fields["offset"] += base
        yield fields


def _read_txn_index(path: Path) -> Entries:
    """The aborted transactions that end in a segment."""
    least = base_offset_of(path) or 0
    for item in _index_entries(path, TransactionIndex.entry):
        if isinstance(item, Damage):
            yield item
            return
        position, entry = item
        fault = entry_fault(entry, least)
        if fault is not None:
            yield Damage(position, fault)
            return
        aborted = AbortedTransaction(*entry[1:])
        least = aborted.last_offset + 1
        yield aborted._asdict()


def _read_snapshot(path: Path) -> Entries:
    for state in decode_snapshot(path.read_bytes(), path):
        yield {
            "producer_id": state.producer_id,
            "producer_epoch": state.epoch,
            "coordinator_epoch": state.coordinator_epoch,
            "current_transaction_first_offset": state.current_transaction_first_offset,
            "timestamp_ms": state.timestamp_ms,
            "batches": [batch._asdict() for batch in state.recent],
        }


def _read_epochs(path: Path) -> Entries:
    for entry in EpochCache.load(path.parent).entries:
        yield {"leader_epoch": entry.epoch, "start_offset": entry.start_offset}


def _read_offsets(path: Path, name: str = "offset") -> Entries:
    for key, value in OffsetCheckpoint(path).read().items():
        yield {"topic": key.topic, "partition": key.partition, name: value}


def _read_metadata(path: Path) -> Entries:
    topic_id = read_partition_metadata(path.parent)
    yield {"topic_id": None if topic_id is None else encode_topic_id(topic_id)}


BATCHES: Final = "batch"
"""The type of a segment's entries."""


def _no_entries(path: Path) -> Entries:
    return iter(())


_KINDS: Final[dict[str, tuple[str, Callable[[Path], Entries]]]] = {
    LOG_SUFFIX: (BATCHES, _no_entries),
    OFFSET_INDEX_SUFFIX: ("offset_index", partial(_read_index, OffsetIndex.entry, ("offset", "position"))),
    TIME_INDEX_SUFFIX: ("time_index", partial(_read_index, TimeIndex.entry, ("timestamp_ms", "offset"))),
    TXN_INDEX_SUFFIX: ("aborted_transaction", _read_txn_index),
    SNAPSHOT_SUFFIX: ("producer", _read_snapshot),
    PARTITION_METADATA: ("partition_metadata", _read_metadata),
    EPOCH_CHECKPOINT: ("leader_epoch", _read_epochs),
    RECOVERY_POINT_CHECKPOINT: ("recovery_point", _read_offsets),
    LOG_START_CHECKPOINT: ("log_start_offset", _read_offsets),
    HIGH_WATERMARK_CHECKPOINT: ("high_watermark", _read_offsets),
    CLEANER_CHECKPOINT: ("first_dirty_offset", _read_offsets),
    DELETE_HORIZON_CHECKPOINT: ("delete_horizon", partial(_read_offsets, name="delete_horizon_ms")),
}
"""The suffix or name of a file → the type of its entries, and their reader."""
KNOWN_FILES: Final = tuple(_KINDS)
FILE_TYPES: Final = tuple(kind for kind, _ in _KINDS.values())
"""The types of entries, in the order in which a folder is printed."""
