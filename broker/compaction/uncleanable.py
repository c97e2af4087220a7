"""The logs that could not be cleaned, each with the reason and the time of its next attempt.

Kafka marks such a log until the broker restarts. Here a cleaning is tried again, because a full disk may have
space again, and a bug may concern one batch that retention deletes: after a minute, then after twice the
pause before, at most an hour. It is tried at once if the log was truncated, has lost its oldest records, or
has other settings, because the cause may be gone. The mark goes when a cleaning succeeds.

A problem is logged as an error once, with the traceback if it was not foreseen; `Log.cleaning_problem` has it
for `barnabas status`. Any thread. Bounded by the number of logs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import Final, NamedTuple

from barnabas.broker.config.topic_config import TopicConfig
from barnabas.broker.log.log import Log
from barnabas.broker.log.storage_errors import DAMAGE, StorageError
from barnabas.common.backoff import Pause
from barnabas.protocol.errors import ApiError
from barnabas.protocol.ids import TopicPartition

logger = logging.getLogger(__name__)

FIRST_PAUSE_MS: Final = 60_000
LONGEST_PAUSE_MS: Final = 3_600_000
_LONGEST_REASON: Final = 500


class LogState(NamedTuple):
    """The properties of a log that decide whether an attempt may end differently."""

    log: Log
    cuts: int
    log_start_offset: int
    config: TopicConfig

    @classmethod
    def of(cls, log: Log) -> LogState:
        return cls(log, log.bounds.cuts, log.log_start_offset, log.config)


class Problem(NamedTuple):
    """Why a log could not be cleaned."""

    reason: str
    state: LogState
    pause: Pause


class UncleanableLogs:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problems: dict[TopicPartition, Problem] = {}

    def note(self, log: Log, error: Exception, now_ms: int) -> None:
        """Mark a log after a failed cleaning."""
        name, reason = log.topic_partition, describe(error)
        with self._lock:
            before = self._problems.get(name)
            pause = Pause() if before is None else before.pause
            pause = pause.after(now_ms, FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
            self._problems[name] = Problem(reason, LogState.of(log), pause)
        log.cleaning_problem = reason
        is_known = before is not None and before.reason == reason
        is_foreseen = isinstance(error, ApiError)
        logger.log(
            logging.INFO if is_known else logging.ERROR,
            "%s cannot be compacted, and keeps all its records; the next attempt is in %.0f s: %s",
            name,
            pause.length / 1_000,
            reason,
            exc_info=None if is_foreseen or is_known else error,
        )

    def is_tried(self, log: Log, now_ms: int) -> bool:
        """Whether the log may be cleaned now: it has no problem, or its next attempt is due."""
        problem = self._problems.get(log.topic_partition)
        return problem is None or now_ms >= problem.pause.until or problem.state != LogState.of(log)

    def clear(self, log: Log) -> None:
        """A cleaning of the log has succeeded."""
        with self._lock:
            problem = self._problems.pop(log.topic_partition, None)
        log.cleaning_problem = None
        if problem is not None:
            logger.warning("%s is compacted again; before: %s", log.topic_partition, problem.reason)

    def keep_only(self, logs: Collection[Log]) -> None:
        """Forget the logs that were deleted, or are no longer compacted."""
        kept = {log.topic_partition: log for log in logs}
        with self._lock:
            gone = [
                name for name, problem in self._problems.items() if kept.get(name) is not problem.state.log
            ]
            forgotten = [self._problems.pop(name) for name in gone]
        for problem in forgotten:
            problem.state.log.cleaning_problem = None

    def logs(self) -> list[Log]:
        with self._lock:
            return [problem.state.log for problem in self._problems.values()]


def describe(error: Exception) -> str:
    """The reason for operators, in one line."""
    if isinstance(error, ApiError) and error.code in DAMAGE:
        reason = f"the log is damaged ({error}); `barnabas log verify` shows where"
    elif isinstance(error, StorageError):
        reason = f"cannot write or read files: {error}"
    elif isinstance(error, ApiError):
        reason = str(error)
    else:
        reason = f"unforeseen error: {error!r}"
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"
