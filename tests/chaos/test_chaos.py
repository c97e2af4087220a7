"""A cluster under load and random faults keeps every record that it has acknowledged.

``CHAOS_SECONDS`` is its duration (``make chaos``: minutes); ``CHAOS_SEED`` repeats the choices of an earlier
run, not their timing. Each run prints its seed.
"""

from __future__ import annotations

import os
import random

import pytest

from barnabas.broker.config.settings import RACK_AWARE_SELECTOR

from ..cluster.tools import ClusterView, StartCluster
from .nemesis import Nemesis
from .topic_changes import changing_settings, churning_topics
from .workload import Load, stop_and_judge

SECONDS = float(os.environ.get("CHAOS_SECONDS", "15"))
PARTITIONS = 6
HEALING_S = 90.0


@pytest.mark.cluster
@pytest.mark.timeout(SECONDS + 600)
def test_no_acknowledged_record_is_lost_under_random_faults(start_cluster: StartCluster) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 32))
    print(f"CHAOS_SEED={seed} CHAOS_SECONDS={SECONDS:g}", flush=True)
    cluster = start_cluster(
        own_zookeeper=True,
        settings={
            "zookeeper.session.timeout.ms": "2000",
            "replica.lag.time.max.ms": "4000",
            "replica.selector.class": RACK_AWARE_SELECTOR,
        },
        broker_settings={broker: {"broker.rack": f"rack-{broker}"} for broker in (1, 2, 3)},
    )
    view = ClusterView(cluster)
    view.create_topic("t", PARTITIONS, 3, min_insync_replicas="2", segment_bytes="65536")
    load = Load(
        cluster.bootstrap,
        "t",
        PARTITIONS,
        records_per_s=800,
        # So most partitions are read from followers.
        rack="rack-2",
        request_timeout_ms=2_000,
        delivery_timeout_ms=40_000,
    )

    def settle() -> None:
        view.wait_isr("t", 3, HEALING_S)
        load.wait_progress(f"after healing (seed {seed})", timeout_s=HEALING_S)

    churning = churning_topics(cluster.bootstrap, seed)
    with load, changing_settings(cluster.bootstrap, "t", seed), churning as churn:
        nemesis = Nemesis(cluster, seed, settle, "t")
        nemesis.run(SECONDS)
    churn.check(HEALING_S)
    print(f"{churn.changes} changes of topics", flush=True)
    view.wait_agreed("t", PARTITIONS, HEALING_S)
    verdict = stop_and_judge(cluster, load, timeout_s=120)
    reads = len(load.history.reads)
    print(f"{verdict}; {reads} reads, longest pause {load.longest_pause_s:.1f} s", flush=True)
    print(f"{len(load.problems)} problems: {load.problems[:5]}", flush=True)
    assert verdict.is_good, f"seed {seed}:\n{verdict}\n" + "\n".join(nemesis.steps)
    # The only error that a long outage may cost is the time-out of a record.
    unforeseen = [problem for problem in load.problems if "DeliveryTimedOut" not in problem]
    assert unforeseen == [], f"seed {seed}"
    assert verdict.acknowledged > 100
    assert reads > 0
