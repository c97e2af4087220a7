"""What an error of the operating system means for a log: one pure decision, with its table.

A disk that is broken takes its log dir offline, and all partitions on it with it. That must not follow from
a call that failed for want of something else (descriptors, memory), nor from a file that is missing because
its log was deleted meanwhile. Pure; any thread.
"""

from __future__ import annotations

import errno
from enum import Enum
from typing import Final


class Operation(Enum):
    """What was tried, by what a failure leaves behind."""

    READ = "read"
    """Opening included: nothing has changed."""
    WRITE = "write"
    """An append, or a file replaced as a whole: nothing that anybody may see has changed."""
    CHANGE = "change"
    """A truncation, a removal, a rename: it may be half done, and cannot simply be tried again."""
    SYNC = "sync"
    """Forcing a file to disk: what failed once may be lost, though the next attempt succeeds."""


class Verdict(Enum):
    """What follows from an error."""

    DISK_BROKEN = "disk broken"
    """The log dir goes offline."""
    CALL_FAILED = "call failed"
    """This one call is refused with a retriable error; disk and log are sound."""
    LOG_GONE = "log gone"
    """The log was deleted or closed meanwhile: nothing is wrong."""


_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
_SCARCE: Final = {
    # No descriptor is left to the process, or to the system: the file was never opened.
    errno.EMFILE: frozenset({Operation.READ, Operation.WRITE, Operation.SYNC}),
    errno.ENFILE: frozenset({Operation.READ, Operation.WRITE, Operation.SYNC}),
    # No memory, or no further mapping (vm.max_map_count). Writing back may report it too, hence not SYNC.
    errno.ENOMEM: frozenset({Operation.READ, Operation.WRITE}),
}
"""What may be lacking beside the disk, and the operations that it leaves undone as a whole."""


def verdict(error_number: int | None, operation: Operation, *, is_log_there: bool) -> Verdict:
    """What an errno means; `is_log_there`, that the log is still one of this broker's.

    Whatever the table does not name (EIO, EROFS, ENOSPC and all others) is a broken disk: going on could
    lose data.
    """
    if error_number in _MISSING and not is_log_there:
        return Verdict.LOG_GONE
    if operation in _SCARCE.get(error_number or 0, ()):
        return Verdict.CALL_FAILED
    return Verdict.DISK_BROKEN
