"""Moves of replicas between the log dirs of this broker (KIP-113): the requests, and the work of the copies.

The state of a move is its future log (`broker.log.future_log`): a restart begins the move again, and a
deletion of the replica or a failing disk ends it without a call of this module. Each move in turn gets one
bounded read, so that no move waits for another, and a network thread never waits long for the interpreter
lock. A replica keeps its role and serves before, during and after its move.

`alter` runs on IO workers, the copies on threads of this module.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.base.pacing import IoThrottle
from barnabas.broker.log.future_log import FutureLog
from barnabas.broker.log.log_manager import LogManager
from barnabas.common.workers import Workers, WorkRefused
from barnabas.protocol.errors import ApiError, LocalError
from barnabas.protocol.ids import TopicPartition

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 256 * 1024
_LOCKED_BYTES: Final = 64 * 1024
"""The most that is copied while appends wait."""
_REST_S: Final = 0.000_2
"""The pause after each read, for the threads that wait for the interpreter lock."""
_PAUSE_S: Final = 0.1
"""After a swap that came too early, and the longest wait for the throttle, whose rate may change."""
_RETRY_S: Final = 10.0


class LogDirMoves:
    """`start` and `stop` once each."""

    def __init__(
        self,
        logs: LogManager,
        *,
        threads: int,
        bytes_per_second: float,
        checkpoint_high_watermarks: Callable[[], None],
        note_error: Callable[[ApiError], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """``note_error`` handles a failing disk."""
        self._logs = logs
        self._checkpoint_high_watermarks = checkpoint_high_watermarks
        self._note_error = note_error
        self.throttle = IoThrottle(bytes_per_second)
        self._workers = Workers("log-dir-moves", threads=threads, on_fatal=on_fatal)

    def start(self) -> None:
        """Begin again with the moves that were under way at the last stop."""
        for future in self._logs.all_futures():
            self._take_turn(future)
        self._workers.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the threads after the read in progress; the next start begins the moves again."""
        self._workers.stop(timeout_s)

    def alter(self, name: TopicPartition, path: Path) -> None:
        """Move a replica to a log dir, or create it there later. The last request for a replica counts.

        Raises the errors of `LogManager.begin_move`.
        """
        try:
            future = self._logs.begin_move(name, path, wall_clock_ms())
        except ApiError as error:
            self._note_error(error)
            raise
        if future is not None:
            self._take_turn(future)

    def _take_turn(self, future: FutureLog, after_s: float = 0.0) -> None:
        # Nothing runs after `stop`.
        with suppress(WorkRefused):
            self._workers.submit(partial(self._run, future), after_s=after_s)

    def _run(self, future: FutureLog) -> None:
        pause_s = min(self.throttle.wait_s(), _PAUSE_S)
        if not pause_s:
            try:
                pause_s = self._step(future)
            except (ApiError, LocalError) as error:
                if isinstance(error, ApiError):
                    self._note_error(error)
                pause_s = _RETRY_S
                if not future.log.is_closed:
                    logger.error("%r: %s; it is tried again in %.0f s", future, error, pause_s)
            time.sleep(_REST_S)
        # A swap, a deletion, a failing dir or a request has ended the move if it is closed.
        if not future.log.is_closed:
            self._take_turn(future, pause_s)

    def _step(self, future: FutureLog) -> float:
        """Copy a bounded number of bytes, or swap; returns the pause before the next step."""
        now_ms = wall_clock_ms()
        copied = future.copy(_READ_BYTES, now_ms)
        self.throttle.take(copied)
        if copied >= _READ_BYTES // 2 or future.log.log_end_offset < future.current.segments[-1].base_offset:
            return 0.0
        # So that a restart after the swap does not begin at the log's start.
        self._checkpoint_high_watermarks()
        return 0.0 if self._logs.finish_move(future, _LOCKED_BYTES, now_ms) else _PAUSE_S
