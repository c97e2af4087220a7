"""The pace of a consumer, beside a model of librdkafka's queue and of consumers with other pauses."""

from dataclasses import dataclass

import pytest

from barnabas.broker.handlers.reading_pace import ReadingPace

RECORD_BYTES = 110
ANSWER = 9_700
QUEUE = 100_000
PAUSE_S = 1.0
STEP_S = 0.001


@dataclass
class Reading:
    """How an application read: records per second, and how often its consumer paused."""

    rate: float
    pauses: int


def read(
    application_rate: float, records: int, pace: ReadingPace | None, broker_rate: float = 2e6
) -> Reading:
    """A consumer as librdkafka: when its queue is full, it fetches nothing for a second."""
    now_s = resumed_s = may_fetch_s = 0.0
    arrives_s: float | None = None
    queued = consumed = 0.0
    pauses, left = 0, records
    while consumed < records:
        now_s += STEP_S
        taken = min(queued, application_rate * STEP_S)
        queued, consumed = queued - taken, consumed + taken
        if arrives_s is not None and now_s >= arrives_s:
            queued, arrives_s = queued + ANSWER, None
        if now_s >= resumed_s and queued >= QUEUE and left > 0:
            resumed_s, pauses = now_s + PAUSE_S, pauses + 1
        if arrives_s is None and now_s >= resumed_s and left > 0:
            fetched_s = max(now_s, may_fetch_s)
            left -= ANSWER
            if pace is not None:
                pace.fetched(fetched_s)
                may_fetch_s = fetched_s + pace.delay_s(fetched_s, ANSWER * RECORD_BYTES, has_more=left > 0)
            arrives_s = fetched_s + ANSWER / broker_rate
    return Reading(consumed / now_s, pauses)


@pytest.mark.parametrize("application_rate", [300_000, 1_000_000])
def test_a_consumer_that_pauses_with_a_full_queue_reads_more_at_a_pace(application_rate: float) -> None:
    records = int(application_rate * 8)
    paced = read(application_rate, records, ReadingPace(0.0))
    unpaced = read(application_rate, records, None)
    assert paced.rate > 0.6 * application_rate > 1.5 * unpaced.rate
    assert paced.pauses <= 4


def test_a_consumer_that_is_slower_than_its_queue_loses_nothing() -> None:
    unpaced = read(50_000, 500_000, None)
    assert read(50_000, 500_000, ReadingPace(0.0)).rate >= 0.99 * unpaced.rate


def test_a_consumer_that_is_faster_than_the_broker_is_not_paced() -> None:
    assert read(3e6, 3_000_000, ReadingPace(0.0)) == read(3e6, 3_000_000, None)


class Bursts:
    """Reads as much at once each time, then does something else."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.pace = ReadingPace(self.now_s)

    def read(self, pause_s: float, *, has_more: bool = True) -> float:
        """Twenty answers after a pause; returns for how long they were held back."""
        self.now_s += pause_s
        began_s = self.now_s
        for number in range(20):
            self.pace.fetched(self.now_s)
            self.now_s += 0.005 + self.pace.delay_s(self.now_s, 1_000_000, has_more=has_more or number < 19)
        return self.now_s - began_s - 0.1


def test_the_pace_of_bursts_that_are_not_longer_for_it_ends() -> None:
    """An application that takes a second for each batch of records pauses, too."""
    bursts = Bursts()
    assert bursts.read(1.0) == pytest.approx(0)
    assert bursts.read(1.0) > 0.1
    assert [bursts.read(1.0) for _ in range(5)] == pytest.approx([0] * 5)


@pytest.mark.parametrize("pause_s", [0.8, 1.3, 5.0])
def test_other_pauses_are_not_those_of_a_full_queue(pause_s: float) -> None:
    bursts = Bursts()
    assert [bursts.read(pause_s) for _ in range(4)] == pytest.approx([0] * 4)


def test_a_consumer_that_reads_to_the_end_is_not_paced_afterwards() -> None:
    bursts = Bursts()
    bursts.read(1.0)
    assert bursts.read(1.0, has_more=False) > 0.1
    assert bursts.read(1.0) == pytest.approx(0)


def test_no_fetch_waits_for_longer_than_half_a_second() -> None:
    pace = ReadingPace(0.0)
    pace.delay_s(0.0, 1_000, has_more=True)
    pace.fetched(1.0)
    assert pace.delay_s(1.0, 1 << 30, has_more=True) == 0.5
    pace.fetched(1.5)
    assert pace.delay_s(1.5, 1_000, has_more=True) < 0.5
