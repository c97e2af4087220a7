"""The compose file's cluster keeps every acknowledged record while its containers suffer random faults.

Each fault is injected once, then faults are chosen at random for ``CHAOS_SECONDS``. ``CHAOS_SEED`` repeats
the choices of an earlier run, not their timing. Each run prints its seed.
"""

from __future__ import annotations

import os
import random

import pytest

from ..chaos.workload import Load, stop_and_judge
from ..cluster.tools import ClusterView
from .conftest import StartContainers
from .container_nemesis import ContainerNemesis

SECONDS = float(os.environ.get("CHAOS_SECONDS", "15"))
PARTITIONS = 6
SESSION_TIMEOUT_MS = 4_000
HEALING_S = 180.0


@pytest.mark.timeout(SECONDS + 1800)
def test_no_acknowledged_record_is_lost_while_containers_are_killed_paused_and_disconnected(
    start_containers: StartContainers,
) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.randrange(1 << 32))
    print(f"CHAOS_SEED={seed} CHAOS_SECONDS={SECONDS:g}", flush=True)
    cluster = start_containers(
        zookeeper_session_timeout_ms=str(SESSION_TIMEOUT_MS), replica_lag_time_max_ms="4000"
    )
    view = ClusterView(cluster)
    view.create_topic("t", PARTITIONS, 3, min_insync_replicas="2", segment_bytes="65536")
    load = Load(
        cluster.bootstrap,
        "t",
        PARTITIONS,
        records_per_s=600,
        request_timeout_ms=2_000,
        delivery_timeout_ms=60_000,
    )

    def settle() -> None:
        view.wait_isr("t", 3, HEALING_S)
        load.wait_progress(f"after healing (seed {seed})", timeout_s=HEALING_S)

    with load:
        nemesis = ContainerNemesis(cluster, seed, settle, SESSION_TIMEOUT_MS / 1000)
        nemesis.inject_each_once()
        nemesis.run(SECONDS)
    view.wait_agreed("t", PARTITIONS, HEALING_S)
    verdict = stop_and_judge(cluster, load, timeout_s=120)
    print(f"{verdict}; longest pause {load.longest_pause_s:.1f} s", flush=True)
    assert verdict.is_good, f"seed {seed}:\n{verdict}\n" + "\n".join(nemesis.steps)
    # The only error that a long outage may cost is the time-out of a record.
    unforeseen = [problem for problem in load.problems if "DeliveryTimedOut" not in problem]
    assert unforeseen == [], f"seed {seed}"
    assert verdict.acknowledged > 100
    assert len(load.history.reads) > 0
