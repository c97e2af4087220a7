"""Threads that finish the fetches whose records are not at hand: on disk, or much to copy.

A fetch is begun on whatever thread it comes to, a network thread as a rule, and that may not wait for a
disk. What it did not find in the page cache is read here, into pooled memory and without the interpreter
lock, and answered from here. So a consumer that reads last week's records costs the producers no more than
the disk's and the memory's bandwidth.

Bounded: the threads, which is how many reads wait for disks at once; the fetches that wait for a thread; and
what one answer may hold, for it is memory of ours until the socket has taken it.
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
    failing,
    read_cold,
)
from barnabas.protocol.invariants import InvariantViolation

logger = logging.getLogger(__name__)

_THREADS: Final = 4
_MAX_WAITING: Final = 1_000

Work = Callable[[], None]


class ColdReads:
    """Where nobody has started it, a read is done at once by whoever asks for it."""

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
        """End after the reads that are under way; what waits is dropped, as its connections are closed."""
        with self._condition:
            was_running, self._is_running = self._is_running, False
            self._waiting.clear()
            self._condition.notify_all()
        if was_running:
            for thread in self._threads:
                thread.join(timeout_s)

    def finish(self, params: FetchParams, found: FetchResult, answer: Callable[[FetchResult], None]) -> None:
        """Answer a fetch when all is read that it found; at once if that is so, else from another thread.

        Where too many wait for that, it is answered with what there is, and its reader comes again.
        """
        if not found.is_cold:
            answer(found)
            return
        turn = next(self._turns)

        def read() -> None:
            try:
                result = read_cold(self._partition_of, self._note_error, params, found, turn)
            except InvariantViolation:
                raise
            except Exception:
                logger.critical("a read from disk failed by an error that nobody foresaw", exc_info=True)
                result = failing(found)
            answer(result)

        if not self._submit(read):
            answer(found)

    def _submit(self, work: Work) -> bool:
        """Have the work done; False when too much waits already."""
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
