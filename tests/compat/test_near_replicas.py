"""confluent-kafka, and Java's consumer in Kafka's console, read from the replica on their rack (KIP-392)."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from barnabas.broker.config.settings import RACK_AWARE_SELECTOR
from barnabas.deploy.local import LocalCluster
from tests.support.metrics_page import fetch_page
from tests.support.waiting import wait_for

from ..cluster.tools import KILLED, UNHARMED, ClusterView
from .conftest import EXTERNAL
from .java import CONSOLE_CONSUMER, Tool

TOPIC = "t"
pytestmark = pytest.mark.skipif(bool(EXTERNAL), reason="needs a cluster with racks")


class NearReader:
    """A consumer with a rack; it notes its values, and the broker that it reads from."""

    def __init__(self, bootstrap: str, rack: str) -> None:
        self.values: list[bytes | None] = []
        self.source = -1
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "near",
                "client.rack": rack,
                "isolation.level": "read_committed",
                "statistics.interval.ms": 100,
                "stats_cb": self._note,
            }
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])

    def _note(self, text: str) -> None:
        partitions = json.loads(text)["topics"].get(TOPIC, {}).get("partitions", {})
        self.source = partitions.get("0", {}).get("broker", -1)

    def look(self) -> None:
        for message in self._consumer.consume(100, timeout=0.1):
            if message.error() is None:
                self.values.append(message.value())

    def wait(self, is_so: Callable[[], bool], wanted: str) -> None:
        def look() -> bool:
            self.look()
            return is_so()

        wait_for(look, lambda: f"{wanted}; read {self.values}, from broker {self.source}")

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def transactions(bootstrap: str) -> Iterator[Callable[[bytes, bool], None]]:
    """A function that writes a record in a transaction, which it commits or aborts."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "near"})
    producer.init_transactions()

    def write(value: bytes, is_committed: bool) -> None:
        producer.begin_transaction()
        producer.produce(TOPIC, value, partition=0)
        if is_committed:
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()

    yield write


def test_a_consumer_reads_committed_records_from_its_rack_and_survives_its_death(
    start_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = start_cluster(
        settings={**KILLED, "replica.selector.class": RACK_AWARE_SELECTOR},
        broker_settings={broker: {"broker.rack": f"rack-{broker}"} for broker in (1, 2, 3)},
    )
    view = ClusterView(cluster)
    view.create_topic(TOPIC, 1, 3)
    near = next(broker for broker in (1, 2, 3) if broker != view.leader(TOPIC))
    with (
        transactions(cluster.bootstrap) as write,
        closing(NearReader(cluster.bootstrap, f"rack-{near}")) as reader,
    ):
        write(b"a", True)
        reader.wait(lambda: reader.source == near, f"the reader does not read from broker {near}")
        write(b"not committed", False)
        write(b"b", True)
        reader.wait(lambda: reader.values == [b"a", b"b"], "two committed records")
        assert reader.source == near
        cluster.kill(near)
        write(b"c", True)
        reader.wait(lambda: reader.values == [b"a", b"b", b"c"], "the record after the death")


def test_the_console_consumer_reads_from_the_replica_on_its_rack(
    tool: Tool, start_cluster: Callable[..., LocalCluster]
) -> None:
    cluster = start_cluster(
        metrics=True,
        settings={**UNHARMED, "replica.selector.class": RACK_AWARE_SELECTOR},
        broker_settings={broker: {"broker.rack": f"rack-{broker}"} for broker in (1, 2, 3)},
    )
    view = ClusterView(cluster)
    view.create_topic(TOPIC, 1, 3)
    values = [b"%d" % number for number in range(300)]
    view.write(TOPIC, values)
    near = next(broker for broker in (1, 2, 3) if broker != view.leader(TOPIC))
    said = tool(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", cluster.bootstrap, "--topic", TOPIC, "--partition", "0"),
        *("--offset", "earliest", "--max-messages", str(len(values)), "--timeout-ms", "60000"),
        *("--consumer-property", f"client.rack=rack-{near}"),
    )
    assert said.split() == [value.decode() for value in values]
    sent = {
        broker.id: fetch_page(broker.metrics_url).value(
            "kafka_server_brokertopicmetrics_bytesout_total", topic=TOPIC
        )
        for broker in cluster.brokers
    }
    assert sent[near] >= sum(map(len, values))
    assert {broker for broker, sent_bytes in sent.items() if sent_bytes} == {near}
