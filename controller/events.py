"""The events of a controller: one small frozen class each.

Events that only say "look again" are equal to others of their kind, and the queue holds each of them once.
Events from the channels carry the channels' controller epoch and the broker epoch that they concern, so that
events of an earlier reign or registration are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from barnabas.protocol.messages.inter_broker import (
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
)
from barnabas.zookeeper.znodes import ControllerNode

ShutdownDone = Callable[[ErrorCode, list[TopicPartition]], None]
"""Called with the outcome and the partitions that the broker still leads; must not block."""


@dataclass(frozen=True, slots=True)
class ControllerChange:
    """``/controller`` may have changed: read it, and stand for election if it does not exist."""


@dataclass(frozen=True, slots=True)
class ControllerGone:
    """The process that holds this ``/controller`` is dead, as its refusing port says."""

    node: ControllerNode


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """Our ZooKeeper session is gone, and with it our registration and our reign."""


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """The registrations have changed."""


@dataclass(frozen=True, slots=True)
class TopicChange:
    """Topics were created (or removed by hand)."""


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """The nodes of topics have changed: they may have got more partitions."""


@dataclass(frozen=True, slots=True)
class TopicConfigChange:
    """The settings of these topics have changed."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class UncleanElectionChange:
    """The brokers' ``unclean.leader.election.enable`` has changed."""

    is_enabled: bool


@dataclass(frozen=True, slots=True)
class DeletionRequested:
    """Something stands under ``/admin/delete_topics``."""


@dataclass(frozen=True, slots=True)
class IsrChangeNotified:
    """Leaders have changed ISRs by themselves."""


@dataclass(frozen=True, slots=True)
class LogDirFailureNotified:
    """Brokers have lost a log dir."""


@dataclass(frozen=True, slots=True)
class ControlledShutdown:
    """A broker asks to be relieved of its leaderships before it stops."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    done: ShutdownDone


@dataclass(frozen=True, slots=True)
class BrokerSuspected:
    """A broker's connection was lost and its port refuses: its process is dead."""

    controller_epoch: ControllerEpoch
    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class BrokerReturned:
    """A suspected broker answers again, in the same life."""

    controller_epoch: ControllerEpoch
    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class LinkFailed:
    """An unforeseen error dropped the requests for a broker, or the broker failed to apply an UpdateMetadata;
    resend everything."""

    controller_epoch: ControllerEpoch
    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class ChannelsFailed:
    """The channels had an unforeseen error outside a single link; end the reign."""

    controller_epoch: ControllerEpoch
    error: Exception


@dataclass(frozen=True, slots=True)
class LeaderAndIsrAnswered:
    controller_epoch: ControllerEpoch
    broker: BrokerId
    broker_epoch: BrokerEpoch
    response: LeaderAndIsrResponse


@dataclass(frozen=True, slots=True)
class StopReplicaAnswered:
    controller_epoch: ControllerEpoch
    broker: BrokerId
    broker_epoch: BrokerEpoch
    request: StopReplicaRequest
    response: StopReplicaResponse


ChannelEvent = (
    BrokerSuspected
    | BrokerReturned
    | LinkFailed
    | ChannelsFailed
    | LeaderAndIsrAnswered
    | StopReplicaAnswered
)
Event = (
    ControllerChange
    | ControllerGone
    | SessionExpired
    | BrokerChange
    | TopicChange
    | AssignmentChange
    | TopicConfigChange
    | UncleanElectionChange
    | DeletionRequested
    | IsrChangeNotified
    | LogDirFailureNotified
    | ControlledShutdown
    | ChannelEvent
)
LOOK_AGAIN = (
    ControllerChange
    | ControllerGone
    | SessionExpired
    | BrokerChange
    | TopicChange
    | AssignmentChange
    | TopicConfigChange
    | UncleanElectionChange
    | DeletionRequested
    | IsrChangeNotified
    | LogDirFailureNotified
    | LinkFailed
)
