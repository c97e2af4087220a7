"""The pauses after failed authentications of an address."""

import pytest

from barnabas.broker.base.purgatory import Purgatory, Reaper
from barnabas.broker.security.authentication_outcomes import (
    MAX_ADDRESSES,
    MAX_PAUSE_MS,
    AuthenticationOutcomes,
    FailurePauses,
)
from barnabas.broker.security.session import Session
from tests.support.building import fatal


def test_the_pause_grows_after_a_few_failures_up_to_a_bound() -> None:
    pauses = FailurePauses(100)
    assert [pauses.failed("host", 0) for _ in range(15)] == [
        *[100] * 8,
        200,
        400,
        800,
        1600,
        3200,
        MAX_PAUSE_MS,
        MAX_PAUSE_MS,
    ]
    assert pauses.failed("another host", 0) == 100


def test_failures_are_forgotten_with_time() -> None:
    pauses = FailurePauses(100)
    for _ in range(12):
        pauses.failed("host", 0)
    # Six of twelve are left, then one.
    assert pauses.failed("host", 10_000) == 100
    for _ in range(3):
        pauses.failed("host", 10_000)
    assert pauses.failed("host", 10_000) == 800
    assert pauses.failed("host", 100_000) == 100


def test_the_setting_is_the_least_pause_and_switches_it_off() -> None:
    assert [FailurePauses(0).failed("host", 0) for _ in range(20)] == [0] * 20
    long = FailurePauses(MAX_PAUSE_MS * 2)
    assert [long.failed("host", 0) for _ in range(20)] == [MAX_PAUSE_MS * 2] * 20


def test_the_table_of_addresses_is_bounded_and_keeps_the_latest() -> None:
    pauses = FailurePauses(100)
    for number in range(MAX_ADDRESSES + 10):
        pauses.failed(f"host-{number}", number)
        if number % 100 == 0:
            pauses.failed("guesser", number)
    assert len(pauses) == MAX_ADDRESSES
    assert pauses.failed("guesser", MAX_ADDRESSES) > 100


def test_the_end_waits_for_the_pause_and_not_if_the_peer_has_gone(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 0.0
    reaper = Reaper(on_fatal=fatal, clock_ms=lambda: now_ms)
    failed = AuthenticationOutcomes(100, Purgatory("authentication", reaper), now_ms=lambda: now_ms)
    ended: list[str] = []
    told: list[str] = []
    session = Session("192.0.2.1")
    session.on_failed = lambda: told.append("refused")
    caplog.set_level("INFO")
    failed.failed(session, "a", "because", lambda: ended.append("a"))
    cancel = failed.failed(session, "b", "because", lambda: ended.append("b"))
    failed.failed(Session("192.0.2.2"), "c", "because", lambda: ended.append("c"))
    assert told == ["refused", "refused"]
    reaper.expire_due(99)
    assert ended == []
    cancel()
    reaper.expire_due(100)
    assert ended == ["a", "c"]
    assert failed.failures == 3
    failed.failed(session, "d", "a name\nof lines", lambda: ended.append("d"))
    failed.shut_down()
    assert ended == ["a", "c", "d"]
    failed.failed(session, "e", "because", lambda: ended.append("e"))
    assert ended == ["a", "c", "d", "e"]
    assert "shut down" not in caplog.text, "a stop is nothing to warn of"
    # One line in ten seconds for an address and a reason.
    said = [message.partition(" (0 more")[0] for message in caplog.messages]
    assert [message for message in said if message.startswith("Failed")] == [
        "Failed authentication with /192.0.2.1 (channelId=a) (because)",
        "Failed authentication with /192.0.2.2 (channelId=c) (because)",
        "Failed authentication with /192.0.2.1 (channelId=d) (a name?of lines)",
    ]
