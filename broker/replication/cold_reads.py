"""Threads that finish fetches whose records are not in the page cache, or are long to copy.

A fetch begins on the thread that received it, usually a network thread, which must not wait for a disk. These
threads read the missing records into pooled memory, without the interpreter lock, and answer the fetch. So a
consumer of old records takes only disk and memory bandwidth from the producers.

Bounded: the threads (the reads that wait for disks at once), the fetches that wait for a thread, and the
bytes of one answer, which stay in memory until the socket has taken them.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from barnabas.broker.replication.fetching import (
    FetchParams,
    FetchResult,
    NoteError,
    PartitionOf,
    read_cold,
)
from barnabas.protocol.invariants import InvariantViolation

logger = logging.getLogger(__name__)

_THREADS: Final = 4
_MAX_WAITING: Final = 1_000

Work = Callable[[], None]


class ColdReads:
    """Before `start`, reads run at once on the caller's thread."""

    def __init__(
        self,
        partition_of: PartitionOf,
        note_error: NoteError,
        *,
        on_fatal: Callable[[BaseException], None],
        threads: int = _THREADS,
        max_waiting: int = _MAX_WAITING,
    ) -> None:
        self._partition_of = partition_of
        self._note_error = note_error
        self._turns = itertools.count()
        self._on_fatal = on_fatal
        self._max_waiting = max_waiting
        self._condition = threading.Condition()
        self._waiting: deque[Work] = deque()
        self._is_running = False
        self._threads = [
            threading.Thread(target=self._run, name=f"cold-read-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        self._is_running = True
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End after the reads in progress; waiting reads are dropped, since their connections are closed."""
        with self._condition:
            was_running, self._is_running = self._is_running, False
            self._waiting.clear()
            self._condition.notify_all()
        if was_running:
            for thread in self._threads:
                thread.join(timeout_s)

    def finish(self, params: FetchParams, found: FetchResult, answer: Callable[[FetchResult], None]) -> None:
        """Answer a fetch once all its records are read: at once if none is cold, else from another thread.

        If too many fetches wait, it is answered with the records read so far, and the client fetches again.
        """
        if not found.is_cold:
            answer(found)
            return
        turn = next(self._turns)

        def read() -> None:
            try:
                answer(read_cold(self._partition_of, self._note_error, params, found, turn))
            except InvariantViolation:
                raise
            except Exception:
                logger.critical("a fetch of cold records cannot be answered", exc_info=True)

        if not self._submit(read):
            answer(found)

    def _submit(self, work: Work) -> bool:
        """Queue the work, or do it if there are no threads; False if the queue is full."""
        with self._condition:
            if self._is_running:
                if len(self._waiting) >= self._max_waiting:
                    return False
                self._waiting.append(work)
                self._condition.notify()
                return True
        work()
        return True

    def _run(self) -> None:
        try:
            while (work := self._next()) is not None:
                work()
                # An idle thread keeps no request and no buffer alive.
                del work
        except BaseException as error:
            logger.critical("%s died", threading.current_thread().name, exc_info=True)
            self._on_fatal(error)

    def _next(self) -> Work | None:
        with self._condition:
            while self._is_running and not self._waiting:
                self._condition.wait()
            return self._waiting.popleft() if self._is_running else None
