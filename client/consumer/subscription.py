"""A consumer's subscription: topics by name or by a pattern, and its rebalance listener.

Plain data and rules; the session looks the topics up. A pattern has to match the whole name, as in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Collection, Iterable
from dataclasses import dataclass, field

from barnabas.client.arguments import check_text, several
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.topic_names import INTERNAL_TOPICS, validate_topic_name


class RebalanceListener:
    """Called within `poll` and `close` when the assignment changes; override the methods that you need.

    Each method may be plain or ``async``, and may use the consumer: `commit` in `on_partitions_revoked`,
    `seek` in `on_partitions_assigned`. The `poll` raises its exception once the change is done.
    """

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> Awaitable[None] | None:
        """These will go to other members; they can still be committed. Not called without partitions."""
        return None

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> Awaitable[None] | None:
        """These were added; called after every rebalance, also with an empty set."""
        return None

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> Awaitable[None] | None:
        """These belong to others already, because the group removed us; commits for them would fail."""
        return self.on_partitions_revoked(partitions)


def check_listener(listener: RebalanceListener) -> None:
    """Raises ValueError for a class, or if a method is missing; that would show only at the first call."""
    if isinstance(listener, type):
        raise ValueError(f"listener={listener!r}: expected an object of it, not the class")
    for method in ("on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost"):
        if not callable(getattr(listener, method, None)):
            raise ValueError(f"listener={listener!r} has no {method}: derive it from RebalanceListener")


@dataclass(slots=True)
class TopicSelection:
    """``topics`` are the present subscription; a pattern adds topics when they are created."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    listener: RebalanceListener = field(default_factory=RebalanceListener)

    def wants_as(self, other: TopicSelection) -> bool:
        """Whether both select the same, regardless of the listener."""
        return self.pattern == other.pattern and (self.pattern is not None or self.topics == other.topics)

    def matching(self, names: Iterable[str], *, exclude_internal: bool) -> frozenset[str]:
        """The topics that a pattern selects from all names."""
        if self.pattern is None:
            return self.topics
        return frozenset(
            name
            for name in names
            if self.pattern.fullmatch(name) and not (exclude_internal and name in INTERNAL_TOPICS)
        )


def select(
    topics: Collection[str] | str | None,
    pattern: str | re.Pattern[str] | None,
    listener: RebalanceListener | None,
) -> TopicSelection:
    """The selection that the arguments of `Consumer.subscribe` describe.

    Raises ValueError and TypeError naming them, and INVALID_TOPIC_EXCEPTION.
    """
    if (topics is None) == (pattern is None):
        raise ValueError(f"topics={topics!r}, pattern={pattern!r}: expected one of the two")
    effective_listener = RebalanceListener() if listener is None else listener
    check_listener(effective_listener)
    if pattern is not None:
        try:
            compiled = re.compile(pattern)
        except (TypeError, re.error) as error:
            raise ValueError(f"pattern={pattern!r}: expected a regular expression ({error})") from None
        if not isinstance(compiled.pattern, str):
            raise TypeError(f"pattern={pattern!r}: expected a regular expression of type str")
        return TopicSelection(pattern=compiled, listener=effective_listener)
    names = several("topics", topics or (), str)
    for name in names:
        check_text("topic", name)
        validate_topic_name(name)
    if not names:
        raise ValueError("topics=[]: expected at least one; `unsubscribe` gives all up")
    return TopicSelection(frozenset(names), None, effective_listener)
