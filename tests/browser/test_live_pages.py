"""The overview, the topics and a partition in a browser, fed with states that no cluster has to reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from barnabas.client.admin.admin import Admin
from barnabas.ui.context import Context
from tests.browser.accessibility import broken_rules
from tests.browser.conftest import Browse
from tests.browser.shown_state import (
    ShownStates,
    make_broker,
    make_partition,
    make_replica,
    make_state,
    serving,
)

PARTITION = "partition?topic=orders&partition=0"
_SERVERS = "127.0.0.1:9092"
"""Nothing is asked there: the states are made up."""


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, ShownStates]]:
    context = Context(admin=Admin(bootstrap_servers=_SERVERS), bootstrap=_SERVERS, settings={})
    with serving(context) as (url, sampler):
        yield url, sampler


@pytest.fixture
def url(served: tuple[str, ShownStates]) -> str:
    served[1].start_with(make_state())
    return served[0]


@pytest.fixture
def sampler(served: tuple[str, ShownStates], url: str) -> ShownStates:
    return served[1]


@pytest.mark.parametrize("path", ["", "topics", PARTITION])
def test_with_a_dead_broker_no_rule_of_accessibility_is_broken_and_400_pixels_are_enough(
    browse: Browse, url: str, sampler: ShownStates, path: str
) -> None:
    sampler.start_with(make_state() | dead_broker())
    page = browse(url + path)
    expect(page.locator("#connection")).to_have_text("live")
    for opener in page.locator("summary, .replica").all():
        opener.click()
    assert broken_rules(page) == ""
    page.emulate_media(color_scheme="light")
    assert broken_rules(page, "color-contrast") == ""
    page.set_viewport_size({"width": 400, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") == 400


def dead_broker() -> dict[str, Any]:
    now_ms = make_state()["time_ms"]
    return {
        "time_ms": now_ms,
        "problems": ["broker 1 is down: `barnabas restart 1`"],
        "brokers": {"1": make_broker(1, state="gone", is_controller=False, leaders=0), "2": make_broker(2)},
        "partitions": {
            "orders-0": make_partition(leader=2, leader_epoch=5, isr=[2, 3]),
            "orders-1": make_partition(1, leader=-1, isr=[1]),
        },
        "marks": [
            {"id": 1, "time_ms": now_ms - 3000, "kind": "fault", "text": "broker 1 was killed", "broker": 1},
            {"id": 2, "time_ms": now_ms - 2800, "kind": "election", "text": "orders-0: leader 1 to 2"},
            {"id": 3, "time_ms": now_ms - 2801, "kind": "election", "text": "orders-1: no leader"},
        ],
        "gaps": [{"id": "g", "start_ms": now_ms - 3000, "end_ms": now_ms - 2688, "text": "on orders-0"}],
    }


def test_a_change_is_of_the_entries_that_it_names(browse: Browse, url: str) -> None:
    # Also names that the language has.
    script = """async () => {
        const { merge } = await import("./static/stream.js");
        const state = {};
        merge(state, JSON.parse('{"groups": {"__proto__": {"lag": 1}}, "series": {}}'));
        return [Object.keys(state.groups), typeof state.groups.constructor, typeof state.series.constructor];
    }"""
    page = browse(url)
    assert page.evaluate(script) == [["__proto__"], "undefined", "undefined"]
    # A page of one partition is not fetched again after a change of another.
    changes = """[{"partitions": {"t-0": {}}}, {"gone": {"partitions": ["t-0"]}}, {"partitions": {"t-1": {}}},
        {"gone": {"partitions": ["t-1"]}}, {"problems": []}]"""
    found = """async () => {
        const { isIn } = await import("./static/page.js");
        return ["partitions", "partitions/t-0", "problems"].map((entry) =>
            %s.map((change) => isIn(change, entry)));
    }"""
    assert page.evaluate(found % changes) == [
        [True, True, True, True, False],
        [True, True, False, False, False],
        [False, False, False, False, True],
    ]


@pytest.mark.parametrize(("status", "said"), [(404, "open its new URL"), (200, "too many pages are open")])
def test_a_page_that_is_refused_says_what_to_do(page: Page, url: str, status: int, said: str) -> None:
    """It said for ever that it tries again; a browser does not after a refusal."""
    page.route("**/stream", lambda route: route.fulfill(status=503))
    page.route(
        url,
        lambda route: route.fulfill(status=status) if route.request.method == "HEAD" else route.continue_(),
    )
    page.goto(url)
    expect(page.locator("#connection")).to_contain_text(said)
    expect(page.locator("body")).to_have_class("stale")


def test_marks_and_gaps_are_lines_of_text_that_the_keyboard_reaches(
    browse: Browse, url: str, sampler: ShownStates
) -> None:
    page = browse(url + PARTITION)
    expect(page.locator("#happened")).to_contain_text("no fault since")
    sampler.show(dead_broker())
    kinds = page.locator("#happened td:nth-child(2)")
    expect(kinds).to_have_text(["election", "election", "gap", "fault"])
    focused = page.get_by_role("region", name="What happened, newest first")
    focused.focus()
    expect(focused).to_be_focused()
    # The chart has them too.
    expect(page.locator(".gap")).to_have_text("312 ms")
    expect(page.locator(".mark.fault")).to_have_text("F")
    # Two elections at one moment are one mark.
    expect(page.locator(".mark.election")).to_have_text("E\u00d72")


def test_the_keyboard_reaches_the_explanation_of_a_replica(
    browse: Browse, url: str, sampler: ShownStates
) -> None:
    page = browse(url + PARTITION)
    second = page.locator(".replica").nth(1)
    expect(second).to_contain_text("in sync")
    while not second.evaluate("replica => replica === document.activeElement"):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    explanation = page.locator("#explanation")
    expect(explanation).to_contain_text("Its next fetch asks for 1,204")
    replicas = make_partition()["replicas"] | {"2": make_replica(1205, high=1198, remote=1204)}
    sampler.show({"partitions": {"orders-0": make_partition(replicas=replicas)}})
    expect(explanation).to_contain_text("Its next fetch asks for 1,205")


def test_the_bars_of_replicas_differ_by_their_lag_on_one_scale(browse: Browse, url: str) -> None:
    page = browse(url + PARTITION)
    expect(page.locator(".replica")).to_have_count(3)
    bars = [
        page.locator(f".replica:nth-child({place}) .uncommitted").evaluate(
            "bar => { const {left, right} = bar.getBoundingClientRect(); return [left, right]; }"
        )
        for place in (1, 2, 3)
    ]
    (high, end), (_, second_end), (_, third_end) = bars
    assert second_end == end
    assert end - third_end == pytest.approx((end - high) * 2 / 6, abs=0.5)


def test_a_change_of_one_partition_touches_its_square_alone(
    browse: Browse, url: str, sampler: ShownStates
) -> None:
    sampler.start_with(make_state(100))
    page = browse(url + "topics")
    expect(page.locator("#topics .square")).to_have_count(100)
    page.evaluate(
        """() => {
            window.changed = [];
            const note = (records) => window.changed.push(...records.map((record) =>
                (record.target.closest?.("a") ?? record.target.parentElement).getAttribute("href")));
            new MutationObserver(note).observe(document.querySelector("#topics .strip"),
                {subtree: true, childList: true, attributes: true, characterData: true});
        }"""
    )
    sampler.show({"partitions": {"orders-7": make_partition(7, leader=2)}})
    expect(page.locator("#topics .square").nth(7)).to_have_text("2")
    assert set(page.evaluate("window.changed")) == {"partition?topic=orders&partition=7"}
    sampler.show({"gone": {"partitions": ["orders-99"]}})
    expect(page.locator("#topics .square")).to_have_count(99)


def test_new_rows_take_no_focus_and_no_selection_from_others(
    browse: Browse, url: str, sampler: ShownStates
) -> None:
    """Rows were changed by their place: a selection, and a pressed link, were of the row that came after."""
    sampler.start_with(make_state(1) | dead_broker())
    page = browse(url)
    row = page.locator("#happened tr").first
    row.evaluate("row => getSelection().selectAllChildren(row)")
    text = page.evaluate("getSelection().toString()")
    newer = {"id": 9, "time_ms": make_state()["time_ms"], "kind": "fault", "text": "broker 2 was killed"}
    sampler.show({"marks": [newer, *dead_broker()["marks"]]})
    expect(row).to_contain_text("broker 2 was killed")
    assert page.evaluate("getSelection().toString()") == text
    page.goto(url + "topics")
    link = page.get_by_role("link", name="messages of orders")
    link.focus()
    sampler.show({"partitions": {"a-0": make_partition(topic="a")}})
    expect(page.locator("#topics .topic")).to_have_text(["a", "orders"])
    expect(link).to_be_focused()


def test_a_change_under_way_is_not_sent_again_and_moves_nothing(browse: Browse, url: str) -> None:
    """Its button lost the focus, a refresh enabled it, and its outcome moved another under the pointer."""
    page = browse(url)
    sent, held = [], []
    page.route("**/pulse", lambda route: (sent.append(route), held.append(route)))
    button = page.get_by_role("button", name="Write a pulse")
    place = page.locator("#brokers").bounding_box()
    button.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#outcome")).to_have_text("Write a pulse …")
    held.pop().fulfill(json={"outcome": "A pulse is written."})
    expect(page.locator("#outcome")).to_have_text("A pulse is written.")
    assert page.locator("#brokers").bounding_box() == place
    expect(button).to_be_focused()
    assert len(sent) == 1


def test_of_labels_that_overlap_the_one_of_the_longest_gap_is_shown(
    browse: Browse, url: str, sampler: ShownStates
) -> None:
    now_ms = make_state()["time_ms"]
    ends = {"first": (-3000, -2900), "longest": (-2800, -2000), "last": (-1900, -1800)}
    sampler.start_with(
        make_state()
        | {
            "gaps": [
                {"id": id, "start_ms": now_ms + start, "end_ms": now_ms + end, "text": id}
                for id, (start, end) in ends.items()
            ]
        }
    )
    page = browse(url)
    expect(page.locator(".gap")).to_have_text(["", "800 ms", ""])
    assert [gap.get_attribute("title") for gap in page.locator(".gap").all()] == [*ends]


def test_a_page_without_news_is_not_live_and_a_deleted_partition_has_no_picture(
    browse: Browse, url: str, sampler: ShownStates
) -> None:
    page = browse(url + PARTITION)
    connection = page.locator("#connection")
    expect(connection).to_have_text("live")
    page.clock.install()
    sampler.show({"gone": {"partitions": ["orders-0"]}})
    expect(page.locator("#picture")).to_be_hidden()
    page.clock.fast_forward(10_000)
    expect(connection).to_contain_text("no news")
    sampler.show({"partitions": {"orders-0": make_partition()}})
    expect(connection).to_have_text("live")
    expect(page.locator("#picture")).to_be_visible()
