"""Leader hints while leadership moves (KIP-951): each names the leader that its epoch has.

One client for each broker fetches all partitions from it in a loop and records the hints. The state-change
logs of the brokers have the leader of each epoch.
"""

import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from barnabas.client.blocking import Admin
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.local_broker import LocalBroker
from barnabas.protocol import codec_kafka
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerId, TopicPartition
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from barnabas.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from barnabas.protocol.schema import RequestOf
from tests.support.batches import build_batch
from tests.support.raw_socket import RawSocket
from tests.support.waiting import wait_for

from .tools import ClusterView

TOPIC, PARTITIONS = "hinted", 8
ROUNDS = 6
PRODUCE_VERSION, FETCH_VERSION = 10, 16
ROLE = re.compile(rf"{TOPIC}-(\d+) is (?:leader|follower) at leader epoch (\d+) \(leader (-?\d+),")


class Hint(NamedTuple):
    api: str
    partition: int
    leader: int
    epoch: int
    address: str | None


class Asker(threading.Thread):
    """Asks one broker until `stop`; reconnects when a connection ends."""

    def __init__(self, broker: LocalBroker, topic_id: uuid.UUID) -> None:
        super().__init__(daemon=True)
        self.broker = broker
        self.hints: list[Hint] = []
        self.refusals = 0
        self.error: BaseException | None = None
        self._topic_id = topic_id
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)
        assert not self.is_alive()
        assert self.error is None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    with RawSocket(self.broker.host, self.broker.port) as connection:
                        while not self._stopping.wait(0.005):
                            self._ask_both(connection)
                except OSError:
                    # It is killed, or not up again.
                    self._stopping.wait(0.01)
        except BaseException as error:
            self.error = error
            raise

    def _ask_both(self, connection: RawSocket) -> None:
        record = build_batch([(None, b"v")], timestamp_ms=1_700_000_000_000)
        written = [PartitionProduceData(index=index, records=record) for index in range(PARTITIONS)]
        topics = [TopicProduceData(name=TOPIC, partition_data=written)]
        produced = _ask(
            connection, PRODUCE_VERSION, ProduceRequest(acks=1, timeout_ms=1_000, topic_data=topics)
        )
        for partition in produced.responses[0].partition_responses:
            self._note("produce", partition.index, partition, produced)
        wanted = [
            FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
            for index in range(PARTITIONS)
        ]
        fetch = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            session_epoch=-1,
            topics=[FetchTopic(topic_id=self._topic_id, partitions=wanted)],
        )
        fetched = _ask(connection, FETCH_VERSION, fetch)
        for topic in fetched.responses:
            for partition in topic.partitions:
                self._note("fetch", partition.partition_index, partition, fetched)

    def _note(self, api: str, index: int, partition: Any, response: Any) -> None:
        hint = partition.current_leader
        if partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            self.refusals += 1
        else:
            assert hint.leader_id == -1
        if hint.leader_id >= 0:
            addresses = {node.node_id: f"{node.host}:{node.port}" for node in response.node_endpoints}
            address = addresses.get(hint.leader_id)
            self.hints.append(Hint(api, index, hint.leader_id, hint.leader_epoch, address))


def _ask(connection: RawSocket, version: int, request: RequestOf[Any]) -> Any:
    buffers = codec_kafka.encode_request(version, 7, "asker", request)
    connection.send(b"".join(map(bytes, buffers)))
    payload = memoryview(bytearray(connection.receive_frame()))
    return codec_kafka.decode_response(type(request), version, payload)[1]


def _leaders_of_epochs(cluster: LocalCluster) -> dict[tuple[int, int], int]:
    """Partition and epoch → leader, as the controller sent it to the brokers; one leader for each epoch."""
    found: dict[tuple[int, int], int] = {}
    for broker in cluster.brokers:
        for path in (broker.directory / "logs").glob("*.log"):
            for partition, epoch, leader in ROLE.findall(path.read_text()):
                assert found.setdefault((int(partition), int(epoch)), int(leader)) == int(leader)
    return found


def _wait_hinted(view: ClusterView, askers: list[Asker]) -> None:
    """Wait until every broker but the leader has hinted at each partition's leader in its present epoch."""
    view.wait_agreed(TOPIC, PARTITIONS)

    def missing() -> set[tuple[int, int, int, int]]:
        wanted = {
            (asker.broker.id, one.partition, one.leader, one.leader_epoch)
            for one in view.partitions(TOPIC)
            for asker in askers
            if asker.broker.id != one.leader
        }
        return wanted - {
            (asker.broker.id, hint.partition, hint.leader, hint.epoch)
            for asker in askers
            for hint in asker.hints.copy()
        }

    wait_for(lambda: not missing(), lambda: f"no hints (broker, partition, leader, epoch): {missing()}")


def _faults(cluster: LocalCluster, view: ClusterView, askers: list[Asker]) -> Iterator[int]:
    """Shut down and kill (-9) the leader of most partitions in turn, start it again, and move the leaders."""
    for number in range(ROUNDS):
        victim = BrokerId(Counter(p.leader for p in view.partitions(TOPIC)).most_common(1)[0][0])
        if number % 2:
            cluster.kill(victim)
        else:
            cluster.stop_broker(victim)
        yield victim
        cluster.start_broker(victim)
        view.wait_isr(TOPIC, 3)
        if number % 3:
            continue
        # Once after a shutdown, once after a kill.
        with view.admin() as admin:
            _elect_preferred(admin, victim)
            _wait_hinted(view, askers)
            _move_leaders(admin, view, lambda: _wait_hinted(view, askers))


def _elect_preferred(admin: Admin, returned: BrokerId) -> None:
    """Let a broker that is back lead its partitions again: those that lead meanwhile live on."""
    preferred = {
        TopicPartition(TOPIC, partition.partition)
        for partition in admin.describe_topics(TOPIC)[TOPIC].partitions
        if partition.replicas[0] == returned
    }
    assert preferred
    assert set(admin.elect_leaders(preferred).values()) == {None}


def _move_leaders(admin: Admin, view: ClusterView, check: Callable[[], None]) -> None:
    """Take every partition from its leader by a reassignment, and give it back as a follower."""
    before = {
        TopicPartition(TOPIC, one.partition): (one.leader, one.replicas) for one in view.partitions(TOPIC)
    }

    def reassign(targets: dict[TopicPartition, list[BrokerId]]) -> None:
        assert set(admin.alter_partition_reassignments(targets).values()) == {None}
        wait_for(lambda: not admin.list_partition_reassignments(), "the partitions still move")

    reassign({tp: [each for each in replicas if each != leader] for tp, (leader, replicas) in before.items()})
    view.wait_isr(TOPIC, 2)
    # Another broker may answer the next question.
    view.wait_agreed(TOPIC, PARTITIONS)
    for one in view.partitions(TOPIC):
        assert one.leader != before[TopicPartition(TOPIC, one.partition)][0]
    check()
    reassign({tp: list(replicas) for tp, (_, replicas) in before.items()})
    view.wait_isr(TOPIC, 3)
    check()


@pytest.mark.timeout(300)
@pytest.mark.brokers(settings={"auto.leader.rebalance.enable": "false"})
def test_each_hint_names_the_leader_of_its_epoch(cluster: LocalCluster) -> None:
    # Leaders come back by the test's elections alone.
    view = ClusterView(cluster)
    view.create_topic(TOPIC, PARTITIONS)
    view.wait_isr(TOPIC, 3)
    with view.admin() as admin:
        topic_id = admin.describe_topics(TOPIC)[TOPIC].topic_id
    askers = [Asker(broker, topic_id) for broker in cluster.brokers]
    for asker in askers:
        asker.start()
    for _ in _faults(cluster, view, askers):
        # The others lead: their clients are hinted at them meanwhile.
        view.wait_isr(TOPIC, 2)
    for asker in askers:
        asker.stop()
    leaders = _leaders_of_epochs(cluster)
    addresses = {int(broker.id): str(broker.endpoint) for broker in cluster.brokers}
    for asker in askers:
        newest: dict[int, int] = {}
        for hint in asker.hints:
            assert leaders[hint.partition, hint.epoch] == hint.leader
            assert hint.leader != asker.broker.id
            assert hint.address == addresses[hint.leader]
            assert hint.epoch >= newest.get(hint.partition, -1)
            newest[hint.partition] = hint.epoch
        apis = Counter(hint.api for hint in asker.hints)
        assert min(apis["produce"], apis["fetch"]) > 0
        # Without a hint only while a leader is dead.
        assert len(asker.hints) > asker.refusals / 2, (len(asker.hints), asker.refusals)
