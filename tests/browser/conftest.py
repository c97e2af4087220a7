"""A browser for tests of the live page: an installed Chromium, or one line that says there is none.

Every page of the fixture `browse` is watched: an error of a script or a line on the console, and a request to
another origin, fail the test at its end.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_QUIET: Final = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync"
    " --no-first-run"
)

Browse = Callable[..., Page]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a browser one test is left, skipped, so that a run says so in one line."""
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    if here and _executable() is None:
        names = ", ".join(_NAMES)
        reason = f"no browser for {len(here)} tests: neither CHROMIUM nor {names} (apt-get install chromium)"
        here[0].add_marker(pytest.mark.skip(reason=reason))
        config.hook.pytest_deselected(items=here[1:])
        items[:] = [item for item in items if item not in here[1:]]


def _executable() -> str | None:
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    executable = _executable()
    if executable is None:
        pytest.skip(
            f"no browser: neither CHROMIUM nor {', '.join(_NAMES)} is here (apt-get install chromium)"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_QUIET.split())
        yield browser
        browser.close()


@pytest.fixture
def browse(browser: Browser) -> Iterator[Browse]:
    """``browse(url)``: the page at a URL, in a window of its own."""
    problems: list[str] = []
    contexts = []

    def opened(url: str) -> Page:
        context = browser.new_context(
            color_scheme="dark", viewport={"width": 1000, "height": 700}, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)

        def on_console(message: ConsoleMessage) -> None:
            problems.append(f"console: {message.type}: {message.text}")

        def on_request(request: Request) -> None:
            if urlsplit(request.url).netloc != urlsplit(url).netloc:
                problems.append(f"a request to {request.url}")

        page.on("console", on_console)
        page.on("pageerror", lambda error: problems.append(f"error of a script: {error}"))
        page.on("request", on_request)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page, for tests of files; they watch it themselves."""
    with browser.new_context() as context:
        yield context.new_page()
