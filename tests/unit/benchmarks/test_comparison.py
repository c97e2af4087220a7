"""Ratios, verdicts and the table of a comparison."""

import pytest

from benchmarks.peers.comparison import Comparison, Goal, markdown, number, rounds, table


def compared(a: list[float], b: list[float], goal: Goal | None = None) -> Comparison:
    return Comparison(name="produce", unit="MB/s", a=a, b=b, goal=goal)


def test_the_ratio_is_that_of_the_medians() -> None:
    assert compared([10, 30, 1000], [1, 15, 20]).ratio == 2.0


@pytest.mark.parametrize(("a", "b"), [([], [1.0]), ([1.0], []), ([], []), ([1.0], [0.0])])
def test_there_is_no_ratio_without_rounds_of_both_or_to_nothing(a: list[float], b: list[float]) -> None:
    one = compared(a, b, Goal(at_least=1))
    assert one.ratio is None
    assert one.verdict == ""


@pytest.mark.parametrize(
    ("goal", "ratio", "verdict"),
    [
        (Goal(at_least=1.5), 1.5, "met"),
        (Goal(at_least=1.5), 1.49, "MISSED"),
        (Goal(at_most=0.4), 0.4, "met"),
        (Goal(at_most=0.4), 0.41, "MISSED"),
        (Goal(at_most=0.4), 0.0, "met"),
        (Goal(at_most=0.3), 0.1 + 0.2, "met"),
        (None, 7.0, ""),
    ],
)
def test_a_goal_is_met_up_to_and_with_its_limit(goal: Goal | None, ratio: float, verdict: str) -> None:
    assert compared([ratio], [1.0], goal).verdict == verdict


@pytest.mark.parametrize("limits", [{}, {"at_least": 1.0, "at_most": 2.0}])
def test_a_goal_has_exactly_one_limit(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected one of them"):
        Goal(**limits)


def test_figures_are_written_with_three_digits() -> None:
    assert [number(one) for one in (0.01234, 1.5, 99.94, 100, 1234567.8)] == [
        "0.0123",
        "1.5",
        "99.9",
        "100",
        "1,234,568",
    ]


def test_rounds_show_their_median_and_range() -> None:
    assert rounds([3, 1, 2]) == "2 (1 to 3)"
    assert rounds([3]) == "3"
    assert rounds([]) == "-"


def test_the_table_names_both_systems_and_marks_what_is_missed() -> None:
    lines = table(
        [
            compared([20], [10], Goal(at_least=1.5)),
            compared([1], [10], Goal(at_least=1.5)),
            compared([1], []),
        ],
        "ours",
        "theirs",
    ).splitlines()
    assert lines[0].split() == ["what", "ours", "theirs", "ratio", "goal"]
    assert lines[1].split() == ["produce", "MB/s", "20", "10", "2", "≥", "1.5", "met"]
    assert lines[2].split()[-1] == "MISSED"
    assert lines[3].split() == ["produce", "MB/s", "1", "-", "-"]
    assert len({line.index("MB/s") for line in lines[1:]}) == 1


def test_the_markdown_has_as_many_cells_in_every_line() -> None:
    lines = markdown(
        [compared([20], [10], Goal(at_least=1.5)), compared([], [])], "ours", "theirs"
    ).splitlines()
    assert lines[2] == "| produce | MB/s | 20 | 10 | 2 | ≥ 1.5 | met |"
    assert len({line.count("|") for line in lines}) == 1


def test_the_description_holds_all_that_the_table_is_made_of() -> None:
    assert compared([20], [10], Goal(at_most=1.5)).described() == {
        "name": "produce",
        "unit": "MB/s",
        "a": [20],
        "b": [10],
        "ratio": 2.0,
        "goal": "≤ 1.5",
        "verdict": "MISSED",
    }
