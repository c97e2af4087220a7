"""Forcing a file to disk, by the call of the system that does it."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)
"""On macOS `fsync` leaves the bytes in the drive's own cache, where a power cut loses them. Java's
``FileChannel.force`` makes this call there too."""
_UNSUPPORTED: Final = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


def force_to_disk(descriptor: int) -> None:
    """Force the bytes of a file, or the names in a folder, to disk. Raises OSError."""
    if _FULL_SYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
            return
        except OSError as error:
            # A network's file system, for example, has no such call.
            if error.errno not in _UNSUPPORTED:
                raise
    os.fsync(descriptor)
