"""A cluster under load and random faults keeps every record that it has acknowledged.

So does a cluster that is rolled, drained, rebalanced and grown meanwhile. `runs` says how long, and with
which seed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from barnabas.broker.config.settings import RACK_AWARE_SELECTOR
from barnabas.chaos.load import Load, stop_and_judge
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.state import SecurityConfiguration

from ..cluster.tools import ClusterView, StartCluster, client_settings_of
from .linked_cluster import LinkedCluster
from .nemesis import Nemesis
from .operated_nemesis import OperatedNemesis
from .runs import BROKER, HEALING_S, chaos_run, chaos_test, expect_good, seconds, takes_turns
from .topic_changes import changing_settings, churning_topics

SECONDS = seconds(5)
PARTITIONS = 6
SETTINGS = {**BROKER, "replica.selector.class": RACK_AWARE_SELECTOR}


def start(
    start_cluster: StartCluster, brokers: int, security: SecurityConfiguration | None, **settings: str
) -> LocalCluster:
    """A cluster with a topic `t`, each broker in a rack of its own."""
    cluster = start_cluster(
        own_zookeeper=True,
        brokers=brokers,
        security=security,
        settings={**SETTINGS, **settings},
        broker_settings={broker: {"broker.rack": f"rack-{broker}"} for broker in range(1, brokers + 1)},
    )
    ClusterView(cluster).create_topic("t", PARTITIONS, 3, min_insync_replicas="2", segment_bytes="65536")
    return cluster


def load_on(cluster: LocalCluster, **settings: Any) -> Load:
    soon = {"request_timeout_ms": 2_000, "delivery_timeout_ms": 40_000}
    # From this rack most partitions are read from followers.
    return Load(client_settings_of(cluster), "t", PARTITIONS, rack="rack-2", **soon, **settings)


@contextmanager
def changing_topics(cluster: LocalCluster, seed: int) -> Iterator[None]:
    """Change topics and the limits of `t` meanwhile; acknowledged changes hold in the end."""
    clients = client_settings_of(cluster)
    churning = churning_topics(clients, seed)
    with changing_settings(clients, "t", seed), churning as churn:
        yield
    churn.check(HEALING_S)
    print(f"{churn.changes} changes of topics", flush=True)


@chaos_test(SECONDS)
@takes_turns(0)
def test_no_acknowledged_record_is_lost_under_random_faults(tmp_path: Path) -> None:
    with chaos_run(SECONDS) as run:
        racks = ["rack-1", "rack-2", "rack-3"]
        with LinkedCluster(
            tmp_path,
            SETTINGS,
            racks=racks,
            partitions=PARTITIONS,
            security=run.security(),
            segment_bytes="65536",
        ) as linked:
            view = linked.view
            load = load_on(linked.cluster, records_per_s=600)

            def settle() -> None:
                view.wait_isr("t", 3, HEALING_S)
                load.wait_progress("after healing", timeout_s=HEALING_S)

            with changing_topics(linked.cluster, run.seed), load:
                Nemesis(linked, run, settle, "t").run(SECONDS)
            view.wait_agreed("t", PARTITIONS, HEALING_S)
            expect_good(stop_and_judge(linked.cluster, load, timeout_s=120), load)


@chaos_test(SECONDS, more_s=900)
@takes_turns(1)
def test_operations_among_faults_lose_nothing_and_end(start_cluster: StartCluster) -> None:
    with chaos_run(SECONDS) as run:
        settings = {"leader.imbalance.check.interval.seconds": "5"}
        cluster = start(start_cluster, 4, run.security(), **settings)
        view = ClusterView(cluster)
        # The values are below the least max.message.bytes of changing_settings, and it knows an added
        # partition soon.
        load = load_on(cluster, value_bytes=300, metadata_max_age_ms=1_000)
        with changing_topics(cluster, run.seed), load:
            OperatedNemesis(cluster, run, load, deadline_s=HEALING_S).run(SECONDS)
        view.wait_agreed("t", len(load.partitions), HEALING_S)
        replicas = {info.partition: set(info.replicas) for info in view.partitions("t")}
        # The producer learns of a new partition later.
        verdict = stop_and_judge(cluster, load, timeout_s=120)
        expect_good(verdict, load, "expected a number from 0 to")
        assert {tp.partition: kept for tp, kept in load.history.replicas().items()} == replicas
