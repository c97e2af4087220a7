"""Moves of replicas between the log dirs of this broker (KIP-113): the requests, and the thread that copies.

The state of a move is its future log (`broker.log.future_logs`): a move survives a restart, and a deletion of
the replica or a failing disk ends it without a call of this module. This module orders the work: each move in
turn gets one bounded read, so that no move waits for another, and a network thread never waits long for the
interpreter lock. A replica keeps its role and serves before, during and after its move.

`alter` runs on IO workers, the copies on threads of this module.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from barnabas.broker.base.clocks import wall_clock_ms
from barnabas.broker.base.pacing import IoThrottle
from barnabas.broker.log.file_system import MAX_NAME_BYTES, future_name
from barnabas.broker.log.future_log import FutureLog
from barnabas.broker.log.log_manager import LogManager
from barnabas.common.threads import make_thread
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


class Decision(Enum):
    """What a request to move a replica changes."""

    NOTHING = "the replica is there, or on its way there"
    BEGIN = "the move begins"
    RESTART = "the move to another dir is given up, and one to this dir begins"
    CANCEL = "the move to another dir is given up, and the replica stays"
    REMEMBER = "there is no replica yet; it will be created there"


def decide(wanted: Path, current: Path | None, future: Path | None) -> Decision:
    """``current`` and ``future`` are the log dirs of the replica and of its future log, if it has them."""
    if current is None:
        return Decision.REMEMBER
    if wanted == current:
        return Decision.NOTHING if future is None else Decision.CANCEL
    if future is None:
        return Decision.BEGIN
    return Decision.NOTHING if wanted == future else Decision.RESTART


class _Turn(NamedTuple):
    """The next work on a move, due at a monotonic time in seconds; there is one turn for each move."""

    due_s: float
    future: FutureLog
    pause_s: float = _FIRST_PAUSE_S
    """After the next failure."""


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
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``note_error`` handles a failing disk."""
        self._logs = logs
        self._checkpoint_high_watermarks = checkpoint_high_watermarks
        self._note_error = note_error
        self.throttle = IoThrottle(bytes_per_second)
        self._now_s = now_s
        self._altering = threading.Lock()
        self._condition = threading.Condition()
        self._turns: deque[_Turn] = deque()
        self._is_stopping = False
        self._threads = [
            make_thread(f"log-dir-moves-{number}", self._run, on_fatal) for number in range(threads)
        ]

    def start(self) -> None:
        """Go on with the moves that were under way at the last stop."""
        for future in self._logs.futures.all():
            self._enqueue(_Turn(self._now_s(), future))
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the threads after the read in progress; the moves go on at the next start."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline - time.monotonic()))

    def alter(self, name: TopicPartition, path: Path) -> Decision:
        """Move a replica to a log dir, or create it there later.

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
                return self._alter(name, path)
        except ApiError as error:
            self._note_error(error)
            raise

    def _alter(self, name: TopicPartition, path: Path) -> Decision:
        logs, log, future = self._logs, self._logs.get(name), self._logs.futures.get(name)
        decision = decide(
            path,
            None if log is None else log.folder.parent,
            None if future is None else future.log.folder.parent,
        )
        if decision is Decision.REMEMBER:
            logs.prefer_dir(name, path)
            text = f"there is no replica of {name} here; one that is created will be in {path}"
            raise api_error(ErrorCode.REPLICA_NOT_AVAILABLE, text)
        if decision is not Decision.NOTHING:
            logger.info("%s in %s: a move to %s is requested, and %s", name, log, path, decision.value)
        if decision in (Decision.CANCEL, Decision.RESTART):
            logs.futures.drop(name, wall_clock_ms())
        if decision in (Decision.BEGIN, Decision.RESTART):
            self._enqueue(_Turn(self._now_s(), logs.futures.create(name, path, wall_clock_ms())))
        return decision

    def _enqueue(self, turn: _Turn) -> None:
        with self._condition:
            self._turns.append(turn)
            self._condition.notify()

    def _run(self) -> None:
        while (turn := self._next()) is not None:
            self._work(turn)
            time.sleep(_REST_S)

    def _next(self) -> _Turn | None:
        """Wait for the first turn that is due; None at the stop."""
        with self._condition:
            while not self._is_stopping:
                throttled_s = self.throttle.wait_s()
                if throttled_s:
                    self._condition.wait(min(throttled_s, _LONGEST_WAIT_S))
                    continue
                now_s = self._now_s()
                for at, turn in enumerate(self._turns):
                    if turn.due_s <= now_s:
                        del self._turns[at]
                        return turn
                due_s = min((turn.due_s for turn in self._turns), default=None)
                self._condition.wait(None if due_s is None else due_s - now_s)
            return None

    def work_off(self) -> None:
        """Work until no turn is due; a test calls it without the threads."""
        while any(turn.due_s <= self._now_s() for turn in self._turns):
            turn = self._next()
            if turn is not None:
                self._work(turn)

    def _work(self, turn: _Turn) -> None:
        """Do one step of a move, and take the next turn for it if it is not at its end."""
        future = turn.future
        if not self._is_under_way(future):
            return
        pause_s, next_pause_s = turn.pause_s, min(2 * turn.pause_s, _LONGEST_PAUSE_S)
        try:
            pause_s, next_pause_s = self._step(future), _FIRST_PAUSE_S
        except (ApiError, LocalError) as error:
            if isinstance(error, ApiError):
                self._note_error(error)
            if self._is_under_way(future):
                logger.error("%r: %s; it is tried again in %.0f s", future, error, pause_s)
        if self._is_under_way(future):
            self._enqueue(_Turn(self._now_s() + pause_s, future, next_pause_s))

    def _is_under_way(self, future: FutureLog) -> bool:
        """Whether no swap, deletion, failing dir or request has ended the move."""
        return self._logs.futures.get(future.log.topic_partition) is future

    def _step(self, future: FutureLog) -> float:
        """Copy a bounded number of bytes, or swap; returns the pause before the next step."""
        now_ms = wall_clock_ms()
        copied = future.copy(_READ_BYTES, now_ms)
        self.throttle.take(copied)
        if copied >= _READ_BYTES // 2 or not future.is_in_active_segment:
            return 0.0
        # So that a restart after the swap does not begin at the log's start.
        self._checkpoint_high_watermarks()
        is_swapped = self._logs.futures.replace_current(future.log.topic_partition, _LOCKED_BYTES, now_ms)
        return 0.0 if is_swapped else _SWAP_RETRY_S
