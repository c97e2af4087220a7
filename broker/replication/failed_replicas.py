"""Replicas that an unforeseen error has put out of service, each alone, with the reason.

A failed replica has no role until the controller gives it one again: then it is tried anew. Its broker lives
and so do all other partitions; the controller hears KAFKA_STORAGE_ERROR and has another replica lead. A
coordinator notes here what it could not load. Any thread.
"""

from __future__ import annotations

import logging
from typing import Final

from barnabas.protocol.ids import TopicPartition

logger = logging.getLogger(__name__)

_LONGEST_REASON: Final = 500


class FailedReplicas:
    """See the module. Bounded by the number of partitions of this broker."""

    def __init__(self) -> None:
        self._reasons: dict[TopicPartition, str] = {}

    def note(self, name: TopicPartition, error: BaseException, what: str) -> None:
        """``what`` could not be done with this replica because of an error that nobody foresaw."""
        self._reasons[name] = f"{what}: {error!r}"[:_LONGEST_REASON]
        logger.critical("%s is failed until its role changes: %s: %r", name, what, error, exc_info=error)

    def clear(self, name: TopicPartition) -> None:
        """It has a role again, or is gone."""
        if self._reasons.pop(name, None) is not None:
            logger.warning("%s is failed no longer", name)

    def reasons(self) -> dict[TopicPartition, str]:
        return self._reasons.copy()
