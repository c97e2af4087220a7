"""Which brokers are declared dead: by which signs, after which time, and never each other for ever."""

from __future__ import annotations

import errno
import socket

import pytest

from barnabas.controller.peer_lives import (
    FIRST_HOLD_S,
    FRESH_S,
    MOST_ERRORS,
    UNREACHABLE_S,
    VANISHED_S,
    PeerLives,
    Sign,
    of_all_addresses,
    sign_of,
)
from barnabas.protocol.ids import BrokerEpoch, BrokerId

ONE = BrokerId(1)
LIFE, NEXT = BrokerEpoch(7), BrokerEpoch(8)


class Desk:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.elsewhere: set[BrokerEpoch] = set()
        self.lives = PeerLives(lambda: self.now_s, lambda broker, epoch: epoch in self.elsewhere)

    def seen(self, sign: Sign, life: BrokerEpoch = LIFE) -> bool:
        return self.lives.seen(ONE, life, sign)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_refusal_counts_only_after_a_connection_to_this_very_life(desk: Desk) -> None:
    assert not desk.seen(Sign.REFUSES)
    desk.lives.reached(ONE, LIFE)
    assert desk.seen(Sign.REFUSES)
    assert desk.lives.is_dead(ONE, LIFE)
    assert not desk.seen(Sign.REFUSES, NEXT)
    assert not desk.lives.is_dead(ONE, LIFE)


def test_a_connection_of_another_part_of_this_process_counts_too(desk: Desk) -> None:
    desk.elsewhere.add(LIFE)
    assert desk.seen(Sign.REFUSES)


@pytest.mark.parametrize(
    ("sign", "needed_s"), [(Sign.UNREACHABLE, UNREACHABLE_S), (Sign.VANISHED, VANISHED_S)]
)
def test_a_host_that_is_gone_counts_after_a_while(desk: Desk, sign: Sign, needed_s: float) -> None:
    desk.lives.reached(ONE, LIFE)
    assert not desk.seen(sign)
    desk.now_s += needed_s - 0.1
    assert not desk.seen(sign)
    desk.now_s += 0.1
    assert desk.seen(sign)


@pytest.mark.parametrize(
    ("sign", "needed_s"), [(Sign.UNREACHABLE, UNREACHABLE_S), (Sign.VANISHED, VANISHED_S)]
)
def test_the_time_runs_from_the_first_of_at_least_two_attempts(
    desk: Desk, sign: Sign, needed_s: float
) -> None:
    """An attempt without an answer takes long itself; but this process may have been paused in one."""
    desk.lives.reached(ONE, LIFE)
    began_s = desk.now_s
    desk.now_s += needed_s
    assert not desk.lives.seen(ONE, LIFE, sign, began_s)
    desk.now_s += 0.1
    assert desk.lives.seen(ONE, LIFE, sign, desk.now_s)


def test_a_timeout_is_no_sign_and_restarts_the_time(desk: Desk) -> None:
    desk.lives.reached(ONE, LIFE)
    assert not desk.seen(Sign.UNREACHABLE)
    desk.now_s += UNREACHABLE_S
    assert not desk.seen(Sign.SILENT)
    assert not desk.seen(Sign.UNREACHABLE)
    desk.now_s += 3_600.0
    assert not desk.seen(Sign.SILENT)


def test_each_error_lengthens_the_time_and_after_a_few_only_the_session_decides(
    desk: Desk,
) -> None:
    """Otherwise two brokers that refuse each other would depose each other for ever."""
    desk.lives.reached(ONE, LIFE)
    waited = []
    for _ in range(MOST_ERRORS):
        began_s = desk.now_s
        while not desk.seen(Sign.REFUSES):
            desk.now_s += 1.0
        waited.append(desk.now_s - began_s)
        desk.lives.acted(ONE, LIFE)
    assert waited == [0.0, *(FIRST_HOLD_S * 2**n for n in range(MOST_ERRORS - 1))]
    assert not desk.seen(Sign.REFUSES)
    desk.now_s += 1e9
    assert not desk.seen(Sign.REFUSES)
    # The next registration starts without errors.
    desk.lives.reached(ONE, NEXT)
    assert desk.seen(Sign.REFUSES, NEXT)


def test_a_declaration_is_dropped_some_time_after_its_last_sign(desk: Desk) -> None:
    """It may have been an error that was not noticed."""
    desk.lives.reached(ONE, LIFE)
    assert desk.seen(Sign.REFUSES)
    desk.now_s += FRESH_S
    assert desk.seen(Sign.UNREACHABLE)
    desk.now_s += FRESH_S
    assert desk.lives.is_dead(ONE, LIFE)
    desk.now_s += 1.0
    assert not desk.lives.is_dead(ONE, LIFE)
    assert not desk.seen(Sign.ANSWERS)
    assert not desk.seen(Sign.UNREACHABLE)
    assert desk.seen(Sign.REFUSES)


def test_signs_of_an_earlier_life_change_nothing(desk: Desk) -> None:
    desk.lives.reached(ONE, NEXT, ("127.0.0.1", 1))
    desk.lives.reached(ONE, LIFE, ("127.0.0.1", 2))
    assert not desk.seen(Sign.REFUSES, LIFE)
    assert not desk.lives.is_dead(ONE, NEXT)
    assert desk.lives.address(ONE, NEXT) == ("127.0.0.1", 1)
    assert desk.lives.address(ONE, LIFE) is None


def test_errors_as_signs() -> None:
    assert sign_of(ConnectionRefusedError()) is Sign.REFUSES
    assert sign_of(OSError(errno.EHOSTUNREACH, "no route")) is Sign.UNREACHABLE
    assert sign_of(OSError(errno.ENETUNREACH, "no network")) is Sign.UNREACHABLE
    assert sign_of(socket.gaierror(socket.EAI_NONAME, "no name")) is Sign.SILENT
    assert sign_of(TimeoutError()) is Sign.SILENT
    assert of_all_addresses([Sign.REFUSES, Sign.REFUSES]) is Sign.REFUSES
    assert of_all_addresses([Sign.REFUSES, Sign.UNREACHABLE]) is Sign.UNREACHABLE
    assert of_all_addresses([Sign.REFUSES, Sign.SILENT]) is Sign.SILENT
    assert of_all_addresses([]) is Sign.SILENT
