"""Replicas that an unforeseen error has put out of service, with the reason.

A failed replica has no role until the controller assigns one again; then it is retried. This broker requests
the role after a pause, longer each time, because the cause may be gone, such as a leader's bug or a bad
batch. The broker and all other partitions continue. The controller receives KAFKA_STORAGE_ERROR and elects
another leader. A coordinator also records partitions that it could not load; they are not retried. Any
thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from barnabas.protocol.ids import TopicPartition

logger = logging.getLogger(__name__)

_LONGEST_REASON: Final = 500
FIRST_PAUSE_MS: Final = 10_000.0
LONGEST_PAUSE_MS: Final = 600_000.0


class _Retry(NamedTuple):
    """When the role is requested again, and the pause before that."""

    due_ms: float
    pause_ms: float


class FailedReplicas:
    """Bounded by the number of partitions of this broker."""

    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._reasons: dict[TopicPartition, str] = {}
        self._retries: dict[TopicPartition, _Retry] = {}
        """Kept for replicas that work again, because one that soon fails again pauses for longer."""

    def note(self, name: TopicPartition, error: BaseException, what: str, *, is_retried: bool) -> None:
        """Record that the operation ``what`` failed on this replica by an unforeseen error."""
        self._reasons[name] = f"{what}: {error!r}"[:_LONGEST_REASON]
        pause = ""
        if is_retried:
            retry = self._retries[name] = self._next_retry(name)
            pause = f" or for {retry.pause_ms / 1000:.0f} s"
        logger.critical(
            "%s is failed until its role changes%s: %s: %r", name, pause, what, error, exc_info=error
        )

    def _next_retry(self, name: TopicPartition) -> _Retry:
        before, now_ms = self._retries.get(name), self._now_ms()
        pause_ms = FIRST_PAUSE_MS if before is None else min(2 * before.pause_ms, LONGEST_PAUSE_MS)
        return _Retry(now_ms + pause_ms, pause_ms)

    def take_due(self) -> bool:
        """Whether to request the roles of failed replicas now; a True starts the next pause."""
        now_ms, is_due = self._now_ms(), False
        for name, retry in list(self._retries.items()):
            if now_ms < retry.due_ms:
                continue
            if name in self._reasons:
                is_due = True
                self._retries[name] = retry._replace(due_ms=now_ms + retry.pause_ms)
            elif now_ms >= retry.due_ms + LONGEST_PAUSE_MS:
                self._retries.pop(name, None)
        return is_due

    def clear(self, name: TopicPartition) -> None:
        """The replica has a role again, or is gone."""
        if self._reasons.pop(name, None) is not None:
            logger.warning("%s is no longer failed", name)

    def reasons(self) -> dict[TopicPartition, str]:
        return self._reasons.copy()
