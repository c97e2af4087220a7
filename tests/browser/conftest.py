"""A page of a real browser, Debian's chromium; without one these tests are skipped."""

import shutil
from collections.abc import Iterator
from typing import Any, Final

import pytest

CHROMIUM: Final = shutil.which("chromium")


@pytest.fixture
def page() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on the PATH")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser.new_page()
        browser.close()
