"""How authentications end, by TLS and by SASL: counts, a line of the log for a failure, and a pause.

After a failure of SASL the answer and the end of the connection are held back for
`connection.failed.authentication.delay.ms`, as in Kafka, and for longer if more than a few attempts of the
same address have failed lately: guessing passwords becomes slow, also with many connections. Any thread.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from barnabas.broker.base.clocks import monotonic_ms
from barnabas.broker.base.limited_log import LimitedLogByKey
from barnabas.broker.base.purgatory import DelayedCall, Purgatory
from barnabas.broker.security.session import Session

logger = logging.getLogger(__name__)

MAX_PAUSE_MS: Final = 5_000
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_FREE: Final = 8
"""So many failures of an address cost the setting's delay each; each further one twice the one before."""
_HALF_LIFE_MS: Final = 10_000
"""After this time without a failure, half of the failures of an address are forgotten."""
MAX_ADDRESSES: Final = 10_000
"""Of the table; the address whose last failure is the oldest makes room."""


class FailurePauses:
    """How long the next failure of an address costs. Time comes in; not for several threads at a time."""

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        # Address → its failures, of which old ones count less, and the time of the last. Oldest first.
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, host: str, now_ms: float) -> int:
        """Note a failure; returns the pause in ms."""
        count, last_ms = self._failures.pop(host, (0.0, now_ms))
        count = count * 0.5 ** ((now_ms - last_ms) / _HALF_LIFE_MS) + 1
        self._failures[host] = count, now_ms
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        if not self._delay_ms:
            return 0
        doublings = min(max(0, int(count) - _FREE), 20)
        return max(self._delay_ms, min(self._delay_ms << doublings, MAX_PAUSE_MS))


class AuthenticationOutcomes:
    def __init__(
        self, delay_ms: int, purgatory: Purgatory, *, now_ms: Callable[[], float] = monotonic_ms
    ) -> None:
        self.failures = 0
        self.successes = 0
        self.expired = 0
        """Connections that were closed because their session had ended."""
        self._pauses = FailurePauses(delay_ms)
        self._purgatory = purgatory
        # The log gets one line in an interval for each address and kind of reason.
        self._report = LimitedLogByKey(logger, logging.INFO)
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def succeeded(self) -> None:
        with self._lock:
            self.successes += 1

    def shut_down(self) -> None:
        """Answer all that wait; nothing waits any more."""
        self._pauses = FailurePauses(0)
        self._purgatory.shut_down()

    def has_expired(self) -> None:
        with self._lock:
            self.expired += 1

    def refused(self, host: str, connection_id: str, reason: str, *, again: bool = False) -> None:
        """Count and report a failure.

        The line is Kafka's. Of the peer's bytes it has those in the reason alone.
        """
        with self._lock:
            self.failures += 1
        # By the kind of the reason: there may be any number of texts behind it, as lengths of frames.
        self._report(
            f"{host} {reason.partition(':')[0]}",
            "Failed %sauthentication with /%s (channelId=%s) (%s)",
            "re-" if again else "",
            host,
            connection_id,
            _CONTROL.sub("?", reason),
        )

    def failed(
        self, session: Session, connection_id: str, reason: str, end: Callable[[], None]
    ) -> Callable[[], object]:
        """Call ``end`` after the pause; returns a function that cancels it."""
        if session.on_failed is not None:
            session.on_failed()
        again = session.authenticator is not None and session.authenticator.has_succeeded
        self.refused(session.host, connection_id, reason, again=again)
        with self._lock:
            now_ms = self._now_ms()
            pause_ms = self._pauses.failed(session.host, now_ms)
        wait = DelayedCall(now_ms + pause_ms, lambda: pause_ms == 0, end)
        self._purgatory.try_complete_else_watch(wait, [connection_id])
        return wait.cancel
