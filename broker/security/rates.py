"""The two measures of quotas: a sampled rate, and a bucket of tokens.

Pure, without a lock: time is handed in, in milliseconds of a clock that never goes back. Rates and bounds
are per second. The results are those of Apache Kafka's ``Rate`` over a ``WindowedSum`` and of its
``TokenBucket``, and the throttle times those of its ``QuotaUtils``.

Sources: KIP-124 (throttle times), KIP-599 (the bucket).
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

MAX_THROTTLE_MS: Final = 2**31 - 1
"""The most that an answer can tell."""


class Windows(NamedTuple):
    """How many samples are kept, the current one included, and the time that each covers."""

    number: int
    size_ms: int

    @property
    def span_ms(self) -> int:
        return self.number * self.size_ms


DEFAULT_WINDOWS: Final = Windows(11, 1_000)


class _Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: float) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class SampledRate:
    """The rate over the last windows.

    A sample begins with the first value after the end of the one before. It counts until the span of all
    windows has passed since its last value. A young rate is divided by the time of all windows but one, so a
    first burst does not look like a high rate.
    """

    __slots__ = ("_samples", "_total", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[_Sample] = deque()
        self._total = 0.0

    def record(self, value: float, now_ms: float) -> None:
        samples = self._samples
        if not samples or now_ms - samples[-1].start_ms >= self._windows.size_ms:
            samples.append(_Sample(now_ms))
        sample = samples[-1]
        sample.value += value
        sample.last_ms = now_ms
        self._total += value

    def measure(self, now_ms: float) -> float:
        self._forget_old(now_ms)
        return self._total * 1000 / self._elapsed_ms(now_ms)

    def throttle_ms(self, bound: float, now_ms: float) -> int:
        """How long to wait until the rate is down to the bound; 0 if it is not above it.

        With the rate O of the window W and the bound T: O * W / (W + X) = T, so X = (O - T) / T * W.
        """
        self._forget_old(now_ms)
        elapsed_ms = self._elapsed_ms(now_ms)
        rate = self._total * 1000 / elapsed_ms
        return 0 if rate <= bound else _throttle_ms((rate - bound) * elapsed_ms, bound)

    def _forget_old(self, now_ms: float) -> None:
        samples, span_ms = self._samples, self._windows.span_ms
        while samples and now_ms - samples[0].last_ms >= span_ms:
            samples.popleft()
            # Summed again rather than subtracted from: errors of rounding must not add up.
            self._total = sum(sample.value for sample in samples)

    def _elapsed_ms(self, now_ms: float) -> float:
        """The time by which the total is divided: that since the oldest sample, all windows but one at least.

        The part of the window in progress counts too.
        """
        samples, (number, size_ms) = self._samples, self._windows
        elapsed_ms = now_ms - samples[0].start_ms if samples else 0.0
        missing = number - 1 - int(elapsed_ms // size_ms)
        if missing > 0:
            elapsed_ms += missing * size_ms
        return max(elapsed_ms, 1.0)


class TokenBucket:
    """Tokens that come back at the rate of the bound; as many as the span of all windows brings at most.

    There may be less than none: the last request may take more than there were.
    """

    __slots__ = ("_span_s", "_tokens", "_updated_ms")

    def __init__(self, windows: Windows) -> None:
        self._span_s = windows.span_ms / 1000
        self._updated_ms = 0.0
        # Of a bucket that was never used; it is full with any bound.
        self._tokens: float | None = None

    def take(self, tokens: float, bound: float, now_ms: float) -> None:
        self._tokens = min(self._span_s * bound, self.left(bound, now_ms) - tokens)

    def left(self, bound: float, now_ms: float) -> float:
        """The tokens that are there now."""
        most = self._span_s * bound
        if self._tokens is None:
            self._tokens = most
        else:
            self._tokens = min(most, self._tokens + bound * (now_ms - self._updated_ms) / 1000)
        self._updated_ms = now_ms
        return self._tokens

    def throttle_ms(self, bound: float, now_ms: float) -> int:
        """How long to wait until there is no less than none; 0 if that is so now."""
        left = self.left(bound, now_ms)
        return 0 if left >= 0 else _throttle_ms(-left * 1000, bound)


def _throttle_ms(excess: float, bound: float) -> int:
    return MAX_THROTTLE_MS if excess >= bound * MAX_THROTTLE_MS else round(excess / bound)
