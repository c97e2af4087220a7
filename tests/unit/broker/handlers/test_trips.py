"""The ways of the hot requests through the code do not become longer: see `tests.support.trips`."""

from pathlib import Path

import pytest

from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.session import Session
from barnabas.common.security.acl import AclEntry, Operation, Permission, ResourcePattern, ResourceType
from barnabas.common.security.principal import ANONYMOUS
from barnabas.protocol.errors import ErrorCode
from tests.support.building import state
from tests.support.record_requests import produce_request, produced
from tests.support.serving import Connection, Serving, batch
from tests.support.trips import TRIPS, trip_of, warm_trip

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


def test_acls_make_the_way_of_a_produce_request_two_calls_longer(tmp_path: Path) -> None:
    """A client that produces to a topic again asks what its session remembers."""
    authorizer = Authorizer()
    writes = AclEntry(ANONYMOUS, "*", Operation.WRITE, Permission.ALLOW)
    authorizer.replace({ResourcePattern(ResourceType.TOPIC, "topic"): [writes]})
    calls = []
    for each in (None, authorizer):
        folder = tmp_path / str(len(calls))
        folder.mkdir()
        serving, session = Serving(folder, authorizer=each), Session("127.0.0.1")
        serving.managed.know({1: 0, 2: 5, 3: 5})
        serving.managed.tell(state())
        for _ in range(3):
            request = produce_request(batch(b"one"), acks=1)
            connection = Connection.of(request, version=9, session=session)
            trip = trip_of(lambda: connection.run(serving.dispatch))  # noqa: B023 - called at once
            assert produced(connection).error_code == ErrorCode.NONE
        calls.append(len(trip.calls))
        serving.close()
    assert calls[1] <= calls[0] + 2
