"""The finalised features: written by compare-and-set, and followed by every broker."""

import logging
from collections.abc import Mapping
from contextlib import suppress

import pytest

from barnabas.protocol.errors import ApiError, ErrorCode
from barnabas.protocol.ids import BrokerId
from barnabas.zookeeper import paths
from barnabas.zookeeper.errors import ZooKeeperUnavailable
from barnabas.zookeeper.features import (
    FeatureChanges,
    Levels,
    Registrations,
    UnsupportedFeatureLevel,
)
from barnabas.zookeeper.store import ClusterStore
from barnabas.zookeeper.znodes import FinalizedFeatures, LevelRange, encode_cluster_id
from tests.support.building import fatal
from tests.support.controller_fakes import NoThreads, Znodes
from tests.support.store_contract import ONE, registration

NAME = "transaction.version"
CREATION = 3
"""The requests that the first broker of a cluster makes before it creates the znode."""
AT_2 = b'{"version":2,"status":1,"features":{"transaction.version":{"max_version_level":2}}}'


@pytest.fixture
def znodes() -> Znodes:
    return Znodes()


@pytest.fixture
def store(znodes: Znodes) -> ClusterStore:
    return znodes.open_store()


def following(store: ClusterStore, highest: int = 2) -> FeatureChanges:
    return FeatureChanges(store.features, supported={NAME: LevelRange(0, highest)}, on_fatal=fatal)


def put(znodes: Znodes, data: bytes) -> None:
    znodes.put(paths.FEATURES, data)


# The first levels


@pytest.mark.parametrize("is_last_done", [False, True])
@pytest.mark.parametrize("requests", range(CREATION + 2))
def test_a_cluster_gets_its_levels_although_its_first_broker_dies(requests: int, is_last_done: bool) -> None:
    """At any request of the start, whose outcome is lost; the second broker finds what the first has made."""
    znodes = Znodes()
    threads = NoThreads()
    dying = znodes.open_store(threads)
    assert threads.client is not None
    threads.client.break_after(requests, is_last_done=is_last_done, waits_away=1_000)
    with suppress(ZooKeeperUnavailable):
        dying.cluster_id({NAME: 2})
    next_one = znodes.open_store()
    next_one.cluster_id({NAME: 2})
    assert next_one.features.read() == FinalizedFeatures({NAME: 2}, 0)


@pytest.mark.parametrize("requests", range(CREATION + 2))
def test_brokers_that_start_together_create_one_cluster(znodes: Znodes, requests: int) -> None:
    threads = NoThreads()
    store, other = znodes.open_store(threads), znodes.open_store()
    ids: list[str] = []
    assert threads.client is not None
    threads.client.interrupt_after(requests, lambda: ids.append(other.cluster_id({NAME: 1})))
    ids.append(store.cluster_id({NAME: 2}))
    assert (len(ids), len(set(ids))) == (2, 1)
    level = 1 if requests <= CREATION else 2
    assert store.features.read() == FinalizedFeatures({NAME: level}, 0)


def test_a_cluster_that_is_older_than_features_has_no_levels(znodes: Znodes, store: ClusterStore) -> None:
    """It has an id, and perhaps no topic yet."""
    znodes.put(paths.CLUSTER_ID, encode_cluster_id("older"))
    store.cluster_id({NAME: 2})
    assert store.features.read() == FinalizedFeatures()
    assert store.features.read().levels.get(NAME, 0) == 0


def test_a_deleted_cluster_id_changes_no_level(znodes: Znodes, store: ClusterStore) -> None:
    znodes.put(paths.topic("t"), b"{}")
    store.cluster_id({NAME: 2})
    assert store.features.read() == FinalizedFeatures()
    store.features.change(lambda _, __: {NAME: 1})
    for path in (paths.topic("t"), paths.CLUSTER_ID):
        znodes.server.delete_all(path)
    store.cluster_id({NAME: 2})
    assert store.features.read() == FinalizedFeatures({NAME: 1}, 0)


# Changes


def test_a_change_is_made_of_the_present_levels(store: ClusterStore) -> None:
    assert store.features.change(lambda levels, _: {NAME: 1}) == FinalizedFeatures({NAME: 1}, 0)
    assert store.features.change(lambda levels, _: {**levels, "other": 1}) == FinalizedFeatures(
        {NAME: 1, "other": 1}, 1
    )
    # A change to the present levels is no change.
    assert store.features.change(lambda levels, _: levels).epoch == 1
    assert store.features.change(lambda levels, _: {NAME: 0}) == FinalizedFeatures({}, 2)
    assert store.features.read() == FinalizedFeatures({}, 2)


def test_two_changes_at_the_same_time_are_both_made(znodes: Znodes, store: ClusterStore) -> None:
    other = znodes.open_store()
    rounds: list[Levels] = []

    def edit(levels: Levels, _: Registrations) -> Levels:
        rounds.append(levels)
        if len(rounds) == 1:
            other.features.change(lambda levels, _: {**levels, "other": 1})
        return {**levels, NAME: 1}

    assert store.features.change(edit).levels == {NAME: 1, "other": 1}
    assert rounds == [{}, {"other": 1}]


def test_a_broker_that_registers_meanwhile_is_seen_by_the_check(znodes: Znodes, store: ClusterStore) -> None:
    rounds: list[set[BrokerId]] = []

    def edit(levels: Levels, registrations: Registrations) -> Levels:
        rounds.append(set(registrations))
        if len(rounds) == 1:
            znodes.open_store().register_broker(registration(ONE))
        return {NAME: 1}

    store.features.change(edit)
    assert rounds == [set(), {ONE}]


@pytest.mark.parametrize("former", [None, b'{"version":2,"status":1,"features":{}}'])
@pytest.mark.parametrize("requests", range(6))
def test_a_change_whose_answer_was_lost_is_made_once(
    znodes: Znodes, former: bytes | None, requests: int
) -> None:
    if former is not None:
        put(znodes, former)
    threads = NoThreads()
    store = znodes.open_store(threads)
    assert threads.client is not None
    threads.client.break_after(requests, is_last_done=True)
    epoch = 0 if former is None else 1
    assert store.features.change(lambda levels, _: {NAME: 2}) == FinalizedFeatures({NAME: 2}, epoch)
    assert znodes.server.data(paths.FEATURES) == AT_2


def test_a_malformed_node_is_not_overwritten(znodes: Znodes, store: ClusterStore) -> None:
    put(znodes, b"garbage")
    with pytest.raises(ApiError, match="/feature holds b'garbage'") as caught:
        store.features.change(lambda levels, _: {NAME: 2})
    assert caught.value.code is ErrorCode.FEATURE_UPDATE_FAILED
    assert znodes.server.data(paths.FEATURES) == b"garbage"


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ({NAME: 3}, "uses the feature transaction.version at level 3; this broker supports levels 0 to 2"),
        ({"share.version": 1}, "uses the feature share.version at level 1; this broker does not have it"),
    ],
)
def test_a_level_that_a_broker_lacks_refuses_its_start(
    store: ClusterStore, levels: Mapping[str, int], said: str
) -> None:
    store.features.change(lambda _, __: levels)
    with pytest.raises(UnsupportedFeatureLevel, match=f"{said}; start a version that supports it"):
        following(store).load()


def test_a_malformed_node_at_the_start_means_no_levels(
    znodes: Znodes, store: ClusterStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(znodes, b"{")
    features = following(store)
    features.load()
    assert features.current == FinalizedFeatures()
    assert "no feature is finalized until this is repaired: /feature holds b'{'" in caplog.text
    put(znodes, AT_2)
    features.refresh()
    assert features.current == FinalizedFeatures({NAME: 2}, 1)


@pytest.mark.parametrize("data", [b"{", AT_2.replace(b":2}", b":3}")])
def test_the_former_levels_stay_while_the_node_is_of_no_use(
    znodes: Znodes, store: ClusterStore, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    put(znodes, AT_2)
    features = following(store)
    features.load()
    put(znodes, data)
    features.refresh()
    assert features.current == FinalizedFeatures({NAME: 2}, 0)
    assert "keeping the features that were read before" in caplog.text


def test_a_deleted_node_ends_the_features(
    znodes: Znodes, store: ClusterStore, caplog: pytest.LogCaptureFixture
) -> None:
    put(znodes, AT_2)
    features = following(store)
    features.load()
    znodes.server.delete_all(paths.FEATURES)
    with caplog.at_level(logging.ERROR):
        features.refresh()
    assert features.current == FinalizedFeatures()
    assert "/feature was deleted" in caplog.text
