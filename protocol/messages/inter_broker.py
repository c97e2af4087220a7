"""The messages between the controller and the brokers. Native codec only.

Every request of the controller carries its epoch; a broker that knows a higher one refuses with
STALE_CONTROLLER_EPOCH. ``broker_epoch`` names the registration of the receiving broker; a request for an
earlier registration is refused with STALE_BROKER_EPOCH (KIP-380). ``sequence`` numbers the requests of one
controller; a broker ignores a request with a lower number than the last one, because it is a late copy.
"""

from __future__ import annotations

import uuid

from barnabas.protocol.ids import NO_TOPIC_ID
from barnabas.protocol.schema import (
    NATIVE_ONLY,
    ApiKey,
    RequestOf,
    WireType,
    array,
    boolean,
    int16,
    int32,
    int64,
    message,
    request,
    string,
    topic_uuid,
)

LEADER_DURING_DELETE = -2
"""As a leader id in UpdateMetadata: the topic is being deleted."""


@message
class TopicConfigEntry:
    """One setting of a topic from ``/config/topics/<topic>``."""

    name: str = string()
    value: str = string()


@message
class LiveBroker:
    """A broker with the endpoint of its inter-broker listener and its epoch."""

    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    broker_epoch: int = int64(default=-1)


@message
class LeaderAndIsrPartition:
    """``partition_epoch`` is the version of the state znode, for the leader's compare-and-set."""

    partition_index: int = int32()
    controller_epoch: int = int32()
    leader: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(WireType.INT32)
    partition_epoch: int = int32()
    replicas: list[int] = array(WireType.INT32)
    is_new: bool = boolean(default=False)


@message
class LeaderAndIsrTopic:
    """``config_zxid`` is that of the settings' last write; older settings never replace newer ones."""

    topic_name: str = string()
    topic_id: uuid.UUID = topic_uuid()
    partition_states: list[LeaderAndIsrPartition] = array(LeaderAndIsrPartition)
    configs: list[TopicConfigEntry] = array(TopicConfigEntry, default_factory=list)
    config_zxid: int = int64(default=-1)


@message
class PartitionError:
    topic_name: str = string()
    partition_index: int = int32()
    error_code: int = int16()


@message
class LeaderAndIsrResponse:
    error_code: int = int16()
    partition_errors: list[PartitionError] = array(PartitionError, default_factory=list)


@request(ApiKey.LEADER_AND_ISR, LeaderAndIsrResponse, versions=NATIVE_ONLY)
@message
class LeaderAndIsrRequest(RequestOf[LeaderAndIsrResponse]):
    """The leaders and followers of partitions.

    ``is_full``: the request names every partition that the receiver hosts, as after its registration. Other
    logs there are set aside, and kept until the controller deletes their topics.
    """

    controller_id: int = int32()
    controller_epoch: int = int32()
    broker_epoch: int = int64()
    is_full: bool = boolean(default=False)
    topic_states: list[LeaderAndIsrTopic] = array(LeaderAndIsrTopic)
    live_brokers: list[LiveBroker] = array(LiveBroker)
    sequence: int = int64(default=-1)


@message
class StopReplicaPartition:
    partition_index: int = int32()
    leader_epoch: int = int32()
    delete_partition: bool = boolean(default=False)


@message
class StopReplicaTopic:
    """Applies only to replicas of the topic with this id."""

    topic_name: str = string()
    partition_states: list[StopReplicaPartition] = array(StopReplicaPartition)
    topic_id: uuid.UUID = topic_uuid(default=NO_TOPIC_ID)


@message
class StopReplicaResponse:
    error_code: int = int16()
    partition_errors: list[PartitionError] = array(PartitionError, default_factory=list)


@request(ApiKey.STOP_REPLICA, StopReplicaResponse, versions=NATIVE_ONLY)
@message
class StopReplicaRequest(RequestOf[StopReplicaResponse]):
    controller_id: int = int32()
    controller_epoch: int = int32()
    broker_epoch: int = int64()
    topic_states: list[StopReplicaTopic] = array(StopReplicaTopic)
    sequence: int = int64(default=-1)


@message
class UpdateMetadataPartition:
    partition_index: int = int32()
    controller_epoch: int = int32()
    leader: int = int32()
    leader_epoch: int = int32()
    isr: list[int] = array(WireType.INT32)
    partition_epoch: int = int32()
    replicas: list[int] = array(WireType.INT32)
    offline_replicas: list[int] = array(WireType.INT32, default_factory=list)


@message
class UpdateMetadataTopic:
    topic_name: str = string()
    topic_id: uuid.UUID = topic_uuid()
    partition_states: list[UpdateMetadataPartition] = array(UpdateMetadataPartition)


@message
class BrokerListener:
    """One advertised listener of a broker."""

    listener: str = string()
    host: str = string()
    port: int = int32()
    security_protocol: str = string(default="PLAINTEXT")


@message
class UpdateMetadataBroker:
    broker_id: int = int32()
    broker_epoch: int = int64(default=-1)
    endpoints: list[BrokerListener] = array(BrokerListener)
    rack: str | None = string(nullable_since=0, default=None)


@message
class UpdateMetadataResponse:
    error_code: int = int16()


@request(ApiKey.UPDATE_METADATA, UpdateMetadataResponse, versions=NATIVE_ONLY)
@message
class UpdateMetadataRequest(RequestOf[UpdateMetadataResponse]):
    """The content of Metadata answers.

    The request names all live brokers. It names the changed topics, or with ``is_full`` all topics.
    """

    controller_id: int = int32()
    controller_epoch: int = int32()
    broker_epoch: int = int64()
    topic_states: list[UpdateMetadataTopic] = array(UpdateMetadataTopic)
    live_brokers: list[UpdateMetadataBroker] = array(UpdateMetadataBroker)
    is_full: bool = boolean(default=False)
    sequence: int = int64(default=-1)


@message
class RemainingPartition:
    topic_name: str = string()
    partition_index: int = int32()


@message
class ControlledShutdownResponse:
    """``remaining_partitions`` are those that the broker still leads because no other replica can."""

    error_code: int = int16()
    remaining_partitions: list[RemainingPartition] = array(RemainingPartition, default_factory=list)


@request(ApiKey.CONTROLLED_SHUTDOWN, ControlledShutdownResponse, versions=NATIVE_ONLY)
@message
class ControlledShutdownRequest(RequestOf[ControlledShutdownResponse]):
    broker_id: int = int32()
    broker_epoch: int = int64()
