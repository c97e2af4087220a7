"""A cluster whose links can fail: three brokers and a ZooKeeper, each with a proxy before it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from barnabas.chaos.history import Acknowledged, Sent, value_of
from barnabas.deploy.local import LocalCluster
from barnabas.deploy.state import SecurityConfiguration
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import TopicPartition

from ..cluster.raw_client import RawClient, batch_of
from ..cluster.tools import ClusterView

PARTITIONS = 3
_BROKERS = 3
SESSION_TIMEOUT_MS = 2_000
LAG_MS = 2_000
_FIRST_OF_OURS = 1_000_000_000


class LinkedCluster:
    """Three brokers and a ZooKeeper, each with a proxy, and a topic."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, str] | None = None,
        *,
        racks: Sequence[str] = (),
        partitions: int = PARTITIONS,
        security: SecurityConfiguration | None = None,
        **configs: str,
    ) -> None:
        self.cluster = LocalCluster(
            folder / "cluster",
            links=True,
            brokers=_BROKERS,
            racks=racks,
            settings={
                "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
                "replica.lag.time.max.ms": str(LAG_MS),
                # A fetch whose answer is held back times out sooner than that.
                "replica.socket.timeout.ms": "1500",
                **({} if security is None else {"zookeeper.set.acl": "true"}),
                **(settings or {}),
            },
            security=security,
        )
        self.cluster.start()
        self.zookeeper = self.cluster.own_zookeeper
        self.links = self.cluster.links
        self.tried: list[Sent] = []
        self.acknowledged: list[Acknowledged] = []
        self.view = ClusterView(self.cluster)
        self.view.create_topic("t", partitions, 3, **({"min_insync_replicas": "2"} | configs))

    def raw_client(self, broker_id: int) -> RawClient:
        return RawClient(self.cluster.broker(broker_id).endpoint, security=self.view.security)

    def is_fenced(self, client: RawClient, partition: TopicPartition) -> bool:
        """Whether a broker refuses one more record for a partition; if not, its answer is noted."""
        record = Sent(_FIRST_OF_OURS + len(self.tried), partition)
        self.tried.append(record)
        answer = client.produce(partition.partition, batch_of(value_of(record.number, 20)), timeout_ms=100)
        if answer.error_code == ErrorCode.NONE:
            self.acknowledged.append(Acknowledged(partition, answer.base_offset, record.number))
        return bool(answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def others(self, broker_id: int) -> list[int]:
        return [int(other) for other in self.cluster.broker_ids if other != broker_id]

    def led_by(self, broker_id: int) -> list[TopicPartition]:
        """The partitions that a broker leads, according to the other brokers."""
        return [
            TopicPartition("t", info.partition)
            for info in self.view.partitions("t")
            if info.leader == broker_id
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.cluster.kill_all()
        self.cluster.close()
