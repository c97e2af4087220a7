"""The verdict in words: losses, those that settings allow, gaps beyond what a scenario expects."""

import pytest

from barnabas.chaos.checker import RECORDS, check
from barnabas.chaos.history import Acknowledged, History, Log, Sent
from barnabas.chaos.scenario import Scenario, parse_scenario
from barnabas.chaos.verdict import NOT_HEALED, NOT_JUDGED, NOT_RUN, Conclusion, conclude
from barnabas.protocol.ids import TopicPartition

P0 = TopicPartition("t", 0)
UNCLEAN = '[topic]\nsettings = { "unclean.leader.election.enable" = true }\n[expect]\nmay_lose = true\n'


def scenario(more: str = "") -> Scenario:
    return parse_scenario(f'title = "x"\nseconds = 1\n{more}')


def history(*numbers: int, acknowledged: int = 3) -> History:
    """Records from 1 on were acknowledged, each at the offset before its number; these numbers are there."""
    events = [Sent(number, P0) for number in range(1, 10)]
    acks = [Acknowledged(P0, number - 1, number) for number in range(1, acknowledged + 1)]
    log = list(enumerate(numbers))
    return History(*events, *acks, Log("client", P0, log), Log("broker 1", P0, log, broker=1))


def concluded(
    judged: Scenario, events: History, gap: tuple[int, str] = (0, ""), sent_per_s: float = 600
) -> Conclusion:
    return conclude(judged, events, check(events, RECORDS), gap, sent_per_s)


def test_a_good_run_says_that_nothing_is_lost() -> None:
    found = concluded(scenario(), history(1, 2, 3, 4), (120, "t-0"))
    assert (found.is_good, found.outcome) == (True, "good")
    text = found.as_json()["text"]
    assert "Nothing acknowledged is lost: each of the 3 acknowledged records" in text
    assert "longest time without an acknowledgement was 120 ms, on t-0" in text
    assert (
        "6 records were not acknowledged, so nothing is promised for them; 1 of those are in the log" in text
    )


def test_a_lost_record_breaks_a_promise_and_is_named() -> None:
    found = concluded(scenario(), history(1, 2))
    assert not found.is_good
    assert set(found.faults) == {"lost"}
    text = found.as_json()["text"]
    assert "1 of the 3 acknowledged records are gone: the first is record 3 (offset 2 of t-0)" in text
    assert "Broken: lost (2)" in text


def test_a_loss_that_a_setting_allows_is_shown_and_breaks_nothing() -> None:
    found = concluded(scenario(UNCLEAN), history(1, 7, 8))
    assert (found.is_good, found.outcome) == (True, "loss")
    assert {"lost", "changed"} <= set(found.expected)
    text = found.as_json()["text"]
    assert "2 of the 3 acknowledged records are gone" in text
    assert "the settings of this scenario give it up: unclean.leader.election.enable=true." in text
    assert found.as_json()["lost"] == 2


@pytest.mark.parametrize("log", [[(0, 1)], [(0, 1), (1, 7), (2, 3)]])
def test_replicas_that_differ_break_a_promise_though_losses_are_allowed(log: list[tuple[int, int]]) -> None:
    found = concluded(scenario(UNCLEAN), History(*history(1, 2, 3).events, Log("broker 2", P0, log)))
    assert set(found.faults) == {"disagreement"}
    assert "Nothing acknowledged is lost" not in found.as_json()["text"]


@pytest.mark.parametrize(("gap_ms", "is_good"), [(500, True), (501, False)])
def test_a_gap_beyond_the_expected_one_is_a_fault(gap_ms: int, is_good: bool) -> None:
    judged = scenario("[expect]\ngap_at_most_ms = 500\n")
    found = concluded(judged, history(1, 2, 3), (gap_ms, "t-0"))
    assert found.is_good == is_good


def test_a_run_that_was_not_judged_does_not_say_that_nothing_is_lost() -> None:
    events = history(1, 2, 3)
    found = conclude(scenario(), events, None, (0, ""), 600, {NOT_JUDGED: ["the writer did not end"]})
    text = found.as_json()["text"]
    assert (found.is_good, found.outcome) == (False, "unfinished")
    assert "3 records were acknowledged, and nothing says whether they are there." in text
    assert "Not judged: the writer did not end." in text
    both = conclude(scenario(), events, None, (0, ""), 600, {NOT_RUN: ["step 1"], NOT_JUDGED: ["no end"]})
    assert both.outcome == "unfinished"


@pytest.mark.parametrize(
    ("numbers", "kind", "outcome"),
    [
        ((1, 2, 3), NOT_RUN, "unfinished"),
        ((1, 2), NOT_RUN, "broken"),
        ((1, 2, 3), NOT_HEALED, "broken"),
    ],
)
def test_a_run_that_was_not_as_written_is_judged_all_the_same(
    numbers: tuple[int, ...], kind: str, outcome: str
) -> None:
    events = history(*numbers)
    found = conclude(scenario(), events, check(events, RECORDS), (0, ""), 600, {kind: ["step 1"]})
    assert (found.is_good, found.outcome) == (False, outcome)
    assert ("Nothing acknowledged is lost" in found.as_json()["text"]) == (len(numbers) == 3)


@pytest.mark.parametrize(("sent_per_s", "is_short"), [(571, False), (569, True)])
def test_a_load_that_falls_short_is_named(sent_per_s: float, is_short: bool) -> None:
    text = concluded(scenario(), history(1, 2, 3), sent_per_s=sent_per_s).as_json()["text"]
    assert ("The load fell short: it sent 569 records/s, and the scenario asks for 600." in text) == is_short
