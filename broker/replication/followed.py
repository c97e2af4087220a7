"""What a follower's next fetch to its leader says: its side of an incremental fetch session (KIP-227).

The first fetch names every partition. Those after it name what has changed here since, what begins or ends
to be followed, and each partition once in ``refresh_ms`` even so: from that its leader sees that it is still
caught up, and whatever one side may have missed is mended. A partition that failed rests for a while, twice
as long each time, and is out of the session meanwhile, for the leader would answer at once otherwise.

Pure: no socket, no clock; seconds come in as an argument, always of the same clock. Belongs to one fetcher.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from barnabas.broker.replication.partition import Partition
from barnabas.protocol.errors import ApiError
from barnabas.protocol.fetch_epochs import INITIAL_EPOCH, NO_SESSION, next_epoch
from barnabas.protocol.ids import NO_TOPIC_ID, LeaderEpoch, Offset, TopicId, TopicPartition
from barnabas.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

_FIRST_RETRY_MS: Final = 10.0

Named = tuple[LeaderEpoch, Offset, LeaderEpoch, Offset, TopicId]
"""The fields of a fetch: the leader's epoch, and the log's end, last epoch, start and topic id."""


class Followed:
    """One partition and the leader epoch in which it is followed."""

    __slots__ = ("leader_epoch", "named", "named_at", "partition", "retry_at", "retry_ms")

    def __init__(self, partition: Partition, leader_epoch: LeaderEpoch) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.named: Named | None = None
        self.named_at = 0.0
        self.retry_at = 0.0
        self.retry_ms = _FIRST_RETRY_MS


class NextFetch(NamedTuple):
    """What one fetch says."""

    session_id: int
    epoch: int
    named: dict[TopicPartition, Named]
    forgotten: list[TopicPartition]
    next_retry: float
    """When the next of the partitions that rest may be tried again, 0.0 while none does."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to ask for: a session always has partitions."""
        return self.session_id == NO_SESSION and not self.named

    def topics(self, partition_max_bytes: int) -> list[FetchTopic]:
        """What the request names."""
        found: dict[tuple[str, TopicId], list[FetchPartition]] = {}
        for name, (
            leader_epoch,
            log_end_offset,
            last_epoch,
            log_start_offset,
            topic_id,
        ) in self.named.items():
            found.setdefault((name.topic, topic_id), []).append(
                FetchPartition(
                    partition=name.partition,
                    current_leader_epoch=leader_epoch,
                    fetch_offset=log_end_offset,
                    last_fetched_epoch=last_epoch,
                    log_start_offset=log_start_offset,
                    partition_max_bytes=partition_max_bytes,
                )
            )
        return [
            FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)
            for (topic, topic_id), partitions in found.items()
        ]

    def forgotten_topics(self) -> list[ForgottenTopic]:
        found: dict[str, list[int]] = {}
        for name in self.forgotten:
            found.setdefault(name.topic, []).append(name.partition)
        return [ForgottenTopic(topic=topic, partitions=partitions) for topic, partitions in found.items()]


class FollowedPartitions:
    """All that one fetcher follows at its leader."""

    def __init__(self, refresh_ms: float, backoff_ms: float) -> None:
        """``backoff_ms`` is the longest that a partition rests."""
        self._refresh_s = refresh_ms / 1000
        self._backoff_ms = backoff_ms
        self._followed: dict[TopicPartition, Followed] = {}
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        # What the leader's session has, by the last fetch. The one named longest ago stands first.
        self._held: dict[TopicPartition, Followed] = {}
        self._changed: dict[TopicPartition, None] = {}
        # To be forgotten by the leader's session, though they may be named anew in the same fetch.
        self._dropped: list[TopicPartition] = []
        self._resting: dict[TopicPartition, Followed] = {}

    def __getitem__(self, name: TopicPartition) -> Followed:
        return self._followed[name]

    def __contains__(self, name: object) -> bool:
        return name in self._followed

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(tuple(self._followed))

    def __len__(self) -> int:
        return len(self._followed)

    def add(self, name: TopicPartition, followed: Followed) -> None:
        """Follow a partition, perhaps again in another leader epoch."""
        self._followed[name] = followed
        self._resting.pop(name, None)
        self._changed[name] = None

    def remove(self, name: TopicPartition) -> None:
        self._followed.pop(name, None)
        self._resting.pop(name, None)
        self._changed[name] = None

    def begin_anew(self) -> None:
        """The session is lost: the next fetch names everything."""
        self._session_id, self._epoch = NO_SESSION, INITIAL_EPOCH

    def next_fetch(self, now: float) -> NextFetch:
        """What to fetch now; the leader knows of it as soon as it is sent."""
        for name in [name for name, resting in self._resting.items() if resting.retry_at <= now]:
            del self._resting[name]
            self._changed[name] = None
        next_retry = min((resting.retry_at for resting in self._resting.values()), default=0.0)
        if self._session_id == NO_SESSION:
            self._held, self._dropped = {}, []
            candidates: Iterable[TopicPartition] = self._followed
        else:
            candidates = self._changed | dict.fromkeys(self._stale(now))
        self._changed = {}
        named: dict[TopicPartition, Named] = {}
        for name in candidates:
            followed = self._followed.get(name)
            if self._held.get(name) is not followed:
                # Also one that is followed anew: what the leader told of it before was not taken over.
                self._drop(name)
            if followed is not None and name not in self._resting:
                self._name(name, followed, now, named)
        forgotten, self._dropped = self._dropped, []
        if not self._held:
            # Nothing to ask for; the leader drops its session when there is something again.
            self.begin_anew()
            return NextFetch(NO_SESSION, INITIAL_EPOCH, {}, [], next_retry)
        sent = NextFetch(self._session_id, self._epoch, named, forgotten, next_retry)
        if self._session_id != NO_SESSION:
            self._epoch = next_epoch(self._epoch)
        return sent

    def _stale(self, now: float) -> list[TopicPartition]:
        """Those held that were not named for long; they stand first."""
        found = []
        for name, followed in self._held.items():
            if now - followed.named_at < self._refresh_s:
                break
            found.append(name)
        return found

    def _name(
        self, name: TopicPartition, followed: Followed, now: float, named: dict[TopicPartition, Named]
    ) -> None:
        try:
            position = followed.partition.follower_position(followed.leader_epoch)
        except ApiError:
            # The controller has given it another role; the order to unfollow is on its way here.
            self._changed[name] = None
            return
        says = (
            followed.leader_epoch,
            position.log_end_offset,
            position.last_epoch,
            position.log_start_offset,
            followed.partition.log.topic_id or NO_TOPIC_ID,
        )
        is_held = self._held.get(name) is followed
        if is_held and says == followed.named and now - followed.named_at < self._refresh_s:
            return
        self._held.pop(name, None)
        self._held[name] = followed
        followed.named, followed.named_at = says, now
        named[name] = says

    def answered(self, session_id: int) -> None:
        """The leader has answered, in this session of its own."""
        if self._session_id == NO_SESSION and session_id != NO_SESSION:
            self._session_id, self._epoch = session_id, next_epoch(INITIAL_EPOCH)

    def asked(self, name: TopicPartition) -> Followed | None:
        """Who takes over what the leader answers of a partition; None when it is not for who follows now."""
        followed = self._held.get(name)
        return followed if followed is not None and self._followed.get(name) is followed else None

    def applied(self, name: TopicPartition, followed: Followed) -> None:
        """An answer was taken over."""
        followed.retry_ms = _FIRST_RETRY_MS
        self._changed[name] = None

    def failed(self, name: TopicPartition, followed: Followed, now: float) -> float:
        """An answer was an error, or could not be taken over; for how many milliseconds it rests."""
        rests_ms = followed.retry_ms
        followed.retry_at = now + rests_ms / 1000
        followed.retry_ms = min(rests_ms * 2, self._backoff_ms)
        self._resting[name] = followed
        self._drop(name)
        return rests_ms

    def _drop(self, name: TopicPartition) -> None:
        """Have the leader forget what it told of a partition, for it was not taken over."""
        if self._held.pop(name, None) is not None:
            self._dropped.append(name)
