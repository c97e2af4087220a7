"""A replay of the documentation in a real browser: from a file, without a server, without any request."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]


def _hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_replay_steps_to_the_loss_by_keyboard_without_a_request(page: Any, tmp_path: Path) -> None:
    hooks = _hooks()
    place = hooks.on_page_content('<div class="replay" data-recording="kip-101-stale-high-watermark"></div>')
    file = tmp_path / "replay.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{place}<script>{hooks.replay_script()}</script>")
    problems: list[str] = []
    requests: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    assert page.inner_text(".count") == "1 of 9"
    page.keyboard.press("Tab")
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert page.inner_text(".words h2") == "Broker 1 is killed"
    assert "is in the ISR and lacks committed records" in page.inner_text(".violation")
    assert page.locator(".cell.lost").count() == 2
    page.get_by_role("button", name="With today's rules").click()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    page.get_by_role("button", name="Next").click()
    assert page.get_by_role("button", name="Next").is_disabled()
    page.keyboard.press("ArrowLeft")
    assert page.inner_text(".count") == "8 of 9"
    page.keyboard.press("End")
    assert page.locator(".violation, .cell.lost").count() == 0
    assert page.locator(".cell.acknowledged").count() == 3
    assert (problems, requests) == ([], [file.as_uri()])
