"""Every setting of a topic is changed while a producer writes: no acknowledged record is lost or repeated."""

import random
import threading
from collections.abc import Mapping
from typing import Final

import pytest

from barnabas.broker.config.dynamic import DYNAMIC_NAMES
from barnabas.broker.config.listener_config import LIMITS, LISTENER_SETTINGS
from barnabas.broker.config.topic_config import TOPIC_SETTINGS
from barnabas.client import ConfigResource
from barnabas.client.blocking import Producer
from barnabas.common.settings import LONG_MAX
from barnabas.deploy.local import LocalCluster
from tests.support.waiting import wait_for

from .test_settings import values
from .tools import KILLED, ClusterView, start_all

SMALL: Final = {
    # Values with much to do for the log, under which each record is accepted and kept.
    "cleanup.policy": ("compact,delete", "delete"),
    "compression.gzip.level": ("9",),
    "compression.lz4.level": ("12",),
    "compression.type": ("gzip", "lz4", "zstd", "snappy", "uncompressed"),
    "compression.zstd.level": ("-7",),
    "delete.retention.ms": ("0",),
    "file.delete.delay.ms": ("0",),
    "flush.messages": ("1", "7"),
    "flush.ms": ("5",),
    "follower.replication.throttled.replicas": ("*",),
    "index.interval.bytes": ("0",),
    "leader.replication.throttled.replicas": ("0:1",),
    "local.retention.bytes": ("1",),
    "local.retention.ms": ("1",),
    "max.compaction.lag.ms": ("20",),
    "max.message.bytes": ("2000",),
    "message.downconversion.enable": ("false",),
    "message.format.version": ("2.8-IV1",),
    "message.timestamp.after.max.ms": ("3600000",),
    "message.timestamp.before.max.ms": ("3600000",),
    "message.timestamp.difference.max.ms": ("3600000",),
    "message.timestamp.type": ("LogAppendTime",),
    "min.cleanable.dirty.ratio": ("0.0",),
    "min.compaction.lag.ms": ("1",),
    "min.insync.replicas": ("2",),
    "preallocate": ("true",),
    "remote.log.copy.disable": ("false",),
    "remote.log.delete.on.disable": ("false",),
    "remote.storage.enable": ("false",),
    "retention.bytes": ("1000000",),
    "retention.ms": ("3600000",),
    "segment.bytes": ("3000", "1000000"),
    "segment.index.bytes": ("40",),
    "segment.jitter.ms": ("100",),
    "segment.ms": ("50",),
    "unclean.leader.election.enable": ("false",),
}


OF_BROKERS: Final = {
    "log.cleaner.backoff.ms": "0",
    "log.cleaner.dedupe.buffer.size": "3145728",
    "log.cleaner.io.buffer.load.factor": "0.01",
    "log.cleaner.io.buffer.size": "0",
    "log.cleaner.io.max.bytes.per.second": "100000.5",
    "log.cleaner.threads": "3",
    "follower.replication.throttled.rate": str(LONG_MAX),
    "leader.replication.throttled.rate": str(LONG_MAX),
    "max.connection.creation.rate": "1000",
    "max.connections": "1000",
    "max.connections.per.ip": "1000",
    "max.connections.per.ip.overrides": "127.0.0.9:10",
    "producer.id.expiration.ms": "3600000",
    "replica.alter.log.dirs.io.max.bytes.per.second": "1000",
    "transaction.partition.verification.enable": "false",
}
"""The dynamic settings of a broker that no topic overrides."""
OF_LISTENERS: Final = {"advertised.listeners", "listener.security.protocol.map", "listeners"}
"""Changed by `test_dynamic_listeners`: they concern no topic, and the clients of this test use them."""


PAUSE_S: Final = 0.002
"""After each record. A writer without pauses only gives the cleaners more to do while a change is applied."""


class Writer:
    """Writes numbered records one after the other, each with a key of its own, until it is stopped."""

    def __init__(self, cluster: LocalCluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(bootstrap_servers=cluster.bootstrap, acks="all", enable_idempotence=True)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer")
        self.count = 0
        """The number of acknowledged records."""
        self._thread.start()

    def wait_for_more(self, count: int) -> None:
        least = self.count + count
        wait_for(lambda: self.count >= least, lambda: f"{self.count} records are written, not {least}")

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE_S):
            value = b"%d" % self.count
            self._producer.send(self._topic, value * 20, key=value, partition=0).result(60)
            self.count += 1


def alter(cluster: LocalCluster, topic: ConfigResource, changes: Mapping[str, str | None]) -> None:
    with ClusterView(cluster).admin() as admin:
        admin.alter_configs({topic: changes})


@pytest.mark.brokers(
    settings=KILLED | {"log.retention.check.interval.ms": "100", "log.cleaner.backoff.ms": "100"}
)
def test_every_setting_is_changed_while_a_producer_writes(cluster: LocalCluster) -> None:
    assert SMALL.keys() == TOPIC_SETTINGS.keys()
    of_topics = {declared.name: SMALL[name][0] for name, declared in TOPIC_SETTINGS.items() if declared.name}
    without_effect = LISTENER_SETTINGS.keys() - LIMITS
    assert of_topics.keys() | OF_BROKERS.keys() | OF_LISTENERS == DYNAMIC_NAMES - without_effect
    view = ClusterView(cluster)
    view.create_topic("t", 1, 3)
    topic = ConfigResource.topic("t")
    changes = [(name, value) for name, choices in SMALL.items() for value in choices]
    random.Random(11).shuffle(changes)
    writer = Writer(cluster, "t")
    try:
        for number, (name, value) in enumerate(changes):
            alter(cluster, topic, {name: value})
            writer.wait_for_more(5)
            if number == len(changes) // 2:
                killed = next(broker for broker in cluster.broker_ids if broker != view.controller())
                cluster.kill(killed)
                writer.wait_for_more(10)
                cluster.start_broker(killed)
                view.wait_isr("t", 3)
        shown = {name: value for name, (value, _) in values(cluster, topic).items()}
        assert [name for name, choices in SMALL.items() if shown[name] not in choices] == []
        alter(cluster, topic, dict.fromkeys(SMALL))
        alter(cluster, ConfigResource.all_brokers(), of_topics | OF_BROKERS)
        writer.wait_for_more(30)
        alter(cluster, ConfigResource.all_brokers(), dict.fromkeys(of_topics | OF_BROKERS))
        writer.wait_for_more(10)
    finally:
        writer.stop()
    cluster.kill_all()
    start_all(cluster)
    view.wait_isr("t", 3)
    assert view.read("t", 1) == [b"%d" % number * 20 for number in range(writer.count)]
