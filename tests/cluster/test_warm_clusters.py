"""A cluster that was started ahead goes to the test that asks for it, with the error of its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.deploy.process import DeployError
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from tests.support.warm_clusters import WarmClusters, end

from .tools import ClusterView


def test_a_spare_is_handed_out_once_and_only_for_its_arguments(
    tmp_path: Path, zookeeper: ZooKeeper | ExistingZooKeeper
) -> None:
    folders = [tmp_path / name for name in ("spare", "other", "again")]
    made = iter(folders)
    warm = WarmClusters(lambda _: next(made), zookeeper.connect)
    one = {"brokers": 1}
    warm.prepare(one)
    warm.prepare(one)
    other, _ = warm.make({"brokers": 2})
    cluster, finish_start = warm.make(one)
    again, _ = warm.make(one)
    try:
        assert [found.directory for found in (cluster, other, again)] == folders
        finish_start()
        assert ClusterView(cluster).live_brokers() == {1}
        assert not other.is_running
    finally:
        for found in (cluster, other, again):
            end(found)


def test_a_failed_start_raises_in_the_test_that_takes_the_cluster(
    tmp_path: Path, zookeeper: ZooKeeper | ExistingZooKeeper
) -> None:
    warm = WarmClusters(lambda _: tmp_path, zookeeper.connect)
    arguments = {"brokers": 1, "command": lambda _: ["/bin/false"]}
    warm.prepare(arguments)
    cluster, finish_start = warm.make(arguments)
    with pytest.raises(DeployError, match="broker 1"):
        finish_start()
    end(cluster)


def test_a_spare_that_nobody_takes_is_ended(tmp_path: Path, zookeeper: ZooKeeper | ExistingZooKeeper) -> None:
    warm = WarmClusters(lambda _: tmp_path, zookeeper.connect)
    warm.prepare({"brokers": 1})
    warm.close()
    cluster, _ = warm.make({"brokers": 1})
    assert not cluster.is_running
    end(cluster)
