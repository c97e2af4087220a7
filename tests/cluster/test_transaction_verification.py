"""No transactional record enters a log without its coordinator (KIP-890), by coordinators on any broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.broker.coordinators.transactions.verification import VERIFICATION
from barnabas.client import ConfigResource
from barnabas.deploy.local import LocalCluster
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition
from barnabas.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tests.support.names import fresh_name
from tests.support.waiting import wait_for

from . import raw_client
from .raw_client import RawClient
from .tools import KILLED, ClusterView, running
from .transaction_client import TransactionalClient

READ_COMMITTED, LATEST = 1, -1
PARTITIONS = 3


@pytest.fixture
def topic(shared_cluster: LocalCluster) -> str:
    """A topic with a partition on each broker."""
    name = fresh_name("t")
    ClusterView(shared_cluster).create_topic(name, PARTITIONS)
    return name


def partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(PARTITIONS)]


def end_offset(cluster: LocalCluster, partition: TopicPartition, isolation_level: int = 0) -> int:
    """The high watermark, or the last stable offset."""
    leader = ClusterView(cluster).leader(*partition)
    asked = [ListOffsetsPartition(partition_index=partition.partition, timestamp=LATEST)]
    request = ListOffsetsRequest(
        isolation_level=isolation_level, topics=[ListOffsetsTopic(name=partition.topic, partitions=asked)]
    )
    with RawClient(cluster.broker(leader).endpoint) as client:
        (found,) = client.ask(request).topics[0].partitions
    assert found.error_code == ErrorCode.NONE
    return int(found.offset)


def wait_all_stable(cluster: LocalCluster, partition: TopicPartition) -> None:
    """Wait until no transaction is open in the partition."""
    wait_for(
        lambda: end_offset(cluster, partition, READ_COMMITTED) == end_offset(cluster, partition),
        f"a transaction hangs in {partition}",
    )


@pytest.mark.parametrize(
    ("version", "error"),
    [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_records_of_a_partition_that_was_not_added_are_refused(
    shared_cluster: LocalCluster, topic: str, version: int, error: ErrorCode
) -> None:
    """On every broker, one of which is the coordinator itself."""
    client = TransactionalClient(shared_cluster, topic, version)
    client.init()
    added, *others = partitions(topic)
    client.add(added)
    assert client.produce(added, 0) is ErrorCode.NONE
    for other in others:
        assert client.produce(other, 0) is error
        assert end_offset(shared_cluster, other) == 0
    client.add(*others)
    for other in others:
        assert client.produce(other, 0) is ErrorCode.NONE
    client.end(committed=True)
    for partition in partitions(topic):
        wait_all_stable(shared_cluster, partition)


@pytest.mark.parametrize("version", [9, 12, None])
def test_a_late_produce_after_an_abort_leaves_no_hanging_transaction(
    shared_cluster: LocalCluster, topic: str, version: int | None
) -> None:
    client = TransactionalClient(shared_cluster, topic, version)
    client.init()
    epoch = client.epoch
    is_v2 = version != 9
    for partition in partitions(topic):
        if not is_v2:
            client.add(partition)
        assert client.produce(partition, 0) is ErrorCode.NONE
    client.end(committed=False)
    for partition in partitions(topic):
        wait_all_stable(shared_cluster, partition)
        end = end_offset(shared_cluster, partition)
        # The batch was delayed on its way, in the epoch of the aborted transaction.
        expected = ErrorCode.INVALID_PRODUCER_EPOCH if is_v2 else ErrorCode.INVALID_TXN_STATE
        assert client.produce(partition, 1, epoch) is expected
        assert end_offset(shared_cluster, partition) == end
        wait_all_stable(shared_cluster, partition)


def test_records_that_are_sent_together_keep_their_order(shared_cluster: LocalCluster, topic: str) -> None:
    """The first batch waits for the coordinator, and the others are appended after it."""
    client = TransactionalClient(shared_cluster, topic)
    client.init()
    for partition in partitions(topic):
        leader = ClusterView(shared_cluster).leader(*partition)
        requests = [client.request(partition, sequence) for sequence in range(20)]
        with RawClient(shared_cluster.broker(leader).endpoint) as connection:
            connection.send(b"".join(raw_client.encoded(request) for request in requests))
            answers = [connection.answer_to(request) for request in requests]
        assert [client.result(answer) for answer in answers] == [ErrorCode.NONE] * 20
        offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
        assert offsets == list(range(20))
    client.end(committed=True)


@pytest.fixture
def killable(tmp_path: Path, zookeeper_connect: str) -> Iterator[LocalCluster]:
    with running(LocalCluster(tmp_path / "cluster", zookeeper=zookeeper_connect, settings=KILLED)) as cluster:
        yield cluster


def test_a_produce_that_waits_for_a_coordinator_that_dies_is_answered_and_retried(
    killable: LocalCluster,
) -> None:
    ClusterView(killable).create_topic("t", PARTITIONS)
    client = TransactionalClient(killable, "payments")
    client.init()
    coordinator = client.coordinator
    partition = next(name for name in partitions("t") if ClusterView(killable).leader(*name) != coordinator)
    leader = ClusterView(killable).leader(*partition)
    killable.pause(coordinator)
    with RawClient(killable.broker(leader).endpoint) as connection:
        connection.send(raw_client.encoded(client.request(partition, 0)))
        killable.kill(coordinator)
        answer = connection.answer_to(client.request(partition, 0))
    # On a busy machine the leader may look for the coordinator after its death only, and ask the next one.
    assert client.result(answer) in (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE)
    client.produce_at_last(partition, 0)
    client.end(committed=True)
    wait_all_stable(killable, partition)
    assert end_offset(killable, partition) == 2


def test_verification_is_switched_off_and_on_while_brokers_run(
    shared_cluster: LocalCluster, topic: str
) -> None:
    client = TransactionalClient(shared_cluster, topic, 9)
    client.init()
    first, second, _ = partitions(topic)
    assert client.produce(first, 0) is ErrorCode.INVALID_TXN_STATE

    def set_enabled(value: str | None) -> None:
        with ClusterView(shared_cluster).admin() as admin:
            admin.alter_configs({ConfigResource.all_brokers(): {VERIFICATION: value}})

    set_enabled("false")
    try:
        wait_for(lambda: client.produce(first, 0) is ErrorCode.NONE, "verification stays on")
    finally:
        set_enabled(None)

    def is_refused() -> bool:
        other = TransactionalClient(shared_cluster, fresh_name("other"), 9)
        other.init()
        return other.produce(second, 0) is ErrorCode.INVALID_TXN_STATE

    wait_for(is_refused, "verification stays off")
