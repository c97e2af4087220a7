"""Which of the unknown connections gives way to a new one."""

from barnabas.broker.network.unauthenticated import Unauthenticated


def test_the_one_that_is_silent_longest_of_the_address_with_most() -> None:
    pending = Unauthenticated[str](4)
    for name, host in (("a1", "a"), ("b1", "b"), ("b2", "b"), ("b3", "b")):
        assert pending.add(name, host) is None
    assert pending.add("c1", "c") == "b1"
    assert pending.add("c2", "c") == "b2"
    pending.wait("a1")
    assert len(pending) == 4
    assert pending.add("c3", "c") == "c1"


def test_one_that_waits_for_the_broker_stays() -> None:
    pending = Unauthenticated[str](2)
    pending.add("old", "a")
    pending.add("young", "a")
    pending.serve("old")
    assert pending.add("next", "a") == "young"
    pending.serve("next")
    assert pending.add("refused", "a") == "refused"
    pending.wait("old")
    assert pending.add("late", "a") == "old"
    assert len(pending) == 2


def test_one_that_has_answered_waits_from_then_on() -> None:
    pending = Unauthenticated[str](2)
    pending.add("first", "a")
    pending.add("second", "a")
    pending.serve("first")
    pending.wait("first")
    assert pending.add("third", "a") == "second"


def test_bytes_that_do_not_advance_the_exchange_do_not_help() -> None:
    pending = Unauthenticated[str](2)
    pending.add("trickles", "a")
    pending.add("silent", "a")
    pending.serve("trickles")
    pending.wait("trickles", has_advanced=False)
    assert pending.add("next", "a") == "trickles"


def test_another_address_gives_way_if_all_of_the_largest_wait_for_the_broker() -> None:
    pending = Unauthenticated[str](3)
    for name, host in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        pending.add(name, host)
    pending.serve("a1")
    pending.serve("a2")
    assert pending.add("next", "a") == "b1"


def test_a_flood_that_waits_for_the_broker_gives_way_to_other_addresses() -> None:
    """It sends real handshakes faster than the broker answers them."""
    pending = Unauthenticated[str](6)
    for name in ("a1", "a2", "a3", "a4", "a5"):
        pending.add(name, "a")
        pending.serve(name)
    assert pending.add("b1", "b") is None
    assert pending.add("a6", "a") == "a6", "it does not displace another address"
    assert pending.add("c1", "c") == "a5"
    pending.wait("a2")
    assert pending.add("b2", "b") == "a2", "one that does not wait for the broker comes first"
    pending.serve("b1")
    pending.serve("c1")
    pending.serve("b2")
    assert pending.add("b3", "b") == "b3", "as many as of any other address"


def test_a_known_or_lost_one_makes_room_and_is_forgotten() -> None:
    pending = Unauthenticated[str](1)
    pending.add("known", "a")
    pending.remove("known")
    pending.remove("known")
    pending.wait("known")
    pending.serve("known")
    assert pending.add("next", "a") is None
    pending.remove("next")
    assert (len(pending), pending._silent, pending._counts) == (0, {}, {}), "addresses would fill the memory"
