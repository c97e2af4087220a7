"""The pace of a consumer that stops fetching whenever its queue is full.

librdkafka reads ahead as fast as the broker answers. When its queue is full it stops fetching for a second
(``fetch.queue.backoff.ms``), in which the application soon has nothing left. Such a consumer reads more if it
is served as fast as its application reads, and no faster. The broker sees its pauses: a fetch follows an
answer that left records behind by about a second. From then on it spreads its answers over time.

After a pause the pace is between the rate that filled the queue and that of the whole time, pause included.
Then it rises, slowly at first, until the next pause. If a much lower pace did not let the consumer read more
before its next pause, its pauses have another cause, and it is not paced again. Nor is a consumer that has
read to the end of its partitions, until it pauses again.

Pure, with no lock: one connection's fetches are handled one after another, and time is handed in.
"""

from __future__ import annotations

import math
from typing import Final

_SHORTEST_PAUSE_S: Final = 0.85
"""The queue may have been full for a while when the last answer came."""
_LONGEST_PAUSE_S: Final = 1.2
_RISE_S: Final = 8.0
"""In this time without a pause the pace becomes e times as high."""
_MUCH_LOWER: Final = 0.7
_MORE: Final = 1.15
_MAX_RISES: Final = 4.0
_MAX_DELAY_S: Final = 0.5
_FASTEST_S: Final = 0.001


class ReadingPace:
    """The pace of one connection. Times are of one clock that never goes back, in seconds."""

    __slots__ = (
        "_answered_s",
        "_began_s",
        "_due_s",
        "_has_more",
        "_is_off",
        "_pace",
        "_read_bytes",
        "_tried",
    )

    def __init__(self, now_s: float) -> None:
        self._answered_s = self._began_s = self._due_s = now_s
        self._has_more = False
        self._is_off = False
        self._pace: float | None = None
        """In bytes per second, at the beginning; None: unlimited."""
        self._read_bytes = 0
        """Since `_began_s`, which is the end of the last pause."""
        self._tried: tuple[float, int] | None = None
        """The rate that led to the last pause, and the bytes that were read before it."""

    def fetched(self, now_s: float) -> None:
        """The consumer asks for more."""
        pause_s = now_s - self._answered_s
        if not self._has_more:
            self._pace = self._tried = None
        elif pause_s < _SHORTEST_PAUSE_S:
            return
        elif pause_s <= _LONGEST_PAUSE_S and not self._is_off:
            self._slow_down(pause_s)
        self._began_s, self._due_s, self._read_bytes = now_s, now_s, 0

    def delay_s(self, now_s: float, size_bytes: int, *, has_more: bool) -> float:
        """How long the next fetch must wait after an answer of this size.

        ``has_more``: there was more to read than it holds.
        """
        self._answered_s, self._has_more = now_s, has_more
        self._read_bytes += size_bytes
        if self._pace is None or not has_more:
            return 0.0
        pace = self._pace * math.exp(min(_MAX_RISES, (now_s - self._began_s) / _RISE_S) ** 2)
        self._due_s = min(max(self._due_s, now_s) + size_bytes / pace, now_s + _MAX_DELAY_S)
        return self._due_s - now_s

    def _slow_down(self, pause_s: float) -> None:
        read_s = max(self._answered_s - self._began_s, _FASTEST_S)
        rate, average = self._read_bytes / read_s, self._read_bytes / (read_s + pause_s)
        if self._tried is not None:
            tried, read_bytes = self._tried
            self._is_off = rate < _MUCH_LOWER * tried and self._read_bytes < _MORE * read_bytes
        self._tried = rate, self._read_bytes
        self._pace = None if self._is_off else math.sqrt(rate * average)
