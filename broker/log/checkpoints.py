"""The small text files of a log dir and of a partition's folder.

A checkpoint has a version line, a count line, then one entry per line, fields separated by spaces. It is
written whole and atomically, and read whole. A file that does not follow the format is refused with its name
and line. One thread at a time writes a given file.
"""

from __future__ import annotations

import base64
import binascii
import logging
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from barnabas.broker.log.file_system import FILE_SYSTEM, PARTITION_METADATA, FileSystem
from barnabas.broker.log.storage_errors import CheckpointDamaged, Operation, disk_work, storage_error
from barnabas.protocol.ids import Offset, TopicId, TopicPartition

logger = logging.getLogger(__name__)

VERSION: Final = 0


def read_text(path: Path, errors: str = "strict") -> str | None:
    """The content of a small file; None if there is no file. Raises CheckpointDamaged, LogDirFailure.

    ``errors``: as of `bytes.decode`.
    """
    try:
        return path.read_text(encoding="utf-8", errors=errors)
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CheckpointDamaged(f"{path}: {error}") from None
    except OSError as error:
        raise storage_error(path, error, Operation.READ) from error


def parse_checkpoint(text: str, fields: int, source: object) -> list[list[str]]:
    """The entries of a checkpoint's text, each with this number of fields; `source` names the file in errors.

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
        raise CheckpointDamaged(f"{source}: {text!r} is not a number")
    return int(text)


def encode_checkpoint(entries: Iterable[Iterable[object]]) -> bytes:
    rows = [" ".join(map(str, entry)) for entry in entries]
    return encode_lines([str(VERSION), str(len(rows)), *rows])


def encode_lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


class OffsetCheckpoint:
    """One offset per partition: recovery points, log starts, first dirty offsets or high watermarks."""

    def __init__(self, path: Path, files: FileSystem = FILE_SYSTEM) -> None:
        self.path = path
        self._files = files
        self._entries: dict[TopicPartition, Offset] | None = None
        """The file's content; None if there is no file, or before the first read or write here."""

    def read(self) -> dict[TopicPartition, Offset]:
        """The file's entries; empty if there is no file. Raises CheckpointDamaged, LogDirFailure."""
        text = read_text(self.path)
        if not text:
            # Kafka creates empty files.
            self._entries = None
            return {}
        offsets: dict[TopicPartition, Offset] = {}
        for topic, partition, offset in parse_checkpoint(text, 3, self.path):
            key = TopicPartition(topic, parse_number(partition, self.path))
            if key in offsets:
                raise CheckpointDamaged(f"{self.path}: {key} is listed twice")
            offsets[key] = Offset(parse_number(offset, self.path))
        self._entries = dict(offsets)
        return offsets

    def read_or_empty(self) -> dict[TopicPartition, Offset]:
        """Read; a damaged file counts as empty, so recovery takes longer. Raises LogDirFailure."""
        try:
            return self.read()
        except CheckpointDamaged as error:
            logger.warning("treated as empty: %s", error)
            return {}

    def write(self, offsets: Mapping[TopicPartition, int], kept: Iterable[TopicPartition] = ()) -> None:
        """Replace the file durably if its content changes; the entries of `kept` partitions stay in it.

        Raises LogDirFailure.
        """
        before = self._entries or {}
        entries = {key: before[key] for key in kept if key in before}
        entries |= {key: Offset(offset) for key, offset in offsets.items()}
        if entries == self._entries:
            return
        text = encode_checkpoint((key.topic, key.partition, entries[key]) for key in sorted(entries))
        with disk_work(self.path):
            self._files.write_atomically(self.path, text, durable=True)
        self._entries = entries

    def forget(self, key: TopicPartition) -> None:
        """Drop the entry of a partition, if there is one, so that a new log of that name does not inherit it.

        After a read, which takes a damaged file for an empty one. Raises LogDirFailure.
        """
        if self._entries and key in self._entries:
            self.write({name: offset for name, offset in self._entries.items() if name != key})


def encode_topic_id(topic_id: TopicId) -> str:
    """A topic id as 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(text: str) -> TopicId:
    """Undo `encode_topic_id`; raises ValueError naming the text."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raw = b""
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a topic id (22 characters of URL-safe base64)")
    return TopicId(uuid.UUID(bytes=raw))


def write_partition_metadata(folder: Path, topic_id: TopicId, files: FileSystem = FILE_SYSTEM) -> None:
    """Replace the file durably: no record may be on disk before its topic's id.

    Raises LogDirFailure.
    """
    path = folder / PARTITION_METADATA
    text = encode_lines(["version: 0", f"topic_id: {encode_topic_id(topic_id)}"])
    with disk_work(path):
        files.write_atomically(path, text, durable=True)


def read_partition_metadata(folder: Path) -> TopicId | None:
    """The topic id; None without a file, or if the file is blank, as a power cut leaves an unsynced one.

    Raises CheckpointDamaged, LogDirFailure.
    """
    path = folder / PARTITION_METADATA
    text = read_text(path)
    if text is None or not text.strip(" \n\0"):
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if fields.get("version") != "0" or "topic_id" not in fields:
        raise CheckpointDamaged(f"{path}: expected version: 0 and topic_id, found {text!r}")
    try:
        return decode_topic_id(fields["topic_id"])
    except ValueError as error:
        raise CheckpointDamaged(f"{path}: {error}") from None
