"""Buckets, percentiles, gaps, and the choice among the answers of several brokers."""

from typing import Any

import pytest

from barnabas.chaos.samples import PartitionSeen, Samples, percentile
from barnabas.protocol.ids import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
BEGAN_MS = 1_000_000


def samples() -> Samples:
    return Samples(100.0, BEGAN_MS)


def points(of: Samples, name: str, end_s: float) -> list[Any]:
    return [value for _, value in of.series(end_s)[name]["points"]]


def test_a_bucket_is_a_tenth_of_a_second() -> None:
    run = samples()
    for now_s in (100.01, 100.05, 100.25):
        run.acknowledged(P0, now_s - 0.004, now_s)
    run.read(7, 100.15)
    assert points(run, "acknowledged", 100.35) == [20, 0, 10]
    assert points(run, "read", 100.35) == [0, 70, 0]
    assert points(run, "max", 100.35) == [pytest.approx(4.0), None, pytest.approx(4.0)]
    assert [time_ms for time_ms, _ in run.series(100.35)["read"]["points"]] == [
        BEGAN_MS + n for n in (0, 100, 200)
    ]


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (99, 99), (100, 100), (1, 1)])
def test_percentiles_are_by_nearest_rank(percent: int, expected: int) -> None:
    assert percentile([float(value) for value in range(1, 101)], percent) == expected
    assert percentile([3.0], percent) == 3.0
    assert percentile([], percent) is None


def test_a_gap_is_of_one_partition_and_between_two_acknowledgements() -> None:
    run = samples()
    for now_s in (100.0, 100.05, 100.7, 100.75):
        run.acknowledged(P0, now_s, now_s)
    for tenth in range(15):
        run.acknowledged(P1, 100.0, 100.0 + tenth / 20)
    [gap] = run.history(101.0)["gaps"]
    assert (gap["start_ms"], gap["end_ms"]) == (BEGAN_MS + 50, BEGAN_MS + 700)
    assert gap["text"] == "t-0: 650 ms without an acknowledgement"
    assert run.longest_gap(101.0) == (650, "t-0")


def test_the_length_of_a_gap_is_that_of_its_bar() -> None:
    run = samples()
    run.acknowledged(P0, 100.0, 100.0504)
    run.acknowledged(P0, 100.0, 100.7006)
    [gap] = run.history(101.0)["gaps"]
    assert gap["end_ms"] - gap["start_ms"] == 651
    assert "651 ms" in gap["text"]
    assert run.longest_gap(101.0) == (651, "t-0")


def test_a_gap_at_the_end_of_the_load_has_no_end() -> None:
    run = samples()
    run.acknowledged(P0, 100.0, 100.5)
    run.end_load(102.0)
    [gap] = run.history(102.0)["gaps"]
    assert (gap["start_ms"], gap["end_ms"]) == (BEGAN_MS + 500, None)
    assert run.longest_gap(102.0) == (1500, "t-0")


def test_a_partition_without_any_acknowledgement_after_the_beginning_has_a_gap() -> None:
    run = samples()
    run.acknowledged(P0, 99.0, 99.0)
    run.begin(100.0, BEGAN_MS)
    run.end_load(101.0)
    assert run.longest_gap(101.0) == (1000, "t-0")


def test_an_old_answer_of_a_slow_broker_changes_nothing() -> None:
    run = samples()
    before, after = PartitionSeen(1, 0, (1, 2, 3)), PartitionSeen(2, 1, (2, 3))
    for now_s, seen in ((100.0, before), (100.1, after), (100.2, before), (100.3, after)):
        run.saw("t-0", seen, now_s)
    assert run.newest("t-0") == after
    history = run.history(101.0)
    assert history["isr"] == {"t-0": [[BEGAN_MS, [1, 2, 3]], [BEGAN_MS + 100, [2, 3]]]}
    assert [mark["text"] for mark in history["marks"]] == ["t-0: broker 2 leads, epoch 1", "t-0: ISR 2, 3"]


def test_an_isr_within_an_epoch_is_taken_from_its_leader_alone() -> None:
    run = samples()
    run.saw_isr("t-0", 0, (1,), 100.0)
    assert run.newest("t-0") is None
    run.saw("t-0", PartitionSeen(1, 1, (1, 2)), 100.0)
    run.saw_isr("t-0", 1, (1,), 100.1)
    # Metadata that has not changed yet, and a leader of an earlier epoch.
    run.saw("t-0", PartitionSeen(1, 1, (1, 2)), 100.2)
    run.saw_isr("t-0", 0, (1, 2), 100.3)
    run.saw_isr("t-0", 1, (1,), 100.4)
    assert run.newest("t-0") == PartitionSeen(1, 1, (1,))
    history = run.history(101.0)
    assert history["isr"] == {"t-0": [[BEGAN_MS, [1, 2]], [BEGAN_MS + 100, [1]]]}
    assert [mark["text"] for mark in history["marks"]] == ["t-0: ISR 1"]


def test_a_broker_that_misses_the_leader_is_no_election() -> None:
    run = samples()
    run.saw("t-0", PartitionSeen(2, 0, (1, 2)), 100.0)
    run.saw("t-0", PartitionSeen(-1, 0, (1, 2)), 100.1)
    run.saw("t-0", PartitionSeen(2, 0, (1, 2)), 100.2)
    assert run.history(101.0)["marks"] == []
    run.saw("t-0", PartitionSeen(-1, 1, (2,)), 100.3)
    mark = run.history(101.0)["marks"][0]
    assert mark["text"] == "t-0: no broker leads, epoch 1"
    assert "broker" not in mark


def test_only_the_state_of_the_partitions_is_kept_from_before_the_beginning() -> None:
    run = samples()
    run.saw("t-0", PartitionSeen(1, 0, (1, 2)), 100.0)
    run.saw_isr("t-0", 0, (1,), 100.1)
    run.acknowledged(P0, 100.0, 100.0)
    run.acknowledged(P0, 100.1, 100.5)
    run.read(4, 100.5)
    run.begin(102.0, BEGAN_MS + 2_000)
    assert run.history(103.0) == {"marks": [], "gaps": [], "isr": {"t-0": [[BEGAN_MS + 2_000, [1]]]}}
    for name in ("acknowledged", "read"):
        assert points(run, name, 102.65) == [0] * 6
    run.end_load(102.5)
    assert run.longest_gap(102.5) == (500, "t-0"), "a gap begins no earlier"


def test_the_first_controller_is_no_change_of_it() -> None:
    run = samples()
    for broker, controller in ((1, 3), (2, 3), (1, -1), (1, 2), (2, 3), (2, 2), (3, 2)):
        run.saw_controller(broker, controller, 100.0)
    assert [mark["text"] for mark in run.history(101.0)["marks"]] == ["broker 2 is the controller"]


def test_a_step_is_a_mark_at_its_time() -> None:
    run = samples()
    run.step("kill broker 1", 100.5)
    run.saw("t-0", PartitionSeen(1, 0, (1, 2)), 100.0)
    run.saw("t-0", PartitionSeen(2, 1, (1, 2)), 100.6)
    fault, election = run.history(101.0)["marks"]
    assert fault == {"id": "mark-0", "time_ms": BEGAN_MS + 500, "kind": "fault", "text": "kill broker 1"}
    assert (election["broker"], election["partition"]) == (2, "t-0")


@pytest.mark.parametrize(("pause_s", "gaps"), [(0.0999, 0), (0.1, 1)])
def test_a_gap_is_as_long_as_a_bucket_at_least(pause_s: float, gaps: int) -> None:
    run = Samples(0.0, BEGAN_MS)
    run.acknowledged(P0, 0.0, 0.0)
    run.acknowledged(P0, pause_s, pause_s)
    run.acknowledged(P1, 0.0, 0.0)
    run.end_load(pause_s)
    assert len(run.gaps) == 2 * gaps
    assert samples().longest_gap(101.0) == (0, "")
