"""Sampled rates and token buckets, against models that keep every event."""

import random

import pytest

from barnabas.broker.security.rates import MAX_THROTTLE_MS, SampledRate, TokenBucket, Windows

ELEVEN = Windows(11, 1_000)


def kafkas_rate(events: list[tuple[float, float]], windows: Windows, now_ms: float) -> tuple[float, float]:
    """The rate and the time that it is taken over, from all events (time, value)."""
    samples: list[list[tuple[float, float]]] = []
    for event in events:
        if not samples or event[0] - samples[-1][0][0] >= windows.size_ms:
            samples.append([])
        samples[-1].append(event)
    live = [sample for sample in samples if now_ms - sample[-1][0] < windows.number * windows.size_ms]
    elapsed_ms = now_ms - live[0][0][0] if live else 0.0
    full = int(elapsed_ms / windows.size_ms)
    elapsed_ms += max(0, windows.number - 1 - full) * windows.size_ms
    elapsed_ms = max(elapsed_ms, 1)
    total = sum(value for sample in live for _, value in sample)
    return total / elapsed_ms * 1000, elapsed_ms


@pytest.mark.parametrize("windows", [ELEVEN, Windows(1, 1_000), Windows(2, 50)])
def test_a_rate_is_kafkas_after_any_events(windows: Windows) -> None:
    rng = random.Random(7)
    for _ in range(20):
        rate, events, now_ms = SampledRate(windows), [], 123_456.0
        for _ in range(150):
            now_ms += rng.choice((0, 1, 40, 333, 999, 1_000, 1_001, 5_000, 12_000))
            if rng.random() < 0.8:
                events.append((now_ms, rng.choice((-5, 1, 1_000))))
                rate.record(events[-1][1], now_ms)
            expected, elapsed_ms = kafkas_rate(events, windows, now_ms)
            assert rate.measure(now_ms) == pytest.approx(expected)
            throttle_ms = round((expected - 10) / 10 * elapsed_ms) if expected > 10 else 0
            assert rate.throttle_ms(10, now_ms) == pytest.approx(throttle_ms, abs=1)


def test_after_the_throttle_time_the_rate_is_that_of_the_quota() -> None:
    """A client that sends 1 MB whenever it may gets 2 MB/s."""
    rate, now_ms, sent = SampledRate(ELEVEN), 0.0, 0
    while now_ms < 60_000:
        rate.record(1_000_000, now_ms)
        sent += 1_000_000
        now_ms += rate.throttle_ms(2_000_000, now_ms) + 1
    # The first ten seconds' worth may come at once.
    assert 2_000_000 * 60 <= sent <= 2_000_000 * 71


def test_a_quota_of_nothing_has_the_longest_throttle_time() -> None:
    rate, bucket = SampledRate(ELEVEN), TokenBucket(ELEVEN)
    assert rate.throttle_ms(0, 0) == 0
    rate.record(1, 0)
    bucket.take(1, 0, 0)
    assert rate.throttle_ms(0, 0) == bucket.throttle_ms(0, 0) == MAX_THROTTLE_MS


def test_a_bucket_is_full_at_first_and_may_be_overdrawn_once() -> None:
    bucket = TokenBucket(ELEVEN)
    assert bucket.left(5, 1_000) == 55
    bucket.take(85, 5, 1_000)
    assert bucket.left(5, 1_000) == -30
    assert bucket.throttle_ms(5, 1_000) == 6_000
    assert bucket.throttle_ms(5, 6_999) == 1
    assert bucket.throttle_ms(5, 7_000) == 0
    assert bucket.left(5, 100_000) == 55


def test_a_bucket_obeys_a_changed_quota_at_once() -> None:
    bucket = TokenBucket(ELEVEN)
    bucket.take(75, 5, 0)
    assert bucket.throttle_ms(5, 0) == 4_000
    assert bucket.throttle_ms(10, 0) == 2_000
    assert bucket.left(1, 1_000_000) == 11
