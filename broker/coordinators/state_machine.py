"""The consequences of an event for a coordinator's state machine, as plain data.

In: events with a `Moment`. Out: `Effects`, which the caller carries out: it queues the appends in order while
it holds the machine's lock; it may send the answers and the requests later and in any order.

Shared by groups and transactions. No thread, no I/O; used under the machine's lock. Only `Clock` reads the
time, for the callers of the machines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from barnabas.broker.log.log_transactions import VerificationGuard
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.invariants import invariant

MAX_CLOCK_SKEW_MS: Final = 600_000
"""By so much two brokers' wall clocks may differ, or one be set, before a time-out or an expiry is early."""

Token = Any
"""The receiver of an answer. A machine keeps it and returns it once, with the answer. It is never None."""


class Moment(NamedTuple):
    """The time by both clocks: ``monotonic_ms`` for deadlines, ``wall_ms`` for stored records."""

    monotonic_ms: float
    wall_ms: int
    set_forward_ms: float = 0
    """By how much the wall clock was set forward in this process."""

    def is_past(self, expires_at_ms: int) -> bool:
        """Whether a time is past by the wall clock, also without what it was set forward."""
        return self.wall_ms - min(self.set_forward_ms, MAX_CLOCK_SKEW_MS) >= expires_at_ms

    def latest(self, stamp_ms: int) -> int:
        """When, by this broker's wall clock, another broker may have made a stamp at the latest.

        A coordinator counts from there when it loads a record. So a clock that is ahead ends nothing early,
        and moves of the coordinator, however many, delay an end by no more than the skew.
        """
        return min(stamp_ms + MAX_CLOCK_SKEW_MS, self.wall_ms)


class Clock:
    """Reads both clocks, any thread; knows how far the wall clock was set forward since its first reading."""

    def __init__(self, monotonic_ms: Callable[[], float], wall_clock_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._wall_clock_ms = wall_clock_ms
        self._least_lead_ms = math.inf
        """How far the wall clock was ahead of the monotonic clock, when that was least."""

    def __call__(self) -> Moment:
        # In this order, so that a pause in between does not seem to set the wall clock back.
        monotonic_ms, wall_ms = self._monotonic_ms(), self._wall_clock_ms()
        lead_ms = wall_ms - monotonic_ms
        # Without a lock: if another thread overwrites a reading, the next reading repeats it.
        self._least_lead_ms = least_ms = min(self._least_lead_ms, lead_ms)
        return Moment(monotonic_ms, wall_ms, lead_ms - least_ms)


Settled = Callable[[ErrorCode, int, Moment], None]
"""Takes the outcome of an append: NONE and the offset of its first record, or the error of the log."""


class TransactionalProducer(NamedTuple):
    """The producer in whose transaction records are written.

    ``guard`` proves to the log that the coordinator has confirmed the transaction. It is None if the
    transaction is ongoing in the log already.
    """

    producer_id: int
    epoch: int
    guard: VerificationGuard | None = None


class Append(NamedTuple):
    """Records to append as one batch, with acks=all, and in the transaction of the ``producer``.

    Pass the outcome with the ``number`` to `Outbox.settle` exactly once; without a number nobody
    waits for it. A removal has the tombstones of state that the machine has already dropped: they must be
    written while this broker leads.
    """

    number: int | None
    records: tuple[Any, ...]
    producer: TransactionalProducer | None = None
    is_removal: bool = False


@dataclass(slots=True)
class Effects:
    """The consequences of an event. Each request to others is answered by another event, if at all."""

    answers: list[tuple[Token, Any]] = field(default_factory=list)
    """Each with its response, of the type that the event documents."""
    appends: list[Append] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Outbox:
    """Collects the effects of one machine's events, and keeps what has to happen when an append is settled.

    An idle outbox has no collections: a broker may load a hundred thousand machines at once.
    """

    _name: str
    _effects: Effects | None = None
    _unsettled: dict[int, Settled] | None = None
    _next_number: int = 1

    def answer(self, token: Token, response: Any) -> None:
        self._pending().answers.append((token, response))

    def request(self, request: object) -> None:
        self._pending().requests.append(request)

    def append(
        self, records: Sequence[Any], settled: Settled, producer: TransactionalProducer | None = None
    ) -> None:
        self._pending().appends.append(Append(self._number(settled), tuple(records), producer))

    def append_tombstones(self, records: Sequence[Any], now: Moment, settled: Settled | None = None) -> None:
        """Without records the outcome is NONE at once."""
        if records:
            number = None if settled is None else self._number(settled)
            self._pending().appends.append(Append(number, tuple(records), is_removal=True))
        elif settled is not None:
            settled(ErrorCode.NONE, -1, now)

    def _number(self, settled: Settled) -> int:
        number, self._next_number = self._next_number, self._next_number + 1
        if self._unsettled is None:
            self._unsettled = {}
        self._unsettled[number] = settled
        return number

    def settle(self, number: int, error: ErrorCode, base_offset: int, now: Moment) -> None:
        settled = None if self._unsettled is None else self._unsettled.pop(number, None)
        invariant(settled is not None, "%s has no append %d in flight", self._name, number)
        if settled is not None:
            settled(error, base_offset, now)

    def take(self) -> Effects:
        effects, self._effects = self._effects, None
        return effects or Effects()

    def _pending(self) -> Effects:
        if self._effects is None:
            self._effects = Effects()
        return self._effects


TOO_LARGE: Final = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.INVALID_FETCH_SIZE,
)
_ANSWERS: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    **dict.fromkeys(TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
}
"""Error of the log → error of the answer to the request whose record was not appended."""


def append_error(
    error: ErrorCode, exceptions: Mapping[ErrorCode, ErrorCode] = MappingProxyType({})
) -> ErrorCode:
    """The answer to a request whose record could not be appended; ``exceptions`` are those of its API."""
    return exceptions.get(error) or _ANSWERS.get(error, error)
