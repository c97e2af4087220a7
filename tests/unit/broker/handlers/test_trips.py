"""The ways of the hot requests through the code do not become longer: see `tests.support.trips`."""

import pytest

from tests.support.serving import Serving
from tests.support.trips import TRIPS, warm_trip

BOUNDS = {
    "produce_acks_1": (70, 17),
    "produce_acks_all": (79, 19),
    "produce_native": (78, 19),
    "follower_fetches": (178, 83),
    "consumer_fetch": (55, 20),
}
"""Calls, and moves back into a file that the trip had left."""


@pytest.mark.parametrize("name", TRIPS)
def test_a_request_takes_no_longer_way(leading: Serving, name: str) -> None:
    trip = warm_trip(leading, TRIPS[name])
    calls, moves_back = BOUNDS[name]
    assert len(trip.calls) <= calls, trip.trace()
    assert trip.moves_back <= moves_back, trip.trace()
