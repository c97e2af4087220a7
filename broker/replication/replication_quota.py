"""Throttles of replication between brokers (KIP-73), so that moved replicas leave room for clients.

A broker bounds the bytes per second that its leaders send to throttled replicas, and those that its
followers fetch for throttled ones. A topic lists such replicas. Only a replica that is not in sync is held
back, so acks=all does not wait for a throttle. Bytes count when they were sent or fetched, and are paid for
by waiting. Any thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from barnabas.broker.base.pacing import IoThrottle
from barnabas.common.settings import LONG_MAX
from barnabas.protocol.ids import BrokerId, TopicPartition

_LONGEST_WAIT_S: Final = 1.0
"""A follower that is held back looks this often whether the rate has changed."""


class ReplicationQuota(IoThrottle):
    """The throttle of one broker's leaders, or of its followers.

    ``listed`` returns a topic's list: ``*``, or ``partition:broker`` for each replica.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        listed: Callable[[str], Collection[str]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(LONG_MAX, now_s)
        self._broker_id = broker_id
        self._listed = listed

    def applies_to(self, tp: TopicPartition) -> bool:
        """Whether this broker's replica of the partition is throttled; the rate `LONG_MAX` bounds nothing."""
        if self.rate == LONG_MAX:
            return False
        listed = self._listed(tp.topic)
        return "*" in listed or f"{tp.partition}:{self._broker_id}" in listed

    def note(self, tp: TopicPartition, size_bytes: int) -> float:
        """Count bytes that were sent or fetched; returns how long a throttled replica must wait now."""
        if not size_bytes or not self.applies_to(tp):
            return 0.0
        self.take(size_bytes)
        return min(self.wait_s(), _LONGEST_WAIT_S)
