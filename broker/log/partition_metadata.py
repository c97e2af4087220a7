"""The file `partition.metadata` in a partition's folder: the id of the topic that the folder belongs to.

It tells a topic from a later one of the same name. The id is written in unpadded URL-safe base64, as Kafka
does. Source: KIP-516.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from pathlib import Path

from barnabas.broker.log.checkpoint_file import encode_lines
from barnabas.broker.log.disk_verdicts import Operation
from barnabas.broker.log.file_system import FILE_SYSTEM, FileSystem
from barnabas.broker.log.log_files import PARTITION_METADATA
from barnabas.broker.log.storage_errors import CheckpointDamaged, disk_work, storage_error
from barnabas.protocol.ids import TopicId


def encode_topic_id(topic_id: TopicId) -> str:
    """The 22 characters that stand for a topic id."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(text: str) -> TopicId:
    """Undo `encode_topic_id`; raises ValueError naming the text."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raw = b""
    if len(raw) != 16:
        raise ValueError(f"{text!r} is no topic id (22 characters of URL-safe base64)")
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
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise CheckpointDamaged(f"{path}: {error}") from None
    except OSError as error:
        raise storage_error(path, error, Operation.READ) from error
    if not text.strip(" \n\0"):
        return None
    found = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if found.get("version") != "0" or "topic_id" not in found:
        raise CheckpointDamaged(f"{path}: expected version: 0 and topic_id, found {text!r}")
    try:
        return decode_topic_id(found["topic_id"])
    except ValueError as error:
        raise CheckpointDamaged(f"{path}: {error}") from None
