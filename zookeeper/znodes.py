"""The content of the znodes: frozen records, and Kafka's JSON for each.

Pure. A decoder raises `MalformedZnode` for data that Kafka would not have written; unknown keys are ignored,
because later versions add some. Source: the JSON formats of Apache Kafka 3.9 in ZooKeeper mode.
"""

from __future__ import annotations

import base64
import binascii
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from barnabas.protocol.ids import (
    NO_BROKER,
    NO_BROKER_EPOCH,
    NO_TOPIC_ID,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    Endpoint,
    LeaderEpoch,
    TopicId,
    TopicPartition,
)
from barnabas.zookeeper import paths
from barnabas.zookeeper.json_nodes import MalformedZnode, dump, int16, int32, int32s, reading

log = logging.getLogger("barnabas.zookeeper")

_DISABLED: Final = 0
_ENABLED: Final = 1


class LevelRange(NamedTuple):
    """The levels of a feature that a broker supports; level 0 is the absence of the feature."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"{self.lowest} to {self.highest}"

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest


class AdvertisedListener(NamedTuple):
    """One listener of a broker, ``NAME://host:port`` in its registration."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerRegistration:
    """``/brokers/ids/<id>``. `broker_epoch` is the czxid of the node, unknown before the registration.

    `directories` are the ids of the log dirs that the process has locked, `principals` those as which the
    broker logs in to others; Kafka ignores both. `features` are the supported ones; a broker supports no
    level but 0 of any other.
    """

    broker_id: BrokerId
    listeners: tuple[AdvertisedListener, ...]
    timestamp_ms: int
    rack: str | None = None
    directories: tuple[str, ...] = ()
    principals: tuple[str, ...] = ()
    features: Mapping[str, LevelRange] = field(default_factory=dict)
    broker_epoch: BrokerEpoch = NO_BROKER_EPOCH

    def endpoint(self, listener_name: str) -> Endpoint | None:
        """The address of the listener with this name; None if the broker has no such listener."""
        for listener in self.listeners:
            if listener.name == listener_name:
                return listener.endpoint
        return None


class ReplicaAssignment(NamedTuple):
    """The replicas of a partition, the preferred leader first.

    While the partition is reassigned, `adding` and `removing` name the replicas that the change adds and
    removes; `replicas` has both.
    """

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def is_changing(self) -> bool:
        """Whether the partition is being reassigned."""
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[BrokerId, ...]:
        """The replicas before the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.adding)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas after the reassignment."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    def is_target_in(self, isr: Collection[BrokerId]) -> bool:
        """Whether a reassignment may end: each replica of its target is in sync."""
        return self.is_changing and all(replica in isr for replica in self.target)

    def changed_to(self, target: Sequence[BrokerId]) -> ReplicaAssignment:
        """The assignment while it changes from its origin to a target, the target's replicas first.

        Source: KIP-455. With the origin as the target nothing is left to change: the change is cancelled.
        """
        kept, origin = set(target), self.origin
        replicas = tuple(dict.fromkeys((*target, *origin)))
        return ReplicaAssignment(
            replicas,
            tuple(replica for replica in replicas if replica not in origin),
            tuple(replica for replica in replicas if replica not in kept),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicAssignment:
    """``/brokers/topics/<t>``: the topic's id and its partitions.

    `version` is the node's, -1 while it is not known; comparisons ignore it.
    """

    topic_id: TopicId
    partitions: Mapping[int, ReplicaAssignment]
    version: int = field(default=-1, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeadershipState:
    """``…/partitions/<p>/state``. `leader` is -1 for no leader, `partition_epoch` is the node's version.

    `broker_epochs` are the epochs with which the members joined the ISR, as far as known. Comparisons of
    states and Kafka ignore them.
    """

    leader: BrokerId
    leader_epoch: LeaderEpoch
    isr: tuple[BrokerId, ...]
    controller_epoch: ControllerEpoch
    partition_epoch: int
    broker_epochs: Mapping[BrokerId, BrokerEpoch] = field(default_factory=dict, compare=False)

    def with_leader(
        self,
        leader: BrokerId,
        isr: tuple[BrokerId, ...],
        controller_epoch: ControllerEpoch,
        broker_epochs: Mapping[BrokerId, BrokerEpoch],
    ) -> LeadershipState:
        """The state that the controller writes next: the leader epoch is one higher, the version the same."""
        return replace(
            self,
            leader=leader,
            isr=isr,
            broker_epochs=broker_epochs,
            leader_epoch=LeaderEpoch(self.leader_epoch + 1),
            controller_epoch=controller_epoch,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ControllerNode:
    """``/controller``: the broker that holds it, and its session."""

    broker_id: BrokerId
    session_id: int
    czxid: int


@dataclass(frozen=True, slots=True)
class StoredConfig:
    """``/config/<kind>/<name>``: the overridden settings; the defaults describe a missing node.

    A later write has a higher `zxid`, also if the node was deleted and created again in between. `version` is
    for a compare-and-set. The values may be SCRAM credentials, so the repr does not show them.
    """

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    zxid: int = -1
    version: int = -1
    is_readable: bool = True

    @property
    def exists(self) -> bool:
        return self.version >= 0


@dataclass(frozen=True, slots=True)
class FinalizedFeatures:
    """``/feature``: the level of each feature that all brokers use; 0 for an unnamed one.

    `epoch` is the version of the node, -1 without one.
    """

    levels: Mapping[str, int] = field(default_factory=dict)
    epoch: int = -1

    @property
    def exists(self) -> bool:
        return self.epoch >= 0


def encode_broker(broker: BrokerRegistration) -> bytes:
    plain = next((entry for entry in broker.listeners if entry.security_protocol == "PLAINTEXT"), None)
    body: dict[str, Any] = {
        "features": {
            name: {"min_version": levels.lowest, "max_version": levels.highest}
            for name, levels in sorted(broker.features.items())
        },
        "listener_security_protocol_map": {entry.name: entry.security_protocol for entry in broker.listeners},
        "endpoints": [f"{entry.name}://{_bracketed(entry.host)}:{entry.port}" for entry in broker.listeners],
        "jmx_port": -1,
        "port": plain.port if plain else -1,
        "host": plain.host if plain else None,
        "version": 5,
        "timestamp": str(broker.timestamp_ms),
    }
    if broker.rack is not None:
        body["rack"] = broker.rack
    if broker.directories:
        body["directories"] = list(broker.directories)
    if broker.principals:
        body["principals"] = list(broker.principals)
    return dump(body)


def decode_broker(path: str, data: bytes, broker: BrokerId, czxid: int) -> BrokerRegistration:
    with reading(path, data) as body:
        protocols = body.get("listener_security_protocol_map", {})
        listeners = []
        for text in body["endpoints"]:
            name, _, address = text.partition("://")
            endpoint = Endpoint.parse(address)
            listeners.append(AdvertisedListener(name, *endpoint, str(protocols.get(name, name))))
        return BrokerRegistration(
            broker_id=broker,
            listeners=tuple(listeners),
            timestamp_ms=int(body.get("timestamp", -1)),
            rack=body.get("rack"),
            directories=tuple(str(directory) for directory in body.get("directories", ())),
            principals=tuple(str(principal) for principal in body.get("principals", ())),
            features={
                str(name): LevelRange(int16(levels["min_version"]), int16(levels["max_version"]))
                for name, levels in body.get("features", {}).items()
            },
            broker_epoch=BrokerEpoch(czxid),
        )


def encode_topic(topic: TopicAssignment) -> bytes:
    partitions = sorted(topic.partitions.items())
    return dump(
        {
            "removing_replicas": {
                str(index): list(assignment.removing)
                for index, assignment in partitions
                if assignment.removing
            },
            "partitions": {str(index): list(assignment.replicas) for index, assignment in partitions},
            "topic_id": encode_uuid(topic.topic_id),
            "adding_replicas": {
                str(index): list(assignment.adding) for index, assignment in partitions if assignment.adding
            },
            "version": 3,
        }
    )


def decode_topic(path: str, data: bytes, version: int = -1) -> TopicAssignment:
    """A topic written before ids existed has `NO_TOPIC_ID`."""
    with reading(path, data) as body:
        replicas = _brokers_by_partition(body["partitions"])
        # Without these keys before Kafka 2.4.
        adding = _brokers_by_partition(body.get("adding_replicas") or {})
        removing = _brokers_by_partition(body.get("removing_replicas") or {})
        if not all(replicas.values()):
            raise ValueError("a partition without replicas")
        text = body.get("topic_id")
        return TopicAssignment(
            topic_id=NO_TOPIC_ID if text is None else TopicId(decode_uuid(text)),
            partitions={
                index: ReplicaAssignment(brokers, adding.get(index, ()), removing.get(index, ()))
                for index, brokers in replicas.items()
            },
            version=version,
        )


def encode_leadership(state: LeadershipState) -> bytes:
    return dump(
        {
            "controller_epoch": state.controller_epoch,
            "leader": state.leader,
            "version": 1,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
        }
        | ({"isr_broker_epochs": _by_text(state.broker_epochs)} if state.broker_epochs else {})
    )


def decode_leadership(path: str, data: bytes, version: int) -> LeadershipState:
    with reading(path, data) as body:
        return LeadershipState(
            leader=BrokerId(int32(body["leader"], NO_BROKER)),
            leader_epoch=LeaderEpoch(int32(body["leader_epoch"])),
            isr=tuple(BrokerId(broker) for broker in int32s(body["isr"])),
            controller_epoch=ControllerEpoch(int32(body["controller_epoch"])),
            partition_epoch=version,
            broker_epochs={
                BrokerId(int(broker)): BrokerEpoch(int(epoch))
                for broker, epoch in body.get("isr_broker_epochs", {}).items()
            },
        )


def readable_leadership(path: str, data: bytes, version: int) -> LeadershipState | None:
    """`decode_leadership`, but unreadable data is logged and gives None."""
    try:
        return decode_leadership(path, data, version)
    except MalformedZnode as error:
        log.error("ignored: %s", error)
        return None


def encode_controller(broker: BrokerId, timestamp_ms: int) -> bytes:
    return dump({"version": 1, "brokerid": broker, "timestamp": str(timestamp_ms)})


def decode_controller(path: str, data: bytes, session_id: int, czxid: int) -> ControllerNode:
    with reading(path, data) as body:
        return ControllerNode(broker_id=BrokerId(int32(body["brokerid"])), session_id=session_id, czxid=czxid)


def encode_epoch(epoch: ControllerEpoch) -> bytes:
    return str(epoch).encode()


def decode_epoch(path: str, data: bytes) -> ControllerEpoch:
    with reading(path, data, int32) as epoch:
        return ControllerEpoch(epoch)


def encode_config(config: Mapping[str, str]) -> bytes:
    return dump({"version": 1, "config": dict(config)})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    if not data and path.startswith(f"{paths.CONFIG}/users/"):
        # Kafka creates a user without data as the parent of a pair with a client id.
        return {}
    with reading(path, data) as body:
        return {str(name): str(value) for name, value in body.get("config", {}).items()}


def encode_config_change(entity_path: str) -> bytes:
    """`entity_path` is ``topics/<topic>``, ``brokers/<id>``, ``users/<user>`` and so on."""
    return dump({"version": 2, "entity_path": entity_path})


def decode_config_change(path: str, data: bytes) -> str:
    with reading(path, data) as body:
        if body.get("version") == 1:
            return f"{body['entity_type']}/{body['entity_name']}"
        return str(body["entity_path"])


def encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """Of a notification of changed ISRs, and of a request for elections of preferred leaders."""
    names = [{"topic": tp.topic, "partition": tp.partition} for tp in partitions]
    return dump({"version": 1, "partitions": names})


def decode_partitions(path: str, data: bytes) -> list[TopicPartition]:
    with reading(path, data) as body:
        return [
            TopicPartition(str(entry["topic"]), int32(entry["partition"])) for entry in body["partitions"]
        ]


def encode_log_dir_event(broker: BrokerId) -> bytes:
    """A broker has lost a log dir; there is no event but 1."""
    return dump({"version": 1, "broker": broker, "event": 1})


def decode_log_dir_event(path: str, data: bytes) -> BrokerId:
    with reading(path, data) as body:
        return BrokerId(int32(body["broker"]))


def encode_features(levels: Mapping[str, int]) -> bytes:
    """The format of Kafka 3.3 and later."""
    features = {name: {"max_version_level": level} for name, level in sorted(levels.items()) if level}
    return dump({"version": 2, "status": _ENABLED, "features": features})


def decode_features(path: str, data: bytes, epoch: int) -> FinalizedFeatures:
    """Disabled features (status 0) have no levels."""
    with reading(path, data) as body:
        if body["version"] not in (1, 2):
            raise ValueError(f"version {body['version']!r} is neither 1 nor 2")
        if body["status"] not in (_DISABLED, _ENABLED):
            raise ValueError(f"status {body['status']!r} is neither 0 nor 1")
        levels = {str(name): int16(level["max_version_level"], 1) for name, level in body["features"].items()}
        return FinalizedFeatures(levels if body["status"] == _ENABLED else {}, epoch)


def encode_producer_id_block(broker: BrokerId, block: range) -> bytes:
    first, last = str(block.start), str(block.stop - 1)
    return dump({"version": 1, "broker": broker, "block_start": first, "block_end": last})


def decode_producer_id_block(path: str, data: bytes) -> range:
    with reading(path, data) as body:
        block = range(int(body["block_start"]), int(body["block_end"]) + 1)
        if block.start < 0 or not len(block):
            raise ValueError(f"{block} is not a block of producer ids")
        return block


def encode_cluster_id(cluster_id: str) -> bytes:
    return dump({"version": "1", "id": cluster_id})


def decode_cluster_id(path: str, data: bytes) -> str:
    with reading(path, data) as body:
        return str(body["id"])


def random_uuid() -> uuid.UUID:
    """A random id whose text does not start with a dash, so that it is no option on a command line."""
    while True:
        candidate = uuid.uuid4()
        if not encode_uuid(candidate).startswith("-"):
            return candidate


def encode_uuid(value: uuid.UUID) -> str:
    """22 characters of URL-safe base64, as Kafka prints ids."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_uuid(text: str) -> uuid.UUID:
    """Raises ValueError for anything but 22 characters of URL-safe base64."""
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except (binascii.Error, TypeError) as error:
        raise ValueError(f"{text!r} is not an id: {error}") from None


def _brokers_by_partition(body: Mapping[str, Any]) -> dict[int, tuple[BrokerId, ...]]:
    return {
        int32(index): tuple(BrokerId(broker) for broker in int32s(brokers)) for index, brokers in body.items()
    }


def _by_text(epochs: Mapping[BrokerId, BrokerEpoch]) -> dict[str, int]:
    return {str(broker): int(epoch) for broker, epoch in sorted(epochs.items())}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
