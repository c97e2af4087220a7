"""The rules of the pulse: which time without acknowledgements is a gap. Times are in ms."""

from __future__ import annotations

from barnabas.ui.pulse import AckGaps, Gap


def _acknowledged(gaps: AckGaps, *rounds: tuple[float, float]) -> list[Gap | None]:
    """Records of partition 0, sent and acknowledged at these times, one after the other."""
    found = []
    for sent, acknowledged in rounds:
        gaps.sent(0, sent)
        found.append(gaps.ended(0, acknowledged, is_acknowledged=True))
    return found


def test_a_steady_pace_has_no_gaps_however_rare_the_records_are() -> None:
    gaps = AckGaps()
    assert _acknowledged(gaps, (0, 3), (60, 63), (1_000, 1_030)) == [None, None, None]
    assert list(gaps.tick(5_000)) == []


def test_a_gap_is_shown_while_it_lasts_and_ends_with_the_next_acknowledgement() -> None:
    gaps = AckGaps()
    _acknowledged(gaps, (0, 3))
    for at_ms in (60, 120):
        gaps.sent(0, at_ms)
    assert list(gaps.tick(103)) == []
    assert list(gaps.tick(104)) == [Gap(0, 3, None)]
    assert list(gaps.tick(150)) == [], "it is shown already"
    assert gaps.ended(0, 253, is_acknowledged=True) == Gap(0, 3, 253)
    assert gaps.ended(0, 254, is_acknowledged=True) is None


def test_a_gap_that_ends_between_two_looks_is_shown_at_its_end() -> None:
    gaps = AckGaps()
    assert _acknowledged(gaps, (0, 3), (60, 119)) == [None, Gap(0, 3, 119)]


def test_a_failed_record_ends_no_gap() -> None:
    gaps = AckGaps()
    _acknowledged(gaps, (0, 3))
    gaps.sent(0, 60)
    gaps.sent(0, 120)
    assert gaps.ended(0, 5_000, is_acknowledged=False) is None
    assert gaps.ended(0, 5_100, is_acknowledged=True) == Gap(0, 3, 5_100)


def test_the_delay_of_the_program_itself_is_no_gap() -> None:
    gaps = AckGaps()
    _acknowledged(gaps, (0, 3))
    gaps.sent(0, 60)
    gaps.late(200)
    assert list(gaps.tick(290)) == []
    assert gaps.ended(0, 290, is_acknowledged=True) is None
    gaps.sent(0, 300)
    assert gaps.ended(0, 400, is_acknowledged=True) == Gap(0, 290, 400), "it counts once"


def test_partitions_have_gaps_of_their_own() -> None:
    gaps = AckGaps()
    for partition in (0, 1):
        gaps.sent(partition, 0)
        gaps.ended(partition, 3, is_acknowledged=True)
        gaps.sent(partition, 60)
    gaps.ended(1, 63, is_acknowledged=True)
    assert list(gaps.tick(500)) == [Gap(0, 3, None)]


def test_around_an_election_the_longest_time_of_the_last_seconds_is_shown_however_short() -> None:
    gaps = AckGaps()
    assert gaps.around_election(0) is None
    _acknowledged(gaps, (0, 3), (900, 903), (960, 963), (1_000, 1_083), (1_090, 1_093))
    assert gaps.around_election(0) == Gap(0, 3, 903)
    _acknowledged(gaps, (1_950, 1_953), (1_990, 1_993))
    assert gaps.around_election(0) == Gap(0, 1_093, 1_953), "the first one has ended too long ago"


def test_a_gap_that_lasts_is_not_hidden_by_a_shorter_one_around_the_election() -> None:
    gaps = AckGaps()
    _acknowledged(gaps, (0, 3), (60, 63))
    gaps.sent(0, 100)
    assert list(gaps.tick(500)) == [Gap(0, 63, None)]
    assert gaps.around_election(0) is None
