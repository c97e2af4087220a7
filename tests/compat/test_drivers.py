"""A client's process that missed an answer is not used again: later tests would read its late answers."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from .clients import SECURED_CLIENTS, Client, Driver
from .conftest import Spare, make_driver_of

# It answers a command "hold" together with the next one.
_DRIVER = """
import json, sys

held = []
for line in sys.stdin:
    command = json.loads(line)["command"]
    held.append(json.dumps({"answer": command}) + "\\n")
    if command == "exit":
        sys.exit(1)
    if command != "hold":
        sys.stdout.write("".join(held))
        sys.stdout.flush()
        held.clear()
"""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    program = tmp_path / "driver.py"
    program.write_text(_DRIVER)
    monkeypatch.setitem(SECURED_CLIENTS, "fake", Client("fake", str(program), lambda: {}))
    return "fake"


def _lent(started: ExitStack, use: Callable[[Driver], None]) -> Driver:
    spare = Spare(started)
    driver = spare.lend("fake")
    use(driver)
    spare.give_back(driver)
    return spare.lend("fake")


def _shared(started: ExitStack, use: Callable[[Driver], None]) -> Driver:
    driver_of = make_driver_of(started)
    use(driver_of("fake"))
    return driver_of("fake")


def _missed(driver: Driver) -> None:
    driver.answer_timeout_s = 0.01
    with pytest.raises(AssertionError, match="did not answer in"):
        driver.ask("hold")
    with pytest.raises(AssertionError, match="did not answer an earlier command"):
        driver.ask("hello")


def _ended(driver: Driver) -> None:
    with pytest.raises(AssertionError, match="ended"):
        driver.ask("exit")


@pytest.mark.parametrize("next_driver", [_lent, _shared])
@pytest.mark.parametrize("use", [_missed, _ended])
def test_a_driver_that_missed_an_answer_is_replaced(
    client: str,
    next_driver: Callable[[ExitStack, Callable[[Driver], None]], Driver],
    use: Callable[[Driver], None],
) -> None:
    with ExitStack() as started:
        assert next_driver(started, use).ask("hello") == "hello"


@pytest.mark.parametrize("next_driver", [_lent, _shared])
def test_a_driver_that_answered_is_used_again(
    client: str, next_driver: Callable[[ExitStack, Callable[[Driver], None]], Driver]
) -> None:
    drivers: list[Driver] = []
    with ExitStack() as started:
        assert next_driver(started, drivers.append) is drivers[0]
