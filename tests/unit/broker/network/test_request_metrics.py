"""The busy time of a thread; the counts, bytes, errors and stages of requests."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.broker.network import request_metrics
from barnabas.broker.network.request import Request
from barnabas.broker.network.request_metrics import STAGES, ApiMetrics, BusyTime, RequestMetrics

MS = 1_000_000


def answered(kind: Any = "a", **times: Any) -> Request:
    stages = {"received_ns": 0, "started_ns": 0, "handled_ns": 0, "answered_ns": 0, **times}
    return cast(Request, SimpleNamespace(kind=kind, **{"size_bytes": 0, "errors": None, **stages}))


def totals(*threads: RequestMetrics, kind: Any = "a") -> ApiMetrics:
    """The samples of these network threads on a page."""
    total = ApiMetrics()
    for thread in threads:
        total.add(thread.kinds()[kind])
    return total


def stages(api: ApiMetrics) -> dict[str, float]:
    """The milliseconds of each stage, of all requests together."""
    return {stage: histogram.sum_ns / MS for stage, histogram in zip(STAGES, api.stages, strict=True)}


def test_a_thread_is_busy_from_the_begin_to_the_end_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_ns = iter([1_000, 1_300, 2_000, 2_050])
    monkeypatch.setattr(request_metrics, "monotonic_ns", lambda: next(clock_ns))
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


def test_each_stage_has_its_part_of_the_time() -> None:
    metrics = RequestMetrics()
    request = answered(received_ns=100 * MS, started_ns=101 * MS, handled_ns=103 * MS, answered_ns=107 * MS)
    metrics.note([request], 115 * MS, 131 * MS)
    expected = {"request_queue": 1, "local": 2, "remote": 4, "response_queue": 8, "response_send": 16}
    assert stages(totals(metrics)) == {**expected, "total": 31}


def test_a_request_that_its_handler_answered_has_no_remote_time() -> None:
    metrics = RequestMetrics()
    # Handled after the answer: the network thread stamps it when the handler returns.
    for handled_ms in (9, 0, 8):
        metrics.note([answered(handled_ns=handled_ms * MS, answered_ns=8 * MS)], 8 * MS, 8 * MS)
    found = stages(totals(metrics))
    assert (found["remote"], found["local"]) == (0, 24)


def test_a_short_stage_counts_at_the_lowest_bound_and_adds_no_time() -> None:
    metrics = RequestMetrics()
    received, started, handled, given, taken, sent = (MS + number * 100_000 for number in range(6))
    request = answered(received_ns=received, started_ns=started, handled_ns=handled, answered_ns=given)
    metrics.note([request], taken, sent)
    found = totals(metrics)
    assert stages(found) == {**dict.fromkeys(STAGES, 0), "total": 0.5}
    assert [(stage.counts[0], stage.count) for stage in found.stages] == [*[(1, 1)] * 5, (0, 1)]
    for later in range(1, 6):
        metrics = RequestMetrics()
        received, started, handled, given, taken, sent = (
            MS + number * 100_000 + (number >= later) for number in range(6)
        )
        request = answered(received_ns=received, started_ns=started, handled_ns=handled, answered_ns=given)
        metrics.note([request], taken, sent)
        assert [stage.counts[0] for stage in totals(metrics).stages] == [
            *(int(number != later) for number in range(1, 6)),
            0,
        ]


@pytest.mark.parametrize(("queue_ns", "is_short"), [(100_000, True), (100_001, False)])
def test_a_stage_beside_a_long_handler_counts_by_its_own_time(queue_ns: int, is_short: bool) -> None:
    metrics = RequestMetrics()
    request = answered(started_ns=queue_ns, answered_ns=queue_ns + 9 * MS)
    metrics.note([request], queue_ns + 9 * MS, queue_ns + 9 * MS)
    queue, local = totals(metrics).stages[:2]
    assert (queue.counts[0], queue.count, local.sum_ns) == (is_short, 1, 9 * MS)


def test_a_request_that_is_short_as_a_whole_is_only_counted() -> None:
    metrics = RequestMetrics()
    metrics.note([answered(received_ns=MS, started_ns=MS, answered_ns=MS)] * 3, MS, MS + 100_000)
    found = totals(metrics)
    assert (found.count, stages(found)) == (3, dict.fromkeys(STAGES, 0))
    assert [stage.counts[0] for stage in found.stages] == [3] * len(STAGES)


def test_unreadable_requests_are_not_counted() -> None:
    metrics = RequestMetrics()
    metrics.note([answered(None), answered("a"), answered("a"), answered("b")], 1, 2)
    assert {kind: api.count for kind, api in metrics.kinds().items()} == {"a": 2, "b": 1}


def test_network_threads_add_up() -> None:
    one, other = RequestMetrics(), RequestMetrics()
    one.note([answered(size_bytes=100, errors={0: 2, 3: 1})] * 3, 0, 2 * MS)
    one.note([answered(errors=None), answered(size_bytes=7, errors={6: 4})], 0, 0)
    other.note([answered(size_bytes=1, errors={0: 1})], 0, 30 * MS)
    found = totals(one, other)
    assert (found.count, found.size_bytes, found.errors) == (6, 308, {0: 7, 3: 3, 6: 4})
    assert [stage.count for stage in found.stages] == [6] * len(STAGES)
    assert stages(found)["total"] == 36
