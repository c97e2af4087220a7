"""Replicas that an unforeseen error has put out of service, with the reason.

A failed replica has no role until the controller assigns one again; then it is retried. The broker and all
other partitions continue. The controller receives KAFKA_STORAGE_ERROR and elects another leader. A
coordinator records here the partitions that it could not load. Any thread.
"""

from __future__ import annotations

import logging
from typing import Final

from barnabas.protocol.ids import TopicPartition

logger = logging.getLogger(__name__)

_LONGEST_REASON: Final = 500


class FailedReplicas:
    """Bounded by the number of partitions of this broker."""

    def __init__(self) -> None:
        self._reasons: dict[TopicPartition, str] = {}

    def note(self, name: TopicPartition, error: BaseException, what: str) -> None:
        """Record that the operation ``what`` failed on this replica by an unforeseen error."""
        self._reasons[name] = f"{what}: {error!r}"[:_LONGEST_REASON]
        logger.critical("%s is failed until its role changes: %s: %r", name, what, error, exc_info=error)

    def clear(self, name: TopicPartition) -> None:
        """The replica has a role again, or is gone."""
        if self._reasons.pop(name, None) is not None:
            logger.warning("%s is no longer failed", name)

    def reasons(self) -> dict[TopicPartition, str]:
        return self._reasons.copy()
