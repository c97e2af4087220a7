"""The cluster for programs: faults that overlap in any way, clients under them, and uses outside of tests.

One cluster serves all tests; each finds it whole.
"""

import os
import re
import runpy
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

import barnabas
from barnabas.client import TopicPartition
from barnabas.common.fault_rules import FaultRule
from barnabas.deploy.cluster_view import VIEW_SETTINGS
from barnabas.deploy.faults import has_full_disk
from barnabas.deploy.process import DeployError
from barnabas.deploy.scripted_cluster import Cluster
from barnabas.deploy.state import ZOOKEEPER
from barnabas.deploy.zookeeper import ExistingZooKeeper, ZooKeeper
from barnabas.protocol.errors import BarnabasError
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
CLIENT: Final = "under-test"
"""The fault rules hit the clients with this client id."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with barnabas.local_cluster() as cluster:
        cluster.create_topic("t", partitions=1)
        yield cluster


@pytest.fixture(autouse=True)
def left_whole(cluster: Cluster) -> Iterator[None]:
    yield
    assert states(cluster) == ["running"] * 3
    assert cluster._local.links.rules() == []
    assert cluster._admin.describe_fault_rules().rules == []
    cluster.wait_until_whole(5)


def states(cluster: Cluster) -> list[str]:
    return [broker.state for broker in cluster._local.brokers]


def test_a_server_is_as_the_faults_that_still_hold_want_it(cluster: Cluster) -> None:
    with cluster.paused(1):
        with cluster.killed(1):
            with cluster.paused(1), cluster.disk_full(1), cluster.stopped(1):
                pass
            assert states(cluster) == ["gone", "running", "running"]
        assert states(cluster) == ["paused", "running", "running"]
    with cluster.disk_full(2):
        assert has_full_disk(cluster._local, 2)
        with cluster.killed(2):
            pass
        assert has_full_disk(cluster._local, 2)
    assert not has_full_disk(cluster._local, 2)


def test_faults_end_in_any_order(cluster: Cluster) -> None:
    killed, paused, full = cluster.killed(1), cluster.paused(1), cluster.disk_full(1)
    rules = cluster.faults(api="Fetch", delay_ms=1)
    for fault in (killed, paused, full, rules):
        fault.__enter__()
    assert states(cluster)[0] == "gone"
    killed.__exit__()
    assert states(cluster)[0] == "paused"
    # It can be given no rules, and none can be taken from it.
    rules.__exit__()
    paused.__exit__()
    assert states(cluster)[0] == "running"
    assert has_full_disk(cluster._local, 1)
    full.__exit__()


def test_links_break_and_mend_as_the_blocks_say(cluster: Cluster) -> None:
    def broken() -> set[tuple[str, str, float]]:
        return {(rule.source, rule.target, rule.delay_ms) for rule in cluster._local.links.rules()}

    both = {("1", "2", 0), ("2", "1", 0)}
    with cluster.severed(1, 2):
        with cluster.cut(1, 2), cluster.slow(1, 2, delay_ms=50), cluster.slow(1, 2):
            assert broken() == both | {("1", "2", 200)}
        assert broken() == both
        # Neither end could take part in a whole cluster now, so nothing is waited for.
        with cluster.killed(3):
            pass
    with cluster.severed(1, ZOOKEEPER), cluster.paused(2):
        # The others could take a former leader for the present one.
        assert cluster._faults.reachable() == [3]
    with cluster.slow(1, 2, delay_ms=50):
        with cluster.slow(1, 2):
            pass
        assert broken() == {("1", "2", 50)}


def test_another_thread_may_begin_a_fault_while_one_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, wait_ready = cluster.killed(2), cluster._local.wait_ready

    def begin_other(*arguments: Any, **more: Any) -> None:
        monkeypatch.undo()
        other.__enter__()
        wait_ready(*arguments, **more)

    with cluster.slow(1, 3):
        monkeypatch.setattr(cluster._local, "wait_ready", begin_other)
    assert states(cluster) == ["running", "gone", "running"]
    other.__exit__()


def test_a_client_that_is_cut_off_does_not_hinder_the_cluster_itself(cluster: Cluster) -> None:
    leader = cluster.leader_of("t")
    with cluster.producer() as producer, cluster.cut("client", leader), cluster.cut(leader, "client"):
        assert cluster.leader_of("t") == leader
        sent = producer.send("t", b"held")
        with cluster.killed(leader):
            # Another one leads, and takes it.
            sent.result(30)


def test_zookeeper_is_down_together_with_brokers(cluster: Cluster) -> None:
    def is_up() -> bool:
        return cluster._local.server(ZOOKEEPER).is_alive

    with cluster.zookeeper_down():
        with cluster.killed(1), cluster.zookeeper_down():
            pass
        # Broker 1 waits for it.
        assert (is_up(), states(cluster)) == (False, ["running"] * 3)
    assert is_up()
    cluster.create_topic("after", partitions=1)
    assert cluster.leader_of("after") in cluster.broker_ids


def test_a_broker_that_ends_by_itself_is_named_and_started_again(cluster: Cluster) -> None:
    killed = r"broker 2 had ended by itself \(exit code -9\); it is started again"
    with pytest.warns(RuntimeWarning, match=killed), cluster.slow(1, 3):
        cluster._local.broker(2).kill()
    assert states(cluster) == ["running"] * 3
    cluster._local.broker(2).kill()
    with pytest.warns(RuntimeWarning, match=killed):
        with pytest.raises(DeployError, match="broker 2 is not running"), cluster.paused(2):
            pass


def test_an_error_in_a_block_undoes_its_faults(cluster: Cluster) -> None:
    with pytest.raises(ZeroDivisionError), cluster.killed(1), cluster.severed(2, ZOOKEEPER):
        raise ZeroDivisionError
    rule = FaultRule(name="same", api="Fetch", delay_ms=1)
    with (
        cluster.faults(rule),
        pytest.raises(ValueError, match="name='same': a fault rule of this name holds"),
    ):
        with cluster.faults(rule):
            pass


def test_protocol_faults_hit_the_requests_of_a_block_alone(cluster: Cluster) -> None:
    leader = cluster.leader_of("t")
    with cluster.producer() as producer:
        with cluster.faults(api="Produce", topic="t", error="NOT_LEADER_OR_FOLLOWER", times=2) as fault:
            producer.send_and_wait("t", b"refused twice")
            assert fault.hits == 2
            with cluster.killed(leader):
                pass
            # Its new process has the rule too, and the hits of the former one are not lost.
            rules = cluster._admin.describe_fault_rules().rules
            assert [sorted(rule.brokers) for rule in rules] == [[1, 2, 3]]
            assert fault.hits == 2
        producer.send_and_wait("t", b"not refused")
    assert fault.hits == 2
    with cluster.faults(api="Fetch", delay_ms=1, broker=2):
        assert [sorted(rule.brokers) for rule in cluster._admin.describe_fault_rules().rules] == [[2]]


def produce_ours(cluster: Cluster, topic: str) -> int:
    with cluster.producer(client_id=CLIENT) as producer:
        return producer.send_and_wait(topic, b"v").offset


def produce_confluent(cluster: Cluster, topic: str) -> int:
    settings = {"client.id": CLIENT, "enable.idempotence": True, "linger.ms": 0}
    producer = confluent_kafka.Producer(cluster.client_settings("confluent") | settings)
    written: list[Any] = []
    producer.produce(topic, b"v", on_delivery=lambda error, message: written.append((error, message)))
    assert producer.flush(30) == 0
    ((error, message),) = written
    assert error is None
    offset: int = message.offset()
    return offset


def consume_ours(cluster: Cluster, topic: str) -> bytes | None:
    with cluster.consumer(client_id=CLIENT, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        return next(iter(consumer)).value


def consume_confluent(cluster: Cluster, topic: str) -> bytes | None:
    settings = {"client.id": CLIENT, "group.id": topic, "reconnect.backoff.ms": 10}
    consumer = confluent_kafka.Consumer(cluster.client_settings("confluent") | settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    value: bytes = message.value()
    return value


PRODUCE = pytest.mark.parametrize("produce", [produce_ours, produce_confluent])


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = fresh_name("faults")
    cluster.create_topic(name, partitions=1)
    return name


@PRODUCE
def test_an_idempotent_record_is_written_once_although_it_is_refused_and_its_answers_are_lost(
    cluster: Cluster, topic: str, produce: Callable[[Cluster, str], int]
) -> None:
    actions: list[dict[str, Any]] = [
        {"error": "NOT_LEADER_OR_FOLLOWER"},
        {"disconnect": True, "after": True},
        {"truncate": True, "after": True},
        {"error": "REQUEST_TIMED_OUT", "after": True},
    ]
    rules = [FaultRule(client_id=CLIENT, api="Produce", topic=topic, times=1, **action) for action in actions]
    with cluster.faults(*rules) as fault:
        assert produce(cluster, topic) == 0
        assert fault.hits == len(rules)
    assert produce(cluster, topic) == 1


@pytest.mark.parametrize("consume", [consume_ours, consume_confluent])
def test_a_consumer_reads_on_after_late_refused_and_truncated_answers(
    cluster: Cluster, topic: str, consume: Callable[[Cluster, str], bytes | None]
) -> None:
    produce_ours(cluster, topic)
    faults: list[dict[str, Any]] = [
        {"api": ["Metadata", "ListOffsets"], "error": "LEADER_NOT_AVAILABLE", "delay_ms": 50, "times": 1},
        {"api": "Fetch", "truncate": True, "times": 1},
        {"api": "Fetch", "error": "NOT_LEADER_OR_FOLLOWER", "times": 1},
    ]
    with cluster.faults(*[FaultRule(client_id=CLIENT, **fault) for fault in faults]):
        assert consume(cluster, topic) == b"v"
        assert all(rule.hits for rule in cluster._admin.describe_fault_rules().rules)


@PRODUCE
def test_the_clients_of_a_stalled_connection_go_on_when_its_rule_is_removed(
    cluster: Cluster, topic: str, produce: Callable[[Cluster, str], int]
) -> None:
    with ThreadPoolExecutor(1) as threads:
        with cluster.faults(client_id=CLIENT, api="Produce", topic=topic, drop=True) as fault:
            writing = threads.submit(produce, cluster, topic)
            wait_for(lambda: fault.hits == 1)
        assert writing.result(30) == 0


def test_a_rule_that_hits_all_requests_can_be_removed_and_hides_nothing(cluster: Cluster) -> None:
    rule = FaultRule(drop=True)
    with cluster.admin() as admin:
        admin.add_fault_rules(rule)
        with cluster.admin(**VIEW_SETTINGS) as view:
            assert [replicas.fault_rules for replicas in view.describe_replicas()] == [1] * 3
        cluster._local.wait_ready(10)
        assert admin.remove_fault_rules() == [rule.name]
        assert len(admin.describe_cluster().nodes) == 3


def test_a_wrong_argument_of_the_cluster_is_named_at_once(cluster: Cluster) -> None:
    start = time.monotonic()
    for call, said in [
        (lambda: cluster.leader_of("nosuch"), "there is no topic 'nosuch'"),
        (lambda: cluster.leader_of("t", 7), "topic 't' has 1 partitions, there is no 7"),
        (lambda: cluster.leader_of("t", -1), "partition=-1: expected 0 or more"),
        (lambda: cluster.leader_of("t", True), "partition=True: expected 0 or more"),
        (lambda: cluster.leader_of(5), "topic=5: expected a str"),
        (lambda: cluster.killed(99), "there is no broker 99 "),
        (lambda: cluster.paused("1"), "there is no broker '1' "),
        (lambda: cluster.killed(True), "there is no broker True "),
        (lambda: cluster.stopped(None), "there is no broker None "),
        (lambda: cluster.client_settings("confluent", user="bob"), "there is no user 'bob', because"),
        (lambda: cluster.create_topic("x", replication_factor=0), "INVALID_REPLICATION_FACTOR"),
        (lambda: cluster.create_topic("x", partitions="3"), "num_partitions='3': expected int32"),
        (lambda: cluster.create_topic("x", configs="a=1"), "configs='a=1': expected a mapping of"),
    ]:
        with pytest.raises((BarnabasError, TypeError, ValueError), match=re.escape(said)):
            call()
    assert time.monotonic() - start < 10
    cluster.create_topic("y", configs={"max.message.bytes": 5_000})
    cluster.delete_topic("y")


def test_a_wrong_argument_of_a_fault_is_named_at_once(cluster: Cluster) -> None:
    ends = "expected one of broker 1, broker 2, broker 3, zookeeper, client"
    for make, said in [
        (lambda: cluster.disk_full(9), "there is no broker 9 .* there are 1, 2, 3"),
        (lambda: cluster.cut(9, 1), f"source=9: {ends}"),
        (lambda: cluster.cut(1, None), f"target=None: {ends}"),
        (lambda: cluster.severed(True, 1), f"one=True: {ends}"),
        (lambda: cluster.severed(1, "clients"), f"other='clients': {ends}"),
        (lambda: cluster.cut(2, "2"), "a link has two ends, not '2' twice"),
        (lambda: cluster.slow(1, 2, delay_ms=-5), "delay_ms=-5: expected milliseconds"),
        (lambda: cluster.slow(1, 2, delay_ms=True), "delay_ms=True: expected milliseconds"),
        (lambda: cluster.faults(api="Prduce", drop=True), "did you mean Produce"),
        (lambda: cluster.faults(broker=9, drop=True), "there is no broker 9 "),
        (lambda: cluster.faults("Produce"), "'Produce': expected a FaultRule"),
        (lambda: cluster.faults(), "the fault rule has no action"),
    ]:
        with pytest.raises((BarnabasError, TypeError, ValueError), match=said):
            make()


def test_a_forked_child_that_leaves_the_blocks_ends_nothing(cluster: Cluster) -> None:
    directory = cluster._local.directory
    with cluster.paused(1) as fault:
        child = os.fork()
        if child == 0:
            refused = False
            try:
                fault.__exit__()
                try:
                    cluster.create_topic("of-the-child")
                except DeployError as error:
                    refused = "belongs to the parent process" in str(error)
                cluster.close()
                assert cluster._removal is not None
                cluster._removal()
            finally:
                os._exit(0 if refused else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert states(cluster) == ["paused", "running", "running"]
        assert directory.is_dir()


async def test_the_loop_runs_on_while_a_fault_begins_and_ends(cluster: Cluster) -> None:
    leader = await cluster.aio.leader_of("t")
    async with cluster.aio.producer() as producer, cluster.killed(leader):
        await producer.send_and_wait("t", b"written while a broker is down")
    async with cluster.aio.consumer() as consumer:
        consumer.subscribe(["t"])
        assert (await anext(consumer)).topic == "t"


def test_a_cluster_in_a_directory_is_continued_and_needs_no_links(
    tmp_path: Path, zookeeper: ZooKeeper | ExistingZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BARNABAS_ZOOKEEPER", fresh_name(f"{zookeeper.connect}/scripted"))

    def one() -> AbstractContextManager[Cluster]:
        return barnabas.local_cluster(brokers=1, links=False, directory=tmp_path)

    with one() as cluster:
        cluster.create_topic("kept")
        with pytest.raises(DeployError, match="barnabas_links = true"):
            cluster.cut("client", 1)
        with pytest.raises(DeployError, match="runs already"):
            cluster.start()
        with pytest.raises(DeployError, match="does not belong to the cluster"):
            cluster.zookeeper_down()
    with one() as cluster, cluster.admin() as admin:
        assert "kept" in admin.list_topics()


def test_the_script_of_the_examples_says_how_long_each_step_takes(
    zookeeper: ZooKeeper | ExistingZooKeeper,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("BARNABAS_ZOOKEEPER", fresh_name(f"{zookeeper.connect}/script"))
    runpy.run_path(str(EXAMPLES / "testing" / "script.py"), run_name="__main__")
    steps = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert steps == [
        "the first order",
        "the first order after the death of the leader",
        "from nothing to nothing",
    ]
