"""Connections from this broker's coordinators to other brokers, for markers and for verification.

One thread with one event loop runs all links: a link per broker, with one connection that is opened by its
first request and kept. Requests are pipelined; a `Window` bounds how many a sender has in flight. A request
is never sent again here: it fails, and its sender looks up the leader or coordinator again, which may be
another broker by then. It fails at once if the broker is not alive, if its connection is lost or refused, or
if the controller removes the broker or registers it again; otherwise at its time-out. After a failure it may
still have been carried out.

`BrokerLinks.send` may be called on any thread and under any lock; answers come on the links' thread, without
a lock, or never after `stop`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from barnabas.broker.base.contained import contained
from barnabas.broker.cluster.metadata_cache import MetadataCache
from barnabas.common.channel import Channel
from barnabas.common.security.channel_security import PLAINTEXT, ChannelSecurity
from barnabas.common.threads import LoopThread
from barnabas.protocol.errors import ConnectionClosed, LocalError
from barnabas.protocol.ids import BrokerEpoch, BrokerId, Endpoint
from barnabas.protocol.schema import RequestOf

logger = logging.getLogger(__name__)

_NEVER_IDLE_MS: Final = 2**31 - 1
_CONNECT_TIMEOUT_MS: Final = 2_000
_RECONNECT_BACKOFF_MS: Final = 20
_RECONNECT_BACKOFF_MAX_MS: Final = 500

_GONE: Final = "the broker is gone or has registered again"
_UNHANDLED: Final = "the answer of a broker could not be handled"

R = TypeVar("R")
T = TypeVar("T")
Answer = Callable[[R | LocalError], None]
"""Takes the response, or the reason that there is none."""


class _Registration(NamedTuple):
    """One life of a broker, and its address on the inter-broker listener."""

    broker_epoch: BrokerEpoch
    endpoint: Endpoint


class _Link(NamedTuple):
    registration: _Registration
    channel: Channel


class BrokerLinks:
    """``listener`` is the name of the inter-broker listener."""

    def __init__(
        self,
        broker_id: BrokerId,
        metadata: MetadataCache,
        *,
        listener: str,
        request_timeout_ms: int,
        on_fatal: Callable[[BaseException], None],
        security: ChannelSecurity = PLAINTEXT,
    ) -> None:
        self._metadata = metadata
        self._listener = listener
        self._client_id = f"broker-{broker_id}-coordinator"
        self._request_timeout_ms = request_timeout_ms
        self._security = security
        self._links: dict[BrokerId, _Link] = {}
        self.thread = LoopThread("broker-links", on_fatal=on_fatal, on_stop=self._close_all)

    def start(self) -> None:
        self._metadata.on_update(self._brokers_changed)
        self.thread.start()

    def stop(self) -> None:
        """Close all connections and end the thread. Idempotent."""
        if not self.thread.stop():
            logger.error("the thread of the coordinators' links did not end in time")

    def send(
        self, broker_id: BrokerId, request: RequestOf[R], answer: Answer[R], *, timeout_ms: int | None = None
    ) -> None:
        """Send a request to another broker; ``answer`` is called once, later, on the links' thread.

        ``timeout_ms`` includes connecting; the default is that of the links.
        """
        self.thread.call(self._send, broker_id, request, answer, timeout_ms)

    def _send(
        self, broker_id: BrokerId, request: RequestOf[Any], answer: Answer[Any], timeout_ms: int | None
    ) -> None:
        link = self._link_to(broker_id)
        if link is None:
            contained(_UNHANDLED, answer, ConnectionClosed(f"broker {broker_id} is not alive"))
        else:
            self.thread.spawn(self._exchange(link.channel, request, answer, timeout_ms))

    async def _exchange(
        self, channel: Channel, request: RequestOf[Any], answer: Answer[Any], timeout_ms: int | None
    ) -> None:
        response: Any
        try:
            response = await channel.request(request, timeout_ms=timeout_ms)
        except LocalError as error:
            response = error
        contained(_UNHANDLED, answer, response)

    def _link_to(self, broker_id: BrokerId) -> _Link | None:
        """The link to the present registration of a broker; None if it has none."""
        self._drop_stale()
        link, current = self._links.get(broker_id), self._registration(broker_id)
        if link is None and current is not None:
            channel = Channel(
                current.endpoint,
                client_id=self._client_id,
                request_timeout_ms=self._request_timeout_ms,
                connect_timeout_ms=_CONNECT_TIMEOUT_MS,
                reconnect_backoff_ms=_RECONNECT_BACKOFF_MS,
                reconnect_backoff_max_ms=_RECONNECT_BACKOFF_MAX_MS,
                connections_max_idle_ms=_NEVER_IDLE_MS,
                security=self._security,
            )
            link = self._links[broker_id] = _Link(current, channel)
        return link

    def _registration(self, broker_id: BrokerId) -> _Registration | None:
        current = self._metadata.current
        broker_epoch = current.broker_epoch(broker_id)
        endpoint = current.endpoint(broker_id, self._listener)
        if broker_epoch is None or endpoint is None:
            return None
        return _Registration(broker_epoch, endpoint)

    def _brokers_changed(self, topics: Iterable[str]) -> None:
        """Fail the requests in flight to brokers that are gone. Called on the threads that learn metadata."""
        if self._links:
            self.thread.call(self._drop_stale)

    def _drop_stale(self) -> None:
        for broker_id, link in list(self._links.items()):
            if link.registration != self._registration(broker_id):
                del self._links[broker_id]
                link.channel.close(_GONE)

    def _close_all(self) -> None:
        for link in self._links.values():
            link.channel.close(_GONE)


@dataclass(slots=True)
class _Queue(Generic[T]):
    in_flight: int = 0
    waiting: deque[T] = field(default_factory=deque)


class Window(Generic[T]):
    """Sends items to brokers, with at most ``max_in_flight`` requests to one broker at a time.

    An item is sent at once if another request is allowed. Otherwise it waits, and an answer sends the next
    request, of the items that ``take`` removes from those that wait. ``take`` is called under the lock,
    ``make_request`` and ``answered`` without it. Any thread.
    """

    def __init__(
        self,
        links: BrokerLinks,
        *,
        max_in_flight: int,
        take: Callable[[deque[T]], list[T]],
        make_request: Callable[[list[T]], Any],
        answered: Callable[[BrokerId, list[T], Any], None],
        max_waiting: int = sys.maxsize,
        timeout_ms: int | None = None,
    ) -> None:
        self._links = links
        self._max_in_flight = max_in_flight
        self._take = take
        self._make_request = make_request
        self._answered = answered
        self._max_waiting = max_waiting
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        # Invariant: items wait only while as many requests as allowed are in flight.
        self._queues: dict[BrokerId, _Queue[T]] = defaultdict(_Queue)

    def put(self, broker_id: BrokerId, item: T) -> bool:
        """Send an item; False if too many wait already."""
        with self._lock:
            queue = self._queues[broker_id]
            if len(queue.waiting) >= self._max_waiting:
                return False
            queue.waiting.append(item)
        self._send_next(broker_id)
        return True

    def waiting(self) -> list[T]:
        with self._lock:
            return [item for queue in self._queues.values() for item in queue.waiting]

    def withdraw(self, is_unwanted: Callable[[T], bool]) -> list[T]:
        """Remove such items from those that wait, and return them."""
        withdrawn: list[T] = []
        with self._lock:
            for queue in self._queues.values():
                waiting, queue.waiting = queue.waiting, deque()
                for item in waiting:
                    (withdrawn if is_unwanted(item) else queue.waiting).append(item)
        return withdrawn

    def _send_next(self, broker_id: BrokerId) -> None:
        while items := self._next(broker_id):
            answer = partial(self._settle, broker_id, items)
            self._links.send(broker_id, self._make_request(items), answer, timeout_ms=self._timeout_ms)

    def _next(self, broker_id: BrokerId) -> list[T]:
        with self._lock:
            queue = self._queues[broker_id]
            if queue.in_flight >= self._max_in_flight or not queue.waiting:
                return []
            items = self._take(queue.waiting)
            queue.in_flight += bool(items)
            return items

    def _settle(self, broker_id: BrokerId, items: list[T], answer: Any) -> None:
        with self._lock:
            self._queues[broker_id].in_flight -= 1
        # Waiting items are sent first, because the outcomes may cause appends.
        self._send_next(broker_id)
        self._answered(broker_id, items, answer)
