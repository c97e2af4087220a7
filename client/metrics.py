"""Measurements of a client, under Kafka's names: plain counters, and averages of the last minute.

They are taken per request, batch or poll, never per record, and a snapshot asks nobody and locks nothing: any
thread may take one, also of a closed client. A name that ends in ``-total`` counts from the start of the
client; every other one is a present value. A value that is not known, such as an average without a recent
measurement, is left out.

Source: Kafka's documentation of its client metrics (https://kafka.apache.org/documentation/#selector_monitoring).
"""

from __future__ import annotations

import time
from typing import Final

Metrics = dict[str, float]
"""Values by name."""

TOTAL: Final = "-total"
"""The end of the name of a counter."""
_WINDOW_S: Final = 30.0
_NOTHING: Final = (0, 0.0, 0.0)

CLIENT_METRICS: Final = {
    "connection-count": "open connections",
    "connection-creation-total": "connections opened",
    "connection-close-total": "connections closed, by either side",
    "successful-authentication-total": "connections authenticated by SASL",
    "failed-authentication-total": "connections that TLS or SASL refused",
    "request-total": "requests sent",
    "response-total": "answers received",
    "outgoing-byte-total": "bytes sent, before TLS",
    "incoming-byte-total": "bytes received, after TLS",
    "requests-in-flight": "requests that are sent and not answered",
    "metadata-age": "seconds since the metadata was updated last",
}
"""The measurements of all clients: the meaning of each name."""


class Recent:
    """The average and the maximum of what was measured in the last 30 to 60 seconds, as in Kafka."""

    __slots__ = ("_before", "_count", "_ends_at", "_max", "_sum")

    def __init__(self) -> None:
        self._ends_at = float("-inf")
        self._count, self._sum, self._max = _NOTHING
        self._before = _NOTHING
        """The count, the sum and the maximum of the window before the present one."""

    def add(self, value: float) -> None:
        present = time.monotonic()
        if present >= self._ends_at:
            is_recent = present < self._ends_at + _WINDOW_S
            self._before = (self._count, self._sum, self._max) if is_recent else _NOTHING
            self._count, self._sum, self._max = _NOTHING
            self._ends_at = present + _WINDOW_S
        self._count += 1
        self._sum += value
        self._max = max(self._max, value)

    def put(self, metrics: Metrics, name: str) -> None:
        """Add ``NAME-avg`` and ``NAME-max``, if anything was measured. Any thread: it changes nothing."""
        late_s = time.monotonic() - self._ends_at
        if late_s >= _WINDOW_S:
            return
        count, total, highest = self._before if late_s < 0 else _NOTHING
        count += self._count
        if count:
            metrics[f"{name}-avg"] = (total + self._sum) / count
            metrics[f"{name}-max"] = max(highest, self._max)


def since(moment: float) -> float:
    """The seconds since a time of `time.monotonic`."""
    return max(0.0, time.monotonic() - moment)
