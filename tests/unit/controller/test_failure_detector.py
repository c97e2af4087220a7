"""The evidence that declares a broker dead, and the time that it takes."""

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
EPOCH, NEXT = BrokerEpoch(7), BrokerEpoch(8)


class Rig:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.elsewhere: set[BrokerEpoch] = set()
        self.detector = FailureDetector(lambda: self.now_s, lambda broker, epoch: epoch in self.elsewhere)

    def attempt(self, result: ConnectResult, epoch: BrokerEpoch = EPOCH) -> bool:
        return self.detector.attempted(ONE, epoch, result)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_refusal_counts_only_after_a_connection_to_this_registration(rig: Rig) -> None:
    assert not rig.attempt(ConnectResult.REFUSES)
    rig.detector.connected(ONE, EPOCH)
    assert rig.attempt(ConnectResult.REFUSES)
    assert rig.detector.is_dead(ONE, EPOCH)
    assert not rig.attempt(ConnectResult.REFUSES, NEXT)
    assert not rig.detector.is_dead(ONE, EPOCH)
    # A connection of another part of this process counts.
    rig.elsewhere.add(NEXT)
    assert rig.attempt(ConnectResult.REFUSES, NEXT)


@pytest.mark.parametrize(
    ("result", "needed_s"), [(ConnectResult.UNREACHABLE, UNREACHABLE_S), (ConnectResult.VANISHED, VANISHED_S)]
)
def test_a_host_that_is_gone_counts_after_a_while_and_at_least_two_attempts(
    rig: Rig, result: ConnectResult, needed_s: float
) -> None:
    """An attempt without an answer takes long itself; but this process may have been paused in one."""
    rig.detector.connected(ONE, EPOCH)
    began_s = rig.now_s
    rig.now_s += needed_s
    assert not rig.detector.attempted(ONE, EPOCH, result, began_s)
    # A timeout is no evidence, and restarts the time.
    assert not rig.attempt(ConnectResult.SILENT)
    began_s = rig.now_s
    rig.now_s += needed_s - 0.1
    assert not rig.detector.attempted(ONE, EPOCH, result, began_s)
    assert not rig.attempt(result)
    rig.now_s += 0.1
    assert rig.attempt(result)


def test_each_error_lengthens_the_time_and_after_a_few_only_the_session_decides(
    rig: Rig,
) -> None:
    """Otherwise two brokers that refuse each other would depose each other again and again."""
    rig.detector.connected(ONE, EPOCH)
    waited = []
    for _ in range(MOST_ERRORS):
        began_s = rig.now_s
        while not rig.attempt(ConnectResult.REFUSES):
            rig.now_s += 1.0
        waited.append(rig.now_s - began_s)
        rig.detector.proved_alive(ONE, EPOCH)
    assert waited == [0.0, *(FIRST_HOLD_S * 2**n for n in range(MOST_ERRORS - 1))]
    assert not rig.attempt(ConnectResult.REFUSES)
    rig.now_s += 1e9
    assert not rig.attempt(ConnectResult.REFUSES)
    # The next registration starts without errors.
    rig.detector.connected(ONE, NEXT)
    assert rig.attempt(ConnectResult.REFUSES, NEXT)


def test_a_declaration_is_dropped_some_time_after_the_last_evidence(rig: Rig) -> None:
    """It may have been an error that was not noticed."""
    rig.detector.connected(ONE, EPOCH)
    assert rig.attempt(ConnectResult.REFUSES)
    assert rig.attempt(ConnectResult.SILENT)
    rig.now_s += FRESH_S
    assert rig.attempt(ConnectResult.UNREACHABLE)
    rig.now_s += FRESH_S
    assert rig.detector.is_dead(ONE, EPOCH)
    rig.now_s += 1.0
    assert not rig.detector.is_dead(ONE, EPOCH)
    assert not rig.attempt(ConnectResult.ANSWERS)
    assert not rig.attempt(ConnectResult.UNREACHABLE)
    assert rig.attempt(ConnectResult.REFUSES)


def test_evidence_about_an_earlier_registration_changes_nothing(rig: Rig) -> None:
    rig.detector.connected(ONE, NEXT, ("127.0.0.1", 1))
    rig.detector.connected(ONE, EPOCH, ("127.0.0.1", 2))
    assert not rig.attempt(ConnectResult.REFUSES, EPOCH)
    assert not rig.detector.is_dead(ONE, NEXT)
    assert rig.detector.address(ONE, NEXT) == ("127.0.0.1", 1)
    assert rig.detector.address(ONE, EPOCH) is None


def test_the_evidence_of_errors() -> None:
    assert result_of(ConnectionRefusedError()) is ConnectResult.REFUSES
    assert result_of(OSError(errno.EHOSTUNREACH, "no route")) is ConnectResult.UNREACHABLE
    assert result_of(OSError(errno.ENETUNREACH, "no network")) is ConnectResult.UNREACHABLE
    assert result_of(socket.gaierror(socket.EAI_NONAME, "no name")) is ConnectResult.SILENT
    assert result_of(TimeoutError()) is ConnectResult.SILENT
    assert _weakest([ConnectResult.REFUSES, ConnectResult.REFUSES]) is ConnectResult.REFUSES
    assert _weakest([ConnectResult.REFUSES, ConnectResult.UNREACHABLE]) is ConnectResult.UNREACHABLE
    assert _weakest([ConnectResult.REFUSES, ConnectResult.SILENT]) is ConnectResult.SILENT
    assert _weakest([]) is ConnectResult.SILENT
