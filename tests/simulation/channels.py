"""What one reign has to tell the brokers, on its way through the simulated network.

As `barnabas.controller.channels` does it: in order on each link, one request at a time, again when its answer
does not come. So a broker may hear a request twice, and late, and those of two links in any order.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from barnabas.broker.handlers import inter_broker
from barnabas.controller import events
from barnabas.controller.request_batch import BrokerBatch
from barnabas.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, Endpoint
from barnabas.protocol.messages.inter_broker import (
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)

if TYPE_CHECKING:
    from tests.simulation.world import World

HANDLERS: dict[type, Callable[[Any, Any], None]] = {
    LeaderAndIsrRequest: inter_broker.handle_leader_and_isr,
    UpdateMetadataRequest: inter_broker.handle_update_metadata,
    StopReplicaRequest: inter_broker.handle_stop_replica,
}


@dataclass(slots=True)
class Link:
    """To one life of one broker."""

    broker_epoch: BrokerEpoch
    is_suspected: bool = False
    waiting: deque[BrokerBatch] = field(default_factory=deque)
    requests: deque[Any] = field(default_factory=deque)
    """What is left of the batch that is being sent; the first of them may be under way."""
    under_way: object | None = None
    message: object | None = None
    """What was last sent, either way."""

    @property
    def has_something(self) -> bool:
        return bool(self.waiting or self.requests)


class SimChannels:
    """See the module. `source` is the broker whose controller speaks; `report` takes the channels' events."""

    def __init__(
        self, world: World, source: BrokerId, epoch: ControllerEpoch, report: Callable[[events.Event], None]
    ) -> None:
        self.source = source
        self.epoch = epoch
        self.links: dict[BrokerId, Link] = {}
        self._world = world
        self._report = report
        self._sequences = itertools.count()

    # As the controller sees it

    def add_broker(
        self, broker: BrokerId, broker_epoch: BrokerEpoch, endpoint: Endpoint, *, is_suspected: bool
    ) -> None:
        self.links[broker] = Link(broker_epoch, is_suspected)

    def remove_broker(self, broker: BrokerId) -> None:
        self.links.pop(broker, None)

    def send(self, broker: BrokerId, batch: BrokerBatch) -> None:
        link = self.links.get(broker)
        if link is None or link.is_suspected:
            return
        if not link.waiting or not link.waiting[-1].merge(batch):
            link.waiting.append(batch)

    def when_told(self, done: Callable[[], None]) -> None:
        done()

    def stop(self) -> None:
        """What is on its way may still arrive."""
        self.links.clear()
        if self in self._world.channels:
            self._world.channels.remove(self)

    # As the world drives it

    def send_next(self, broker: BrokerId) -> bool:
        """Send the next request to a broker, or the last once more; False when there is none to send."""
        link = self.links.get(broker)
        if link is None or link.is_suspected or link.under_way is not None:
            return False
        if not link.requests:
            if not link.waiting:
                return False
            link.requests.extend(link.waiting.popleft().requests(self.source, self.epoch, link.broker_epoch))
            if not link.requests:
                return True
            for one in link.requests:
                one.sequence = next(self._sequences)
        request, token = link.requests[0], object()
        link.under_way = token
        target = self._world.hosts[broker]

        def arrive() -> None:
            target.handle_control(request, answer)

        def answer(response: Any) -> None:
            link.message = self._world.send(
                broker, self.source, lambda: self._answered(broker, link, token, request, response)
            )

        link.message = self._world.send(self.source, broker, arrive)
        return True

    def time_out(self, broker: BrokerId) -> None:
        """The answer does not come, or the connection is lost: the request is to be sent once more."""
        link = self.links.get(broker)
        if link is not None:
            link.under_way = None

    def is_suspected(self, broker: BrokerId) -> bool:
        link = self.links.get(broker)
        return link is not None and link.is_suspected

    def suspect(self, broker: BrokerId) -> None:
        """The connection is reset and the port refuses, or so it seems."""
        link = self.links.get(broker)
        if link is not None and not link.is_suspected:
            link.is_suspected = True
            link.waiting.clear()
            link.requests.clear()
            link.under_way = None
            self._report(events.BrokerSuspected(self.epoch, broker, link.broker_epoch))

    def clear_suspicion(self, broker: BrokerId) -> None:
        link = self.links.get(broker)
        if link is not None and link.is_suspected:
            link.is_suspected = False
            self._report(events.BrokerReturned(self.epoch, broker, link.broker_epoch))

    def _answered(self, broker: BrokerId, link: Link, token: object, request: Any, response: Any) -> None:
        if link.under_way is not token or self.links.get(broker) is not link:
            return
        link.under_way = None
        link.requests.popleft()
        life = (self.epoch, broker, link.broker_epoch)
        if isinstance(request, LeaderAndIsrRequest):
            self._report(events.LeaderAndIsrAnswered(*life, response))
        elif isinstance(request, StopReplicaRequest):
            self._report(events.StopReplicaAnswered(*life, request, response))
