"""The ways of the hot requests through the code do not become longer: see `tests.support.trips`."""

from functools import partial
from pathlib import Path
from statistics import mode

import pytest

from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.session import Session
from barnabas.common.security.acl import AclEntry, Operation, Permission, ResourcePattern, ResourceType
from barnabas.common.security.principal import ANONYMOUS
from barnabas.protocol.errors import ErrorCode
from tests.support.building import state
from tests.support.compiled import PURE_PYTHON_ONLY
from tests.support.record_requests import fetch_request, fetched, produce_request, produced
from tests.support.serving import Connection, Serving, batch
from tests.support.trips import TRIPS, trip_of, warm_trip, without_collections

pytestmark = PURE_PYTHON_ONLY

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


@pytest.mark.parametrize("is_super_user", [False, True])
def test_acls_make_the_ways_of_records_two_calls_longer(tmp_path: Path, is_super_user: bool) -> None:
    """A client that uses a topic again asks for decisions that its session remembers."""
    authorizer = Authorizer(super_users=[ANONYMOUS] if is_super_user else [])
    entries = [
        AclEntry(ANONYMOUS, "*", operation, Permission.ALLOW)
        for operation in (Operation.READ, Operation.WRITE)
    ]
    authorizer.replace({ResourcePattern(ResourceType.TOPIC, "topic"): entries})
    calls = []
    for each in (None, authorizer):
        folder = tmp_path / str(len(calls))
        folder.mkdir()
        serving, session = Serving(folder, authorizer=each), Session("127.0.0.1")
        serving.managed.know({1: 0, 2: 5, 3: 5})
        serving.managed.tell(state())
        produces, fetches = [], []
        with without_collections():
            for _ in range(5):
                produce = Connection.of(produce_request(batch(b"one"), acks=1), version=9, session=session)
                produces.append(len(trip_of(partial(produce.run, serving.dispatch)).calls))
                assert produced(produce).error_code == ErrorCode.NONE
                fetch = Connection.of(fetch_request(0, version=11), version=11, session=session)
                fetches.append(len(trip_of(partial(fetch.run, serving.dispatch)).calls))
                assert fetched(fetch).error_code == ErrorCode.NONE
        # Steps that depend on the time make some trips a call longer or shorter.
        calls.append((mode(produces), mode(fetches)))
        serving.close()
    (produce_without, fetch_without), (produce_with, fetch_with) = calls
    assert produce_with <= produce_without + 2
    assert fetch_with <= fetch_without + 2
