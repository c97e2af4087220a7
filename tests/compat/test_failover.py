"""A leader is killed, and another shut down, under the load of every client at once: nothing may be lost."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from barnabas.deploy.local import LocalCluster
from benchmarks.kafka_failover import FailoverRun, controller_of, leader_of_most

from ..cluster.tools import KILLED
from . import table
from .clients import CLIENTS, Unavailable
from .conftest import EXTERNAL

PARTITIONS = 6
ROW = "kill -9 and shutdown of leaders: nothing lost, no error"


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(EXTERNAL), reason="kills brokers, and COMPAT_BOOTSTRAP names others' ones")
def test_every_client_writes_through_the_death_and_the_shutdown_of_leaders(
    start_cluster: object, tmp_path: Path
) -> None:
    cluster: LocalCluster = start_cluster(settings=KILLED)
    with ExitStack() as stack:
        runs: list[FailoverRun] = []
        for name, client in CLIENTS.items():
            try:
                driver = stack.enter_context(client.start())
            except Unavailable:
                continue
            topic = f"load-{name.replace(' ', '-')}"
            runs.append(FailoverRun(cluster, driver, topic, PARTITIONS, interval_ms=100))
        for run in runs:
            run.start()
        watched = [run for run in runs if run.is_told]
        for fault in (cluster.kill, cluster.stop_broker):
            victim = leader_of_most(cluster, runs[0].topic, PARTITIONS)
            fault(victim)
            for run in watched:
                run.driver.ask("load_mark")
            for run in watched:
                run.wait_acknowledged(range(PARTITIONS))
            cluster.start_broker(victim)
            for run in runs:
                leader_of_most(cluster, run.topic, PARTITIONS)
        assert controller_of(cluster) > 0
        for run in runs:
            outcome = run.finish(tmp_path)
            assert outcome.acknowledged > 0, outcome.summary()
            assert outcome.lost == 0, outcome.summary()
            assert outcome.failed == 0, (outcome.summary(), outcome.errors)
            table.check(table.FEATURES, ROW, outcome.client, "yes")
