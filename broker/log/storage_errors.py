"""What can go wrong with the disk, by name. Both go to clients as KAFKA_STORAGE_ERROR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from barnabas.protocol.errors import ApiError, ErrorCode, LocalError


class LogDirFailure(ApiError):
    """The disk under a log dir refused to do its work (full, read-only, I/O error).

    What was acknowledged before is not affected; the caller takes the log dir offline.
    """

    code: ClassVar[ErrorCode] = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(f"{path}: {cause.strerror or cause}")
        self.path = path
        self.cause = cause


class CorruptLog(ApiError):
    """A log is damaged where it was already known to be safe on disk: its replica must not go online.

    Cutting it there would lose acknowledged records in silence; another replica has them.
    """

    code: ClassVar[ErrorCode] = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True

    def __init__(self, path: Path, position: int, offset: int, recovery_point: int, reason: str) -> None:
        super().__init__(
            f"{path} is damaged at byte {position}, offset {offset}, below the recovery point "
            f"{recovery_point}: {reason}"
        )
        self.path = path
        self.position = position
        self.offset = offset


class CheckpointDamaged(LocalError):
    """A checkpoint file does not follow its format; the text names file and line."""


class UnexpectedAppendOffset(LocalError):
    """A fetched batch does not continue the log where it ends."""


@contextmanager
def disk_work(path: Path) -> Iterator[None]:
    """Within, an OSError is the failure of the disk that a path lies on: LogDirFailure."""
    try:
        yield
    except OSError as error:
        raise LogDirFailure(path, error) from error
