"""The ids that all layers use, each a type of its own.

An offset, an epoch and a partition index are all integers. With a type for each, the type checker finds
mix-ups, which would lose data. At run time they cost nothing.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple, NewType, TypeVar

T = TypeVar("T")

BrokerId = NewType("BrokerId", int)
Offset = NewType("Offset", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ControllerEpoch = NewType("ControllerEpoch", int)
BrokerEpoch = NewType("BrokerEpoch", int)
"""The czxid of a broker's registration znode, which distinguishes its registrations (KIP-380, KIP-903)."""
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
TopicId = NewType("TopicId", uuid.UUID)

NO_BROKER: Final = BrokerId(-1)
NO_OFFSET: Final = Offset(-1)
NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_CONTROLLER_EPOCH: Final = ControllerEpoch(-1)
NO_BROKER_EPOCH: Final = BrokerEpoch(-1)
LEAVING_BROKER_EPOCH: Final = BrokerEpoch((1 << 63) - 1)
"""The epoch in the fetches of a stopping broker, which stays in its ISRs but does not join one again."""
NO_PRODUCER_ID: Final = ProducerId(-1)
NO_TOPIC_ID: Final = TopicId(uuid.UUID(int=0))


_MAX_SHOWN: Final = 249


class TopicPartition(NamedTuple):
    """One partition of one topic, as ``topic-partition`` in logs and folder names."""

    topic: str
    partition: int

    def __str__(self) -> str:
        # A request may repeat an illegal name for each of its partitions; legal ones are shorter.
        return f"{self.topic[:_MAX_SHOWN]}-{self.partition}"


def by_topic(items: Iterable[tuple[TopicPartition, T]]) -> dict[str, list[T]]:
    """The items of each topic, in their order."""
    topics: dict[str, list[T]] = {}
    for name, item in items:
        topics.setdefault(name.topic, []).append(item)
    return topics


_ENDPOINT: Final = re.compile(r"(?:\[(?P<v6>[^\s\[\]]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})")


class Endpoint(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read ``host:port`` (``[v6]:port`` for IPv6).

        Raises ValueError naming the text if it is malformed, or the port not a number from 0 to 65535.
        """
        match = _ENDPOINT.fullmatch(text.strip())
        if match is None or int(match["port"]) > 65535:
            raise ValueError(f"{text!r} is not host:port, for example localhost:9092 or [::1]:9092")
        return cls(match["v6"] or match["host"], int(match["port"]))


def parse_endpoints(text: str) -> list[Endpoint]:
    """Read a comma separated ``host:port`` list, as ``bootstrap.servers``; raises ValueError when empty."""
    endpoints = [Endpoint.parse(part) for part in text.split(",") if part.strip()]
    if not endpoints:
        raise ValueError(f"{text!r} names no server; expected host:port[,host:port…]")
    return endpoints
