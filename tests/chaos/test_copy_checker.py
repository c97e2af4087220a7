"""The checker of copies finds each kind of fault, and no fault in a good run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from barnabas.protocol.ids import TopicPartition

from .copy_checker import Attempt, Copy, CopyHistory, Outcome, Place, check_copies

OUT = TopicPartition("out", 0)
OTHER = TopicPartition("out", 1)


def copy_of(place: Place, offset: int, attempt: str, partition: TopicPartition = OUT) -> Copy:
    return Copy(partition, offset, place, b"k", b"%d" % place.offset, attempt)


def good_run() -> CopyHistory:
    """Attempt a is aborted, b copies the same records; c dies without an outcome and was committed."""
    places = [Place(0, offset) for offset in range(4)]
    output = [
        copy_of(places[0], 3, "b"),
        copy_of(places[1], 4, "b"),
        copy_of(places[2], 6, "c"),
        copy_of(places[3], 0, "c", OTHER),
    ]
    return CopyHistory(
        input={place: (b"k", b"%d" % place.offset) for place in places},
        attempts={
            "a": Attempt(frozenset(places[:2]), Outcome.ABORTED),
            "b": Attempt(frozenset(places[:2]), Outcome.COMMITTED),
            "c": Attempt(frozenset(places[2:])),
            "d": Attempt(frozenset(places[2:])),
        },
        reads=output[:3],
        output=output,
        committed={0: 4},
        ends={0: 4},
    )


def show_an_aborted_copy(run: CopyHistory) -> None:
    run.attempts["b"].outcome = Outcome.ABORTED


def lose_a_record(run: CopyHistory) -> None:
    run.input[Place(0, 4)] = (b"k", b"4")


def copy_twice(run: CopyHistory) -> None:
    run.attempts["d"] = Attempt(frozenset({Place(0, 3)}))
    run.output.append(copy_of(Place(0, 3), 9, "d", OTHER))


def tear(run: CopyHistory) -> None:
    run.attempts["d"] = Attempt(frozenset({Place(0, 3), Place(0, 2)}))
    run.output[3] = run.output[3]._replace(attempt="d")


def swap_two(run: CopyHistory) -> None:
    run.reads.clear()
    run.output[0], run.output[1] = copy_of(Place(0, 1), 3, "b"), copy_of(Place(0, 0), 4, "b")


def forget_a_committed_attempt(run: CopyHistory) -> None:
    run.attempts["d"].outcome = Outcome.COMMITTED


def change_a_value(run: CopyHistory) -> None:
    run.input[Place(0, 3)] = (b"k", b"other")


def copy_by_nobody(run: CopyHistory) -> None:
    del run.attempts["c"]


def take_a_read_copy_back(run: CopyHistory) -> None:
    run.reads.append(copy_of(Place(0, 3), 7, "c"))


def commit_too_little(run: CopyHistory) -> None:
    run.committed[0] = 3


def commit_nothing(run: CopyHistory) -> None:
    run.committed.clear()


def test_a_good_run_has_no_faults() -> None:
    verdict = check_copies(good_run())
    assert verdict.is_good, str(verdict)


@pytest.mark.parametrize(
    ("harm", "faults"),
    [
        (show_an_aborted_copy, {"aborted"}),
        (lose_a_record, {"missing"}),
        (copy_twice, {"twice"}),
        (tear, {"torn"}),
        (swap_two, {"order"}),
        (forget_a_committed_attempt, {"lost"}),
        (change_a_value, {"foreign"}),
        (copy_by_nobody, {"foreign"}),
        (take_a_read_copy_back, {"vanished"}),
        (commit_too_little, {"offsets"}),
        (commit_nothing, {"offsets"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_faults_of(harm: Callable[[CopyHistory], None], faults: set[str]) -> None:
    run = good_run()
    harm(run)
    found = set(check_copies(run).faults)
    assert found == faults, str(check_copies(run))
