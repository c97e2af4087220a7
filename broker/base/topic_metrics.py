"""Counts the bytes, records and requests of each topic, since the start of the broker.

Any thread adds without a lock: the interpreter switches threads between statements and at calls, never within
``object.attribute += integer`` (`test_traffic.py` checks it). Only topics that this broker hosts have counts
of their own; requests for others, and what was counted for deleted topics, are in `Traffic.others`, so the
sum of all never falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from barnabas.protocol.errors import ErrorCode

_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_FORESEEN_IN_PRODUCE: Final = _TOO_LARGE | {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.KAFKA_STORAGE_ERROR,
}
_FORESEEN_IN_FETCH: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""As in Kafka, a request that gets one of these errors has not failed: its client knows what to do."""


@dataclass(slots=True)
class TopicTraffic:
    """The counts of one topic. A request counts once for each of its partitions.

    ``bytes_out`` is what consumers got; the bytes that followers got are in `Traffic`.
    """

    bytes_in: int = 0
    bytes_out: int = 0
    bytes_rejected: int = 0
    failed_fetch_requests: int = 0
    failed_produce_requests: int = 0
    fetch_requests: int = 0
    messages_in: int = 0
    produce_requests: int = 0

    def note_append(self, size_bytes: int, messages: int) -> None:
        self.produce_requests += 1
        self.bytes_in += size_bytes
        self.messages_in += messages

    def note_refusal(self, size_bytes: int, code: ErrorCode) -> None:
        self.produce_requests += 1
        if code in _TOO_LARGE:
            self.bytes_rejected += size_bytes
        elif code not in _FORESEEN_IN_PRODUCE:
            self.failed_produce_requests += 1

    def note_fetch(self, size_bytes: int, code: ErrorCode) -> None:
        self.fetch_requests += 1
        self.bytes_out += size_bytes
        if code and code not in _FORESEEN_IN_FETCH:
            self.failed_fetch_requests += 1

    def add(self, other: TopicTraffic) -> None:
        for name in TopicTraffic.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Traffic:
    """The counts of all topics. The replication's are of all topics together, as in Kafka."""

    def __init__(self) -> None:
        self.others = TopicTraffic()
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.reassignment_bytes_in = 0
        """Of `replication_bytes_in`, what replicas fetched that a reassignment adds; the next likewise."""
        self.reassignment_bytes_out = 0
        self._topics: dict[str, TopicTraffic] = {}

    def of(self, topic: str) -> TopicTraffic:
        """The counts of a topic that this broker hosts."""
        found = self._topics.get(topic)
        return self._topics.setdefault(topic, TopicTraffic()) if found is None else found

    def of_any(self, topic: str) -> TopicTraffic:
        """The counts of a topic, or of the others if it has none yet."""
        return self._topics.get(topic, self.others)

    def topics(self) -> dict[str, TopicTraffic]:
        return self._topics.copy()

    def total(self) -> TopicTraffic:
        """The counts of all topics together."""
        total = TopicTraffic()
        for counts in (self.others, *self._topics.copy().values()):
            total.add(counts)
        return total

    def forget(self, topic: str) -> None:
        """The topic was deleted; its counts remain in the total."""
        found = self._topics.pop(topic, None)
        if found is not None:
            self.others.add(found)
