"""Record batches decoded in bulk into columns, which both engines fill and `arrow` wraps.

Variable-length columns are laid out as Arrow lays them out: all bytes one after another, and one more
32-bit offset than there are rows. Plain data, owned by the caller of the decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


class Column(Flag):
    """The columns of a record; only the requested ones are built."""

    OFFSET = auto()
    TIMESTAMP = auto()
    TIMESTAMP_TYPE = auto()
    KEY = auto()
    VALUE = auto()
    HEADERS = auto()
    NONE = 0
    ALL = OFFSET | TIMESTAMP | TIMESTAMP_TYPE | KEY | VALUE | HEADERS


@dataclass(slots=True, kw_only=True)
class BinaryColumn:
    """Rows of bytes: row i is data[offsets[i]:offsets[i + 1]], or null where `valid` says 0."""

    offsets: Ints
    data: Bytes
    valid: Bytes | None
    """One byte per row, 1 or 0; None when no row is null."""


@dataclass(slots=True, kw_only=True)
class HeaderColumn:
    """Lists of headers: row i has those from list_offsets[i] to list_offsets[i + 1]. Names are UTF-8."""

    list_offsets: Ints
    names: BinaryColumn
    values: BinaryColumn


@dataclass(slots=True, kw_only=True)
class RecordColumns:
    """Some consecutive records of one partition. A column that was not requested is None."""

    row_count: int
    offsets: Longs | None = None
    timestamps_ms: Longs | None = None
    timestamp_types: Ints | None = None
    keys: BinaryColumn | None = None
    values: BinaryColumn | None = None
    headers: HeaderColumn | None = None
