"""The compose file's cluster keeps every acknowledged record while its containers suffer random faults.

Each fault is injected once; then faults are chosen at random.
"""

from barnabas.chaos.load import Load, stop_and_judge

from ..chaos.runs import chaos_run, chaos_test, expect_good, seconds
from ..cluster.tools import ClusterView
from .conftest import StartContainers
from .container_nemesis import ContainerNemesis

SECONDS = seconds(15)
PARTITIONS = 6
SESSION_TIMEOUT_MS = 4_000
HEALING_S = 180.0


@chaos_test(SECONDS, more_s=1800)
def test_no_acknowledged_record_is_lost_while_containers_are_killed_paused_and_disconnected(
    start_containers: StartContainers,
) -> None:
    with chaos_run(SECONDS) as run:
        cluster = start_containers(
            zookeeper_session_timeout_ms=str(SESSION_TIMEOUT_MS), replica_lag_time_max_ms="4000"
        )
        view = ClusterView(cluster)
        view.create_topic("t", PARTITIONS, 3, min_insync_replicas="2", segment_bytes="65536")
        load = Load(cluster.bootstrap, "t", PARTITIONS, request_timeout_ms=2_000)

        def settle() -> None:
            view.wait_isr("t", 3, HEALING_S)
            load.wait_progress("after healing", timeout_s=HEALING_S)

        with load:
            nemesis = ContainerNemesis(cluster, run, settle, SESSION_TIMEOUT_MS / 1000)
            nemesis.inject_each_once()
            nemesis.run(SECONDS)
        view.wait_agreed("t", PARTITIONS, HEALING_S)
        expect_good(stop_and_judge(cluster, load, timeout_s=120), load)
