"""Asks every broker of a cluster, many times a second, who leads which partition with which ISR.

Each broker is asked by itself, for its metadata and for the ISRs of what it leads, as metadata may
be old while a link or the controller is down; `Samples` chooses. A thread with a loop of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from barnabas.chaos.samples import PartitionSeen, Samples
from barnabas.common.channel import Channel
from barnabas.deploy.running_cluster import RunningCluster
from barnabas.protocol.errors import BarnabasError
from barnabas.protocol.ids import BrokerId, Endpoint, TopicPartition
from barnabas.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from barnabas.protocol.messages.replicas import DescribeReplicasRequest, DescribeReplicasResponse

INTERVAL_S: Final = 0.05
_REQUEST_TIMEOUT_MS: Final = 1_000
_JOIN_S: Final = 10.0


class Watch:
    """A context manager. A broker that does not answer within a second is asked again."""

    # It asks without a proxy: a broker's view is of interest also while the link to its clients is cut.

    def __init__(self, cluster: RunningCluster, topic: str, samples: Samples) -> None:
        self._endpoints = {broker.id: broker.endpoint for broker in cluster.brokers}
        self._security = cluster.channel_security()
        self._metadata = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
        self._replicas = DescribeReplicasRequest(topics=[topic])
        self._samples = samples
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._watch()), name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(_JOIN_S)

    async def _watch(self) -> None:
        await asyncio.gather(*(self._ask_again(id, endpoint) for id, endpoint in self._endpoints.items()))

    async def _ask_again(self, broker: BrokerId, endpoint: Endpoint) -> None:
        channel = Channel(
            endpoint,
            client_id="barnabas-chaos",
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            connect_timeout_ms=_REQUEST_TIMEOUT_MS,
            reconnect_backoff_ms=10,
            reconnect_backoff_max_ms=100,
            security=self._security,
        )
        try:
            while not self._ending.is_set():
                # Dead, paused or busy: the others answer.
                with suppress(BarnabasError):
                    self._take(int(broker), await channel.request(self._metadata))
                    self._take_isrs(await channel.request(self._replicas))
                await asyncio.sleep(INTERVAL_S)
        finally:
            channel.close()

    def _take(self, broker: int, metadata: MetadataResponse) -> None:
        now_s = time.monotonic()
        self._samples.saw_controller(broker, metadata.controller_id, now_s)
        for topic in metadata.topics:
            for found in topic.partitions:
                name = str(TopicPartition(topic.name or "", found.partition_index))
                isr = tuple(sorted(map(int, found.isr_nodes)))
                seen = PartitionSeen(int(found.leader_id), int(found.leader_epoch), isr)
                self._samples.saw(name, seen, now_s)

    def _take_isrs(self, replicas: DescribeReplicasResponse) -> None:
        now_s = time.monotonic()
        for topic in replicas.topics:
            for found in topic.replicas:
                if found.is_leader:
                    name = str(TopicPartition(topic.topic_name, found.partition_index))
                    self._samples.saw_isr(name, found.leader_epoch, tuple(sorted(found.isr)), now_s)
