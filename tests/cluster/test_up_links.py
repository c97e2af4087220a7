"""A cluster with links: another process cuts and mends them, and a broker restarts while they are broken."""

from __future__ import annotations

from pathlib import Path

from barnabas.deploy.faults import Aim, inject
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.deploy.state import ZOOKEEPER
from tests.support.waiting import wait_for

from .tools import ClusterView, StartCluster


def test_links_are_cut_and_mended_by_another_program(start_cluster: StartCluster, tmp_path: Path) -> None:
    settings = {"zookeeper.session.timeout.ms": "2000", "replica.lag.time.max.ms": "2000"}
    cluster = start_cluster(directory=tmp_path / "c", links=True, own_zookeeper=True, settings=settings)
    view = ClusterView(cluster)
    view.create_topic("t", 1, 3)
    leader = view.leader("t")
    # As another program sees it.
    opened = RunningCluster.open(cluster.directory)
    inject(opened, "sever", Aim(target=str(leader), other=ZOOKEEPER))
    wait_for(lambda: view.leader("t") != leader, "a broker without ZooKeeper leads on")
    inject(opened, "mend", Aim(target=str(leader), other=ZOOKEEPER))
    view.wait_isr("t", 3)
    # Not the leader of this moment, since the preferred replica may lead again.
    other = next(id for id in cluster.broker_ids if id != leader)
    inject(opened, "sever", Aim(target=str(leader), other=str(other)))
    # It need not see the other one to be started.
    cluster.restart(leader)
    assert cluster.broker(leader).is_alive
    inject(opened, "mend-all", Aim())
    view.wait_isr("t", 3)
