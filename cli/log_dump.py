"""`barnabas log dump`: prints the files of a log, batch by batch or record by record.

Files are opened for reading only, and read by position: a broker may write to them meanwhile. Every batch is
checked; a damaged batch ends the dump with exit code 1 and its position. A live segment is longer than its
content: zeros after the last batch are no damage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from barnabas.broker.log.batch_scan import Window
from barnabas.broker.log.file_system import LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX
from barnabas.broker.log.indexes import OffsetIndex, TimeIndex
from barnabas.broker.log.segment_file import SegmentFile
from barnabas.broker.log.storage_errors import StorageError
from barnabas.cli.exit_codes import FAILED, OK, USAGE, CommandError
from barnabas.cli.output import count, iso_time, print_json, record_fields, record_line
from barnabas.protocol.errors import ApiError
from barnabas.protocol.record_batch import HEADER_BYTES, BatchHeader
from barnabas.protocol.records import decode_records

_SUFFIXES: Final = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX)


class Damage(NamedTuple):
    """The position where a file is damaged, and the reason."""

    position: int
    reason: str


class DumpedBatch(NamedTuple):
    """A whole, checked batch and where it begins."""

    position: int
    header: BatchHeader
    data: bytes


def add_action(actions: Any) -> None:
    dump = actions.add_parser("dump", help="print the batches of a .log file or the entries of an index")
    dump.add_argument("files", nargs="+", type=Path, metavar="FILE", help=".log, .index or .timeindex")
    dump.add_argument("--deep", action="store_true", help="print the records of each batch too")
    dump.add_argument("--max", type=int, default=None, metavar="N", help="stop after N batches or entries")
    dump.add_argument("--json", action="store_true", help="one JSON object per line")


def run(options: argparse.Namespace) -> int:
    """Dump each file; returns FAILED when one of them is damaged."""
    if options.max is not None and options.max < 0:
        raise CommandError(f"--max {options.max}: expected at least 0", USAGE)
    code = OK
    for path in options.files:
        if path.suffix not in _SUFFIXES:
            raise CommandError(f"{path}: expected a file ending in {', '.join(_SUFFIXES)}", USAGE)
        if len(options.files) > 1 and not options.json:
            print(f"{path}:")
        damage = _dump_log(path, options) if path.suffix == LOG_SUFFIX else _dump_index(path, options)
        if damage is not None:
            print(f"{path}: damaged at byte {damage.position}: {damage.reason}", file=sys.stderr)
            code = FAILED
    return code


def read_batches(path: Path) -> Iterator[DumpedBatch | Damage]:
    """The batches of a segment in file order, and a Damage in place of the first damaged one.

    Raises OSError if the file cannot be read.
    """
    size = path.stat().st_size
    window = Window(SegmentFile(path, size), size)
    position = 0
    while position < size:
        try:
            header = _check_batch(window, position)
        except StorageError as error:
            raise error.cause from None
        except ApiError as error:
            at = window.cover(position, HEADER_BYTES)
            # Brokers extend a file ahead of its records; a clean stop truncates it.
            if any(window.data[at : at + HEADER_BYTES]):
                yield Damage(position, str(error))
            return
        at = window.cover(position, header.size_bytes)
        yield DumpedBatch(position, header, bytes(window.data[at : at + header.size_bytes]))
        position += header.size_bytes


def _check_batch(window: Window, position: int) -> BatchHeader:
    try:
        return window.check_batch(position)
    except ApiError:
        # A running broker may have written the batch since the window was read.
        window.forget()
        return window.check_batch(position)


def _dump_log(path: Path, options: argparse.Namespace) -> Damage | None:
    batches = records = size = 0
    for batch in read_batches(path):
        if isinstance(batch, Damage):
            return batch
        if options.max is not None and batches >= options.max:
            break
        batches += 1
        records += batch.header.record_count
        size += batch.header.size_bytes
        try:
            # Control batches hold markers, not user records.
            content = decode_records(batch.data, check_crc=False) if options.deep else []
        except ApiError as error:
            return Damage(batch.position, str(error))
        if options.json:
            print_json(
                _batch_object(batch) | ({"records": [record_fields(r) for r in content]} if content else {})
            )
        else:
            print(_batch_line(batch))
            for record in content:
                print(f"    {record_line(record)}")
    if not options.json:
        rest = path.stat().st_size - size
        tail = f"; {rest:,} bytes follow" if rest and options.max is None else ""
        print(f"{count(batches, 'batch').replace('batchs', 'batches')}, {count(records, 'record')}{tail}")
    return None


def _batch_object(batch: DumpedBatch) -> dict[str, Any]:
    header = batch.header
    return {
        "position": batch.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "size_bytes": header.size_bytes,
        "record_count": header.record_count,
        "leader_epoch": header.partition_leader_epoch,
        "compression": header.compression.name.lower(),
        "timestamp_type": header.timestamp_type.name,
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "crc": header.crc,
    }


def _batch_line(batch: DumpedBatch) -> str:
    header = batch.header
    parts = [
        f"offsets {header.base_offset}..{header.last_offset}",
        f"at {batch.position}",
        f"{header.size_bytes} bytes",
        count(header.record_count, "record"),
        f"epoch {header.partition_leader_epoch}",
        header.compression.name.lower(),
        f"{header.timestamp_type.name} {iso_time(header.max_timestamp)}",
        f"crc {header.crc:08x}",
    ]
    if header.producer_id >= 0:
        parts.append(f"producer {header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}")
    parts += ["transactional"] * header.is_transactional + ["control"] * header.is_control
    return "  ".join(parts)


def _dump_index(path: Path, options: argparse.Namespace) -> Damage | None:
    """Print the entries up to the unused rest, which is zeros; offsets and positions must rise."""
    if not path.stem.isdecimal():
        raise CommandError(f"{path}: its name is not the base offset of a segment", USAGE)
    base = int(path.stem)
    is_time = path.suffix == TIME_INDEX_SUFFIX
    entry = TimeIndex.entry if is_time else OffsetIndex.entry
    data = path.read_bytes()
    previous = (-1, -1)
    shown = 0
    for position in range(0, len(data) - entry.size + 1, entry.size):
        first, second = entry.unpack_from(data, position)
        if (first, second) == (0, 0) and not any(data[position:]):
            break
        if first < previous[0] or second < previous[1]:
            return Damage(position, f"entry ({first}, {second}) does not rise above {previous}")
        previous = (first, second)
        if options.max is not None and shown >= options.max:
            break
        shown += 1
        if is_time:
            fields = {"timestamp_ms": first, "offset": base + second}
        else:
            fields = {"offset": base + first, "position": second}
        if options.json:
            print_json(fields)
        else:
            print("  ".join(f"{name} {value}" for name, value in fields.items()))
    if not options.json:
        print(count(shown, "entry").replace("entrys", "entries"))
    return None
