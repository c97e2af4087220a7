"""The values of single collectors, and the bounds on their series."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import pytest
from prometheus_client.core import Metric

from barnabas.broker.base.purgatory import Purgatory
from barnabas.broker.base.topic_metrics import Traffic
from barnabas.broker.cluster.metadata_cache import ClusterMetadata, TopicMetadata
from barnabas.broker.log.log import Log
from barnabas.broker.metrics.cluster import ControllerCollector, SessionCollector
from barnabas.broker.metrics.families import Room
from barnabas.broker.metrics.groups import GroupCollector
from barnabas.broker.metrics.logs import LogCollector
from barnabas.broker.metrics.network import IdleShare, NetworkCollector, PurgatoryCollector
from barnabas.broker.metrics.replicas import ReplicaCollector
from barnabas.broker.metrics.requests import RequestCollector, TopicCollector, api_name
from barnabas.broker.network.busy_time import BusyTime
from barnabas.broker.network.request import Request, RequestKind
from barnabas.broker.network.request_metrics import WINDOW_NS, RequestTimes
from barnabas.broker.network.server import SocketServer
from barnabas.broker.replication.isr_changes import IsrChanges
from barnabas.broker.replication.partition import Partition
from barnabas.common.recent_times import RecentTimes
from barnabas.controller.partition_state import ElectionFigures
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, TopicId, TopicPartition
from barnabas.protocol.messages.inter_broker import LeaderAndIsrPartition
from barnabas.protocol.schema import ApiKey, replace
from tests.support.building import TOPIC_ID, follower_of, leader_of, led_by, state
from tests.support.grouping import GroupRig

MS = 1_000_000
PRODUCE_V9 = (ApiKey.PRODUCE, 9, False)
FROM_CONSUMER, FROM_FOLLOWER = (ApiKey.FETCH, 16, False), (ApiKey.FETCH, None, True)


class Collector(Protocol):
    def collect(self) -> list[Metric]: ...


def values(collector: Collector, prefix: str = "") -> dict[str, float]:
    """The samples whose names begin with the prefix, by the rest of their names and their labels' values."""
    return {
        " ".join([sample.name.removeprefix(prefix), *sample.labels.values()]): sample.value
        for metric in collector.collect()
        for sample in metric.samples
        if sample.name.startswith(prefix)
    }


def replicas_of(*partitions: Partition, max_series: int = 100) -> ReplicaCollector:
    return ReplicaCollector(
        lambda: partitions,
        cast(IsrChanges, SimpleNamespace(shrinks=3, expands=2, failures=1)),
        offline_count=lambda: 4,
        max_lag=lambda: 17,
        max_series=max_series,
    )


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
    collector, name = replicas_of(adding, removing, leader_of(1), follower), "kafka_server_replicamanager_"
    assert values(collector, name)["reassigningpartitions"] == 2
    assert adding.make_leader(state(epoch=2), 0)
    assert values(collector, name)["reassigningpartitions"] == 1


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
    found = replicas_of(*partitions, max_series=5 * 2 + 4)
    assert values(found)["barnabas_partition_series_left_out"] == 5
    assert values(found)["kafka_server_replicamanager_leadercount"] == 3
    shown = [metric for metric in found.collect() if metric.name == "kafka_cluster_partition_replicascount"]
    assert len(shown[0].samples) == 2


def test_room_is_taken_in_order() -> None:
    room = Room(10)
    assert [room.take(4), room.take(4), room.take(4), room.take(1)] == [True, True, False, False]
    assert room.omitted == 5


def test_logs_have_their_size_and_offsets_and_failed_dirs_are_counted() -> None:
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
    collector = LogCollector(
        lambda: cast(Sequence[Log], logs),
        lambda: dirs,
        stray_count=lambda: 6,
        flush_times=RecentTimes(),
        max_series=7,
    )
    found = values(collector)
    flushes = "kafka_log_logflushstats_logflushrateandtimems"
    assert found[f"{flushes}_count"] == found[f"{flushes} 0.99"] == 0
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
    found = values(TopicCollector(traffic, max_series=8), "kafka_server_brokertopicmetrics_")
    assert found["bytesin_total"] == 15
    assert found["bytesin_total a"] == 10
    assert "bytesin_total b" not in found
    assert found["messagesin_total a"] == 2
    assert found["replicationbytesin_total"] == 7
    assert values(TopicCollector(traffic, max_series=8))["barnabas_topic_series_left_out"] == 8


def noted(times: RequestTimes, kind: RequestKind, total_ms: int, count: int = 1, **fields: Any) -> None:
    request = SimpleNamespace(
        **{"kind": kind, "received_ns": 0, "started_ns": 0, "handled_ns": 0, "answered_ns": 0},
        **{"size_bytes": 0, "errors": None, **fields},
    )
    times.note([cast(Request, request)] * count, total_ms * MS, total_ms * MS)


def test_requests_are_counted_by_api_and_version_over_all_network_threads() -> None:
    one, other = RequestTimes(), RequestTimes()
    noted(one, PRODUCE_V9, 10, count=3)
    noted(other, PRODUCE_V9, 20)
    noted(one, (ApiKey.PRODUCE, None, False), 20)
    noted(one, FROM_CONSUMER, 1, count=5)
    noted(other, FROM_FOLLOWER, 500)
    found = values(
        RequestCollector(lambda: [one, other], monotonic_ns=lambda: 0), "kafka_network_requestmetrics_"
    )
    counts = {name: value for name, value in found.items() if name.startswith("requests_total")}
    assert counts == {
        "requests_total Produce 9": 4,
        "requests_total Produce native": 1,
        "requests_total Fetch 16": 5,
        "requests_total Fetch native": 1,
        "requests_total FetchConsumer 16": 5,
        "requests_total FetchFollower native": 1,
    }
    assert found["totaltimems_count Produce"] == 5
    assert found["totaltimems Produce 0.50"] == pytest.approx(10, rel=1 / 32)
    assert found["totaltimems Produce 0.99"] == pytest.approx(20, rel=1 / 32)
    assert found["totaltimems Fetch 0.999"] == pytest.approx(500, rel=1 / 32)
    assert found["totaltimems FetchConsumer 0.999"] == pytest.approx(1, rel=1 / 32)
    assert found["remotetimems Produce 0.99"] == 0


def test_requests_have_sizes_errors_and_no_throttle_times() -> None:
    one, other = RequestTimes(), RequestTimes()
    noted(one, PRODUCE_V9, 1, count=2, size_bytes=1_000, errors={ErrorCode.NONE: 1})
    noted(other, (ApiKey.PRODUCE, None, False), 1, size_bytes=9_000, errors={ErrorCode.NONE: 2, 6: 1})
    noted(other, FROM_CONSUMER, 1, size_bytes=50, errors={12_345: 1})
    collector = RequestCollector(lambda: [one, other], monotonic_ns=lambda: WINDOW_NS)
    found = values(collector, "kafka_network_requestmetrics_")
    assert {name: value for name, value in found.items() if name.startswith("errors")} == {
        "errors_total Produce NONE": 4,
        "errors_total Produce NOT_LEADER_OR_FOLLOWER": 1,
        # Not a second time as FetchConsumer, as in Kafka.
        "errors_total Fetch 12345": 1,
    }
    assert found["requestbytes Produce 0.50"] == pytest.approx(1_000, rel=1 / 32)
    assert found["requestbytes Produce 0.99"] == pytest.approx(9_000, rel=1 / 32)
    assert found["requestbytes_count Produce"] == 3
    assert found["requestbytes FetchConsumer 0.50"] == pytest.approx(50, rel=1 / 32)
    assert found["throttletimems Produce 0.999"] == 0
    assert found["throttletimems_count Produce"] == 3
    assert one.kinds()[PRODUCE_V9].measured == 0, "each page begins new windows when the present ones are old"


def test_apis_have_kafkas_names() -> None:
    assert api_name(ApiKey.OFFSET_FOR_LEADER_EPOCH) == "OffsetForLeaderEpoch"
    assert api_name(ApiKey.ADD_PARTITIONS_TO_TXN) == "AddPartitionsToTxn"


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
    assert values(collector) == {
        "kafka_network_requestchannel_requestqueuesize": 5,
        "kafka_network_requestchannel_responsequeuesize": 3,
        "kafka_network_socketserver_networkprocessoravgidlepercent": 1,
        "barnabas_connections": 9,
        idle: 800,
    }
    workers[1].busy_ns = 900
    assert values(collector)[idle] == 800, "a counter never falls"


def test_purgatories_show_how_many_wait() -> None:
    purgatories = [cast(Purgatory, SimpleNamespace(waiting=waiting)) for waiting in (3, 4, 5)]
    collector = PurgatoryCollector({"Fetch": purgatories[:2], "Produce": purgatories[2:]})
    found = values(collector, "kafka_server_delayedoperationpurgatory_")
    assert (found["purgatorysize Fetch"], found["purgatorysize Produce"]) == (7, 5)
    assert found["numdelayedoperations Fetch"] == 7


def test_events_of_the_session_are_counted() -> None:
    now_s = [10.0]
    times = RecentTimes(lambda: now_s[0])
    collector = SessionCollector(lambda: False, times)
    assert list(values(collector, "kafka_server_sessionexpirelistener_").values()) == [1, 0, 0]
    for took_s in (0.002, 0.004, 0.5):
        times.note_since(now_s[0] - took_s)
    for event in ("SUSPENDED", "RESUMED", "SUSPENDED", "SILENT", "EXPIRED", "RENEWED"):
        collector.note(event)
    found = values(collector)
    latency = "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms"
    assert found[f"{latency}_count"] == 3
    assert found[f"{latency} 0.50"] == pytest.approx(4)
    assert found[f"{latency} 0.999"] == pytest.approx(500)
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
    found = values(ControllerCollector(controller, lambda: cluster), "kafka_controller_kafkacontroller_")
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
    collector = GroupCollector(lambda: [stable.group, empty.group], lambda names: {}, max_series=100)
    found = values(collector, "kafka_coordinator_group_groupmetadatamanager_")
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
    found = values(ControllerCollector(controller, ClusterMetadata), "kafka_controller_controller")
    assert found.pop("stats_leaderelectionrateandtimems 0.50") == pytest.approx(2)
    assert found.pop("stats_leaderelectionrateandtimems 0.999") == pytest.approx(9)
    assert {name: value for name, value in found.items() if "timems 0" not in name} == {
        "eventmanager_eventqueuesize": 5,
        "stats_leaderelectionrateandtimems_count": 3,
        "stats_uncleanleaderelections_total": 6,
    }
