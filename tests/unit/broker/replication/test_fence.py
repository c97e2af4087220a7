"""Two reasons not to write, and neither ends the other."""

from __future__ import annotations

from barnabas.broker.replication.fence import Fence


def test_silence_ends_when_zookeeper_is_heard_of() -> None:
    fence = Fence()
    assert fence.reason is None
    fence.silent("nothing heard")
    assert fence.reason == "nothing heard"
    fence.confirmed()
    assert fence.reason == "nothing heard", "a controller cannot speak for our session"
    fence.heard()
    assert fence.reason is None


def test_a_lost_registration_ends_when_the_controller_has_spoken() -> None:
    fence = Fence()
    fence.silent("nothing heard")
    fence.registration_lost("expired")
    fence.heard()
    assert fence.reason == "expired"
    fence.confirmed()
    assert fence.reason is None
