"""Everything here starts real processes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.deploy.local import LocalCluster
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper

from .tools import running

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="module")
def shared_cluster(
    tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper | ExistingZooKeeper
) -> Iterator[LocalCluster]:
    """Three brokers for all tests of a module, none of which harms them."""
    cluster = LocalCluster(
        tmp_path_factory.mktemp("cluster"),
        zookeeper=f"{zookeeper.connect}/shared-{uuid.uuid4().hex[:12]}",
        # No broker dies here, and none is to be taken for dead because the machine is busy.
        settings={"zookeeper.session.timeout.ms": "30000"},
    )
    with running(cluster):
        yield cluster
