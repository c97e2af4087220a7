"""A disk that blocks until the test releases it."""

import os
import threading
from pathlib import Path
from typing import Any

from barnabas.broker.log.file_system import FileSystem
from tests.support.waiting import DEADLINE_S


class SlowDisk(FileSystem):
    """While `is_slow`, fsyncs, removals of folders and with `slows_writes` writes block until `released`."""

    __slots__ = ("began", "is_slow", "released", "slows_writes")

    def __init__(self) -> None:
        self.is_slow = self.slows_writes = False
        self.began = threading.Event()
        self.released = threading.Event()

    def pwrite(self, descriptor: int, data: Any, position: int) -> int:
        if self.slows_writes:
            self._take_time()
        return os.pwrite(descriptor, data, position)

    def fsync(self, file: int | Path) -> None:
        self._take_time()
        super().fsync(file)

    def rmtree(self, path: Path) -> None:
        self._take_time()
        super().rmtree(path)

    def _take_time(self) -> None:
        if self.is_slow:
            self.began.set()
            assert self.released.wait(DEADLINE_S)
