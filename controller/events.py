"""The controller's events, and the queue that the controller's thread takes them from.

The queue is first in, first out, and bounded: watches and channels can put only as many events as there are
signals and brokers, so only a `PreemptableEvent` can reach the bound, and it is refused then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from barnabas.protocol.errors import ApiError, ErrorCode, LocalError
from barnabas.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from barnabas.protocol.messages import inter_broker as wire
from barnabas.zookeeper.znodes import ControllerNode, ReplicaAssignment

if TYPE_CHECKING:
    from barnabas.controller.term import ControllerTerm

CAPACITY: Final = 10_000

ShutdownDone = Callable[[ErrorCode, Collection[TopicPartition]], None]
"""Called with the result and the partitions that the broker still leads; must not block."""


Outcomes = dict[TopicPartition, ApiError | None]
"""By partition: the reason why the request was not carried out, or None."""
OutcomesDone = Callable[[ErrorCode, Outcomes], None]
"""Called with NONE and the outcomes, or with the error of the whole request; must not block."""

ReassignmentsDone = Callable[[ErrorCode, Mapping[TopicPartition, ReplicaAssignment]], None]
"""Called with NONE and the reassignments under way, or with the error of the whole request."""


class Signal(Enum):
    """Something may have changed: the controller reads it again. Queued once; the names are Kafka's."""

    REELECT = "/controller may have changed: read it, and run for election if it does not exist"
    EXPIRE = "the ZooKeeper session has expired, and with it the registration and the controller term"
    BROKER_CHANGE = "the registrations have changed"
    TOPIC_CHANGE = "topics were created, or removed by hand"
    PARTITION_MODIFICATIONS = "the nodes of topics have changed: they may have more partitions"
    TOPIC_DELETION = "a topic is named under /admin/delete_topics"
    PREFERRED_LEADER_ELECTION = "/admin/preferred_replica_election has changed"
    PARTITION_REASSIGNMENT = "/admin/reassign_partitions has changed"
    AUTO_PREFERRED_LEADER_ELECTION = "leaders have not been compared with the preferred ones for a while"
    UNCLEAN_LEADER_ELECTION_ENABLE = "the brokers' unclean.leader.election.enable has changed"
    ISR_CHANGE_NOTIFICATION = "leaders have changed ISRs"
    LOG_DIR_EVENT_NOTIFICATION = "brokers have lost a log dir"


@dataclass(frozen=True, slots=True)
class TopicConfigChange:
    """The settings of these topics have changed."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class ControllerGone:
    """The process that holds this ``/controller`` is dead: its port refuses connections."""

    node: ControllerNode


@dataclass(frozen=True, slots=True)
class FromChannel:
    """From the channels of a controller term; ignored in another term."""

    controller_epoch: ControllerEpoch


@dataclass(frozen=True, slots=True)
class FromLink(FromChannel):
    """From the link to one registration of a broker; ignored after another registration."""

    broker: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True)
class PreemptableEvent:
    """A request to the controller, with Kafka's name. ``act`` carries it out and calls ``done``.

    Its caller waits for an answer, which `refuse` gives if no controller handles the event.
    """

    name: str
    act: Callable[[ControllerTerm], None]
    done: Callable[[ErrorCode, Any], None]

    def __str__(self) -> str:
        return self.name

    def refuse(self, code: ErrorCode) -> None:
        self.done(code, {})


@dataclass(frozen=True, slots=True)
class BrokerSuspected(FromLink):
    """The connection to a broker was lost and its port refuses: its process is dead."""


@dataclass(frozen=True, slots=True)
class BrokerReturned(FromLink):
    """A suspected broker answers again, with the same registration."""


@dataclass(frozen=True, slots=True)
class LinkFailed(FromLink):
    """Requests for a broker were dropped after an unforeseen error, or it failed to apply an UpdateMetadata:
    resend everything."""


@dataclass(frozen=True, slots=True)
class ChannelsFailed(FromChannel):
    """The channels had an unforeseen error outside a single link; end the term."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class LeaderAndIsrAnswered(FromLink):
    request: wire.LeaderAndIsrRequest
    response: wire.LeaderAndIsrResponse

    def succeeded(self) -> set[TopicPartition]:
        """The partitions whose roles the broker has taken."""
        if self.response.error_code != ErrorCode.NONE:
            return set()
        refused = {
            (error.topic_name, error.partition_index)
            for error in self.response.partition_errors
            if error.error_code != ErrorCode.NONE
        }
        return {
            TopicPartition(topic.topic_name, partition.partition_index)
            for topic in self.request.topic_states
            for partition in topic.partition_states
            if (topic.topic_name, partition.partition_index) not in refused
        }


@dataclass(frozen=True, slots=True)
class StopReplicaAnswered(FromLink):
    request: wire.StopReplicaRequest
    response: wire.StopReplicaResponse


Event = Signal | TopicConfigChange | ControllerGone | FromChannel | PreemptableEvent

_QUEUED_ONCE: Final = (Signal, TopicConfigChange, ControllerGone, LinkFailed)


class EventQueueFull(LocalError):
    """The queue is full; the event was not added."""

    retriable = True


class EventQueue:
    """Any thread puts events; the controller's thread takes them."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._events: deque[Event] = deque()
        self._queued_once: set[Event] = set()
        self._changed = threading.Condition()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """Add an event, unless an equal signal is queued or the queue is closed. Raises EventQueueFull."""
        with self._changed:
            if self._is_closed:
                return
            if isinstance(event, _QUEUED_ONCE):
                if event in self._queued_once:
                    return
                self._queued_once.add(event)
            elif len(self._events) >= self._capacity:
                raise EventQueueFull(f"{len(self._events)} events wait for the controller")
            self._events.append(event)
            self._changed.notify()

    def take(self, timeout_s: float | None = None) -> Event | None:
        """The next event; None if the queue is closed or the time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or bool(self._events), timeout_s)
            if self._is_closed or not self._events:
                return None
            event = self._events.popleft()
            if isinstance(event, _QUEUED_ONCE):
                self._queued_once.discard(event)
            return event

    def close(self) -> list[Event]:
        """Wake the taker; returns the events that are left."""
        with self._changed:
            self._is_closed = True
            dropped = list(self._events)
            self._events.clear()
            self._changed.notify_all()
            return dropped

    @property
    def is_closed(self) -> bool:
        return self._is_closed
