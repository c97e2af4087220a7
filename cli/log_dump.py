"""`barnabas log dump`: prints the files of a log, entry by entry (`logtools/entries.py`, `log_records.py`).

A folder stands for all files in it that belong to a log, in order. A damaged entry ends the dump of its file;
the others are still printed, and the exit code is 1. Files are only read, so a broker may be running.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from barnabas.cli.exit_codes import FAILED, NOT_FOUND, OK, USAGE, CommandError
from barnabas.cli.log_records import batch_fields, batch_line, deep_records, record_text
from barnabas.cli.output import count, print_json
from barnabas.logtools.entries import (
    BATCHES,
    FILE_TYPES,
    KNOWN_FILES,
    Damage,
    base_offset_of,
    file_type,
    read_batches,
    read_entries,
)
from barnabas.protocol.errors import ApiError


def add_action(actions: Any) -> None:
    dump = actions.add_parser(
        "dump", help="print the files of a log: batches, records, indexes, producers, checkpoints"
    )
    dump.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="a file, or the folder of a partition for all its files",
    )
    dump.add_argument("--deep", action="store_true", help="print the records of each batch too")
    dump.add_argument(
        "--offsets-decoder",
        action="store_true",
        help="decode the records as those of __consumer_offsets (implies --deep)",
    )
    dump.add_argument("--max", type=int, default=None, metavar="N", help="at most N entries of each file")
    dump.add_argument("--json", action="store_true", help="one JSON object per line")
    dump.epilog = "exit code: 0 done, 1 a file is damaged, 2 not a file of a log, 4 no such file"


def run(options: argparse.Namespace) -> int:
    """Dump each file; returns FAILED when one of them is damaged."""
    if options.max is not None and options.max < 0:
        raise CommandError(f"--max {options.max}: expected at least 0", USAGE)
    options.deep = options.deep or options.offsets_decoder
    files = [file for path in options.files for file in _files_at(path)]
    code = OK
    for path, is_listed in files:
        if len(files) > 1 and not options.json:
            print(f"{path}:")
        try:
            damage = _dump(path, options)
        except FileNotFoundError:
            if not is_listed:
                raise
            # The broker that uses the folder has removed it since.
            continue
        if damage is not None:
            _print_damage(path, damage, as_json=options.json)
            code = FAILED
    return code


def _files_at(path: Path) -> Iterator[tuple[Path, bool]]:
    """The files that an argument names, each with whether it was listed in a folder."""
    if not path.is_dir():
        if not path.exists():
            raise CommandError(f"{path}: there is no such file or folder", NOT_FOUND)
        if file_type(path) is None:
            raise CommandError(f"{path}: expected a file ending in {', '.join(KNOWN_FILES)}", USAGE)
        yield path, False
        return
    files = [file for file in path.iterdir() if file_type(file) is not None and file.is_file()]
    if not files:
        raise CommandError(f"{path}: the folder has no file of a log", USAGE)
    for file in sorted(files, key=_place):
        yield file, True


def _place(file: Path) -> tuple[bool, int, int, str]:
    """Where a file comes in the order of a folder: by segment, then by kind; names without an offset last."""
    base = base_offset_of(file)
    return base is None, base or 0, FILE_TYPES.index(file_type(file) or ""), file.name


def _dump(path: Path, options: argparse.Namespace) -> Damage | None:
    kind = file_type(path) or ""
    if kind == BATCHES:
        return _dump_batches(path, options)
    shown = 0
    for entry in read_entries(path):
        if isinstance(entry, Damage):
            return entry
        if shown == options.max:
            break
        shown += 1
        if options.json:
            print_json({"file": str(path), "type": kind} | entry)
        else:
            print("  ".join(f"{name} {_text(value)}" for name, value in entry.items()))
    if not options.json:
        print(count(shown, "entry", "entries"))
    return None


def _text(value: object) -> str:
    """A field's value for a person; a producer's batches as their last sequences and offsets."""
    if isinstance(value, list):
        return ", ".join(f"{batch['last_sequence']} at {batch['last_offset']}" for batch in value) or "-"
    return "-" if value is None else str(value)


def _dump_batches(path: Path, options: argparse.Namespace) -> Damage | None:
    """Offsets that do not rise are damage too, but do not keep the batches after them from being read."""
    batches = records = size = 0
    damage: Damage | None = None
    expected = base_offset_of(path) or 0
    for batch in read_batches(path):
        if isinstance(batch, Damage):
            return batch
        if batches == options.max:
            break
        batches += 1
        if batch.header.base_offset < expected and damage is None:
            reason = f"a batch has offset {batch.header.base_offset}, expected at least {expected}"
            damage = Damage(batch.position, reason)
        expected = batch.header.next_offset
        records += batch.header.record_count
        size += batch.header.size_bytes
        try:
            content = deep_records(batch, decodes_offsets=options.offsets_decoder) if options.deep else []
        except ApiError as error:
            return Damage(batch.position, str(error))
        if options.json:
            fields = {"file": str(path), "type": BATCHES} | batch_fields(batch)
            print_json(fields | ({"records": [entry for _, entry in content]} if options.deep else {}))
        else:
            print(batch_line(batch))
            for record, entry in content:
                print(f"    {record_text(record, entry)}")
    if not options.json:
        rest = path.stat().st_size - size
        tail = f"; {rest:,} bytes follow" if rest > 0 and options.max is None else ""
        print(f"{count(batches, 'batch', 'batches')}, {count(records, 'record')}{tail}")
    return damage


def _print_damage(path: Path, damage: Damage, *, as_json: bool) -> None:
    at = "" if damage.position is None else f" at byte {damage.position}"
    print(f"{path}: damaged{at}: {damage.reason}", file=sys.stderr)
    if as_json:
        print_json({"file": str(path), "type": "damage"} | damage._asdict())
