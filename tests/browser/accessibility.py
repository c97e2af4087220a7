"""The rules of accessibility that a page breaks, by axe."""

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def broken_rules(page: Page, *rules: str) -> str:
    """A report of the rules that the page breaks, of all or of these; empty if it breaks none."""
    # The nodes of rules that hold are many, and take most of the time.
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": [*rules]}
    found = Axe().run(page, options=options)
    return found.generate_report() if found.violations_count else ""
