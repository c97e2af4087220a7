"""Handshakes take turns with everything else on a thread."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from barnabas.broker.network import handshakes as handshakes_module
from barnabas.broker.network.handshakes import Handshakes
from barnabas.broker.network.tls_transport import TlsTransport


def test_a_turn_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [0]
    monkeypatch.setattr(handshakes_module.time, "monotonic_ns", lambda: now_ns[0])
    soon: list[Callable[[], None]] = []
    done: list[int] = []

    class Transport:
        def __init__(self, number: int) -> None:
            self.number = number

        def step(self) -> None:
            done.append(self.number)
            now_ns[0] += 2

    handshakes = Handshakes(soon.append, cast(Any, None), run_ns=3)
    for number in range(5):
        handshakes.queue(cast(TlsTransport, Transport(number)))
    turns = []
    while soon:
        before = len(done)
        soon.pop(0)()
        turns.append(done[before:])
    assert turns == [[0, 1], [2, 3], [4]]
    handshakes.queue(cast(TlsTransport, Transport(9)))
    assert len(soon) == 1
