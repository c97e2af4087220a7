"""The partitions of one fetch session, and which of them may have news for the fetcher (KIP-227).

Kafka looks at every partition of a session at every fetch. Here each is listened to instead, and those that
*may* have news are kept apart: so a fetch costs what has changed, not what the session holds.

The invariant behind that: a partition outside `active` and `arrived` has nothing that its fetcher was not
told. It leaves `active` only by an answer whose read found it drained, and an event that comes after that
read began is in `arrived`.

Under the lock of the session that these partitions belong to; `arrived` alone is added to without it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

from barnabas.broker.replication.fetching import FetchItem, FetchOutcome

SessionKey = tuple[uuid.UUID | str, int]
"""Topic id or name, as the session uses them, and partition; a `TopicPartition` is one."""

_UNTOLD: Final = -2
"""No high watermark or log start: whatever is read is news."""


def key_of(item: FetchItem) -> SessionKey:
    return item.partition if item.topic_id is None else (item.topic_id, item.partition.partition)


class SessionPartition:
    """One partition of a session: what is asked of it, and what its fetcher was told last."""

    __slots__ = ("item", "key", "told_high_watermark", "told_log_start_offset")

    def __init__(self, item: FetchItem) -> None:
        self.key = key_of(item)
        self.item = item
        """May change in all that is not its key."""
        self.told_high_watermark = _UNTOLD
        self.told_log_start_offset = _UNTOLD

    def note(self, outcome: FetchOutcome) -> bool:
        """Whether the fetcher must be told of an outcome; what it will be told is remembered."""
        read = outcome.read
        if read is None or read.diverging is not None:
            # It takes over nothing else of such an answer, and must hear of the rest even if that is not new.
            self.told_high_watermark = self.told_log_start_offset = _UNTOLD
            return True
        is_news = (
            len(read.records) > 0
            or read.high_watermark != self.told_high_watermark
            or read.log_start_offset != self.told_log_start_offset
        )
        self.told_high_watermark = read.high_watermark
        self.told_log_start_offset = read.log_start_offset
        return is_news


P = TypeVar("P", bound=SessionPartition)


class SessionPartitions(Generic[P]):
    """All partitions of a session. A follower reads to the log's end, others to the high watermark."""

    def __init__(self, *, for_follower: bool) -> None:
        self.arrived: set[P] = set()
        """Those of which an event came since `items` was last asked; bounded by the partitions."""
        self._for_follower = for_follower
        self._by_key: dict[SessionKey, P] = {}
        # Ordered: those served last stand last, so that busy partitions take turns.
        self._active: dict[P, None] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[P]:
        return iter(self._by_key.values())

    def ask(self, item: FetchItem) -> P | None:
        """Ask this of its partition from now on; None if that is not here, and has to be added."""
        part = self._by_key.get(key_of(item))
        if part is not None:
            # Who listens goes by the name that was found for a topic's id; it may be found no more.
            part.item = item if item.topic_id is None else item._replace(partition=part.item.partition)
            self._active.setdefault(part)
        return part

    def add(self, part: P) -> None:
        self._by_key[part.key] = part
        self._active.setdefault(part)

    def pop(self, key: SessionKey) -> P | None:
        part = self._by_key.pop(key, None)
        if part is not None:
            self._active.pop(part, None)
            self.arrived.discard(part)
        return part

    def items(self) -> list[FetchItem]:
        """What may have news, in the order in which it is to be served."""
        arrived, active = self.arrived, self._active
        while arrived:
            part = arrived.pop()
            # An event may still come to one that was just taken out.
            if self._by_key.get(part.key) is part:
                active.setdefault(part)
        return [part.item for part in active]

    def news(self, outcomes: Iterable[FetchOutcome]) -> list[FetchOutcome]:
        """What of a read the fetcher must be told; it is taken for told from now on."""
        told = []
        by_key, active = self._by_key, self._active
        for outcome in outcomes:
            part = by_key.get(key_of(outcome.item))
            if part is None:
                continue
            if part.note(outcome):
                told.append(outcome)
            read = outcome.read
            if read is not None and len(read.records) > 0:
                active.pop(part, None)
                active[part] = None
            elif self._is_drained(outcome):
                active.pop(part, None)
            else:
                active.setdefault(part)
        return told

    def _is_drained(self, outcome: FetchOutcome) -> bool:
        """Whether a read without records left nothing that a next one could find with no event in between."""
        read = outcome.read
        if read is None or read.diverging is not None:
            return False
        end = read.log_end_offset if self._for_follower else read.high_watermark
        return end <= outcome.item.fetch_offset
