"""Two reasons not to write, and neither ends the other."""

from __future__ import annotations

from barnabas.broker.replication.roles import Fence
from barnabas.protocol.ids import BrokerEpoch

ENDED, PRESENT = BrokerEpoch(4), BrokerEpoch(9)


def test_silence_ends_when_zookeeper_is_heard_of() -> None:
    fence = Fence()
    assert fence.reason is None
    fence.silent("nothing heard")
    assert fence.reason == "nothing heard"
    fence.confirmed(PRESENT)
    assert fence.reason == "nothing heard", "a controller cannot speak for our session"
    fence.heard()
    assert fence.reason is None


def test_a_lost_registration_ends_when_the_controller_has_spoken() -> None:
    fence = Fence()
    fence.silent("nothing heard")
    fence.registration_lost("expired", ENDED)
    fence.heard()
    assert fence.reason == "expired"
    fence.confirmed(PRESENT)
    assert fence.reason is None


def test_what_was_said_to_the_life_that_ended_comes_too_late() -> None:
    fence = Fence()
    fence.registration_lost("expired", ENDED)
    fence.confirmed(ENDED)
    assert fence.reason == "expired"


def test_it_says_once_that_it_came_down() -> None:
    fenced: list[str | None] = []
    fence = Fence(lambda: fenced.append(fence.reason))
    fence.silent("nothing heard")
    fence.registration_lost("expired", ENDED)
    fence.heard()
    assert fenced == ["nothing heard"]
    fence.confirmed(PRESENT)
    fence.registration_lost("expired again", PRESENT)
    assert fenced == ["nothing heard", "expired again"]
