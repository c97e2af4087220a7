"""The requests of one controller to the brokers, in flight through the simulated network.

The real `LinkQueue` chooses the next request and interprets answers; a request without an answer is sent
again. So a broker may receive a request twice, or late, and the requests of two links in any order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from barnabas.broker.handlers import inter_broker
from barnabas.controller import events
from barnabas.controller.link_queue import LinkQueue
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
    """The connection to one registration of one broker."""

    queue: LinkQueue
    under_way: object | None = None
    message: object | None = None
    """The last message sent, in either direction."""

    @property
    def has_something(self) -> bool:
        return bool(self.queue)


class SimChannels:
    """The channels of one controller. `source` is its broker; `report` takes the channels' events."""

    def __init__(
        self, world: World, source: BrokerId, epoch: ControllerEpoch, report: Callable[[events.Event], None]
    ) -> None:
        self.source = source
        self.epoch = epoch
        self.links: dict[BrokerId, Link] = {}
        self._world = world
        self._report = report
        self._sequences = itertools.count()

    # The interface for the controller

    def add_broker(
        self, broker: BrokerId, broker_epoch: BrokerEpoch, endpoint: Endpoint, *, is_suspected: bool
    ) -> None:
        queue = LinkQueue(
            self.source, self.epoch, broker, broker_epoch, self._sequences, is_suspected=is_suspected
        )
        self.links[broker] = Link(queue)

    def remove_broker(self, broker: BrokerId) -> None:
        self.links.pop(broker, None)

    def send(self, broker: BrokerId, batch: BrokerBatch) -> None:
        link = self.links.get(broker)
        if link is not None:
            link.queue.add(batch)

    def when_answered(self, done: Callable[[], None]) -> None:
        done()

    def stop(self) -> None:
        """Messages in flight may still arrive."""
        self.links.clear()
        if self in self._world.channels:
            self._world.channels.remove(self)

    # The interface for the world

    def send_next(self, broker: BrokerId) -> bool:
        """Send a broker its next request, or the last one again; False if there is nothing to send."""
        link = self.links.get(broker)
        if link is None or link.under_way is not None:
            return False
        request, token = link.queue.first(), object()
        if request is None:
            return False
        link.under_way = token
        target = self._world.hosts[broker]

        def arrive() -> None:
            target.handle_control(request, answer)

        def answer(response: Any) -> None:
            link.message = self._world.send(
                broker, self.source, lambda: self._answered(broker, link, token, response)
            )

        link.message = self._world.send(self.source, broker, arrive)
        return True

    def time_out(self, broker: BrokerId) -> None:
        """The answer times out, or the connection is lost: the request must be sent again."""
        link = self.links.get(broker)
        if link is not None:
            link.under_way = None

    def is_taken_for_dead(self, broker: BrokerId) -> bool:
        """Whether the controller takes a broker for dead, or will; the link may have forgotten that already.

        What the link reports waits in the controller's queue: first the suspicion, then the return.
        """
        controller = self._world.hosts[self.source].member.controller
        term = controller._term
        return (term is not None and broker in term.context.suspected) or any(
            isinstance(event, events.BrokerSuspected) and event.broker == broker
            for event in controller._queue._events
        )

    def suspect(self, broker: BrokerId) -> None:
        """The connection is reset and the port refuses, or seems to."""
        link = self.links.get(broker)
        if link is not None and not link.queue.is_suspected:
            link.under_way = None
            self._report(link.queue.suspect())

    def clear_suspicion(self, broker: BrokerId) -> None:
        link = self.links.get(broker)
        if link is not None and link.queue.is_suspected:
            self._report(link.queue.returned())

    def _answered(self, broker: BrokerId, link: Link, token: object, response: Any) -> None:
        if link.under_way is token and self.links.get(broker) is link:
            link.under_way = None
            event = link.queue.answered(response)
            if event is not None:
                self._report(event)
