"""The rules of the controller's link to one broker: the requests to send, and the events of their answers.

Requests are sent in order, one at a time. The first stays in the queue until it is answered, so a request
that is sent again keeps its number. Batches after it are merged (see `barnabas.controller.request_batch`).
Requests for a suspect broker are dropped, because the controller sends it everything when it returns.

A queue belongs to one registration of the broker and to one thread. It has no socket and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from barnabas.controller.events import (
    BrokerReturned,
    BrokerSuspected,
    LeaderAndIsrAnswered,
    LinkFailed,
    StopReplicaAnswered,
)
from barnabas.controller.request_batch import BrokerBatch, ControllerRequest
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch
from barnabas.protocol.messages import inter_broker as wire

ControllerResponse = wire.LeaderAndIsrResponse | wire.UpdateMetadataResponse | wire.StopReplicaResponse

_STALE: Final = frozenset({ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_BROKER_EPOCH})
"""Another controller, or this one for a newer registration, sends such a broker everything."""


class LinkQueue:
    """`sequences` numbers the requests of all links of a controller."""

    def __init__(
        self,
        controller: BrokerId,
        epoch: ControllerEpoch,
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        sequences: Iterator[int],
        *,
        is_suspected: bool,
    ) -> None:
        self.broker_epoch = broker_epoch
        self.is_suspected = is_suspected
        self.waiting: deque[BrokerBatch] = deque()
        self._requests: deque[ControllerRequest] = deque()
        """The rest of the batch that is being sent."""
        self.lacks_metadata = False
        """The broker failed to apply an UpdateMetadata, and has applied no full one since."""
        self._lost_requests = False
        """Requests were dropped, and the broker has not been sent everything since."""
        self._controller = controller
        self._epoch = epoch
        self._registration = (epoch, broker, broker_epoch)
        self._sequences = sequences

    @property
    def is_in_batch(self) -> bool:
        """Whether a part of a batch has been sent."""
        return bool(self._requests)

    def __bool__(self) -> bool:
        """Whether there are requests to send."""
        return bool(self._requests or self.waiting)

    def add(self, batch: BrokerBatch) -> None:
        # Changes without those that were dropped before would pass for all that the broker does not know yet.
        self._lost_requests = self._lost_requests and not batch.is_full
        if self.is_suspected or self._lost_requests:
            return
        if not self.waiting or not self.waiting[-1].merge(batch):
            self.waiting.append(batch)

    def first(self) -> ControllerRequest | None:
        """The request to send or resend now; None if the queue is empty."""
        while not self._requests and self.waiting:
            batch = self.waiting.popleft()
            self._requests.extend(batch.requests(self._controller, self._epoch, self.broker_epoch))
            for request in self._requests:
                # By this number the broker recognises late copies.
                request.sequence = next(self._sequences)
        return self._requests[0] if self._requests else None

    def answered(
        self, response: ControllerResponse
    ) -> LeaderAndIsrAnswered | StopReplicaAnswered | LinkFailed | None:
        """Remove the first request; returns the event for its answer.

        `LinkFailed` after an UpdateMetadata that was not applied: report it after a pause. The other requests
        stay, since the next full UpdateMetadata may fail as well.
        """
        request = self._requests.popleft()
        if isinstance(request, wire.LeaderAndIsrRequest) and isinstance(response, wire.LeaderAndIsrResponse):
            return LeaderAndIsrAnswered(*self._registration, request, response)
        if isinstance(request, wire.StopReplicaRequest) and isinstance(response, wire.StopReplicaResponse):
            return StopReplicaAnswered(*self._registration, request, response)
        if not isinstance(request, wire.UpdateMetadataRequest) or response.error_code in _STALE:
            return None
        if response.error_code == ErrorCode.NONE:
            self.lacks_metadata = self.lacks_metadata and not request.is_full
            return None
        self.lacks_metadata = True
        return LinkFailed(*self._registration)

    def suspect(self) -> BrokerSuspected:
        """Drop all requests, because the broker was declared dead."""
        self.is_suspected = True
        self._clear()
        return BrokerSuspected(*self._registration)

    def probe(self) -> wire.LeaderAndIsrRequest:
        """A request that checks the registration of a suspect broker and changes nothing."""
        return wire.LeaderAndIsrRequest(
            controller_id=self._controller,
            controller_epoch=self._epoch,
            broker_epoch=self.broker_epoch,
            topic_states=[],
            live_brokers=[],
        )

    def returned(self) -> BrokerReturned:
        """The suspect broker has answered a probe."""
        self.is_suspected = False
        return BrokerReturned(*self._registration)

    def failed(self) -> LinkFailed:
        """Drop all requests after an error; the event makes the controller resend everything."""
        self._lost_requests = True
        self._clear()
        return LinkFailed(*self._registration)

    def _clear(self) -> None:
        self.waiting.clear()
        self._requests.clear()
