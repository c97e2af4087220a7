"""The busy time of a thread; the buckets of times, their percentiles, and the stages of requests."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from barnabas.broker.network import busy_time
from barnabas.broker.network.busy_time import BusyTime
from barnabas.broker.network.request import Request
from barnabas.broker.network.request_metrics import (
    STAGES,
    WINDOW_NS,
    ApiTimes,
    RequestTimes,
    bucket_of,
    middle_of,
    percentiles_bytes,
    percentiles_ms,
)

MS = 1_000_000
times_us = st.integers(0, 10**10)


def answered(kind: Any = "a", **times: Any) -> Request:
    stages = {"received_ns": 0, "started_ns": 0, "handled_ns": 0, "answered_ns": 0, **times}
    return cast(Request, SimpleNamespace(kind=kind, **{"size_bytes": 0, "errors": None, **stages}))


def totals(times: RequestTimes, kind: Any = "a") -> ApiTimes:
    return times.kinds()[kind]


def test_a_thread_is_busy_from_the_begin_to_the_end_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ns = iter([1_000, 1_300, 2_000, 2_050])
    monkeypatch.setattr(busy_time, "monotonic_ns", lambda: next(clock_ns))
    busy = BusyTime()
    assert busy.total_ns(999) == 0
    busy.begin()
    # A reader may have looked at the clock before the run began.
    assert [busy.total_ns(now_ns) for now_ns in (999, 1_000, 1_100)] == [0, 0, 100]
    busy.end()
    assert busy.total_ns(1_900) == 300
    busy.begin()
    assert busy.total_ns(2_001) == 301
    busy.end()
    assert busy.total_ns(9_999) == 350


@given(times_us, times_us)
def test_a_longer_time_is_in_no_earlier_bucket(one_us: int, other_us: int) -> None:
    assert (bucket_of(one_us) <= bucket_of(other_us)) or one_us > other_us


@given(times_us)
@example(32)
def test_the_middle_of_a_bucket_is_within_a_thirty_second(time_us: int) -> None:
    assert abs(middle_of(bucket_of(time_us)) - time_us) <= time_us / 32


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=200))
def test_percentiles_are_those_of_the_sorted_times(totals_us: list[int]) -> None:
    times = RequestTimes()
    for time_us in totals_us:
        times.note([answered()], time_us * 1_000, time_us * 1_000)
    found = percentiles_ms(STAGES.index("total"), [totals(times)], [0.5, 0.99])
    ordered = sorted(totals_us)
    for share, value_ms in zip([0.5, 0.99], found, strict=True):
        rank = next(number for number in range(1, len(ordered) + 1) if number >= share * len(ordered))
        assert value_ms == pytest.approx(ordered[rank - 1] / 1_000, rel=1 / 32, abs=0.001)


def test_each_stage_has_its_part_of_the_time() -> None:
    times = RequestTimes()
    request = answered(received_ns=100 * MS, started_ns=101 * MS, handled_ns=103 * MS, answered_ns=107 * MS)
    times.note([request], 115 * MS, 131 * MS)
    found = {stage: percentiles_ms(number, [totals(times)], [0.5])[0] for number, stage in enumerate(STAGES)}
    expected = {"request_queue": 1, "local": 2, "remote": 4, "response_queue": 8, "response_send": 16}
    assert found == pytest.approx({**expected, "total": 31}, rel=1 / 32)


def test_a_request_that_its_handler_answered_has_no_remote_time() -> None:
    times = RequestTimes()
    # Handled after the answer: the network thread stamps it when the handler returns.
    times.note([answered(started_ns=0, handled_ns=9 * MS, answered_ns=8 * MS)], 8 * MS, 8 * MS)
    times.note([answered(started_ns=0, handled_ns=0, answered_ns=8 * MS)], 8 * MS, 8 * MS)
    assert percentiles_ms(STAGES.index("remote"), [totals(times)], [0.999]) == [0]
    assert percentiles_ms(STAGES.index("local"), [totals(times)], [0.01])[0] == pytest.approx(8, rel=1 / 32)


def test_short_stages_count_as_zero() -> None:
    times = RequestTimes()
    for started_ns in (10_000, 20_000, 30_000, 4 * MS):
        times.note([answered(started_ns=started_ns, answered_ns=started_ns)], 5 * MS, 5 * MS)
    queue = percentiles_ms(STAGES.index("request_queue"), [totals(times)], [0.75, 0.99])
    assert queue == [0, pytest.approx(4, rel=1 / 32)]
    edges = RequestTimes()
    received, started, handled, given, taken, sent = (MS + number * 50_000 for number in range(6))
    request = answered(received_ns=received, started_ns=started, handled_ns=handled, answered_ns=given)
    edges.note([request], taken, sent)
    found = [percentiles_ms(stage, [totals(edges)], [1])[0] for stage in range(len(STAGES))]
    assert found == [0, 0, 0, 0, 0, pytest.approx(0.25, rel=1 / 32)]


def test_unreadable_requests_are_not_counted() -> None:
    times = RequestTimes()
    times.note([answered(None), answered("a"), answered("a"), answered("b")], 1, 2)
    assert {kind: api.count for kind, api in times.kinds().items()} == {"a": 2, "b": 1}


def test_times_are_forgotten_after_two_windows_but_counts_are_not() -> None:
    times = RequestTimes()
    total = STAGES.index("total")
    now_ns = WINDOW_NS
    times.turn(now_ns)
    times.note([answered()], 0, 100 * MS)
    times.turn(now_ns + WINDOW_NS - 1)
    assert totals(times).measured == 1
    times.turn(now_ns + WINDOW_NS)
    assert totals(times).measured == 0
    times.note([answered()], 0, 1 * MS)
    assert percentiles_ms(total, [totals(times)], [0.99])[0] == pytest.approx(100, rel=1 / 32)
    times.turn(now_ns + 2 * WINDOW_NS)
    assert totals(times).count == 2
    # An API without new requests keeps its last times.
    for turn in range(2, 5):
        times.turn(now_ns + turn * WINDOW_NS)
        assert percentiles_ms(total, [totals(times)], [0.99])[0] == pytest.approx(1, rel=1 / 32)


def test_of_many_requests_some_are_measured_and_all_are_counted() -> None:
    times = RequestTimes()
    total = STAGES.index("total")
    for number in range(8_000):
        times.note([answered()], 0, (1 if number % 10 else 50) * MS)
    api = totals(times)
    assert api.count == 8_000
    assert api.measured == 2_000
    slow, median = percentiles_ms(total, [api], [0.95, 0.5])
    assert (slow, median) == (pytest.approx(50, rel=1 / 32), pytest.approx(1, rel=1 / 32))
    times.turn(WINDOW_NS)
    for _ in range(10):
        times.note([answered()], 0, MS)
    assert (api.count, api.measured) == (8_010, 10)


def test_sizes_have_percentiles_of_their_own() -> None:
    times = RequestTimes()
    times.note([answered(size_bytes=size) for size in (100, 200, 300, 1_000_000)], 0, MS)
    found = percentiles_bytes([totals(times)], [0.5, 0.75, 0.99])
    assert found == pytest.approx([200, 300, 1_000_000], rel=1 / 32)
    assert percentiles_bytes([], [0.5]) == percentiles_ms(0, [], [0.5]) == [0]


def test_errors_of_all_requests_are_counted_also_of_those_that_are_not_measured() -> None:
    times = RequestTimes()
    for _ in range(3_000):
        times.note([answered(errors={0: 2, 3: 1})], 0, MS)
    times.note([answered(errors=None), answered(errors={6: 4})], 0, MS)
    assert totals(times).errors == {0: 6_000, 3: 3_000, 6: 4}
