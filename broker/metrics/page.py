"""The page of a scrape: all metrics of the registry, in Prometheus' text format.

It is rebuilt at a request if the last one is older than `FRESH_MS`, by one thread at a time; the others get
its result. So the number of scrapes does not matter to the broker.

Source: Prometheus' text exposition format 0.0.4, which the library writes; it escapes the labels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

from barnabas.broker.clocks import monotonic_ms

FRESH_MS: Final = 1_000
CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class Page:
    """For any thread."""

    def __init__(self, registry: CollectorRegistry, now_ms: Callable[[], float] = monotonic_ms) -> None:
        self._registry = registry
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._text: bytes | None = None
        self._made_ms = 0.0

    def text(self) -> bytes:
        """Blocks as long as the collectors do; raises what they raise."""
        with self._lock:
            text = self._text
            if text is None or self._now_ms() - self._made_ms >= FRESH_MS:
                # By when it began: what is told is never older than that.
                made_ms = self._now_ms()
                text = generate_latest(self._registry)
                self._text, self._made_ms = text, made_ms
            return text
