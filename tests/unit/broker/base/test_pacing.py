"""The throttle of cleaner threads, and the pace of one of them, by a clock of the test."""

import math
import sys

import pytest

from barnabas.broker.base.pacing import (
    MOST_RESTS,
    REST_S,
    UNDISTURBED_S,
    WORK_S,
    IoThrottle,
    Pace,
    Rests,
    Stopped,
)


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture
def time() -> Time:
    return Time()


def test_bytes_are_paid_for_by_waiting(time: Time) -> None:
    throttle = IoThrottle(1_000.0, time)
    assert throttle.wait_s() == 0
    throttle.take(500)
    throttle.take(500)
    assert throttle.wait_s() == 1.0
    time.now_s += 0.4
    assert throttle.wait_s() == pytest.approx(0.6)
    time.now_s += 100
    throttle.take(100)
    assert throttle.wait_s() == pytest.approx(0.05), "time without work is saved up, but only 50 ms"


def test_saved_time_is_worth_no_more_than_the_new_rate(time: Time) -> None:
    throttle = IoThrottle(sys.float_info.max, time)
    time.now_s += 100
    throttle.set_rate(1_000.0)
    throttle.take(100)
    assert throttle.wait_s() == pytest.approx(0.05)


def test_a_few_bytes_wait_for_more(time: Time) -> None:
    throttle = IoThrottle(1_000_000.0, time)
    throttle.take(9_000)
    assert throttle.wait_s() == 0
    throttle.take(9_000)
    assert throttle.wait_s() == pytest.approx(0.018)


def test_a_changed_rate_counts_for_bytes_not_paid_yet(time: Time) -> None:
    throttle = IoThrottle(10.0, time)
    throttle.take(1_000)
    assert throttle.wait_s() == 100
    throttle.set_rate(2_000.0)
    assert throttle.wait_s() == 0.5
    throttle.set_rate(0.0)
    assert throttle.wait_s() == math.inf
    throttle.set_rate(sys.float_info.max)
    assert throttle.wait_s() == 0
    throttle = IoThrottle(10.0, time)
    throttle.take(1_000)
    time.now_s += 50
    throttle.set_rate(100.0)
    assert throttle.wait_s() == 5, "the time before the change counts at the former rate"


def test_a_pace_hands_on_the_interpreter_lock_after_each_piece_of_work(time: Time) -> None:
    pace = Pace(IoThrottle(sys.float_info.max, time), lambda: False, now_s=time, sleep=time.sleep)
    for _ in range(8):
        time.now_s += WORK_S / 3
        pace(0)
    assert time.slept == [REST_S] * 2


@pytest.mark.parametrize(("late", "rests"), [(0, 1), (1, 2), (3, 4), (50, MOST_RESTS)])
def test_a_pace_rests_again_while_the_lock_comes_back_late(time: Time, late: int, rests: int) -> None:
    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if len(time.slept) <= late:
            time.now_s += UNDISTURBED_S

    pace = Pace(IoThrottle(sys.float_info.max, time), lambda: False, now_s=time, sleep=sleep)
    time.now_s += WORK_S
    pace(0)
    assert time.slept == [REST_S] * rests


def test_a_computation_for_which_clients_wait_rests_once(time: Time) -> None:
    rests = Rests(1, now_s=time, sleep=lambda seconds: time.sleep(seconds + UNDISTURBED_S))
    rests()
    assert time.slept == []
    time.now_s += WORK_S
    rests()
    assert len(time.slept) == 1


def test_a_pace_that_was_throttled_has_rested(time: Time) -> None:
    pace = Pace(IoThrottle(1_000.0, time), lambda: False, now_s=time, sleep=time.sleep)
    pace(100)
    assert time.slept == [pytest.approx(0.1)]


def test_a_pace_stops(time: Time) -> None:
    is_stopping = False
    throttle = IoThrottle(1.0, time)
    pace = Pace(throttle, lambda: is_stopping, now_s=time, sleep=time.sleep)
    time.now_s += WORK_S
    pace(0)
    is_stopping = True
    time.now_s += WORK_S
    with pytest.raises(Stopped):
        pace(0)


def test_a_throttled_pace_stops_within_a_tenth_of_a_second(time: Time) -> None:
    began = time.now_s
    pace = Pace(IoThrottle(1.0, time), lambda: time.now_s > began + 5, now_s=time, sleep=time.sleep)
    with pytest.raises(Stopped):
        pace(1_000_000)
    assert 5 <= time.now_s - began <= 5.2
    assert max(time.slept) <= 0.1
