"""The subscription of a follower: its leader pushes records as they are appended, until the next fetch.

A fetch of a follower that leaves nothing unsent may open one; its answer counts as the first push. Then a
wake-up of the session, which answers a waiting fetch otherwise, sends a push. The follower reports each push
that it has applied, with its log ends: a report means what a fetch at these offsets does. The next push has
everything that came meanwhile, so a busy follower gets fewer and larger ones.

Doubt ends a subscription: an error, records that are not cached or not allowed by the throttle, more records
than one answer may have. The last push tells it to the follower, which fetches. Its next fetch
replaces the subscription. By then every earlier report has arrived, because a connection keeps the order, and
the follower ignores later pushes. So a push that is not reported by then counts as not sent.

Any thread. The lock of a subscription is held while it reads and sends; a session's may be taken under it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from barnabas.broker.replication.delayed_fetch import (
    FetchItem,
    FetchOutcome,
    FetchParams,
    FetchReader,
    FetchResult,
)
from barnabas.protocol.ids import Offset, TopicPartition
from barnabas.protocol.invariants import InvariantViolation

if TYPE_CHECKING:
    # A session has a subscription, and each knows the other.
    from barnabas.broker.replication.fetch_sessions import FetchSession, SessionPartition

logger = logging.getLogger(__name__)

Send = Callable[[int, Sequence[FetchOutcome]], bool]
"""Sends the push of a number; without outcomes, the end. Returns whether more may be pushed."""


class FollowerEnd(NamedTuple):
    """The position of a follower in one partition, from its report."""

    partition: TopicPartition
    fetch_offset: Offset
    last_fetched_epoch: int
    log_start_offset: Offset


class UnfitProgress(Exception):
    """A report that names what was not pushed."""


class _Push(NamedTuple):
    number: int
    ends: dict[SessionPartition, Offset]
    """Where the records that were sent end."""


def leaves_nothing(result: FetchResult) -> bool:
    """Whether an answer with this result has everything that its follower may have now."""
    return not (result.is_urgent or result.is_cold) and not any(
        read.has_more or read.end_offset < item.fetch_offset for item, read in result.outcomes
    )


class Subscription:
    """``send`` sends a push on the connection of the fetch that opened it; ``peer`` is that connection."""

    def __init__(
        self,
        number: int,
        session: FetchSession,
        params: FetchParams,
        reader: FetchReader,
        send: Send,
        peer: object,
    ) -> None:
        self.number = number
        self.params = params
        self.peer = peer
        self._session = session
        self._reader = reader
        self._send = send
        self._lock = threading.Lock()
        self._is_open = False
        self._has_ended = False
        """Nothing more is pushed, but what was may still be reported."""
        self._is_closed = False
        self._must_tell_end = False
        # Set by callers of `wake` without the lock; the thread that holds the lock reads it again afterwards.
        self._is_woken = False
        self._last_number = 0
        self._under_way: _Push | None = None

    def begin(self, outcomes: Sequence[FetchOutcome]) -> None:
        """The answer with these outcomes is about to be sent."""
        with self._lock:
            if outcomes:
                self._under_way = _Push(0, self._session.sent(outcomes))

    def open(self) -> None:
        """The answer is sent: push what has come meanwhile, or the end."""
        with self._lock:
            self._is_open = True
            if self._must_tell_end:
                self._send(self._last_number + 1, ())
        self.wake()

    def wake(self) -> None:
        """Push the news of the session's partitions that were woken."""
        self._is_woken = True
        while self._is_woken and self._is_open and self._lock.acquire(blocking=False):
            try:
                self._is_woken = False
                if self._under_way is None and not self._has_ended:
                    self._push()
            except InvariantViolation:
                raise
            except Exception:
                logger.critical("a push to broker %d failed", self.params.replica_id, exc_info=True)
                self._end()
            finally:
                self._lock.release()

    def reported(self, number: int, ends: Sequence[FollowerEnd]) -> list[FetchItem]:
        """The follower has applied the push of that number; returns the partitions at their new offsets.

        The caller wakes it when it has taken note of them. Raises UnfitProgress.
        """
        with self._lock:
            if self._is_closed:
                return []
            push = self._under_way
            if push is None or push.number != number:
                raise UnfitProgress(f"push {number} is reported, and not under way")
            self._under_way = None
            items, missing = self._session.reported(push.ends, ends)
            if missing:
                # The follower does not apply them, and its next fetch will show why.
                self._session.unsend(missing)
                self._end()
            return items

    def end(self) -> None:
        """Push nothing more, and let the follower fetch."""
        with self._lock:
            self._end()

    def close(self, *, is_told: bool) -> None:
        """Its session goes on without it: what is under way counts as not sent.

        ``is_told``: the follower does not expect it.
        """
        with self._lock:
            if is_told:
                self._end()
            self._has_ended = self._is_closed = True
            if self._under_way is not None:
                self._session.unsend(self._under_way.ends)
                self._under_way = None

    # With the lock

    def _push(self) -> None:
        parts = self._session.take_woken()
        if not parts:
            return
        is_sent = False
        try:
            is_sent = self._push_news_of(parts)
        finally:
            if not is_sent:
                self._session.unsend(parts)
        if not is_sent:
            self._end()

    def _push_news_of(self, parts: Sequence[SessionPartition]) -> bool:
        """False if a fetch must read them."""
        session, params = self._session, self.params
        # This leader sent the records before, so the epoch of the last one need not be compared.
        items = [
            part.item._replace(fetch_offset=part.sent_end, last_fetched_epoch=-1)
            if part.sent_end >= 0
            else part.item
            for part in parts
        ]
        result = self._reader.read_all(params, items)
        if not leaves_nothing(result):
            return False
        news, ends = session.news(parts, result.outcomes)
        if news:
            self._reader.count(params, result)
            self._last_number += 1
            self._under_way = _Push(self._last_number, ends)
            if not self._send(self._last_number, news):
                self._has_ended = True
        return True

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            if self._is_open:
                self._send(self._last_number + 1, ())
            else:
                self._must_tell_end = True
