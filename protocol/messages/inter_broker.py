"""The messages between the controller and the brokers. Native codec only.

Every request of the controller carries its epoch; a broker that knows a higher one refuses with
STALE_CONTROLLER_EPOCH. ``broker_epoch`` names the registration of the receiving broker; a request for an
earlier registration is refused with STALE_BROKER_EPOCH (KIP-380). ``sequence`` numbers the requests of one
controller from a random one on; a broker ignores a request with a lower number than the last one, because it
is a late copy.
"""

from __future__ import annotations

import uuid

from barnabas.protocol import schema as s
from barnabas.protocol.ids import NO_TOPIC_ID

LEADER_DURING_DELETE = -2
"""As a leader id in UpdateMetadata: the topic is being deleted."""


@s.message
class TopicConfigEntry:
    """One setting of a topic from ``/config/topics/<topic>``."""

    name: str = s.string()
    value: str = s.string()


@s.message
class BrokerListener:
    """One advertised listener of a broker."""

    listener: str = s.string()
    host: str = s.string()
    port: int = s.int32()
    security_protocol: str = s.string(default="PLAINTEXT")


@s.message
class LiveBroker:
    """A broker with its epoch, its listeners, and its address on the inter-broker listener of the controller.

    The receiver's inter-broker listener may be another, while it is changed broker by broker.
    """

    broker_id: int = s.int32()
    host: str = s.string()
    port: int = s.int32()
    broker_epoch: int = s.int64(default=-1)
    endpoints: list[BrokerListener] = s.array(BrokerListener, default_factory=list)


@s.message
class LeaderAndIsrPartition:
    """``partition_epoch`` is the version of the state znode; the leader's compare-and-set needs it.

    ``replicas`` contains those that a reassignment adds and removes.
    """

    partition_index: int = s.int32()
    controller_epoch: int = s.int32()
    leader: int = s.int32()
    leader_epoch: int = s.int32()
    isr: list[int] = s.array(s.WireType.INT32)
    partition_epoch: int = s.int32()
    replicas: list[int] = s.array(s.WireType.INT32)
    is_new: bool = s.boolean(default=False)
    adding_replicas: list[int] = s.array(s.WireType.INT32, default_factory=list)
    removing_replicas: list[int] = s.array(s.WireType.INT32, default_factory=list)


@s.message
class LeaderAndIsrTopic:
    """``config_zxid`` is from the last write of the settings; older settings never replace newer ones."""

    topic_name: str = s.string()
    topic_id: uuid.UUID = s.topic_uuid()
    partition_states: list[LeaderAndIsrPartition] = s.array(LeaderAndIsrPartition)
    configs: list[TopicConfigEntry] = s.array(TopicConfigEntry, default_factory=list)
    config_zxid: int = s.int64(default=-1)


@s.message
class PartitionError:
    topic_name: str = s.string()
    partition_index: int = s.int32()
    error_code: int = s.int16()


@s.message
class LeaderAndIsrResponse:
    error_code: int = s.int16()
    partition_errors: list[PartitionError] = s.array(PartitionError, default_factory=list)


@s.request(s.ApiKey.LEADER_AND_ISR, versions=s.NATIVE_ONLY)
class LeaderAndIsrRequest(s.RequestOf[LeaderAndIsrResponse]):
    """The leaders and followers of partitions.

    ``is_full``: the request names every partition that the receiver hosts, as after its registration. Other
    logs there are set aside, and kept until the controller deletes their topics.
    """

    controller_id: int = s.int32()
    controller_epoch: int = s.int32()
    broker_epoch: int = s.int64()
    is_full: bool = s.boolean(default=False)
    topic_states: list[LeaderAndIsrTopic] = s.array(LeaderAndIsrTopic)
    live_brokers: list[LiveBroker] = s.array(LiveBroker)
    sequence: int = s.int64(default=-1)


@s.message
class StopReplicaPartition:
    partition_index: int = s.int32()
    leader_epoch: int = s.int32()
    delete_partition: bool = s.boolean(default=False)


@s.message
class StopReplicaTopic:
    """Applies only to replicas of the topic with this id."""

    topic_name: str = s.string()
    partition_states: list[StopReplicaPartition] = s.array(StopReplicaPartition)
    topic_id: uuid.UUID = s.topic_uuid(default=NO_TOPIC_ID)


@s.message
class StopReplicaResponse:
    error_code: int = s.int16()
    partition_errors: list[PartitionError] = s.array(PartitionError, default_factory=list)


@s.request(s.ApiKey.STOP_REPLICA, versions=s.NATIVE_ONLY)
class StopReplicaRequest(s.RequestOf[StopReplicaResponse]):
    controller_id: int = s.int32()
    controller_epoch: int = s.int32()
    broker_epoch: int = s.int64()
    topic_states: list[StopReplicaTopic] = s.array(StopReplicaTopic)
    sequence: int = s.int64(default=-1)


@s.message
class UpdateMetadataPartition:
    partition_index: int = s.int32()
    controller_epoch: int = s.int32()
    leader: int = s.int32()
    leader_epoch: int = s.int32()
    isr: list[int] = s.array(s.WireType.INT32)
    partition_epoch: int = s.int32()
    replicas: list[int] = s.array(s.WireType.INT32)
    offline_replicas: list[int] = s.array(s.WireType.INT32, default_factory=list)


@s.message
class UpdateMetadataTopic:
    topic_name: str = s.string()
    topic_id: uuid.UUID = s.topic_uuid()
    partition_states: list[UpdateMetadataPartition] = s.array(UpdateMetadataPartition)


@s.message
class UpdateMetadataBroker:
    broker_id: int = s.int32()
    broker_epoch: int = s.int64(default=-1)
    endpoints: list[BrokerListener] = s.array(BrokerListener)
    rack: str | None = s.string(nullable_since=0, default=None)


@s.message
class UpdateMetadataResponse:
    error_code: int = s.int16()


@s.request(s.ApiKey.UPDATE_METADATA, versions=s.NATIVE_ONLY)
class UpdateMetadataRequest(s.RequestOf[UpdateMetadataResponse]):
    """The content of Metadata answers.

    The request names all live brokers. It names the changed topics, or with ``is_full`` all topics with all
    their partitions; a partition whose state the controller cannot read has no leader and no leader epoch.
    ``unreadable_topics`` exist, but their nodes cannot be read. So a topic that a full request neither names
    nor lists there does not exist.
    """

    controller_id: int = s.int32()
    controller_epoch: int = s.int32()
    broker_epoch: int = s.int64()
    topic_states: list[UpdateMetadataTopic] = s.array(UpdateMetadataTopic)
    live_brokers: list[UpdateMetadataBroker] = s.array(UpdateMetadataBroker)
    is_full: bool = s.boolean(default=False)
    sequence: int = s.int64(default=-1)
    unreadable_topics: list[str] | None = s.array(s.WireType.STRING, nullable_since=0, default=None)


@s.message
class RemainingPartition:
    topic_name: str = s.string()
    partition_index: int = s.int32()


@s.message
class ControlledShutdownResponse:
    """``remaining_partitions``: the broker still leads them, because no other replica can."""

    error_code: int = s.int16()
    remaining_partitions: list[RemainingPartition] = s.array(RemainingPartition, default_factory=list)


@s.request(s.ApiKey.CONTROLLED_SHUTDOWN, versions=s.NATIVE_ONLY)
class ControlledShutdownRequest(s.RequestOf[ControlledShutdownResponse]):
    broker_id: int = s.int32()
    broker_epoch: int = s.int64()
