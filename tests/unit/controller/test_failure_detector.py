"""Which brokers are declared dead: by which signs, after which time, and never each other for ever."""

from __future__ import annotations

import errno
import socket

import pytest

from barnabas.controller.failure_detector import (
    FIRST_HOLD_S,
    FRESH_S,
    MOST_ERRORS,
    UNREACHABLE_S,
    VANISHED_S,
    ConnectResult,
    FailureDetector,
    _weakest,
    result_of,
)
from barnabas.protocol.ids import BrokerEpoch, BrokerId

ONE = BrokerId(1)
LIFE, NEXT = BrokerEpoch(7), BrokerEpoch(8)


class Desk:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.elsewhere: set[BrokerEpoch] = set()
        self.detector = FailureDetector(lambda: self.now_s, lambda broker, epoch: epoch in self.elsewhere)

    def attempt(self, result: ConnectResult, life: BrokerEpoch = LIFE) -> bool:
        return self.detector.attempted(ONE, life, result)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_refusal_counts_only_after_a_connection_to_this_very_life(desk: Desk) -> None:
    assert not desk.attempt(ConnectResult.REFUSES)
    desk.detector.connected(ONE, LIFE)
    assert desk.attempt(ConnectResult.REFUSES)
    assert desk.detector.is_dead(ONE, LIFE)
    assert not desk.attempt(ConnectResult.REFUSES, NEXT)
    assert not desk.detector.is_dead(ONE, LIFE)


def test_a_connection_of_another_part_of_this_process_counts_too(desk: Desk) -> None:
    desk.elsewhere.add(LIFE)
    assert desk.attempt(ConnectResult.REFUSES)


@pytest.mark.parametrize(
    ("result", "needed_s"), [(ConnectResult.UNREACHABLE, UNREACHABLE_S), (ConnectResult.VANISHED, VANISHED_S)]
)
def test_a_host_that_is_gone_counts_after_a_while(desk: Desk, result: ConnectResult, needed_s: float) -> None:
    desk.detector.connected(ONE, LIFE)
    assert not desk.attempt(result)
    desk.now_s += needed_s - 0.1
    assert not desk.attempt(result)
    desk.now_s += 0.1
    assert desk.attempt(result)


@pytest.mark.parametrize(
    ("result", "needed_s"), [(ConnectResult.UNREACHABLE, UNREACHABLE_S), (ConnectResult.VANISHED, VANISHED_S)]
)
def test_the_time_runs_from_the_first_of_at_least_two_attempts(
    desk: Desk, result: ConnectResult, needed_s: float
) -> None:
    """An attempt without an answer takes long itself; but this process may have been paused in one."""
    desk.detector.connected(ONE, LIFE)
    began_s = desk.now_s
    desk.now_s += needed_s
    assert not desk.detector.attempted(ONE, LIFE, result, began_s)
    desk.now_s += 0.1
    assert desk.detector.attempted(ONE, LIFE, result, desk.now_s)


def test_a_timeout_is_no_sign_and_restarts_the_time(desk: Desk) -> None:
    desk.detector.connected(ONE, LIFE)
    assert not desk.attempt(ConnectResult.UNREACHABLE)
    desk.now_s += UNREACHABLE_S
    assert not desk.attempt(ConnectResult.SILENT)
    assert not desk.attempt(ConnectResult.UNREACHABLE)
    desk.now_s += 3_600.0
    assert not desk.attempt(ConnectResult.SILENT)


def test_each_error_lengthens_the_time_and_after_a_few_only_the_session_decides(
    desk: Desk,
) -> None:
    """Otherwise two brokers that refuse each other would depose each other for ever."""
    desk.detector.connected(ONE, LIFE)
    waited = []
    for _ in range(MOST_ERRORS):
        began_s = desk.now_s
        while not desk.attempt(ConnectResult.REFUSES):
            desk.now_s += 1.0
        waited.append(desk.now_s - began_s)
        desk.detector.proved_alive(ONE, LIFE)
    assert waited == [0.0, *(FIRST_HOLD_S * 2**n for n in range(MOST_ERRORS - 1))]
    assert not desk.attempt(ConnectResult.REFUSES)
    desk.now_s += 1e9
    assert not desk.attempt(ConnectResult.REFUSES)
    # The next registration starts without errors.
    desk.detector.connected(ONE, NEXT)
    assert desk.attempt(ConnectResult.REFUSES, NEXT)


def test_a_declaration_is_dropped_some_time_after_its_last_sign(desk: Desk) -> None:
    """It may have been an error that was not noticed."""
    desk.detector.connected(ONE, LIFE)
    assert desk.attempt(ConnectResult.REFUSES)
    desk.now_s += FRESH_S
    assert desk.attempt(ConnectResult.UNREACHABLE)
    desk.now_s += FRESH_S
    assert desk.detector.is_dead(ONE, LIFE)
    desk.now_s += 1.0
    assert not desk.detector.is_dead(ONE, LIFE)
    assert not desk.attempt(ConnectResult.ANSWERS)
    assert not desk.attempt(ConnectResult.UNREACHABLE)
    assert desk.attempt(ConnectResult.REFUSES)


def test_signs_of_an_earlier_life_change_nothing(desk: Desk) -> None:
    desk.detector.connected(ONE, NEXT, ("127.0.0.1", 1))
    desk.detector.connected(ONE, LIFE, ("127.0.0.1", 2))
    assert not desk.attempt(ConnectResult.REFUSES, LIFE)
    assert not desk.detector.is_dead(ONE, NEXT)
    assert desk.detector.address(ONE, NEXT) == ("127.0.0.1", 1)
    assert desk.detector.address(ONE, LIFE) is None


def test_errors_as_signs() -> None:
    assert result_of(ConnectionRefusedError()) is ConnectResult.REFUSES
    assert result_of(OSError(errno.EHOSTUNREACH, "no route")) is ConnectResult.UNREACHABLE
    assert result_of(OSError(errno.ENETUNREACH, "no network")) is ConnectResult.UNREACHABLE
    assert result_of(socket.gaierror(socket.EAI_NONAME, "no name")) is ConnectResult.SILENT
    assert result_of(TimeoutError()) is ConnectResult.SILENT
    assert _weakest([ConnectResult.REFUSES, ConnectResult.REFUSES]) is ConnectResult.REFUSES
    assert _weakest([ConnectResult.REFUSES, ConnectResult.UNREACHABLE]) is ConnectResult.UNREACHABLE
    assert _weakest([ConnectResult.REFUSES, ConnectResult.SILENT]) is ConnectResult.SILENT
    assert _weakest([]) is ConnectResult.SILENT
