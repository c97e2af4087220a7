"""A disk that blocks until the test releases it."""

import threading
from pathlib import Path

from barnabas.broker.log.file_system import FileSystem
from tests.support.waiting import DEADLINE_S


class SlowDisk(FileSystem):
    """While `is_slow`, fsyncs and removals of folders block until `released`."""

    __slots__ = ("began", "is_slow", "released")

    def __init__(self) -> None:
        self.is_slow = False
        self.began = threading.Event()
        self.released = threading.Event()

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
