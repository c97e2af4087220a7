"""The values of single collectors, and the bounds on their series."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from barnabas.broker.base.purgatory import Purgatory, Reaper
from barnabas.broker.base.topic_metrics import Traffic
from barnabas.broker.cluster.metadata_cache import ClusterMetadata, TopicMetadata
from barnabas.broker.log.log_manager import LogManager
from barnabas.broker.metrics import logs as logs_module
from barnabas.broker.metrics.cluster import SessionCollector, controller_metrics
from barnabas.broker.metrics.families import bounded
from barnabas.broker.metrics.groups import all_group_metrics
from barnabas.broker.metrics.logs import log_metrics
from barnabas.broker.metrics.replicas import replica_metrics, topic_metrics
from barnabas.broker.metrics.requests import (
    IdleShare,
    NetworkCollector,
    authentication_metrics,
    purgatory_metrics,
    quota_metrics,
    request_metrics,
)
from barnabas.broker.network.request import Request, RequestKind
from barnabas.broker.network.request_metrics import BusyTime, RequestMetrics
from barnabas.broker.network.server import SocketServer
from barnabas.broker.replication.partition import Partition
from barnabas.broker.replication.replica_manager import ReplicaManager
from barnabas.broker.security.authentication_outcomes import AuthenticationOutcomes
from barnabas.broker.security.client_quotas import ClientQuotas
from barnabas.broker.security.session import Session
from barnabas.common.security.acl import pascal_name
from barnabas.common.time_histogram import TimeHistogram
from barnabas.controller.partition_state import ElectionFigures
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from barnabas.protocol.messages.inter_broker import LeaderAndIsrPartition
from barnabas.protocol.schema import ApiKey, replace
from barnabas.zookeeper.configs import Entity
from barnabas.zookeeper.znodes import StoredConfig
from tests.support.building import TOPIC_ID, fatal, follower_of, leader_of, led_by, state
from tests.support.grouping import GroupRig

MS = 1_000_000
PRODUCE_V9 = (ApiKey.PRODUCE, 9, False)
FROM_CONSUMER, FROM_FOLLOWER = (ApiKey.FETCH, 16, False), (ApiKey.FETCH, None, True)


def values(metrics: Iterable[Metric], prefix: str = "") -> dict[str, float]:
    """The samples whose names begin with the prefix, by the rest of their names and their labels' values."""
    return {
        " ".join([sample.name.removeprefix(prefix), *sample.labels.values()]): sample.value
        for metric in metrics
        for sample in metric.samples
        if sample.name.startswith(prefix)
    }


def replicas_of(*partitions: Partition, max_series: int = 100) -> Iterator[Metric]:
    manager = SimpleNamespace(
        partitions=lambda: partitions,
        isr_changes=SimpleNamespace(shrinks=3, expands=2, failures=1),
        logs=SimpleNamespace(offline_partitions="four"),
        fetchers=SimpleNamespace(max_lag=17),
    )
    return replica_metrics(cast(ReplicaManager, manager), max_series)


def test_replicas_are_counted_by_role_and_by_the_size_of_the_isr() -> None:
    whole, lacking = leader_of(1, 2, 3, min_insync_replicas=2), leader_of(1, 2, min_insync_replicas=2)
    too_few = leader_of(1, min_insync_replicas=2)
    found = values(replicas_of(whole, lacking, too_few, follower_of()), "kafka_server_")
    assert found == {
        "replicamanager_partitioncount": 4,
        "replicamanager_leadercount": 3,
        "replicamanager_underreplicatedpartitions": 2,
        "replicamanager_underminisrpartitioncount": 1,
        "replicamanager_atminisrpartitioncount": 1,
        "replicamanager_reassigningpartitions": 0,
        "replicamanager_offlinereplicacount": 4,
        "replicamanager_isrshrinks_total": 3,
        "replicamanager_isrexpands_total": 2,
        "replicamanager_failedisrupdates_total": 1,
        "replicafetchermanager_maxlag Replica": 17,
    }


def test_a_leader_counts_its_partitions_that_are_being_reassigned() -> None:
    def changed(epoch: int, **replicas: list[int]) -> LeaderAndIsrPartition:
        return replace(state(epoch=epoch), **replicas)

    adding, removing, follower = leader_of(1, 2), leader_of(1, 2), follower_of()
    assert adding.make_leader(changed(1, adding_replicas=[3]), 0)
    assert removing.make_leader(changed(1, removing_replicas=[2]), 0)
    assert follower.make_follower(replace(changed(1, adding_replicas=[1]), leader=2))
    assert (adding.is_added, follower.is_added) == (False, True)
    others, name = (removing, leader_of(1), follower), "kafka_server_replicamanager_"
    assert values(replicas_of(adding, *others), name)["reassigningpartitions"] == 2
    assert adding.make_leader(state(epoch=2), 0)
    assert values(replicas_of(adding, *others), name)["reassigningpartitions"] == 1


def test_a_replica_that_is_being_added_is_not_lacking() -> None:
    """As in Kafka: a long reassignment must not look like a dead broker."""
    partition = leader_of(1, 2)
    assert partition.make_leader(replace(state(epoch=1, isr=(1, 2)), adding_replicas=[3]), 0)
    assert values(replicas_of(partition))["kafka_server_replicamanager_underreplicatedpartitions"] == 0
    assert values(replicas_of(partition))["kafka_cluster_partition_replicascount topic 0"] == 2
    assert partition.make_leader(replace(state(epoch=2, isr=(1,)), adding_replicas=[3]), 0)
    assert values(replicas_of(partition))["kafka_server_replicamanager_underreplicatedpartitions"] == 1


def test_the_leader_shows_the_isr_of_each_partition() -> None:
    found = values(replicas_of(leader_of(1, 2, min_insync_replicas=2), follower_of()), "kafka_cluster_")
    assert found == {
        "partition_underreplicated topic 0": 1,
        "partition_underminisr topic 0": 0,
        "partition_atminisr topic 0": 1,
        "partition_insyncreplicascount topic 0": 2,
        "partition_replicascount topic 0": 3,
    }


def test_no_more_replicas_are_demanded_than_a_partition_has() -> None:
    """As acks=all does: a topic with fewer replicas than min.insync.replicas is not in danger for that."""
    whole = values(replicas_of(leader_of(1, 2, 3, min_insync_replicas=5)), "kafka_")
    assert whole["server_replicamanager_underminisrpartitioncount"] == 0
    assert whole["server_replicamanager_atminisrpartitioncount"] == 1
    assert whole["cluster_partition_underminisr topic 0"] == 0
    lacking = values(replicas_of(leader_of(1, 2, min_insync_replicas=5)), "kafka_server_")
    assert lacking["replicamanager_underminisrpartitioncount"] == 1


def test_series_of_partitions_are_bounded_and_totals_are_not() -> None:
    partitions = [leader_of(1) for _ in range(3)]
    metrics = list(replicas_of(*partitions, max_series=5 * 2 + 4))
    assert values(metrics)["barnabas_partition_series_left_out"] == 5
    assert values(metrics)["kafka_server_replicamanager_leadercount"] == 3
    (shown,) = (metric for metric in metrics if metric.name == "kafka_cluster_partition_replicascount")
    assert len(shown.samples) == 2


def test_rows_after_the_first_omitted_one_are_omitted_too() -> None:
    families = [GaugeMetricFamily(name, "", labels=["row"]) for name in "ab"]
    rows = [([str(number)], [number, -number]) for number in range(4)]
    found = values(bounded(families, rows, left_out="omitted", max_series=5))
    assert found == {"a 0": 0, "b 0": 0, "a 1": 1, "b 1": -1, "omitted": 4}
    rows = [(["0"], [1, 2]), (["1"], [1, 2]), (["2"], [1])]
    assert values(bounded(families, rows, left_out="omitted", max_series=3))["omitted"] == 3


def test_logs_have_their_size_and_offsets_and_failed_dirs_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logs = [
        SimpleNamespace(
            topic_partition=TopicPartition("t", index),
            size_bytes=100 + index,
            log_end_offset=9,
            log_start_offset=4,
            segments=(1, 2),
        )
        for index in (1, 0)
    ]
    dirs = {Path("/a"): None, Path("/b"): OSError("broken"), Path("/c"): OSError("gone")}
    manager = SimpleNamespace(all_logs=lambda: logs, dirs=dirs, strays=SimpleNamespace(all=lambda: range(6)))
    flush_times = TimeHistogram()
    monkeypatch.setattr(logs_module, "FLUSH_TIMES", flush_times)
    flush_times.observe_s(0.004)
    found = values(log_metrics(cast(LogManager, manager), 7))
    flushes = "kafka_log_logflushstats_logflushrateandtimems"
    assert [found[f"{flushes}_{part}"] for part in ("count", "sum", "bucket 2.5", "bucket 5")] == [1, 4, 0, 1]
    assert {name: value for name, value in found.items() if not name.startswith(flushes)} == {
        "kafka_log_log_size t 0": 100,
        "kafka_log_log_logendoffset t 0": 9,
        "kafka_log_log_logstartoffset t 0": 4,
        "kafka_log_log_numlogsegments t 0": 2,
        "kafka_log_logmanager_logdirectoryoffline /a": 0,
        "kafka_log_logmanager_logdirectoryoffline /b": 1,
        "kafka_log_logmanager_logdirectoryoffline /c": 1,
        "kafka_log_logmanager_offlinelogdirectorycount": 2,
        "barnabas_log_series_left_out": 4,
        "barnabas_stray_logs": 6,
    }


def test_topics_have_series_of_their_own_besides_the_total() -> None:
    traffic = Traffic()
    traffic.of("a").note_append(10, 2)
    traffic.of("b").note_append(5, 1)
    traffic.replication_bytes_in = 7
    found = values(topic_metrics(traffic, 8), "kafka_server_brokertopicmetrics_")
    assert found["bytesin_total"] == 15
    assert found["bytesin_total a"] == 10
    assert "bytesin_total b" not in found
    assert found["messagesin_total a"] == 2
    assert found["replicationbytesin_total"] == 7
    assert values(topic_metrics(traffic, 8))["barnabas_topic_series_left_out"] == 8


def noted(metrics: RequestMetrics, kind: RequestKind, total_ms: int, count: int = 1, **fields: Any) -> None:
    request = SimpleNamespace(
        **{"kind": kind, "received_ns": 0, "started_ns": 0, "handled_ns": 0, "answered_ns": 0},
        **{"size_bytes": 0, "errors": None, **fields},
    )
    metrics.note([cast(Request, request)] * count, total_ms * MS, total_ms * MS)


def test_requests_are_counted_by_api_and_version_over_all_network_threads() -> None:
    one, other = RequestMetrics(), RequestMetrics()
    noted(one, PRODUCE_V9, 10, count=3)
    noted(other, PRODUCE_V9, 20)
    noted(one, (ApiKey.PRODUCE, None, False), 20)
    noted(one, FROM_CONSUMER, 1, count=5)
    noted(other, FROM_FOLLOWER, 500)
    found = values(request_metrics([one, other]), "kafka_network_requestmetrics_")
    counts = {name: value for name, value in found.items() if name.startswith("requests_total")}
    assert counts == {
        "requests_total Produce 9": 4,
        "requests_total Produce native": 1,
        "requests_total Fetch 16": 5,
        "requests_total Fetch native": 1,
        "requests_total FetchConsumer 16": 5,
        "requests_total FetchFollower native": 1,
    }
    produced = [f"totaltimems_bucket Produce {bound}" for bound in ("5", "10", "25", "5000", "+Inf")]
    assert [found[name] for name in produced] == [0, 3, 5, 5, 5]
    assert (found["totaltimems_count Produce"], found["totaltimems_sum Produce"]) == (5, 70)
    fetched = [f"totaltimems_bucket Fetch{of} 250" for of in ("", "Consumer", "Follower")]
    assert [found[name] for name in fetched] == [5, 5, 0]
    assert (found["remotetimems_bucket Produce 0.1"], found["remotetimems_sum Produce"]) == (5, 0)


def test_requests_have_sizes_and_errors() -> None:
    one, other = RequestMetrics(), RequestMetrics()
    noted(one, PRODUCE_V9, 1, count=2, size_bytes=1_000, errors={ErrorCode.NONE: 1})
    noted(other, (ApiKey.PRODUCE, None, False), 1, size_bytes=9_000, errors={ErrorCode.NONE: 2, 6: 1})
    noted(other, FROM_CONSUMER, 1, size_bytes=50, errors={12_345: 1})
    found = values(request_metrics([one, other]), "kafka_network_requestmetrics_")
    assert {name: value for name, value in found.items() if name.startswith("errors")} == {
        "errors_total Produce NONE": 4,
        "errors_total Produce NOT_LEADER_OR_FOLLOWER": 1,
        # Not a second time as FetchConsumer, as in Kafka.
        "errors_total Fetch 12345": 1,
    }
    assert (found["requestbytes_count Produce"], found["requestbytes_sum Produce"]) == (3, 11_000)
    assert (found["requestbytes_count FetchConsumer"], found["requestbytes_sum FetchConsumer"]) == (1, 50)


def test_apis_have_kafkas_names() -> None:
    assert pascal_name(ApiKey.OFFSET_FOR_LEADER_EPOCH) == "OffsetForLeaderEpoch"
    assert pascal_name(ApiKey.ADD_PARTITIONS_TO_TXN) == "AddPartitionsToTxn"


class Busy(BusyTime):
    """Busy for as long as the test says."""

    __slots__ = ("busy_ns",)

    def __init__(self) -> None:
        super().__init__()
        self.busy_ns = 0

    def total_ns(self, now_ns: int) -> int:
        return self.busy_ns


def test_the_idle_share_is_that_of_the_time_since_the_last_page() -> None:
    threads = [Busy(), Busy()]
    share = IdleShare(0)
    threads[0].busy_ns = 50
    assert share.since_last(threads, 100) == 0.75
    assert share.since_last(threads, 200) == 1
    threads[0].busy_ns, threads[1].busy_ns = 150, 100
    assert share.since_last(threads, 300) == 0
    assert share.since_last(threads, 300) == 1


def test_the_queues_and_the_idle_time_of_the_workers() -> None:
    now_ns = [1_000]
    workers = [Busy(), Busy()]
    server = SimpleNamespace(
        network_threads=[SimpleNamespace(busy=Busy(), to_flush=2), SimpleNamespace(busy=Busy(), to_flush=1)],
        queues={"a": SimpleNamespace(queued=4), "b": SimpleNamespace(queued=1)},
        quota=SimpleNamespace(total=9),
        worker_times=workers,
    )
    collector = NetworkCollector(cast(SocketServer, server), monotonic_ns=lambda: now_ns[0])
    idle = "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_count"
    now_ns[0], workers[0].busy_ns = 2_000, 400
    assert values(collector.collect()) == {
        "kafka_network_requestchannel_requestqueuesize": 5,
        "kafka_network_requestchannel_responsequeuesize": 3,
        "kafka_network_socketserver_networkprocessoravgidlepercent": 1,
        "barnabas_connections": 9,
        idle: 800,
    }
    workers[1].busy_ns = 900
    assert values(collector.collect())[idle] == 800, "a counter never falls"


def test_purgatories_show_how_many_wait() -> None:
    purgatories = [cast(Purgatory, SimpleNamespace(waiting=waiting)) for waiting in (3, 4, 5)]
    metrics = purgatory_metrics({"Fetch": purgatories[:2], "Produce": purgatories[2:]})
    found = values(metrics, "kafka_server_delayedoperationpurgatory_")
    assert (found["purgatorysize Fetch"], found["purgatorysize Produce"]) == (7, 5)
    assert found["numdelayedoperations Fetch"] == 7


def test_events_of_the_session_are_counted() -> None:
    times = TimeHistogram()
    collector = SessionCollector(lambda: False, times)
    assert list(values(collector.collect(), "kafka_server_sessionexpirelistener_").values()) == [1, 0, 0]
    for took_s in (0.002, 0.004, 0.5):
        times.observe_s(took_s)
    for event in ("SUSPENDED", "RESUMED", "SUSPENDED", "SILENT", "EXPIRED", "RENEWED"):
        collector.note(event)
    found = values(collector.collect())
    latency = "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms"
    assert found[f"{latency}_count"] == 3
    assert found[f"{latency}_sum"] == 506
    assert [found[f"{latency}_bucket {bound}"] for bound in ("1", "2.5", "5", "500")] == [0, 1, 2, 3]
    assert {name: value for name, value in found.items() if not name.startswith(latency)} == {
        "kafka_server_sessionexpirelistener_zookeepersyncconnects_total": 3,
        "kafka_server_sessionexpirelistener_zookeeperdisconnects_total": 2,
        "kafka_server_sessionexpirelistener_zookeeperexpires_total": 1,
        "barnabas_zookeeper_connected": 0,
    }


@pytest.mark.parametrize("is_active", [True, False])
def test_only_the_controller_shows_the_cluster(is_active: bool) -> None:
    elections = ElectionFigures()
    controller = SimpleNamespace(
        is_active=is_active,
        offline_partitions_count=2 * is_active,
        topics_to_delete_count=4 * is_active,
        queued_events=5,
        elections=elections,
    )
    partitions = {index: led_by(leader, index=index) for index, leader in enumerate((1, 2, 1))}
    cluster = ClusterMetadata(
        brokers={BrokerId(1): cast(Any, None)}, topics={"t": TopicMetadata(TopicId(TOPIC_ID), partitions)}
    )
    found = values(controller_metrics(controller, cluster), "kafka_controller_kafkacontroller_")
    expected = {
        "activecontrollercount": 1,
        "offlinepartitionscount": 2,
        "preferredreplicaimbalancecount": 1,
        "globaltopiccount": 1,
        "globalpartitioncount": 3,
        "activebrokercount": 1,
        "topicstodeletecount": 4,
    }
    assert found == (expected if is_active else dict.fromkeys(expected, 0))


def test_groups_are_counted_by_state() -> None:
    stable, empty = GroupRig(), GroupRig()
    stable.stable("m", "n")
    replicas = cast(ReplicaManager, SimpleNamespace(partitions=list, broker_id=1))
    metrics = all_group_metrics([stable.group, empty.group], replicas, ClusterMetadata(), 100)
    found = values(metrics, "kafka_coordinator_group_groupmetadatamanager_")
    assert found == {
        "numgroups": 2,
        "numoffsets": 0,
        "numgroupsempty": 1,
        "numgroupspreparingrebalance": 0,
        "numgroupscompletingrebalance": 0,
        "numgroupsstable": 1,
    }


def test_elections_have_a_count_and_times_also_after_the_term() -> None:
    now_s = [0.0]
    elections = ElectionFigures(lambda: now_s[0])
    for took_s in (0.001, 0.002, 0.009):
        now_s[0] += took_s
        elections.note(now_s[0] - took_s, unclean_partitions=2)
    controller = SimpleNamespace(
        is_active=False,
        offline_partitions_count=0,
        topics_to_delete_count=0,
        queued_events=5,
        elections=elections,
    )
    found = values(controller_metrics(controller, ClusterMetadata()), "kafka_controller_controller")
    assert found["stats_leaderelectionrateandtimems_bucket 2.5"] == 2
    assert {name: round(value) for name, value in found.items() if "bucket" not in name} == {
        "eventmanager_eventqueuesize": 5,
        "stats_leaderelectionrateandtimems_count": 3,
        "stats_leaderelectionrateandtimems_sum": 12,
        "stats_uncleanleaderelections_total": 6,
    }


def test_authentications_are_counted_by_their_end() -> None:
    outcomes = AuthenticationOutcomes(0, Purgatory("authentication", Reaper(on_fatal=fatal)))
    outcomes.succeeded()
    outcomes.succeeded()
    for _ in range(3):
        outcomes.failed(Session("192.0.2.1"), "1", "because", lambda: None)
    outcomes.has_expired()
    assert values(authentication_metrics(outcomes)) == {
        "kafka_server_socket_server_metrics_successful_authentication_total": 2,
        "kafka_server_socket_server_metrics_failed_authentication_total": 3,
        "kafka_server_socket_server_metrics_expired_connections_killed_total": 1,
    }


def test_the_use_of_quotas_is_shown_by_client_and_bounded() -> None:
    quotas = ClientQuotas()
    of_alice = {"producer_byte_rate": "100", "controller_mutation_rate": "1", "request_percentage": "50"}
    quotas.take(
        {
            Entity.user("alice"): StoredConfig(of_alice, 1, 1),
            Entity.client_id("x"): StoredConfig({"consumer_byte_rate": "5"}, 1, 1),
        }
    )
    quotas.charge_produced("alice", "x", 1_500, 0)
    quotas.charge_request("alice", "x", 10**9, 0)
    quotas.charge_mutation("alice", "x", 3, 0, is_strict=True)
    quotas.charge_fetched("bob", "x", 10, 0)
    found = values(quota_metrics(quotas.uses(0), 100))
    assert found == {
        "kafka_server_quota_byte_rate Produce alice ": 150,
        "kafka_server_quota_byte_rate Fetch  x": 1,
        "kafka_server_quota_request_time Request alice ": pytest.approx(10),
        "kafka_server_quota_tokens ControllerMutation alice ": 8,
        "barnabas_quota_throttled_total Produce alice ": 1,
        "barnabas_quota_throttled_ms_total Produce alice ": 5_000,
        "barnabas_quota_series_left_out": 0,
    } | {
        f"barnabas_quota_throttled{end}_total {client}": 0
        for end in ("", "_ms")
        for client in ("Fetch  x", "Request alice ", "ControllerMutation alice ")
    }
    few = values(quota_metrics(quotas.uses(0), 7))
    assert few["barnabas_quota_series_left_out"] == 6
    assert len(few) == 7
