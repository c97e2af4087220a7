"""Rates of new connections: of the broker, of listeners and of addresses."""

from typing import NoReturn

import pytest

from barnabas.broker.security.connection_rates import UNLIMITED, ConnectionRates, Wait
from barnabas.broker.security.rates import Windows
from barnabas.zookeeper.configs import Entity
from barnabas.zookeeper.znodes import StoredConfig

WINDOWS = Windows(11, 1_000)


@pytest.fixture
def rates() -> ConnectionRates:
    return ConnectionRates(WINDOWS)


def connect(rates: ConnectionRates, count: int, host: str = "10.0.0.1", listener: str = "PLAINTEXT") -> Wait:
    """The result of the last of some connections at the same time."""
    waits = [rates.connected(host, listener, 0, is_protected=listener == "INTERNAL") for _ in range(count)]
    return waits[-1]


def limit_address(rates: ConnectionRates, entity: Entity, rate: str | None) -> None:
    values = {} if rate is None else {"connection_creation_rate": rate}
    rates.take({entity: StoredConfig(values, 1, 1), Entity.user("10.0.0.1"): StoredConfig(values, 1, 1)})


def test_nothing_is_limited_at_first(rates: ConnectionRates) -> None:
    rates.set_limits(UNLIMITED, {"PLAINTEXT": UNLIMITED})
    assert connect(rates, 10_000) == (0, 0)


def test_above_the_rate_of_the_broker_the_listener_pauses(rates: ConnectionRates) -> None:
    rates.set_limits(5, {})
    # Fifty in ten seconds.
    assert connect(rates, 50) == (0, 0)
    assert connect(rates, 1) == (200, 0)
    assert connect(rates, 1, "10.0.0.2", "SSL") == (400, 0)
    assert connect(rates, 1_000) == (1_000, 0)
    # The brokers' own listener has no part in that.
    assert connect(rates, 1, listener="INTERNAL") == (0, 0)


def test_above_the_rate_of_a_listener_that_listener_pauses(rates: ConnectionRates) -> None:
    rates.set_limits(UNLIMITED, {"PLAINTEXT": 1, "INTERNAL": 2})
    assert connect(rates, 11).pause_ms == 1_000
    assert connect(rates, 11, listener="SSL").pause_ms == 0
    assert connect(rates, 20, listener="INTERNAL").pause_ms == 0
    assert connect(rates, 1, listener="INTERNAL").pause_ms == 500
    # Other limits are obeyed at once, and earlier connections are not forgotten.
    rates.set_limits(UNLIMITED, {"PLAINTEXT": 2})
    assert connect(rates, 1).pause_ms == 0


def test_above_the_rate_of_an_address_its_connections_are_closed_later(rates: ConnectionRates) -> None:
    limit_address(rates, Entity.ip(None), "1")
    assert connect(rates, 10) == (0, 0)
    # A refused one is not counted.
    assert connect(rates, 3) == (0, 1_000)
    assert rates.connected("10.0.0.1", "PLAINTEXT", 12_000) == (0, 0)
    assert connect(rates, 10, "10.0.0.2") == (0, 0)
    limit_address(rates, Entity.ip("10.0.0.2"), "100")
    assert connect(rates, 90, "10.0.0.2") == (0, 0)
    limit_address(rates, Entity.ip("10.0.0.2"), None)
    assert connect(rates, 1, "10.0.0.2") == (0, 1_000)
    limit_address(rates, Entity.ip(None), None)
    assert connect(rates, 1_000) == (0, 0)


def test_an_address_may_be_a_name_or_of_version_6(rates: ConnectionRates) -> None:
    limit_address(rates, Entity.ip("localhost"), "0")
    assert connect(rates, 1, "127.0.0.1") == (0, 1_000)
    limit_address(rates, Entity.ip("::2"), "0")
    assert connect(rates, 1, "::2") == (0, 1_000)
    assert connect(rates, 1, "::3") == (0, 0)


def test_a_limit_outlasts_a_failure_to_look_up_its_name(
    rates: ConnectionRates, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(host: str, *arguments: object, **options: object) -> NoReturn:
        raise OSError(f"{host} is not known")

    limit_address(rates, Entity.ip("localhost"), "0")
    monkeypatch.setattr("socket.getaddrinfo", fail)
    limit_address(rates, Entity.ip("10.0.0.1"), "1")
    limit_address(rates, Entity.ip("localhost"), "0")
    assert connect(rates, 1, "127.0.0.1") == (0, 1_000)
    monkeypatch.undo()
    # A rate that holds for no connection yet is tried again when it is set again.
    limit_address(rates, Entity.ip("10.0.0.1"), "1")
    assert connect(rates, 11, "10.0.0.1").close_after_ms > 0


@pytest.mark.parametrize("rate", ["-1", "1.5", "many"])
def test_an_unusable_rate_is_ignored(
    rates: ConnectionRates, rate: str, caplog: pytest.LogCaptureFixture
) -> None:
    limit_address(rates, Entity.ip("10.0.0.1"), rate)
    assert connect(rates, 100) == (0, 0)
    assert "is not a number of at least 0" in caplog.text
