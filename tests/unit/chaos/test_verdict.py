"""The verdict in words: losses, those that settings allow, gaps beyond what a scenario expects."""

import pytest

from barnabas.chaos.checker import RECORDS, check
from barnabas.chaos.history import Acknowledged, History, Log, Sent
from barnabas.chaos.scenario import Scenario, parse_scenario
from barnabas.chaos.verdict import Conclusion, conclude
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
    assert found.is_good
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
    assert found.is_good
    assert {"lost", "changed"} <= set(found.expected)
    text = found.as_json()["text"]
    assert "2 of the 3 acknowledged records are gone" in text
    assert "the settings of this scenario give it up: unclean.leader.election.enable=true." in text
    assert found.as_json()["lost"] == 2


def test_a_fault_that_no_loss_explains_is_broken_though_losses_are_allowed() -> None:
    found = concluded(scenario(UNCLEAN), History(*history(1, 2, 3).events, Log("broker 2", P0, [(0, 1)])))
    assert set(found.faults) == {"disagreement"}


@pytest.mark.parametrize(("gap_ms", "is_good"), [(500, True), (501, False)])
def test_a_gap_beyond_the_expected_one_is_a_fault(gap_ms: int, is_good: bool) -> None:
    judged = scenario("[expect]\ngap_at_most_ms = 500\n")
    found = concluded(judged, history(1, 2, 3), (gap_ms, "t-0"))
    assert found.is_good == is_good


def test_a_run_that_was_not_judged_does_not_say_that_nothing_is_lost() -> None:
    events = history(1, 2, 3)
    found = conclude(scenario(), events, check(events, RECORDS), (0, ""), 600, ["t-0 stays without a leader"])
    assert not found.is_good
    assert "Nothing acknowledged is lost" not in found.as_json()["text"]
    assert "t-0 stays without a leader" in found.as_json()["text"]


@pytest.mark.parametrize(("sent_per_s", "is_short"), [(571, False), (569, True)])
def test_a_load_that_falls_short_is_named(sent_per_s: float, is_short: bool) -> None:
    text = concluded(scenario(), history(1, 2, 3), sent_per_s=sent_per_s).as_json()["text"]
    assert ("The load fell short: it sent 569 records/s, and the scenario asks for 600." in text) == is_short
