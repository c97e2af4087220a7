"""The live page in a browser over real brokers: a failover by its buttons, then each of its pages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, expect

from tests.browser.accessibility import broken_rules
from tests.browser.conftest import Browse
from tests.cluster.tools import KILLED, call_command, run_command
from tests.support.waiting import wait_for

GROUP: Final = "readers"
TOPIC: Final = "barnabas-pulse"
PARTITION: Final = f"partition?topic={TOPIC}&partition=0"
PAGES: Final = (
    f"messages?topic={TOPIC}&limit=5",
    f"message?topic={TOPIC}&partition=0&offset=0",
    "groups",
    "transactions",
    f"settings?topic={TOPIC}&filter=min",
    "events",
    "faults",
    "replay?name=torn-transaction",
)
"""The pages that `test_live_pages` does not look at."""
SLOWLY_MS: Final = 30_000


@contextmanager
def running_page(directory: Path) -> Iterator[str]:
    """The URL of the live page of a new cluster, from `barnabas up --ui`."""
    settings = [word for name, value in KILLED.items() for word in ("--set", f"{name}={value}")]
    up = run_command("up", "--ui", "--detach", "--json", *settings, "--dir", str(directory))
    try:
        assert up.returncode == 0, up.stderr
        yield json.loads(up.stdout)["ui"]
    finally:
        call_command("down", "--now", "--dir", str(directory))


def lag_on(page: Page) -> int:
    text = page.locator("#group div:last-child dd").inner_text().split()[0].replace(",", "")
    return int(text) if text.isdigit() else -1


def test_a_failover_by_the_buttons_of_the_page(browse: Browse, tmp_path: Path) -> None:
    with running_page(tmp_path) as url:
        page = browse(url)
        page.set_default_timeout(SLOWLY_MS)
        expect.set_options(timeout=SLOWLY_MS)
        page.get_by_role("button", name="Write a pulse").click()
        expect(page.locator("#pulse")).to_have_text("Stop the pulse")
        beside = browse(url + PARTITION)
        facts = beside.locator("#facts")
        expect(beside.locator(".replica")).to_have_count(3)
        expect(facts).to_contain_text("broker")
        victim = int(facts.locator("dd").first.inner_text().removeprefix("broker "))
        kill(page, beside, victim)
        come_back(page, beside, victim)
        read_behind(page, url, tmp_path)
        look_at_all(page, url)
        # Before the server ends: a stream that breaks is an error on the console.
        for shown in (page, beside):
            shown.context.close()


def kill(page: Page, beside: Page, victim: int) -> None:
    row = page.locator(f"[data-broker='{victim}']")
    page.get_by_role("button", name=f"Kill broker {victim}").click()
    expect(row).to_have_class("gone")
    expect(row.locator(".state")).to_have_text("gone")
    expect(page.locator("#problems code").first).to_contain_text(f"barnabas restart {victim}")
    for kind in ("fault", "broker", "election", "isr"):
        expect(page.locator(f".mark.{kind}").first).to_be_visible()
    # Where gaps are close to each other, the longest one has the label.
    expect(page.locator(".gap").filter(has_text="ms").first).to_be_visible()
    expect(beside.locator("#facts dd").first).not_to_have_text(f"broker {victim}")
    expect(beside.locator(".replica.out")).to_have_count(1)
    beside.get_by_role("button", name=f"Broker {victim} ").click()
    expect(beside.locator("#explanation")).to_contain_text("does not answer")


def come_back(page: Page, beside: Page, victim: int) -> None:
    page.get_by_role("button", name=f"Restart broker {victim}").click()
    expect(page.locator(f"[data-broker='{victim}']")).to_have_class("running")
    expect(page.locator("#problems .fine")).to_be_visible()
    expect(beside.locator(".replica.out")).to_have_count(0)
    expect(beside.locator(".replica.in-sync")).to_have_count(2)
    # It follows, or leads again as the preferred replica.
    expect(beside.locator("#explanation")).to_contain_text(re.compile("Its next fetch asks for|leads"))
    expect(beside.locator(f".replica >> nth={victim - 1} >> .note")).to_have_text("")


def read_behind(page: Page, url: str, directory: Path) -> None:
    """The group has read some records of a topic that grows: its lag grows on the page."""
    words = ["consume", TOPIC, "--group", GROUP, "--set", "auto.offset.reset=earliest", "--max", "3"]
    done = run_command(*words, "--dir", str(directory))
    assert done.returncode == 0, done.stderr
    page.goto(f"{url}group?id={GROUP}")
    first = wait_for(lambda: max(lag_on(page), 0), "the group has no lag", SLOWLY_MS / 1000)
    wait_for(lambda: lag_on(page) > first, "the lag does not move", SLOWLY_MS / 1000)
    # The chart of the lag marks the restart too.
    expect(page.locator(".mark.fault").first).to_be_attached()


def look_at_all(page: Page, url: str) -> None:
    """No page breaks a rule of accessibility, or is scrolled sideways in a window of 400 pixels."""
    found = []
    page.set_viewport_size({"width": 400, "height": 700})
    for place, path in enumerate(PAGES):
        page.emulate_media(color_scheme="light" if place % 2 else "dark")
        page.goto(url + path)
        width = page.evaluate("document.documentElement.scrollWidth")
        if width != 400:
            found.append(f"{path}: {width} pixels wide")
        if broken := broken_rules(page):
            found.append(f"{path}: {broken}")
    assert not found, "\n".join(found)
