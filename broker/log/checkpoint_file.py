"""Checkpoint files: a version line, a count line, then one entry per line, fields separated by spaces.

Written whole and atomically, read whole; a file that does not follow the format is refused with its name and
line, never half believed. One thread at a time writes a given file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from barnabas.broker.log.disk_verdicts import Operation
from barnabas.broker.log.file_system import FILE_SYSTEM, FileSystem
from barnabas.broker.log.storage_errors import CheckpointDamaged, disk_work, storage_error
from barnabas.protocol.ids import Offset, TopicPartition

logger = logging.getLogger(__name__)

VERSION: Final = 0


def parse_checkpoint(text: str, fields: int, source: object) -> list[list[str]]:
    """The entries of a checkpoint's text, each with so many fields; `source` names the file in errors.

    Raises CheckpointDamaged.
    """
    lines = text.splitlines()
    if text and not text.endswith("\n"):
        raise CheckpointDamaged(f"{source}: the last line is cut short")
    if len(lines) < 2:
        raise CheckpointDamaged(f"{source}: expected a version and a count, found {len(lines)} lines")
    if lines[0].strip() != str(VERSION):
        raise CheckpointDamaged(f"{source}: version {lines[0]!r}, expected {VERSION}")
    count = lines[1].strip()
    if not count.isdecimal() or int(count) != len(lines) - 2:
        raise CheckpointDamaged(f"{source}: the count says {lines[1]!r}, {len(lines) - 2} entries follow")
    entries = [line.split() for line in lines[2:]]
    for number, entry in enumerate(entries, start=3):
        if len(entry) != fields:
            raise CheckpointDamaged(f"{source} line {number}: {len(entry)} fields, expected {fields}")
    return entries


def parse_number(text: str, source: object) -> int:
    """A whole number of a checkpoint; raises CheckpointDamaged."""
    if not text.removeprefix("-").isdecimal():
        raise CheckpointDamaged(f"{source}: {text!r} is no number")
    return int(text)


def encode_checkpoint(entries: Iterable[Iterable[object]]) -> bytes:
    """The text of a checkpoint file with these entries."""
    rows = [" ".join(map(str, entry)) for entry in entries]
    return encode_lines([str(VERSION), str(len(rows)), *rows])


def encode_lines(lines: Iterable[str]) -> bytes:
    """The bytes of a text file with these lines."""
    return "".join(f"{line}\n" for line in lines).encode()


class OffsetCheckpoint:
    """One offset per partition: recovery points, log starts or high watermarks of a log dir."""

    def __init__(self, path: Path, files: FileSystem = FILE_SYSTEM) -> None:
        self.path = path
        self._files = files
        self._entries: dict[TopicPartition, Offset] | None = None
        """The file's content; None if there is no file, or before the first read or write here."""
        self._kept: dict[TopicPartition, Offset] = {}
        """Entries of partitions whose log could not be opened. Every write repeats them: the offsets say
        which records the log must still hold, and the next start checks that."""

    def read(self) -> dict[TopicPartition, Offset]:
        """What was written last; nothing when there is no file. Raises CheckpointDamaged, LogDirFailure."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            self._entries = None
            return {}
        except UnicodeDecodeError as error:
            raise CheckpointDamaged(f"{self.path}: {error}") from None
        except OSError as error:
            raise storage_error(self.path, error, Operation.READ) from error
        found: dict[TopicPartition, Offset] = {}
        for topic, partition, offset in parse_checkpoint(text, 3, self.path):
            key = TopicPartition(topic, parse_number(partition, self.path))
            if key in found:
                raise CheckpointDamaged(f"{self.path}: {key} is listed twice")
            found[key] = Offset(parse_number(offset, self.path))
        self._entries = dict(found)
        return found

    def read_or_empty(self) -> dict[TopicPartition, Offset]:
        """As `read`, but a damaged file counts as empty: recovery takes longer then. Raises LogDirFailure."""
        try:
            return self.read()
        except CheckpointDamaged as error:
            logger.warning("treated as empty: %s", error)
            return {}

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file durably if its content changes; kept entries stay in it.

        Raises LogDirFailure.
        """
        entries = self._kept | {key: Offset(offset) for key, offset in offsets.items()}
        if entries == self._entries:
            return
        text = encode_checkpoint((key.topic, key.partition, entries[key]) for key in sorted(entries))
        with disk_work(self.path):
            self._files.write_atomically(self.path, text, durable=True)
        self._entries = entries

    def keep(self, key: TopicPartition) -> None:
        """Repeat the entry of a partition, if the file has one, in every later write."""
        if self._entries is not None and key in self._entries:
            self._kept[key] = self._entries[key]

    def keep_no_longer(self, key: TopicPartition) -> None:
        """Undo `keep`; the next write decides about the entry."""
        self._kept.pop(key, None)

    def forget(self, key: TopicPartition) -> None:
        """Drop the entry of a partition, if there is one, so that a new log of that name does not inherit it.

        Raises LogDirFailure, CheckpointDamaged.
        """
        self._kept.pop(key, None)
        if self._entries is None or key in self._entries:
            left = self.read()
            if left.pop(key, None) is not None:
                self.write(left)
