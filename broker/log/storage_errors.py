"""The named failures of a log's files, and the table that chooses one for an OSError.

A broken disk takes its log dir offline with all partitions on it. A call that failed because the process ran
out of descriptors or memory must not, nor a file that is missing because its log was deleted.

Where a docstring names LogDirFailure alone, StorageCallFailed may be raised too, unless the operation cannot
be refused once it has begun. Any thread.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import ClassVar, Final

from barnabas.broker.base.limited_log import LimitedLog
from barnabas.protocol.errors import ApiError, ErrorCode, LocalError

logger = logging.getLogger(__name__)


class Operation(Enum):
    """The kinds of attempted calls, by the state that a failure leaves."""

    READ = "read"
    """Also opening a file. Nothing has changed."""
    WRITE = "write"
    """An append, or the replacement of a whole file. No reader sees a change."""
    RESERVE = "reserve"
    """Taking the space of a segment in advance. The file is empty as before."""
    CHANGE = "change"
    """A truncation, a removal, a rename. It may be half done, so it cannot simply be retried."""
    SYNC = "sync"
    """Forcing a file to disk. After a failure its pages may be lost, even if a retry succeeds."""


class Verdict(Enum):
    DISK_BROKEN = "disk broken"
    """The log dir goes offline."""
    CALL_FAILED = "call failed"
    """Only this call is refused, with a retriable error; disk and log are sound."""
    LOG_GONE = "log gone"
    """The log was deleted or closed meanwhile. Nothing is wrong."""


_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
_SCARCE: Final = {
    # The process or the system has no free descriptor: the file was never opened.
    errno.EMFILE: frozenset({Operation.READ, Operation.WRITE, Operation.RESERVE, Operation.SYNC}),
    errno.ENFILE: frozenset({Operation.READ, Operation.WRITE, Operation.RESERVE, Operation.SYNC}),
    # No memory, or no further mapping (vm.max_map_count). Writeback may report it too, hence not SYNC.
    errno.ENOMEM: frozenset({Operation.READ, Operation.WRITE, Operation.RESERVE}),
    # A whole segment needs more room than the disk, the quota or the largest file has; other logs may not.
    errno.ENOSPC: frozenset({Operation.RESERVE}),
    errno.EDQUOT: frozenset({Operation.RESERVE}),
    errno.EFBIG: frozenset({Operation.RESERVE}),
}
"""Errors of exhausted resources, and the operations that they leave entirely undone."""


def verdict(error_number: int | None, operation: Operation, *, is_log_there: bool) -> Verdict:
    """The meaning of an errno. `is_log_there`: the log still belongs to this broker.

    Any errno outside the table (EIO, EROFS, ENOSPC and others) is a broken disk: continuing could lose data.
    """
    if error_number in _MISSING and not is_log_there:
        return Verdict.LOG_GONE
    if operation in _SCARCE.get(error_number or 0, ()):
        return Verdict.CALL_FAILED
    return Verdict.DISK_BROKEN


class Gone(Enum):
    """Why a segment's files can no longer be read."""

    SEGMENT = "removed by retention or truncation"
    REPLACED = "replaced by a cleaned segment"
    LOG = "its log was deleted or closed"


class StorageError(ApiError):
    """An operation on a file failed; it says nothing about the content of the log."""

    code: ClassVar[ErrorCode] = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True
    _note: ClassVar = ""

    def __init__(self, path: Path, cause: OSError) -> None:
        super().__init__(f"{path}: {cause.strerror or cause}{self._note}")
        self.path = path
        self.cause = cause


class LogDirFailure(StorageError):
    """The disk of a log dir failed (full, read-only, I/O error).

    Acknowledged records are not affected; the caller takes the log dir offline.
    """


class StorageCallFailed(StorageError):
    """A call failed for lack of descriptors, memory or room. Disk and log are sound; a retry may succeed."""

    _note = "; the disk is intact"


class CleanedFilesFailed(StorageError):
    """Files that were to replace segments could not be written; the log is unchanged.

    The disk may be full or broken. Appends find that out, so no log dir goes offline for it.
    """


class SegmentReplaced(ApiError):
    """A read used a segment that a cleaned one has replaced. `Log` catches it and reads the new segment.

    It leaves the log layer only if the replacement failed half-way, so that the log dir goes offline.
    """

    code: ClassVar[ErrorCode] = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} was replaced by a cleaned segment during the read")


class LogGone(ApiError):
    """The log was deleted or closed during a read: this broker no longer leads the partition."""

    code: ClassVar[ErrorCode] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path.parent.name} was deleted or closed during the read")


DAMAGE: Final = frozenset(
    {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}
)
"""The errors with which a reader of a log refuses damaged bytes."""


class CorruptLog(ApiError):
    """A log is damaged below its recovery point, or after a clean stop: its replica must not go online.

    A truncation there would silently lose acknowledged records, which another replica has.
    """

    code: ClassVar[ErrorCode] = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True

    def __init__(
        self, path: Path, position: int | None, offset: int, recovery_point: int | None, reason: str
    ) -> None:
        """``position`` is that in a file; ``recovery_point`` is None in a log that was closed cleanly."""
        if recovery_point is None:
            reason = f"after a clean stop: {reason}"
        elif offset < recovery_point:
            reason = f"below the recovery point {recovery_point}: {reason}"
        place = "" if position is None else f"byte {position}, "
        super().__init__(f"{path} is damaged at {place}offset {offset}, {reason}")
        self.path = path
        self.position = position
        self.offset = offset


class CheckpointDamaged(LocalError):
    """A checkpoint file does not follow its format; the text names file and line."""


class UnexpectedAppendOffset(LocalError):
    """A fetched batch does not continue the log where it ends."""


_report_failed_call = LimitedLog(logger, logging.ERROR)


def storage_error(
    path: Path, error: OSError, operation: Operation = Operation.WRITE, *, is_log_there: bool = True
) -> ApiError:
    """The exception that the caller must raise for an OSError, by the table above.

    LogDirFailure, StorageCallFailed (reported here), or LogGone.
    """
    meaning = verdict(error.errno, operation, is_log_there=is_log_there)
    if meaning is Verdict.LOG_GONE:
        return LogGone(path)
    if meaning is Verdict.DISK_BROKEN:
        return LogDirFailure(path, error)
    failed = StorageCallFailed(path, error)
    _report_failed_call("refused with a retriable error: %s", failed.text)
    return failed


@contextmanager
def must_be_whole(path: Path) -> Iterator[None]:
    """Make a failed call count as a failed disk, because the change must not stay half done."""
    try:
        yield
    except StorageCallFailed as failed:
        raise LogDirFailure(path, failed.cause) from failed


@contextmanager
def disk_work(path: Path, operation: Operation = Operation.WRITE) -> Iterator[None]:
    """Raise an OSError of the block as its `storage_error`."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error, operation) from error
