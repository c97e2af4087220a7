"""A cluster that is rolled, drained, rebalanced and grown under load and faults keeps what it acknowledged.

``CHAOS_SECONDS`` and ``CHAOS_SEED`` as in `test_chaos`.
"""

from __future__ import annotations

import os
import random

import pytest

from barnabas.broker.config.settings import RACK_AWARE_SELECTOR

from ..cluster.tools import ClusterView, StartCluster
from .operated_nemesis import OperatedNemesis
from .topic_changes import changing_settings, churning_topics
from .workload import Load, stop_and_judge

SECONDS = float(os.environ.get("CHAOS_SECONDS", "15"))
PARTITIONS = 6
BROKERS = 4
HEALING_S = 90.0


@pytest.mark.cluster
@pytest.mark.timeout(SECONDS + 900)
def test_operations_among_faults_lose_nothing_and_end(start_cluster: StartCluster) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 32))
    print(f"CHAOS_SEED={seed} CHAOS_SECONDS={SECONDS:g}", flush=True)
    cluster = start_cluster(
        own_zookeeper=True,
        brokers=BROKERS,
        settings={
            "zookeeper.session.timeout.ms": "2000",
            "replica.lag.time.max.ms": "4000",
            "replica.selector.class": RACK_AWARE_SELECTOR,
            "leader.imbalance.check.interval.seconds": "5",
        },
        broker_settings={broker: {"broker.rack": f"rack-{broker}"} for broker in range(1, BROKERS + 1)},
    )
    view = ClusterView(cluster)
    view.create_topic("t", PARTITIONS, 3, min_insync_replicas="2", segment_bytes="65536")
    load = Load(
        cluster.bootstrap,
        "t",
        PARTITIONS,
        # Below the least max.message.bytes of changing_settings.
        value_bytes=300,
        rack="rack-2",
        request_timeout_ms=2_000,
        delivery_timeout_ms=40_000,
        # It shall know an added partition soon.
        metadata_max_age_ms=1_000,
    )
    churning = churning_topics(cluster.bootstrap, seed)
    with load, changing_settings(cluster.bootstrap, "t", seed), churning as churn:
        OperatedNemesis(cluster, seed, load, deadline_s=HEALING_S).run(SECONDS)
    churn.check(HEALING_S)
    view.wait_agreed("t", len(load.partitions), HEALING_S)
    replicas = {info.partition: set(info.replicas) for info in view.partitions("t")}
    verdict = stop_and_judge(cluster, load, timeout_s=120)
    reads = len(load.history.reads)
    print(f"{verdict}; {reads} reads, longest pause {load.longest_pause_s:.1f} s", flush=True)
    print(f"{len(load.problems)} problems: {load.problems[:5]}", flush=True)
    assert verdict.is_good, f"seed {seed}:\n{verdict}"
    # A long outage may cost the time-out of a record, and the producer learns of a new partition later.
    tolerated = ("DeliveryTimedOut", "expected a number from 0 to")
    unforeseen = [text for text in load.problems if not any(word in text for word in tolerated)]
    assert unforeseen == [], f"seed {seed}"
    assert verdict.acknowledged > 100
    assert reads > 0
    kept = {tp.partition: set(logs) for tp, logs in load.history.replicas.items()}
    assert kept == replicas, f"seed {seed}"
