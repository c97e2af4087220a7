"""Decides what an operating system error means for a log, by a table.

A broken disk takes its log dir offline with all partitions on it. A call that failed because the process ran
out of descriptors or memory must not, nor a file that is missing because its log was deleted. Pure; any
thread.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final


class Operation(Enum):
    """What was attempted, classed by the state that a failure leaves."""

    READ = "read"
    """Also opening a file. Nothing has changed."""
    WRITE = "write"
    """An append, or the replacement of a whole file. No reader sees a change."""
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
    errno.EMFILE: frozenset({Operation.READ, Operation.WRITE, Operation.SYNC}),
    errno.ENFILE: frozenset({Operation.READ, Operation.WRITE, Operation.SYNC}),
    # No memory, or no further mapping (vm.max_map_count). Writeback may report it too, hence not SYNC.
    errno.ENOMEM: frozenset({Operation.READ, Operation.WRITE}),
}
"""Errors of exhausted resources other than the disk, and the operations that they leave entirely undone."""


def verdict(error_number: int | None, operation: Operation, *, is_log_there: bool) -> Verdict:
    """The meaning of an errno. `is_log_there`: the log still belongs to this broker.

    Any errno outside the table (EIO, EROFS, ENOSPC and others) is a broken disk: continuing could lose data.
    """
    if error_number in _MISSING and not is_log_there:
        return Verdict.LOG_GONE
    if operation in _SCARCE.get(error_number or 0, ()):
        return Verdict.CALL_FAILED
    return Verdict.DISK_BROKEN
