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
from barnabas.broker.config.topic_configs import TopicConfigs
from barnabas.broker.replication.partition import Partition
from barnabas.common.settings import LONG_MAX
from barnabas.protocol.ids import BrokerId, TopicPartition

EVERY_REPLICA: Final = "*"
_LONGEST_WAIT_S: Final = 1.0
"""A replica that is held back looks this often whether the rate has changed."""


class ReplicationQuota:
    """The throttle of one broker's leaders, or of its followers.

    ``listed`` returns a topic's list: ``*``, or ``partition:broker`` for each replica. The rate `LONG_MAX`
    bounds nothing.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        listed: Callable[[str], Collection[str]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_bounded = False
        self._broker_id = broker_id
        self._listed = listed
        self._throttle = IoThrottle(LONG_MAX, now_s)

    def set_rate(self, bytes_per_second: int) -> None:
        self._throttle.set_rate(bytes_per_second)
        self.is_bounded = bytes_per_second < LONG_MAX

    def applies_to(self, tp: TopicPartition) -> bool:
        """Whether this broker's replica of the partition is throttled."""
        if not self.is_bounded:
            return False
        listed = self._listed(tp.topic)
        return EVERY_REPLICA in listed or f"{tp.partition}:{self._broker_id}" in listed

    def holds_back(self, follower: BrokerId, partition: Partition) -> bool:
        """Whether a follower of this leader gets no records of a partition now."""
        return (
            self.is_bounded
            and follower not in partition.isr.in_sync_replicas
            and self.applies_to(partition.partition)
            and self.wait_s() > 0
        )

    def note(self, tp: TopicPartition, size_bytes: int) -> bool:
        """Count bytes that were sent or fetched; returns whether the replica is throttled."""
        if not size_bytes or not self.applies_to(tp):
            return False
        self._throttle.take(size_bytes)
        return True

    def wait_s(self) -> float:
        """How long throttled replicas must wait; a second at most, then ask again."""
        return min(self._throttle.wait_s(), _LONGEST_WAIT_S)


def make_quotas(broker_id: BrokerId, settings: TopicConfigs) -> tuple[ReplicationQuota, ReplicationQuota]:
    """The throttles of a broker's leaders towards followers, and of its followers."""
    return (
        ReplicationQuota(broker_id, lambda topic: settings.of(topic).throttled_leaders),
        ReplicationQuota(broker_id, lambda topic: settings.of(topic).throttled_followers),
    )
