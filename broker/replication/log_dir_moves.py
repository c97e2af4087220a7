"""Moves of replicas between the log dirs of this broker (KIP-113): the requests, and the work of the copies.

The state of a move is its future log (`broker.log.future_log`): a restart begins the move again, and a
deletion of the replica or a failing disk ends it without a call of this module. Each move in turn gets one
bounded read, so that no move waits for another, and a network thread never waits long for the interpreter
lock. A replica keeps its role and serves before, during and after its move.

`alter` runs on IO workers, the copies on threads of this module.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.base.pacing import IoThrottle
from barnabas.broker.log.file_system import MAX_NAME_BYTES, future_name
from barnabas.broker.log.future_log import FutureLog
from barnabas.broker.log.log_manager import LogManager
from barnabas.common.backoff import doubled
from barnabas.common.workers import Workers, WorkRefused
from barnabas.protocol.errors import ApiError, ErrorCode, LocalError, api_error
from barnabas.protocol.ids import TopicPartition

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 256 * 1024
_LOCKED_BYTES: Final = 64 * 1024
"""The most that is copied while appends wait."""
_REST_S: Final = 0.000_2
"""The pause after each read, for the threads that wait for the interpreter lock."""
_SWAP_RETRY_S: Final = 0.1
_LONGEST_WAIT_S: Final = 0.1
"""A wait for the throttle looks this often whether the rate has changed."""
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


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
        self._altering = threading.Lock()
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

        Raises INVALID_TOPIC_EXCEPTION for a name that is too long, LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR if
        a disk has failed, and REPLICA_NOT_AVAILABLE, after taking note, if there is no replica yet.
        """
        logs = self._logs
        if len(future_name(name)) > MAX_NAME_BYTES:
            raise api_error(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name}: the name is too long to be moved")
        if path not in logs.dirs:
            listed = ", ".join(map(str, logs.dirs))
            raise api_error(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of the log dirs {listed}")
        reason = logs.dirs[path] or logs.offline_partitions.get(name)
        if reason is not None:
            raise api_error(ErrorCode.KAFKA_STORAGE_ERROR, f"{name} cannot move to {path}: {reason}")
        try:
            with self._altering:
                self._alter(name, path)
        except ApiError as error:
            self._note_error(error)
            raise

    def _alter(self, name: TopicPartition, path: Path) -> None:
        logs, log, future = self._logs, self._logs.get(name), self._logs.futures.get(name)
        if log is None:
            logs.prefer_dir(name, path)
            text = f"there is no replica of {name} here; one that is created will be in {path}"
            raise api_error(ErrorCode.REPLICA_NOT_AVAILABLE, text)
        if path == (log.folder.parent if future is None else future.path):
            return
        logger.info("%s is in %s; a move to %s is requested", name, log.folder.parent, path)
        if path == log.folder.parent:
            logs.end_move(name, wall_clock_ms())
        else:
            self._take_turn(logs.begin_move(name, path, wall_clock_ms()))

    def _take_turn(self, future: FutureLog, failures: int = 0, after_s: float = 0.0) -> None:
        # Nothing runs after `stop`.
        with suppress(WorkRefused):
            self._workers.submit(partial(self._run, future, failures), after_s=after_s)

    def _run(self, future: FutureLog, failures: int) -> None:
        pause_s = min(self.throttle.wait_s(), _LONGEST_WAIT_S)
        if not pause_s:
            try:
                pause_s, failures = self.step(future), 0
            except (ApiError, LocalError) as error:
                pause_s = doubled(_FIRST_PAUSE_S, failures, _LONGEST_PAUSE_S)
                failures += 1
                if isinstance(error, ApiError):
                    self._note_error(error)
                if self._is_under_way(future):
                    logger.error("%r: %s; it is tried again in %.0f s", future, error, pause_s)
            time.sleep(_REST_S)
        if self._is_under_way(future):
            self._take_turn(future, failures, pause_s)

    def _is_under_way(self, future: FutureLog) -> bool:
        """Whether no swap, deletion, failing dir or request has ended the move."""
        return self._logs.futures.get(future.key) is future

    def step(self, future: FutureLog) -> float:
        """Copy a bounded number of bytes, or swap; returns the pause before the next step."""
        now_ms = wall_clock_ms()
        copied = future.copy(_READ_BYTES, now_ms)
        self.throttle.take(copied)
        if copied >= _READ_BYTES // 2 or future.log.log_end_offset < future.current.segments[-1].base_offset:
            return 0.0
        # So that a restart after the swap does not begin at the log's start.
        self._checkpoint_high_watermarks()
        return 0.0 if self._logs.finish_move(future, _LOCKED_BYTES, now_ms) else _SWAP_RETRY_S
