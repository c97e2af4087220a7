"""Everything here starts real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from barnabas.zookeeper.store import ClusterStore
from tests.support.names import fresh_name

from .tools import SESSION_TIMEOUT_MS, UNHARMED, OpenStore, running

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="module")
def shared_cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper | ExistingZooKeeper
) -> Iterator[LocalCluster]:
    """Three brokers for all tests of a module that harm no broker."""
    cluster = LocalCluster(
        tmp_path_factory.mktemp("cluster"),
        zookeeper=fresh_name(f"{zookeeper.connect}/shared"),
        settings=UNHARMED,
    )
    with running(cluster):
        yield cluster


@pytest.fixture
def fatal() -> Iterator[list[BaseException]]:
    """The errors that were reported as fatal; the test fails if there are any."""
    seen: list[BaseException] = []
    yield seen
    assert seen == []


@pytest.fixture
def open_store(zookeeper_connect: str, fatal: list[BaseException]) -> Iterator[OpenStore]:
    stores: list[ClusterStore] = []

    def open_one(connect: str = zookeeper_connect, **arguments: object) -> ClusterStore:
        arguments.setdefault("session_timeout_ms", SESSION_TIMEOUT_MS)
        store = ClusterStore(connect, connection_timeout_ms=20_000, on_fatal=fatal.append, **arguments)
        stores.append(store)
        store.start()
        return store

    yield open_one
    for store in stores:
        store.session.close()
