"""Counts the answered requests and errors of each API; collects their sizes and the times of their stages.

Each network thread has its own `RequestTimes` and is the only one to add to it, when it has sent answers; so
nothing is locked, and no count is lost. Any thread may read. Times are kept in buckets, 16 for each power of
two of microseconds (sizes: of bytes), over a window of one to two minutes (longer if nobody reads).
Percentiles are computed when they are read. A stage of less than 50 µs is not stored and counts as 0: most
requests have two longer. After the first thousand requests of a kind in a window, only every seventh is
measured; all requests and errors are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from barnabas.broker.network.request import Request, RequestKind

STAGES: Final = ("request_queue", "local", "remote", "response_queue", "response_send", "total")
"""In the queue; in the handler; waiting, as for followers; until the network thread takes the answer; until
the socket has taken it; all of these."""
WINDOW_NS: Final = 60_000_000_000
_NEGLIGIBLE_NS: Final = 50_000
_MEASURED_ALL: Final = 1_000
_STRIDE: Final = 7
"""Not a divisor of usual numbers of pipelined requests, of which always the same would be measured."""
_FINE_BITS: Final = 5
_FINE_MASK: Final = (1 << _FINE_BITS) - 1
_TOTAL: Final = len(STAGES) - 1
_SIZE: Final = len(STAGES)
"""The place of the sizes, after the stages."""
_PLACES: Final = range(_SIZE + 1)

Buckets = dict[int, int]


def bucket_of(value: int) -> int:
    """The number of the bucket of a time or size; it rises with the value."""
    shift = value.bit_length() - _FINE_BITS
    return value if shift <= 0 else (shift << _FINE_BITS) + (value >> shift)


def middle_of(bucket: int) -> float:
    """The middle of a bucket."""
    shift = bucket >> _FINE_BITS
    low = (bucket & _FINE_MASK) << shift
    return low + ((1 << shift) - 1) / 2


class ApiTimes:
    """The requests of one kind on one network thread: their number, and the times of the last minutes."""

    __slots__ = ("count", "earlier", "errors", "measured", "recent", "stride")

    def __init__(self) -> None:
        self.count = 0
        self.errors: dict[int, int] = {}
        """Error code → how often answers had it, NONE included."""
        self.measured = 0
        """In the present window."""
        self.stride = 1
        self.recent: tuple[Buckets, ...] = tuple({} for _ in _PLACES)
        self.earlier: tuple[Buckets, ...] = tuple({} for _ in _PLACES)

    def turn(self) -> None:
        """Begin a new window. An addition that happens meanwhile is counted in the earlier one."""
        self.earlier, self.recent = self.recent, tuple({} for _ in _PLACES)
        self.measured, self.stride = 0, 1

    def buckets(self, place: int) -> Iterator[tuple[int, int]]:
        for window in (self.earlier, self.recent):
            yield from window[place].copy().items()


class RequestTimes:
    """The requests that one network thread has answered. ``kind`` of a request is what it counts as."""

    def __init__(self) -> None:
        self._kinds: dict[RequestKind, ApiTimes] = {}
        self._turned_ns = 0

    def note(self, requests: Sequence[Request], taken_ns: int, sent_ns: int) -> None:
        """These requests are answered: their answers were taken at the first time and sent at the second."""
        kinds = self._kinds
        for request in requests:
            kind = request.kind
            if kind is None:
                continue
            times = kinds.get(kind)
            if times is None:
                times = kinds[kind] = ApiTimes()
            times.count += 1
            if request.errors is not None:
                errors = times.errors
                for code, number in request.errors.items():
                    errors[code] = errors.get(code, 0) + number
            if times.count % times.stride:
                continue
            times.measured += 1
            if times.measured >= _MEASURED_ALL:
                times.stride = _STRIDE
            received_ns, started_ns, answered_ns = (
                request.received_ns,
                request.started_ns,
                request.answered_ns,
            )
            handled_ns = request.handled_ns
            if not 0 < handled_ns < answered_ns:
                handled_ns = answered_ns
            recent = times.recent
            _count(recent[_SIZE], bucket_of(request.size_bytes))
            _add(recent[_TOTAL], sent_ns - received_ns)
            if started_ns - received_ns > _NEGLIGIBLE_NS:
                _add(recent[0], started_ns - received_ns)
            if handled_ns - started_ns > _NEGLIGIBLE_NS:
                _add(recent[1], handled_ns - started_ns)
            if answered_ns - handled_ns > _NEGLIGIBLE_NS:
                _add(recent[2], answered_ns - handled_ns)
            if taken_ns - answered_ns > _NEGLIGIBLE_NS:
                _add(recent[3], taken_ns - answered_ns)
            if sent_ns - taken_ns > _NEGLIGIBLE_NS:
                _add(recent[4], sent_ns - taken_ns)

    def kinds(self) -> dict[RequestKind, ApiTimes]:
        return self._kinds.copy()

    def turn(self, now_ns: int) -> None:
        """Begin new windows if the present ones are old; a kind without requests keeps its last ones.

        Called by one thread at a time.
        """
        if now_ns - self._turned_ns < WINDOW_NS:
            return
        self._turned_ns = now_ns
        for times in self.kinds().values():
            if times.recent[_TOTAL]:
                times.turn()


def _add(buckets: Buckets, time_ns: int) -> None:
    _count(buckets, bucket_of(time_ns // 1_000))


def _count(buckets: Buckets, bucket: int) -> None:
    buckets[bucket] = buckets.get(bucket, 0) + 1


def percentiles_ms(stage: int, times: Iterable[ApiTimes], shares: Sequence[float]) -> list[float]:
    """The times in milliseconds below which these shares of the requests remained; 0 without a request."""
    return [time_us / 1_000 for time_us in _percentiles(stage, times, shares)]


def percentiles_bytes(times: Iterable[ApiTimes], shares: Sequence[float]) -> list[float]:
    """The sizes in bytes below which these shares of the requests remained; 0 without a request."""
    return _percentiles(_SIZE, times, shares)


def _percentiles(place: int, times: Iterable[ApiTimes], shares: Sequence[float]) -> list[float]:
    apis = list(times)
    merged: Buckets = {}
    for bucket, count in (one for api in apis for one in api.buckets(place)):
        merged[bucket] = merged.get(bucket, 0) + count
    number = sum(count for api in apis for _, count in api.buckets(_TOTAL))
    below = number - sum(merged.values())
    found = [0.0] * len(shares)
    ordered = sorted(merged.items())
    for index, share in enumerate(shares):
        passed = below
        for bucket, count in ordered:
            if passed >= share * number:
                break
            passed += count
            found[index] = middle_of(bucket)
    return found
