"""The names of folders and files on disk, built and parsed.

Pure. Source of the names: https://kafka.apache.org/documentation/#log.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from barnabas.protocol.ids import TopicPartition

LOG_SUFFIX: Final = ".log"
OFFSET_INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
DELETED_SUFFIX: Final = "-delete"
EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
TEMPORARY_SUFFIX: Final = ".tmp"
MAX_NAME_BYTES: Final = 255
_SEGMENT_NAME = re.compile(r"(\d{20})\.log")
_SNAPSHOT_NAME = re.compile(r"(\d{20})\.snapshot")
_PARTITION_NAME = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>\d+)")


def segment_name(base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """The file name of a segment, of one of its indexes, or of a snapshot."""
    return f"{base_offset:020d}{suffix}"


def segment_base_offset(name: str) -> int | None:
    """The base offset in the name of a ``.log`` file, or None for any other name."""
    found = _SEGMENT_NAME.fullmatch(name)
    return int(found[1]) if found else None


def snapshot_offset(name: str) -> int | None:
    """The offset in the name of a ``.snapshot`` file, or None for any other name."""
    found = _SNAPSHOT_NAME.fullmatch(name)
    return int(found[1]) if found else None


def parse_partition_name(name: str) -> TopicPartition | None:
    """The partition whose folder has this name, or None when it is no partition's folder."""
    found = _PARTITION_NAME.fullmatch(name)
    return TopicPartition(found["topic"], int(found["partition"])) if found else None


def deleted_name(topic_partition: TopicPartition) -> str:
    """A fresh name for the folder of a partition to be removed: unique, and no partition's own."""
    tail = f".{uuid.uuid4().hex}{DELETED_SUFFIX}"
    return str(topic_partition)[: MAX_NAME_BYTES - len(tail)] + tail
